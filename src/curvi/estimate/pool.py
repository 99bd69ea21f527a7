"""Draws of several q, reused at another one by mixture importance weights.

A draw x of the pool came from the mixture of the q's that its batches were drawn from, whichever it was. So its weight
at the present q is q(x) / sum_k (n_k / n) q_k(x) (Veach and Guibas 1995: the balance heuristic), which the present
batch keeps bounded.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from curvi.family import Family
from curvi.record.plain import register
from curvi.record.pytree import pytree

# ln q and the whitened scores of each of the rows x.
ScoresAt = Callable[[Family, Any], tuple[np.ndarray, np.ndarray]]


@register
@pytree
class Batch:
    """Draws of one q in working coordinates, with ln p, ln q and whitened scores."""

    q: Family
    x: Any
    log_p: np.ndarray
    log_q: np.ndarray
    scores: np.ndarray
    worth: float = 1.0  # mean weight of its draws where the pool was last viewed from

    def __len__(self) -> int:
        return len(self.log_p)

    def finite(self) -> np.ndarray:
        return np.isfinite(self.log_p) & np.isfinite(self.log_q) & np.all(np.isfinite(self.scores), 1)

    def only(self, rows) -> "Batch":
        x = jax.tree.map(lambda part: part[rows], self.x)
        return Batch(self.q, x, self.log_p[rows], self.log_q[rows], self.scores[rows])


@dataclasses.dataclass(frozen=True)
class View:
    """The pool as seen from one q: rows worth using, with their weights."""

    scores: np.ndarray  # whitened
    ratios: np.ndarray  # ln p - ln q
    weights: np.ndarray

    @property
    def effective_size(self) -> float:
        return float(self.weights.sum() ** 2 / np.sum(self.weights**2))


@register
@pytree
class Pool:
    """Batches, and ln q of every batch's q at the draws of every batch: `log_q[asked][drawn]`."""

    batches: tuple[Batch, ...] = ()
    log_q: tuple[tuple[np.ndarray, ...], ...] = ()

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def add(self, batch: Batch, scores_at: ScoresAt, capacity: int, most: int) -> "Pool":
        """The pool with one more batch, kept to about `capacity` draws and `most` batches: those that weigh least go
        first, in all or by the draw.
        """
        pool = self._with(batch, scores_at)
        while len(pool.batches) > most:
            pool = pool._without(min(range(len(pool.batches) - 1), key=lambda i: pool._weight(i)))
        while len(pool) > capacity and len(pool.batches) > 1:
            least = min(range(len(pool.batches) - 1), key=lambda i: pool.batches[i].worth)
            if len(pool) - len(pool.batches[least]) < capacity / 2:
                break  # a batch larger than all others: without it little would be left
            pool = pool._without(least)
        return pool

    def _weight(self, index: int) -> float:
        return self.batches[index].worth * len(self.batches[index])

    def _with(self, batch: Batch, scores_at: ScoresAt) -> "Pool":
        others = [old.q for old in self.batches]
        known = tuple((*row, scores_at(q, batch.x)[0]) for row, q in zip(self.log_q, others))
        own = _split(scores_at(batch.q, _stack([b.x for b in self.batches]))[0], self.batches) if self.batches else ()
        return Pool((*self.batches, batch), (*known, (*own, batch.log_q)))

    def _without(self, index: int) -> "Pool":
        drop = lambda items: tuple(item for i, item in enumerate(items) if i != index)  # noqa: E731
        return Pool(drop(self.batches), tuple(drop(row) for row in drop(self.log_q)))

    def view(self, q: Family, scores_at: ScoresAt, least: float = 1e-2) -> tuple["Pool", View]:
        """Rows whose weight, or weight times the square of their scores, is at least `least`; and the pool, with what
        each batch is worth from here.
        """
        log_q, scores = scores_at(q, _stack([batch.x for batch in self.batches]))
        log_p = np.concatenate([batch.log_p for batch in self.batches])
        shares = np.log([len(batch) / len(self) for batch in self.batches])
        densities = np.stack([share + np.concatenate(row) for share, row in zip(shares, self.log_q)])
        weights = np.exp(log_q - np.logaddexp.reduce(densities, 0))
        # A rare value of a discrete factor has a small weight and a large score: it is what little is known of it.
        use = weights * np.maximum(1.0, np.mean(scores**2, 1))
        worths = [float(part.mean()) for part in _split(use, self.batches)]
        batches = tuple(dataclasses.replace(b, worth=worth) for b, worth in zip(self.batches, worths))
        useful = use >= least
        return Pool(batches, self.log_q), View(scores[useful], (log_p - log_q)[useful], weights[useful])


def _split(values: np.ndarray, batches) -> tuple[np.ndarray, ...]:
    return tuple(np.split(values, np.cumsum([len(batch) for batch in batches])[:-1]))


def _stack(parts):
    return jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
