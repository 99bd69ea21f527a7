"""From independent normal factors to a joint normal distribution: what can be widened, and within which budget."""

import dataclasses

import numpy as np

from curvi.family.continuous import Normal
from curvi.family.layout import Layout

# Largest numbers of parameters of the joint normal. With continuous latents alone: 1,024 dimensions, half a million.
MAX_PARAMS = 525_824
# Beside discrete latents, where the metric is a dense matrix of the parameters: 64 dimensions, a minute on two cores.
MAX_PARAMS_BESIDE_DISCRETE = 2_144
_MAX_PARAMS = 2**26  # of sparse families


def full_rank_params(dimension: int) -> int:
    """Number of parameters of a normal distribution with mean and triangular factor."""
    return dimension * (dimension + 3) // 2


def why_not_full_rank(layout: Layout, max_params: int | None = None) -> str | None:
    """Why a factorised q of this layout has no full-rank q that equals it, as a sentence; None if it has one."""
    if (why := why_not_joint(layout, "FullRank")) is not None:
        return why
    continuous = [slot for slot in layout.slots if not slot.latent.discrete]
    beside_discrete = len(continuous) < len(layout.slots)
    return _over_budget(sum(slot.count for slot in continuous), beside_discrete, max_params)


def _over_budget(dimension: int, beside_discrete: bool, max_params: int | None) -> str | None:
    """Why a full-rank q of this dimension is refused; None if it is within the budget."""
    usual = MAX_PARAMS_BESIDE_DISCRETE if beside_discrete else MAX_PARAMS
    budget, wanted = usual if max_params is None else max_params, full_rank_params(dimension)
    if wanted <= budget:
        return None
    where = " beside discrete latents" if beside_discrete and max_params is None else ""
    most = int((8 * max(budget, 0) + 9) ** 0.5 - 3) // 2
    return (
        f"FullRank has a budget of {budget:,} parameters{where}, which are at most {most:,} dimensions; here are "
        f"{dimension:,}, which take {wanted:,} parameters: use MeanField, or, where memory allows, "
        f"FullRank(target, max_params={wanted})"
    )


def widened(layout: Layout, params: np.ndarray, max_params: int | None = None) -> tuple[Layout, np.ndarray]:
    """The layout and parameters of the full-rank q that equals a factorised one; ValueError where there is none.

    The parameters of the normal factors become means, logarithms of the factor's diagonal, and the strict lower
    triangle, which is zero.
    """
    if (why := why_not_full_rank(layout, max_params)) is not None:
        raise ValueError(why)
    layout, parts = normal_first(layout, params)
    num_below = full_rank_params(layout.counts[0]) - 2 * layout.counts[0]
    return layout, with_zeros(parts, num_below)


def normal_first(layout: Layout, params: np.ndarray) -> tuple[Layout, list[np.ndarray]]:
    """The layout with the group of normal factors first; their means and ln scales, and the parameters of the rest."""
    normal = next(i for i, factor in enumerate(layout.factors) if isinstance(factor, Normal))
    order = [normal, *(i for i in range(len(layout.factors)) if i != normal)]
    parts = np.split(params, np.cumsum([factor.num_params * n for factor, n in layout.groups])[:-1])
    slots = tuple(dataclasses.replace(slot, group=order.index(slot.group)) for slot in layout.slots)
    factors, counts = tuple(layout.factors[i] for i in order), tuple(layout.counts[i] for i in order)
    mean, log_scale = parts[normal].reshape(-1, 2).T
    return Layout(factors, counts, slots), [mean, log_scale, *(parts[i] for i in order[1:])]


def with_zeros(parts: list[np.ndarray], count: int) -> np.ndarray:
    """The parts joined, with so many zeros after means and ln scales."""
    mean, log_scale, *rest = parts
    return np.concatenate([mean, log_scale, np.zeros(count, mean.dtype), *rest])


def why_not_joint(layout: Layout, name: str) -> str | None:
    """Why a factorised q of this layout cannot become a joint normal of continuous latents, as a sentence; None if it
    can.
    """
    continuous = [slot for slot in layout.slots if not slot.latent.discrete]
    if others := [slot.latent.name for slot in continuous if not isinstance(layout.factor_of(slot), Normal)]:
        return f"{name} is a joint normal of the continuous latents; the factors of {', '.join(others)} are not Normal"
    if not continuous:
        names = ", ".join(latent.name for latent in layout.latents)
        return f"{name} needs a continuous latent, and {names} are discrete; use MeanField"
    return None


def over_budget(layout: Layout, wanted: int, what: str, remedy: str) -> str | None:
    """Why a sparse joint normal with so many parameters is refused; None if memory may be asked for them."""
    beside_discrete = len(layout.factors) > 1
    most = MAX_PARAMS_BESIDE_DISCRETE if beside_discrete else _MAX_PARAMS
    if wanted <= most:
        return None
    where = " beside discrete latents" if beside_discrete else ""
    return f"{what} takes {wanted:,} parameters, of at most {most:,} parameters{where}: {remedy}"


def ledermann_bound(dimension: int) -> int:
    """The largest rank of a low-rank part that a diagonal one beside it leaves identified: with more the two have more
    parameters than a covariance.
    """
    return int((2 * dimension + 1 - (8 * dimension + 1) ** 0.5) / 2 + 1e-9)
