"""What is left to gain where the steps ran out: climb on without moving q, and compare both ends on fresh draws.

Far from a maximum the Newton decrement is that of a quadratic which the ELBO is not: of x - exp(x), say, it promises
half of what there is, and where the ELBO curves upwards nothing at all. Steps that are taken see the ELBO as it is.
"""

import dataclasses

import numpy as np

from curvi.certify.fixed_draws import draws_bias, remaining_gain
from curvi.control.climb import LEAST_EFFECTIVE, End, climb_step
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.noise import FixedNoise
from curvi.estimate.fixed_draws.objective import Objective
from curvi.family.path import NormalPath


@dataclasses.dataclass(frozen=True)
class Ahead:
    """Where a look ahead came to, and what is left to gain from there."""

    params: np.ndarray
    left: float  # nats
    error: float
    done: bool  # whether the climb came to its end


def look_ahead(
    objective: Objective,
    local: FixedDrawsModel,
    radius: float,
    gain_tolerance: float,
    max_steps: int,
    stream: tuple[int, ...],
) -> Ahead:
    """Climb from a local model on the noise that it has, at most `max_steps` far."""
    end = None if local.finite() else End.BAD_START
    while end is None and max_steps > 0:
        climbed = climb_step(objective, local, radius, gain_tolerance)
        local, radius, end, max_steps = climbed.local, climbed.radius, climbed.end, max_steps - 1
    if end is End.DONE and not objective.num_score_params:
        # The maximum on these draws: the true one is as much higher as their bias, of which this is a single copy.
        # Weighted draws may not show a value of a discrete latent at all, and would not know what they miss.
        bias = draws_bias(local).nats
        return Ahead(local.params, bias, bias, True)
    rest, _ = remaining_gain(objective, local.params, stream, local.fixed.num_draws)
    return Ahead(local.params, rest.nats, rest.error, end is End.DONE)


def gained_between(
    objective: Objective, before: np.ndarray, after: np.ndarray, fixed: FixedNoise
) -> tuple[float, float] | None:
    """How much higher the ELBO is at `after` than at `before`, and its standard error, on the same draws.

    None where these are drawn at `before` and say little of `after`.
    """
    here, there = (objective(params, fixed) for params in (before, after))
    if there.effective < LEAST_EFFECTIVE:
        return None
    moves = there.part_means(fixed.num_parts) - here.part_means(fixed.num_parts)
    path = objective.path
    if fixed.excess is not None and objective.expansion is not None and isinstance(path, NormalPath):
        parts, scale = fixed.parts(fixed.num_parts), path.scale
        excess = [objective.expansion.part_excess(parts, scale(params))[0] for params in (before, after)]
        moves = moves - (excess[1] - excess[0])
    return there.value - here.value, float(np.std(moves, ddof=1) / len(moves) ** 0.5)
