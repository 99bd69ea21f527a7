"""Consistency checks before a fit is called converged: are ln p, its gradient and its Hessian consistent with one
smooth function, and is there a direction of increase that the draws missed?
"""

import dataclasses

import equinox as eqx
import jax
import numpy as np

from curvi.certify.fixed_draws import solve
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.objective import Objective
from curvi.estimate.fixed_draws.sweep import LEAST_PARTS
from curvi.family import Family
from curvi.family.normal_path import NormalPath
from curvi.family.path import HostPath
from curvi.outcome import Outcome

_MATERIAL = 0.02  # a whitened gradient of this size is worth 0.0002 nats: smaller differences are ignored
# Cap on the standard error of the pathwise gradient (whitened: 0.03 nats): derivatives of ripples of ln p much finer
# than q can be so noisy that no contradiction would be significant.
_LARGEST_PATH_ERROR = 0.25
_LARGEST_Z = 6.0  # with hundreds of parameters a z of 4 occurs by chance, one of 6 does not
# With so many parameters, some standard errors from the parts of the noise are too small by chance: they are raised to
# the median of their kind. Single z-scores have little power then: the scales are also tested jointly, and for this one
# test a z of 4 is significant.
_MANY, _LARGEST_Z_OF_ALL = 1000, 4.0
_SECANT_DRAWS = 128
_SECANT = 0.1  # step in sds of q: wide enough to cross kinks, small enough for smooth densities to be nearly quadratic
# Relative discrepancy of Hessian-vector products and secants. Up to 1 the products may be too small (they miss the
# curvature of kinks), which overstates the remaining gain; beyond 1 they are too large, which understates it.
LARGEST_DISCREPANCY, SUSPECT_DISCREPANCY = 1.0, 0.5
_FLAT = 1e-3  # whitened curvature that does not matter where the secant sees none
_PROBE_PRODUCTS, _PROBE_RESIDUAL = 50, 1e-2


@dataclasses.dataclass(frozen=True)
class Doubt:
    """A failed check, and weights of the parameters that show it most, if known."""

    outcome: Outcome
    weights: np.ndarray | None = None


def smoothness(
    objective: Objective, local: FixedDrawsModel, stream: int, largest: float, few: FixedDrawsModel | None = None
) -> Doubt | None:
    """A doubt if values, gradients and Hessian-vector products are inconsistent, else None.

    The noise of `local` must not have matched moments; products are tested on the draws of `few`, if given.
    """
    if not np.all(np.isfinite(local.draw_values)):
        return Doubt(Outcome.NON_FINITE, where_not_finite(local))
    path = objective.path
    # The scores of a dense factor are many: they are compared where they are few.
    affordable = isinstance(path, NormalPath) or objective.num_params <= _MANY
    if isinstance(path, HostPath) and affordable and not objective.target.minibatched:
        doubt = _gradient_doubt(objective, path, local, stream)
        if doubt is not None:
            return doubt
    apart, size = _secant(objective, local, stream, few)
    # The test is skipped if ln p is not finite at the ends of the secant.
    total = np.linalg.norm(size)
    if np.isfinite(total) and np.linalg.norm(apart) > max(largest * total, _FLAT):
        return Doubt(Outcome.DISAGREEMENT, np.abs(apart))
    return None


def _gradient_doubt(objective: Objective, path: HostPath, local: FixedDrawsModel, stream: int) -> Doubt | None:
    """A doubt if the pathwise gradient is inconsistent with the values, else None."""
    z, size = _disagreement(path, local), objective.num_params
    largest = np.full(z.shape, _LARGEST_Z)
    largest[size:] = _LARGEST_Z_OF_ALL
    if not np.any(np.abs(z) > largest):
        return None
    # With hundreds of heavy-tailed terms one may be significant by chance: repeat the test on fresh noise.
    fixed = objective.noise(local.params, (stream, 2), local.fixed.num_draws, local.fixed.num_parts, match=False)
    again = _disagreement(path, objective(local.params, fixed))
    # The sign may differ in the repetition: derivatives of fine ripples are wrong with either sign.
    by_chance = (np.sign(z) * again <= largest / 2) & (np.abs(again) <= largest)
    twice = (np.abs(z) > largest) & ~by_chance
    if not np.any(twice):
        return None
    # If the joint test of the scales fails, all parameters are suspects.
    return Doubt(Outcome.DISAGREEMENT, np.abs(z[:size]) * (twice[:size] | np.any(twice[size:])))


def where_not_finite(local: FixedDrawsModel) -> np.ndarray:
    """A weight per parameter: how well the noise of its factor separates draws with finite and non-finite ln p."""
    bad, values = ~np.isfinite(local.draw_values), local.fixed.values
    if not bad.all() and bad.any():
        apart = [np.abs(e[bad].mean(0) - e[~bad].mean(0)) for e in (values, np.abs(values))]
        weights = local.curvature.objective.q.by_noise_column(np.maximum(*apart))
        if weights is not None:
            return weights
    return ~np.isfinite(local.grad) * 1.0


def unseen_direction(objective: Objective, local: FixedDrawsModel, stream: int) -> Doubt | None:
    """A doubt if some direction is flat or has negative curvature, else None.

    The gradient on mirrored draws has no component along a symmetry, so the fit may have missed a saddle or an
    undetermined direction: conjugate gradients from a random vector explore every direction.
    """
    rhs = random_vector(objective, stream) / local.spreads
    local = dataclasses.replace(local, shrinkage=1.0)
    probe = solve(local, rhs, _PROBE_RESIDUAL, _PROBE_PRODUCTS)
    flat = probe.decrement / rhs.size > 0.01 / np.finfo(objective.dtype).eps
    if flat or not (probe.definite and np.isfinite(probe.decrement)):
        return Doubt(Outcome.NOT_A_MAXIMUM, np.abs(probe.x / local.spreads))
    return None


def random_vector(objective: Objective, stream: int) -> np.ndarray:
    """A random direction, which is unlikely to share a symmetry of the model."""
    return objective.source.generator(stream, 3).standard_normal(objective.num_params)


def _secant(
    objective: Objective, local: FixedDrawsModel, stream: int, few: FixedDrawsModel | None
) -> tuple[np.ndarray, np.ndarray]:
    """The secant of the gradient over steps of `_SECANT` sds, less the Hessian-vector product; and the secant.

    On `few` draws where they are given, as they do where the value hardly varies among draws.
    """
    params = local.params
    if few is None:
        few = objective(
            params, objective.noise(params, (stream, 1), min(objective.capacity, _SECANT_DRAWS), match=False)
        )
    scale, fixed = few.spreads, few.curvature.fixed
    # All parameters move by the same number of sds, except those without pathwise gradients.
    along = np.sign(random_vector(objective, stream)) * scale * objective.pathwise_params
    product = few.curvature.mv(along)
    ahead, behind = (objective(params + side * _SECANT * along, fixed).grad for side in (1, -1))
    secant = (ahead - behind) / (2 * _SECANT)
    return (secant - product) * scale, secant * scale


def _disagreement(path: HostPath, local: FixedDrawsModel) -> np.ndarray:
    """A z-score per parameter; with many parameters, one more for all log scales jointly."""
    groups = local.noise.groups
    # Differences of values below rounding error contain no slope.
    precision = np.finfo(local.curvature.objective.dtype).eps
    immaterial = np.hypot(_MATERIAL, precision * np.max(np.abs(local.draw_values)))
    white = path.whiten(local.params, np.concatenate([local.grad[None], groups]))
    path_grad, path_error = white[0], white[1:].std(0, ddof=1) / len(groups) ** 0.5
    if len(groups) < LEAST_PARTS:
        # Two parts know the error of each parameter badly: half of its square is the average over all.
        path_error = np.sqrt((path_error**2 + np.mean(path_error**2)) / 2)
    values = local.fixed.values
    log_ratio = local.draw_values - path.log_q(local.params, values)  # up to a constant
    if not isinstance(path, NormalPath) or len(path_grad) <= _MANY:
        return score_disagreement(_whitened_scores(path, local), log_ratio, path_grad, path_error, immaterial)
    for kind in (path.location(path_error), path.log_scale_entries(path_error)):
        np.maximum(kind, np.median(kind), out=kind)
    z = score_disagreement(_whitened_scores(path, local), log_ratio, path_grad, path_error, immaterial)
    return np.append(z, _scales_disagreement(path, log_ratio, values, groups, immaterial))


def _whitened_scores(path: HostPath, local: FixedDrawsModel) -> np.ndarray:
    """Scores of q at the draws, in coordinates where the metric is the identity."""
    values = local.fixed.values
    if path.has_scores:
        return path.whitened_scores(local.params, values)
    q = local.curvature.objective.q
    dtype = q.params.dtype
    scores = _scores(q.replace(local.params.astype(dtype)), values.astype(dtype))
    return path.whiten(local.params, np.asarray(scores, np.float64))


@eqx.filter_jit
def _scores(q: Family, noise):
    return jax.vmap(lambda e: q.score(q.from_normal(e)))(noise)


def _scales_disagreement(path: NormalPath, log_ratio, noise, part_grads, immaterial: float) -> float:
    """The z-score along the direction that scales all sds equally."""
    unit = (noise.shape[1] * 2) ** -0.5  # whitened, of unit length
    paths = path.log_scale_entries(part_grads).sum(1) * unit
    scores = (noise**2 - 1).sum(1) * unit
    pairs = ((log_ratio - log_ratio.mean()) * scores).reshape(-1, 2).mean(1)
    variances = pairs.var(ddof=1) / len(pairs) + paths.var(ddof=1) / len(paths)
    return float((pairs.mean() - paths.mean()) / np.sqrt(variances + immaterial**2))


def score_disagreement(scores, log_ratio, gradient, gradient_error, immaterial: float) -> np.ndarray:
    """z-scores between the pathwise gradient and the score gradient on the same mirrored draws, whitened.

    The score gradient needs only values of ln p - ln q and is unbiased for any ln p; both estimate the same gradient
    if ln p is smooth.
    """
    centred = log_ratio - log_ratio.mean()
    terms = centred[:, None] * scores - gradient
    pairs = terms.reshape(len(scores) // 2, 2, -1).mean(1)
    allowed = np.minimum(gradient_error, _LARGEST_PATH_ERROR)
    error = np.sqrt(pairs.var(0, ddof=1) / len(pairs) + allowed**2 + immaterial**2)
    return pairs.mean(0) / error
