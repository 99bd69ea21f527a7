"""Consistency checks before a fit is called converged: are ln p, its gradient and its Hessian those of one smooth
function, and is there a direction that no draw has shown?
"""

import dataclasses

import numpy as np

from curvi.certify.fixed_draws import solve
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.objective import Objective
from curvi.family.path import NormalPath
from curvi.outcome import Outcome

_MATERIAL = 0.02  # a whitened gradient of this size is worth 0.0002 nats: rounding is not held against the model
# A pathwise gradient that is less certain than this (whitened: 0.03 nats) is no excuse for a contradiction: ripples
# of ln p that are much finer than q have derivatives of any size.
_LARGEST_PATH_ERROR = 0.25
_LARGEST_Z = 6.0  # over hundreds of parameters a z of 4 is no surprise, one of 6 is
# Of so many parameters some seem all but exact by chance in what the parts of the noise say of their error: none is
# taken to be surer than half of its kind are. And single values are lost in the noise of all others: the scales are
# also tested together, where a z of 4 is a surprise, since there is one.
_MANY, _LARGEST_Z_OF_ALL = 1000, 4.0
_SECANT_DRAWS = 128
_SECANT = 0.1  # in sds of q: wide enough to cross kinks, narrow enough for smooth densities to look quadratic
# Relative discrepancy of Hessian products and secants. Up to 1 products may be too small (they miss the curvature of
# kinks), and then the remaining gain is overstated; beyond, they are too large, and it is understated.
LARGEST_DISCREPANCY, SUSPECT_DISCREPANCY = 1.0, 0.5
_PROBE_PRODUCTS = 50


@dataclasses.dataclass(frozen=True)
class Doubt:
    """What is wrong, and the parameters that show it most (an array of weights), if any do."""

    outcome: Outcome
    weights: np.ndarray | None = None


def smoothness(objective: Objective, local: FixedDrawsModel, stream: int, largest: float) -> Doubt | None:
    """A doubt where values, gradients and Hessian products contradict each other, else None.

    The noise of `local` must be plain, not matched to moments.
    """
    if not np.all(np.isfinite(local.draw_values)):
        return Doubt(Outcome.NON_FINITE, where_not_finite(local))
    if isinstance(objective.path, NormalPath) and not objective.target.minibatched:
        doubt = _gradient_doubt(objective, objective.path, local, stream)
        if doubt is not None:
            return doubt
    apart, size = _secant(objective, local.params, stream)
    # Steps to where ln p is not finite say nothing.
    total = np.linalg.norm(size)
    if np.isfinite(total) and total > 0 and np.linalg.norm(apart) > largest * total:
        return Doubt(Outcome.DISAGREEMENT, np.abs(apart))
    return None


def _gradient_doubt(objective: Objective, path: NormalPath, local: FixedDrawsModel, stream: int) -> Doubt | None:
    """A doubt where the gradient along the draws contradicts the values."""
    z, size = _disagreement(path, local), objective.num_params
    largest = np.full(z.shape, _LARGEST_Z)
    largest[size:] = _LARGEST_Z_OF_ALL
    if not np.any(np.abs(z) > largest):
        return None
    # Among hundreds of heavy-tailed terms one may stand out by chance, but not twice in the same place.
    fixed = objective.noise(local.params, (stream, 2), local.fixed.num_draws, local.fixed.num_parts, match=False)
    again = _disagreement(path, objective(local.params, fixed))
    # Derivatives of fine ripples are wrong with either sign.
    by_chance = (np.sign(z) * again <= largest / 2) & (np.abs(again) <= largest)
    twice = (np.abs(z) > largest) & ~by_chance
    if not np.any(twice):
        return None
    # Where the scales are wrong together, all of them are suspects.
    return Doubt(Outcome.DISAGREEMENT, np.abs(z[:size]) * (twice[:size] | np.any(twice[size:])))


def where_not_finite(local: FixedDrawsModel) -> np.ndarray:
    """A weight per parameter: how well the noise of its factor tells the draws apart at which ln p is not finite."""
    bad, values = ~np.isfinite(local.draw_values), local.fixed.values
    if not bad.all() and bad.any():
        apart = [np.abs(e[bad].mean(0) - e[~bad].mean(0)) for e in (values, np.abs(values))]
        weights = local.curvature.objective.q.by_noise_column(np.maximum(*apart))
        if weights is not None:
            return weights
    return ~np.isfinite(local.grad) * 1.0


def unseen_direction(objective: Objective, local: FixedDrawsModel, stream: int) -> Doubt | None:
    """A doubt where some direction is flat or leads upwards.

    The gradient of mirrored draws has no part along a symmetry, so that a saddle, or a direction that nothing
    determines, may not have shown: conjugate gradients from a random vector see every direction.
    """
    rhs = random_vector(objective, stream) / local.spreads
    probe = solve(local, rhs, _PROBE_PRODUCTS)
    flat = probe.decrement / rhs.size > 0.01 / np.finfo(objective.dtype).eps
    if flat or not (probe.definite and np.isfinite(probe.decrement)):
        return Doubt(Outcome.NOT_A_MAXIMUM, np.abs(probe.x / local.spreads))
    return None


def random_vector(objective: Objective, stream: int) -> np.ndarray:
    """A direction that no symmetry of the model is likely to share."""
    return objective.source.generator(stream, 3).standard_normal(objective.num_params)


def _secant(objective: Objective, params: np.ndarray, stream: int) -> tuple[np.ndarray, np.ndarray]:
    """Change of the gradient over steps of `_SECANT` sds: how far from the Hessian product, and how large."""
    fixed = objective.noise(params, (stream, 1), min(objective.capacity, _SECANT_DRAWS), match=False)
    local = objective(params, fixed)
    scale = local.spreads
    # Every parameter by as much, but for those that derivatives of the model have no part in.
    along = np.sign(random_vector(objective, stream)) * scale * objective.pathwise_params
    product = local.curvature.mv(along)
    ahead, behind = (objective(params + side * _SECANT * along, fixed).grad for side in (1, -1))
    secant = (ahead - behind) / (2 * _SECANT)
    return (secant - product) * scale, secant * scale


def _disagreement(path: NormalPath, local: FixedDrawsModel) -> np.ndarray:
    """A z-score per parameter; of many parameters one more, of all log scales together."""
    groups = local.noise.groups
    # Of draws that rounding does not tell apart, values know no slope.
    precision = np.finfo(local.curvature.objective.dtype).eps
    immaterial = np.hypot(_MATERIAL, precision * np.max(np.abs(local.draw_values)))
    errors = groups.std(0, ddof=1) / len(groups) ** 0.5
    values = local.fixed.values
    log_ratio = local.draw_values + 0.5 * (values**2).sum(1)  # ln q up to a constant
    path_grad, path_error = local.grad * local.spreads, errors * local.spreads
    many = len(path_grad) > _MANY
    if many:
        for kind in (path.location(path_error), path.log_scale_entries(path_error)):
            np.maximum(kind, np.median(kind), out=kind)
    z = score_disagreement(path.whitened_scores(values), log_ratio, path_grad, path_error, immaterial)
    return np.append(z, _scales_disagreement(path, log_ratio, values, groups, immaterial)) if many else z


def _scales_disagreement(path: NormalPath, log_ratio, noise, part_grads, immaterial: float) -> float:
    """The z-score along the direction that widens all scales alike."""
    unit = (noise.shape[1] * 2) ** -0.5  # whitened, of unit length
    paths = path.log_scale_entries(part_grads).sum(1) * unit
    scores = (noise**2 - 1).sum(1) * unit
    pairs = ((log_ratio - log_ratio.mean()) * scores).reshape(-1, 2).mean(1)
    variances = pairs.var(ddof=1) / len(pairs) + paths.var(ddof=1) / len(paths)
    return float((pairs.mean() - paths.mean()) / np.sqrt(variances + immaterial**2))


def score_disagreement(scores, log_ratio, gradient, gradient_error, immaterial: float) -> np.ndarray:
    """z-scores between the pathwise gradient and the score gradient on the same mirrored draws, whitened.

    The score gradient needs values of ln p - ln q alone, and is right for any ln p; both estimate the same gradient
    where ln p is smooth.
    """
    centred = log_ratio - log_ratio.mean()
    terms = centred[:, None] * scores - gradient
    pairs = terms.reshape(len(scores) // 2, 2, -1).mean(1)
    allowed = np.minimum(gradient_error, _LARGEST_PATH_ERROR)
    error = np.sqrt(pairs.var(0, ddof=1) / len(pairs) + allowed**2 + immaterial**2)
    return pairs.mean(0) / error
