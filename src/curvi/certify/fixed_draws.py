"""How many nats are left to gain, and how sure that is: the Newton decrement on fresh draws."""

import dataclasses

import numpy as np

from curvi.descent.trust_region import solve
from curvi.estimate.fixed_draws.objective import FixedNoise, Look, Objective
from curvi.estimate.fixed_draws.sweep import CHUNK
from curvi.record.history import as_finite_or_inf


@dataclasses.dataclass(frozen=True)
class Bias:
    """What the finite draws of a round cost: nats, and the error of the parameters behind them."""

    nats: float
    definite: bool
    error: np.ndarray


def draws_bias(objective: Objective, params: np.ndarray, noise: FixedNoise, look: Look) -> Bias:
    """tr((-H)^-1 Cov g) / 2 nats, by one solve with a copy of the gradient's noise."""
    error = half_difference(objective.corrected_part_grads(params, noise, look))
    found = solve(objective, params, noise, look, error)
    nats = as_finite_or_inf(found.decrement) if found.definite else np.inf
    return Bias(nats, bool(np.isfinite(nats)), found.x)


@dataclasses.dataclass(frozen=True)
class Gain:
    """Remaining gain with its standard error; infinite, with the direction that says so, where -H is not definite."""

    nats: float
    error: float
    noise: FixedNoise
    look: Look
    copy: np.ndarray | None = None  # of the error that such draws leave in the parameters
    upwards: np.ndarray | None = None


def remaining_gain(objective: Objective, params: np.ndarray, stream: tuple[int, ...], num_draws: int) -> Gain:
    """The Newton decrement on fresh draws, less what the noise of their gradient adds to it."""
    # Many parts tell the error best, as long as each has draws enough for its moments to match, and sees all rows.
    least = CHUNK if objective.expansion is not None else max(CHUNK, 2 * objective.dimension)
    least = max(least, objective.epoch)
    num_parts = next((parts for parts in (8, 4) if num_draws >= parts * least), 2)
    noise = objective.noise(params, stream, num_draws, num_parts)
    look = objective(params, noise)
    grads = objective.corrected_part_grads(params, noise, look)
    signal = solve(objective, params, noise, look, look.grad)
    spread = solve(objective, params, noise, look, half_difference(grads))
    for found in (signal, spread):
        if not found.definite:
            return Gain(np.inf, np.inf, noise, look, upwards=found.x)
    # To first order the decrement moves with the gradient along either solution.
    moves = np.stack([grads @ signal.x, grads @ spread.x])
    error = np.sqrt(np.sum(moves.var(1, ddof=1)) / num_parts)
    nats = max(signal.decrement - spread.decrement, 0.0)
    return Gain(as_finite_or_inf(nats), as_finite_or_inf(error), noise, look, copy=spread.x)


def half_difference(parts: np.ndarray) -> np.ndarray:
    """Half the difference of two independent halves: one copy of the error of their mean."""
    half = len(parts) // 2
    return (parts[:half].mean(0) - parts[half:].mean(0)) / 2
