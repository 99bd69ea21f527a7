"""The remaining gain and its standard error: the Newton decrement on fresh fixed draws."""

import dataclasses

import numpy as np

from curvi.certify.gain import Gain, as_finite_or_inf
from curvi.control.climb import MAX_PRODUCTS
from curvi.descent.newton import Solved, solve_curvature
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.objective import Objective
from curvi.estimate.fixed_draws.sweep import CHUNK
from curvi.solve.truncated_cg import HOST

_RESIDUAL = 1e-3


def solve(local: FixedDrawsModel, rhs: np.ndarray, max_products: int = MAX_PRODUCTS) -> Solved:
    """The solution x of -H x = rhs."""
    return solve_curvature(local, rhs, _RESIDUAL, max_products, HOST)


@dataclasses.dataclass(frozen=True)
class Bias:
    """The bias from the finite draws of a round: in nats, and a copy of the error of the parameters."""

    nats: float
    definite: bool
    error: np.ndarray


def draws_bias(local: FixedDrawsModel) -> Bias:
    """tr((-H)^-1 Cov g) / 2 nats, estimated by one solve with a copy of the gradient's noise."""
    found = solve(local, local.noise.copy())
    nats = as_finite_or_inf(found.decrement) if found.definite else np.inf
    return Bias(nats, bool(np.isfinite(nats)), found.x)


def remaining_gain(
    objective: Objective, params: np.ndarray, stream: tuple[int, ...], num_draws: int
) -> tuple[Gain, FixedDrawsModel]:
    """The Newton decrement on fresh draws, corrected for the noise of the gradient, and the local model."""
    # Many parts give the best standard error, if each has enough draws for matched moments and uses all rows.
    least = CHUNK if objective.expansion is not None else max(CHUNK, 2 * objective.dimension)
    least = max(least, objective.source.epoch)
    num_parts = next((parts for parts in (8, 4) if num_draws >= parts * least), 2)
    local = objective(params, objective.noise(params, stream, num_draws, num_parts))
    solved: list[Solved] = []

    def inverse(v):
        solved.append(solve(local, v))
        return solved[-1].x

    nats, error = local.decrement(inverse)
    for found in solved:
        if not found.definite:
            return Gain(np.inf, np.inf, weights=np.abs(found.x / local.spreads)), local
    gain = Gain(as_finite_or_inf(max(nats, 0.0)), as_finite_or_inf(error), copies=(solved[-1].x,))
    return gain, local
