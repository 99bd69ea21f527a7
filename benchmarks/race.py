"""Races: how many steps and calls of the log density a method needs to come within given gaps of the best mean field.

All rates of a grid and all seeds run side by side in one program, and the gap is looked at ever more rarely, so that
its resolution is a fixed share of the steps taken. The race ends when some rate has brought a majority of the seeds to
the smallest gap: the other rates have lost.
"""

import dataclasses
import time
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from problems import Problem

LOOK = 0.05  # the gap is looked at each time the number of steps has grown by this share


@dataclasses.dataclass(frozen=True)
class Entry:
    """A method with one grid: `build(rate)` for a traced rate, or `build(None)` where nothing is tuned."""

    method: str
    setting: dict
    build: Callable
    rates: tuple[float, ...] = ()
    order: str = "first"  # what it uses: "first", "second", or derivatives of the model, "pathwise"


@dataclasses.dataclass(frozen=True)
class Track:
    """One run: its gaps at the looks, and what had been spent by then."""

    rate: float | None
    seed: int
    steps: np.ndarray
    calls: np.ndarray
    log_density: np.ndarray
    gap: np.ndarray
    curvature_weight: float  # mean over all steps
    accepted: float  # share of all steps

    def hit(self, threshold: float) -> int | None:
        """Index of the first look with a gap of at most `threshold`."""
        below = np.flatnonzero(self.gap <= threshold)
        return int(below[0]) if len(below) else None


@dataclasses.dataclass(frozen=True)
class Race:
    tracks: list[Track]
    compile_seconds: float
    run_seconds: float
    max_calls: int


def race(problem: Problem, entry: Entry, seeds, thresholds, max_calls: int, max_seconds: float = 90.0) -> Race:
    """The tracks of all rates and seeds, up to `max_calls` calls each."""
    rates = entry.rates or (None,)
    lanes = [(rate, seed) for rate in rates for seed in seeds]
    keys = jnp.stack([jax.random.key(seed) for _, seed in lanes])
    values = jnp.asarray([0.0 if rate is None else rate for rate, _ in lanes])
    static = {}

    def method(value):
        return entry.build(value if entry.rates else None)

    # The target is an argument, not a constant: XLA would spend its time folding the data.
    data, code = eqx.partition(problem.target, eqx.is_array)

    def start(value, key):
        state = method(value).start(problem.target, problem.start, key)
        dynamic, static["state"] = eqx.partition(state, eqx.is_array)
        return dynamic

    def advance(data, value, key, dynamic, first, num_steps):
        target = eqx.combine(data, code)

        def body(i, carry):
            dynamic, spent = carry
            state = eqx.combine(dynamic, static["state"])
            state, record = method(value).step(target, state, jax.random.fold_in(key, first + i))
            counts = record.counts
            seen = [counts.log_density, counts.gradient, counts.hvp, record.shrinkage, record.accepted]
            return eqx.filter(state, eqx.is_array), spent + jnp.stack([jnp.asarray(part, float) for part in seen])

        dynamic, spent = jax.lax.fori_loop(0, num_steps, body, (dynamic, jnp.zeros(5)))
        return dynamic, spent, problem.gap(eqx.combine(dynamic, static["state"]).q.params)

    began = time.perf_counter()
    dynamic = jax.jit(jax.vmap(start))(values, keys)
    zero = jnp.zeros((), jnp.int32)
    side_by_side = jax.jit(jax.vmap(advance, in_axes=(None, 0, 0, 0, None, None)))
    program = side_by_side.lower(data, values, keys, dynamic, zero, zero).compile()
    compiled = time.perf_counter()

    steps, spent, means, looks = 0, np.zeros((len(lanes), 3), np.int64), np.zeros((len(lanes), 2)), []
    done = np.zeros((len(rates), len(seeds)), bool)
    while True:
        num_steps = max(1, int(np.ceil(LOOK * steps)))
        dynamic, more, gap = program(data, values, keys, dynamic, jnp.int32(steps), jnp.int32(num_steps))
        steps += num_steps
        spent, means = spent + np.asarray(more[:, :3], np.int64), means + np.asarray(more[:, 3:])
        looks.append((steps, spent, np.asarray(gap)))
        arrived = (looks[-1][2] <= min(thresholds)).reshape(len(rates), len(seeds))
        done = done | arrived
        over = time.perf_counter() - compiled > max_seconds
        if np.any(done.mean(1) > 0.5) or spent.sum(1).min() >= max_calls or over:
            break
    tracks = [
        Track(
            rate,
            seed,
            np.array([look[0] for look in looks]),
            np.array([look[1][lane].sum() for look in looks]),
            np.array([look[1][lane][0] for look in looks]),
            np.array([look[2][lane] for look in looks]),
            *(means[lane] / steps),
        )
        for lane, (rate, seed) in enumerate(lanes)
    ]
    return Race(tracks, compiled - began, time.perf_counter() - compiled, int(spent.sum(1).min()))
