"""Newton's method on fixed noise: truncated conjugate gradients inside a ball of given radius in nats."""

import dataclasses
import enum
from collections.abc import Iterator

import numpy as np

from curvi.estimate.fixed_draws.expansion import Expansion
from curvi.estimate.fixed_draws.objective import FixedNoise, Look, Objective

_RESIDUAL, _SOLVE_RESIDUAL = 0.2, 1e-3
MAX_PRODUCTS = 200
# Of weighted draws: no step to where a smaller share counts, and new draws where the share is smaller.
LEAST_EFFECTIVE, _ENOUGH_EFFECTIVE = 0.25, 0.5


class End(enum.Enum):
    """How a climb ended."""

    DONE = "a step promised less than was asked for"
    STUCK = "no step was short enough to be predicted"
    BAD_START = "not finite at the start"
    PRECISION = "steps promise less than the value is rounded to"
    MOVED = "the draws are those of another q by now"


class Metric:
    """L L', the Fisher information of q; -H0 in its place for the means of normal factors."""

    def __init__(self, look: Look, expansion: Expansion | None):
        # Of normal factors L is diagonal. Where conjugate gradients take a few products, more would be felt.
        self.diagonal = look.spreads if look.normal else None
        self.inverse = [] if look.normal else [_inverse_root(block) for block in look.fisher]
        self.expansion = expansion if expansion is not None and expansion.lower is not None else None

    def whiten(self, v: np.ndarray) -> np.ndarray:
        """L^-1 v: takes a gradient to whitened coordinates."""
        return self._means(self._blocks("nij,nj->ni", v), v, "whiten")

    def unwhiten(self, v: np.ndarray) -> np.ndarray:
        """L^-T v: takes a step back from whitened coordinates."""
        return self._means(self._blocks("nji,nj->ni", v), v, "unwhiten")

    def _blocks(self, product: str, v: np.ndarray) -> np.ndarray:
        if self.diagonal is not None:
            return v * self.diagonal
        return np.concatenate([np.einsum(product, inverse, part).ravel() for inverse, part in self._groups(v)])

    def _groups(self, v):
        start = 0
        for inverse in self.inverse:
            n, k, _ = inverse.shape
            yield inverse, v[start : start + n * k].reshape(n, k)
            start += n * k

    def _means(self, out, v, name):
        if self.expansion is not None:
            out[0::2] = getattr(self.expansion, name)(v[0::2])
        return out


def _inverse_root(block: np.ndarray) -> np.ndarray:
    """L^-1; not a number where there is none, which no step survives."""
    try:
        return np.linalg.inv(np.linalg.cholesky(block))
    except np.linalg.LinAlgError:
        return np.full_like(block, np.nan)


@dataclasses.dataclass(frozen=True)
class Solution:
    """Where conjugate gradients ended."""

    x: np.ndarray  # in the coordinates of the parameters; a direction that curves upwards where not definite
    promised: float  # nats that the quadratic model says x gains
    decrement: float  # rhs' x / 2
    length: float  # nats
    num_products: int
    on_edge: bool
    definite: bool


def solve(
    objective: Objective,
    params: np.ndarray,
    noise: FixedNoise,
    look: Look,
    rhs: np.ndarray,
    radius: float = np.inf,
    residual: float = _SOLVE_RESIDUAL,
    max_products: int = MAX_PRODUCTS,
) -> Solution:
    """-H x = rhs at `params`, by truncated conjugate gradients (Steihaug 1983) in the metric of `look`."""
    metric = Metric(look, objective.expansion)
    b = metric.whiten(rhs)
    x, r, d = np.zeros_like(b), b, b
    rr = bb = float(b @ b)
    on_edge, definite, num_products = False, True, 0
    # Inexact Newton (Eisenstat and Walker 1996): digits as the gradient vanishes, so that the end is superlinear.
    residual = min(residual, max(bb**0.25, _SOLVE_RESIDUAL))
    while num_products < max_products and bb > 0:
        num_products += 1
        ad = -metric.whiten(objective.product(params, noise, look, metric.unwhiten(d)))
        bend, dd, xd, xx = d @ ad, d @ d, x @ d, x @ x
        definite = bool(bend > 0)
        if not definite and radius == np.inf:
            # Left at zero, x would read like nothing to gain.
            x = d if np.isfinite(bend) else np.full_like(x, np.nan)
            break
        alpha = rr / bend if definite else np.inf
        on_edge = not definite or xx + alpha * (2 * xd + alpha * dd) >= 2 * radius
        if on_edge:  # |x + alpha d|^2 = 2 radius
            alpha = (np.sqrt(max(xd * xd + dd * (2 * radius - xx), 0.0)) - xd) / dd
        x, r = x + alpha * d, r - alpha * ad
        previous, rr = rr, float(r @ r)
        if on_edge or not rr > residual**2 * bb:
            break
        d = r + rr / previous * d
    promised, decrement, length = float(b @ x + r @ x) / 2, float(b @ x) / 2, float(x @ x) / 2
    return Solution(metric.unwhiten(x), promised, decrement, length, num_products, on_edge, definite)


@dataclasses.dataclass(frozen=True)
class Step:
    """The state after a step; the first of a climb is its start."""

    params: np.ndarray
    look: Look
    radius: float
    gain: float  # that was promised before the step, infinite where curvature was negative
    accepted: bool
    num_products: int = 0
    end: End | None = None


def climb(
    objective: Objective, noise: FixedNoise, params: np.ndarray, radius: float, gain_tolerance: float
) -> Iterator[Step]:
    """Steps up the ELBO on fixed noise until one promises less than `gain_tolerance` nats; the ratio test is on
    common draws.
    """
    resolution = np.finfo(objective.dtype).eps
    look = objective(params, noise)
    yield Step(params, look, radius, np.inf, True, end=None if look.finite else End.BAD_START)
    while True:
        step = solve(objective, params, noise, look, look.grad, radius, _RESIDUAL)
        candidate = objective.admit(params + step.x)
        trial = objective(candidate, noise)
        # Below the rounding of the value a ratio means nothing: such a step counts as predicted.
        rounding = 20 * resolution * (abs(trial.value) + 1)
        lost = step.promised <= rounding
        actual = trial.value - look.value
        ratio = 1.0 if lost and abs(actual) <= 2 * rounding else np.float64(actual) / step.promised
        if not trial.finite or np.isnan(ratio) or trial.effective < LEAST_EFFECTIVE:
            ratio = -1.0
        if ratio < 0.25:
            radius = 0.2 * min(step.length, radius)
        elif ratio > 0.75 and step.on_edge:
            radius *= 4.0 if ratio > 0.9 else 2.5
        accepted = ratio > 0.05
        if accepted:
            params, look = candidate, trial
        end = None
        if accepted and not step.on_edge and step.promised <= gain_tolerance:
            end = End.PRECISION if lost and step.promised > gain_tolerance / 10 else End.DONE
        elif not radius >= resolution:
            end = End.STUCK
        elif look.effective < _ENOUGH_EFFECTIVE:
            end = End.MOVED
        gain = step.promised if step.definite else np.inf
        yield Step(params, look, radius, gain, accepted, step.num_products, end)
