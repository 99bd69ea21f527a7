"""The remaining gain of a fit that ran out of steps: climb on without moving q, and compare both ends on fresh draws.

Far from a maximum the ELBO is not quadratic, and the Newton decrement is wrong: for x - exp(x) it predicts half of the
gain, and where the ELBO curves upwards it is not defined. Actual steps measure the ELBO itself.
"""

import dataclasses

import numpy as np

from curvi.certify.fixed_draws import remaining_gain
from curvi.control.climb import LEAST_EFFECTIVE, End, climb_step
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.noise import FixedNoise
from curvi.estimate.fixed_draws.objective import Objective

_PARTS = 2


@dataclasses.dataclass(frozen=True)
class Ahead:
    """The end of a look ahead, and the remaining gain from there."""

    params: np.ndarray
    left: float  # nats
    error: float
    done: bool  # whether the climb converged


def look_ahead(
    objective: Objective,
    local: FixedDrawsModel,
    radius: float,
    gain_tolerance: float,
    max_steps: int,
    stream: tuple[int, ...],
    num_fresh: int,
) -> Ahead:
    """Climb from a local model on its own noise, with at most `max_steps` steps; the gain from there on fresh draws."""
    end = None if local.finite() else End.BAD_START
    while end is None and max_steps > 0:
        climbed = climb_step(objective, local, radius, gain_tolerance)
        local, radius, end, max_steps = climbed.local, climbed.radius, climbed.end, max_steps - 1
    fresh = objective(local.params, objective.noise(local.params, stream, num_fresh, _PARTS))
    rest = remaining_gain(fresh if objective.num_score_params else fresh.bent(local))
    return Ahead(local.params, rest.nats, rest.error, end is End.DONE)


def gained_between(
    objective: Objective, before: np.ndarray, after: np.ndarray, fixed: FixedNoise
) -> tuple[float, float] | None:
    """How much higher the ELBO is at `after` than at `before`, and its standard error, on the same draws.

    None if these were drawn at `before` and the effective sample size at `after` is too small.
    """
    here, there = (objective(params, fixed) for params in (before, after))
    if there.effective < LEAST_EFFECTIVE:
        return None
    moves = there.part_means(fixed.num_parts) - here.part_means(fixed.num_parts)
    excess = [local.part_excess(fixed.num_parts) for local in (here, there)]
    if excess[0] is not None and excess[1] is not None:
        moves = moves - (excess[1] - excess[0])
    return there.value - here.value, float(np.std(moves, ddof=1) / len(moves) ** 0.5)
