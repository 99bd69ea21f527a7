"""Second thoughts before a fit is called converged: are ln p, its gradient and its Hessian those of one smooth
function, and is there a direction that no draw has shown?
"""

import dataclasses

import numpy as np

from curvi.certify.fixed_draws import Gain
from curvi.descent.trust_region import solve
from curvi.estimate.fixed_draws.objective import FixedNoise, Look, Objective
from curvi.outcome import Outcome

_MATERIAL = 0.02  # a whitened gradient of this size is worth 0.0002 nats: rounding is not held against the model
# A pathwise gradient that is less certain than this (whitened: 0.03 nats) is no excuse for a contradiction: ripples
# of ln p that are much finer than q have derivatives of any size.
_LARGEST_PATH_ERROR = 0.25
_LARGEST_Z = 6.0  # over hundreds of parameters a z of 4 is no surprise, one of 6 is
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


def smoothness(
    objective: Objective, params: np.ndarray, stream: int, noise: FixedNoise, look: Look, largest: float
) -> Doubt | None:
    """A doubt where values, gradients and Hessian products contradict each other, else None.

    `noise` must be plain, not matched to moments, and `look` what was seen on it at `params`.
    """
    if not np.all(np.isfinite(look.log_p)):
        return Doubt(Outcome.NON_FINITE, where_not_finite(noise, look))
    if not objective.target.minibatched and objective.normal:
        z = _disagreement(objective, params, noise, look)
        if np.max(np.abs(z)) > _LARGEST_Z:
            # Among hundreds of heavy-tailed terms one may stand out by chance, but not twice in the same place.
            again_noise = objective.noise(params, (stream, 2), noise.num_draws, match=False)
            again = _disagreement(objective, params, again_noise, objective(params, again_noise))
            # Derivatives of fine ripples are wrong with either sign.
            by_chance = (np.sign(z) * again <= _LARGEST_Z / 2) & (np.abs(again) <= _LARGEST_Z)
            if np.any(twice := (np.abs(z) > _LARGEST_Z) & ~by_chance):
                return Doubt(Outcome.DISAGREEMENT, np.abs(z) * twice)
    apart, size = _secant(objective, params, stream)
    # Steps to where ln p is not finite say nothing.
    total = np.linalg.norm(size)
    if np.isfinite(total) and total > 0 and np.linalg.norm(apart) > largest * total:
        return Doubt(Outcome.DISAGREEMENT, np.abs(apart))
    return None


def where_not_finite(noise: FixedNoise, look: Look) -> np.ndarray:
    """A weight per parameter: how well the noise of its factor tells the draws apart at which ln p is not finite."""
    bad = ~np.isfinite(look.log_p)
    if bad.all() or not bad.any() or look.grad.size != 2 * noise.values.shape[1]:
        return ~np.isfinite(look.grad) * 1.0
    apart = [np.abs(e[bad].mean(0) - e[~bad].mean(0)) for e in (noise.values, np.abs(noise.values))]
    return np.repeat(np.maximum(*apart), 2)


def unseen_direction(objective: Objective, params: np.ndarray, gain: Gain, stream: int) -> Doubt | None:
    """A doubt where some direction is flat or leads upwards.

    The gradient of mirrored draws has no part along a symmetry, so that a saddle, or a direction that nothing
    determines, may not have shown: conjugate gradients from a random vector see every direction.
    """
    rhs = random_vector(objective, stream) / gain.look.spreads
    probe = solve(objective, params, gain.noise, gain.look, rhs, max_products=_PROBE_PRODUCTS)
    flat = probe.decrement / rhs.size > 0.01 / np.finfo(objective.dtype).eps
    if flat or not (probe.definite and np.isfinite(probe.decrement)):
        return Doubt(Outcome.NOT_A_MAXIMUM, np.abs(probe.x / gain.look.spreads))
    return None


def random_vector(objective: Objective, stream: int) -> np.ndarray:
    """A direction that no symmetry of the model is likely to share."""
    return objective.generator(stream, 3).standard_normal(objective.num_params)


def _secant(objective: Objective, params: np.ndarray, stream: int) -> tuple[np.ndarray, np.ndarray]:
    """Change of the gradient over steps of `_SECANT` sds: how far from the Hessian product, and how large."""
    noise = objective.noise(params, (stream, 1), min(objective.capacity, _SECANT_DRAWS), match=False)
    look = objective(params, noise)
    scale = look.spreads
    # Every parameter by as much, but for those that derivatives of the model have no part in.
    along = np.sign(random_vector(objective, stream)) * scale * objective.follows
    product = objective.product(params, noise, look, along)
    ahead, behind = (objective(params + side * _SECANT * along, noise).grad for side in (1, -1))
    secant = (ahead - behind) / (2 * _SECANT)
    return (secant - product) * scale, secant * scale


def _disagreement(objective: Objective, params: np.ndarray, noise: FixedNoise, look: Look) -> np.ndarray:
    parts = objective.corrected_part_grads(params, noise, look)
    # Of draws that rounding does not tell apart, values know no slope.
    immaterial = np.hypot(_MATERIAL, np.finfo(objective.dtype).eps * np.max(np.abs(look.log_p)))
    errors = parts.std(0, ddof=1) / len(parts) ** 0.5
    return score_disagreement(noise.values, look.log_p, look.grad, errors, params, immaterial)


def score_disagreement(noise, log_p, gradient, gradient_error, params, immaterial: float) -> np.ndarray:
    """z-scores between the pathwise gradient and the score gradient of normal factors, on the same mirrored draws.

    The score gradient needs values of ln p alone, and is right for any ln p; both estimate the same gradient where ln p
    is smooth. In whitened coordinates the scores are e and (e^2 - 1) / sqrt 2.
    """
    units = np.stack([np.exp(params[1::2]), np.full(len(params) // 2, 0.5**0.5)], -1)
    path = gradient.reshape(-1, 2) * units
    path_error = np.minimum(gradient_error.reshape(-1, 2) * units, _LARGEST_PATH_ERROR)
    log_ratio = log_p + 0.5 * (noise**2).sum(1)  # ln q up to a constant
    centred = log_ratio - log_ratio.mean()
    scores = np.stack([noise, (noise**2 - 1) / np.sqrt(2)], -1)
    pairs = (centred[:, None, None] * scores - path).reshape(len(noise) // 2, 2, *path.shape).mean(1)
    error = np.sqrt(pairs.var(0, ddof=1) / len(pairs) + path_error**2 + immaterial**2)
    return (pairs.mean(0) / error).reshape(-1)
