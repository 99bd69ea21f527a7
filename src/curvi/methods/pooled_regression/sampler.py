"""Batches of draws at the points of Latin hypercubes, and of rare values, a fixed number per compiled call."""

import jax
import numpy as np

from curvi.estimate.draws import latin_hypercube
from curvi.estimate.pool import Batch
from curvi.estimate.single_values import sought_values
from curvi.family import Family
from curvi.methods.pooled_regression.programs import draw, log_density, padded_to, points, scores_at
from curvi.model.target import AbstractTarget
from curvi.record.counts import CallCounts

_LARGEST_UNIT = 256  # draws per compiled call


class Sampler:
    """Draws batches, and counts evaluations."""

    def __init__(self, target: AbstractTarget, key, size: int, calls: int):
        self.target, self.key, self.calls = target, key, calls
        self.seed = [int(word) for word in np.ravel(jax.random.key_data(key))]
        self.unit = min(size, _LARGEST_UNIT)
        self.counts = CallCounts()

    def draw(self, q: Family, size: int) -> Batch:
        """Draws of q at the points of a Latin hypercube: values of discrete factors occur in proportion."""
        bits = latin_hypercube([*self.seed, self.calls], -(-size // self.unit) * self.unit, q.noise_size)
        parts = []
        for first in range(0, len(bits), self.unit):
            index = np.asarray(self.calls, np.uint32)
            parts.append(draw(self.target, q, bits[first : first + self.unit], self.key, index))
            self.calls += 1
        x = jax.tree.map(lambda *arrays: np.concatenate([np.asarray(a) for a in arrays]), *(part[0] for part in parts))
        log_p = np.concatenate([np.asarray(part[1], np.float64) for part in parts])
        self.counts = self.counts.plus(log_density=len(log_p))
        return Batch(q, x, log_p, *scores_at(q, x))

    def draw_rare(self, q: Family) -> Batch | None:
        """A draw for each value that q finds rare, with all other factors drawn from q; None if there are none."""
        rows = latin_hypercube([*self.seed, self.calls], self.unit, q.noise_size)
        first = jax.tree.map(lambda part: np.asarray(part[0]), points(q, rows))
        every = q.every_value(first)
        if every is None:
            return None
        wanted, sought = sought_values(scores_at(q, every[0])[1], every[1], q.factor_of_param)
        if len(wanted) == 0:
            return None
        bits = latin_hypercube([*self.seed, self.calls, 1], len(wanted), q.noise_size)
        parts, values = [], []
        for begin in range(0, len(wanted), self.unit):
            chosen = wanted[begin : begin + self.unit]
            others = jax.tree.map(np.asarray, points(q, padded_to(self.unit, bits[begin : begin + self.unit])))
            x = [_row(q.every_value(_row(others, i))[0], row) for i, row in enumerate(chosen)]  # pyright: ignore[reportOptionalSubscript]
            x = jax.tree.map(lambda *rows: np.stack(rows), *x)
            values.append(self._values(q, x, len(chosen)))
            parts.append(x)
        x, log_p = jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts), np.concatenate(values)
        log_q, scores = scores_at(q, x)
        batch = Batch(q, x, log_p, log_q + sought.log_ratio(scores), scores, sought=sought)
        return batch.only(batch.finite()) if np.any(batch.finite()) else None

    def _values(self, q: Family, x, count: int) -> np.ndarray:
        """ln p at each row of x; compiled programs see copies of the last row, which are not counted."""
        index = np.asarray(self.calls, np.uint32)
        given = x if self.target.black_box else jax.tree.map(lambda part: padded_to(self.unit, part), x)
        found = np.asarray(log_density(self.target, q, given, self.key, index), np.float64)[:count]
        self.calls += 1
        self.counts = self.counts.plus(log_density=count)
        return found


def _row(x, index: int):
    return jax.tree.map(lambda part: part[index], x)
