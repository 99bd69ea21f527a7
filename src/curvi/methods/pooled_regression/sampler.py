"""Batches of draws at the points of Latin hypercubes, a fixed number per compiled call."""

import jax
import numpy as np

from curvi.estimate.draws import latin_hypercube
from curvi.estimate.pool import Batch
from curvi.family import Family
from curvi.methods.pooled_regression.programs import draw, flatten, scores_at
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

    def draw_rare(self, q: Family, size: int) -> Batch | None:
        """Draws of q with its discrete factors flattened, to evaluate values that are rare under q."""
        if size == 0:
            return None
        batch = self.draw(flatten(q), size)
        return batch.only(batch.finite()) if np.any(batch.finite()) else None
