"""What is left to gain where the steps ran out: climb on without moving q, and compare both ends on fresh draws.

Far from a maximum the Newton decrement is that of a quadratic which the ELBO is not: of x - exp(x), say, it promises
half of what there is, and where the ELBO curves upwards nothing at all. Steps that are taken see the ELBO as it is.
"""

import dataclasses

import numpy as np

from curvi.certify.fixed_draws import draws_bias, remaining_gain
from curvi.descent.trust_region import LEAST_EFFECTIVE, End, climb
from curvi.estimate.fixed_draws.objective import FixedNoise, Objective


@dataclasses.dataclass(frozen=True)
class Ahead:
    """Where a look ahead came to, and what is left to gain from there."""

    params: np.ndarray
    left: float  # nats
    error: float
    done: bool  # whether the climb came to its end


def look_ahead(
    objective: Objective,
    params: np.ndarray,
    noise: FixedNoise,
    radius: float,
    gain_tolerance: float,
    max_steps: int,
    stream: tuple[int, ...],
) -> Ahead:
    """Climb from `params` on noise that is there already, at most `max_steps` far."""
    steps = climb(objective, noise, params, radius, gain_tolerance)
    step = next(steps)
    while step.end is None and max_steps > 0:
        step, max_steps = next(steps), max_steps - 1
    if step.end is End.DONE and not objective.num_rare:
        # The maximum on these draws: the true one is as much higher as their bias, of which this is a single copy.
        # Weighted draws may not show a value of a discrete latent at all, and would not know what they miss.
        bias = draws_bias(objective, step.params, noise, step.look).nats
        return Ahead(step.params, bias, bias, True)
    rest = remaining_gain(objective, step.params, stream, noise.num_draws)
    return Ahead(step.params, rest.nats, rest.error, step.end is End.DONE)


def gained_between(
    objective: Objective, before: np.ndarray, after: np.ndarray, noise: FixedNoise
) -> tuple[float, float] | None:
    """How much higher the ELBO is at `after` than at `before`, and its standard error, on the same draws.

    None where these are drawn at `before` and say little of `after`.
    """
    here, there = (objective(params, noise) for params in (before, after))
    if there.effective < LEAST_EFFECTIVE:
        return None
    moves = there.part_means(noise.num_parts) - here.part_means(noise.num_parts)
    if noise.excess is not None and objective.expansion is not None:
        parts = noise.values.reshape(noise.num_parts, -1, objective.dimension)
        excess = [objective.expansion.part_excess(parts, np.exp(params[1::2]))[0] for params in (before, after)]
        moves = moves - (excess[1] - excess[0])
    return there.value - here.value, float(np.std(moves, ddof=1) / len(moves) ** 0.5)
