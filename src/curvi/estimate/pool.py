"""Draws from several q, reused at another q with mixture importance weights.

The draws of the pool are treated as draws from the mixture of the q_k of its batches. The importance weight of x at the
current q is q(x) / sum_k (n_k / n) q_k(x) (Veach and Guibas 1995: the balance heuristic), bounded because the current
batch is part of the mixture.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from curvi.estimate.single_values import SoughtValues
from curvi.family import Family
from curvi.record.plain import register
from curvi.record.pytree import pytree

# ln q and the whitened scores of each of the rows x.
ScoresAt = Callable[[Family, Any], tuple[np.ndarray, np.ndarray]]


@register
@pytree
class Batch:
    """Draws of one q in working coordinates, with ln p, the log density they were drawn from, and whitened scores.

    Draws that look for rare values have the density of q times that of `sought`.
    """

    q: Family
    x: Any
    log_p: np.ndarray
    log_q: np.ndarray
    scores: np.ndarray
    worth: float = 1.0  # mean importance weight of its draws at the q of the last view
    sought: SoughtValues | None = None

    def __len__(self) -> int:
        return len(self.log_p)

    def finite(self) -> np.ndarray:
        return np.isfinite(self.log_p) & np.isfinite(self.log_q) & np.all(np.isfinite(self.scores), 1)

    def only(self, rows) -> "Batch":
        x = jax.tree.map(lambda part: part[rows], self.x)
        return Batch(self.q, x, self.log_p[rows], self.log_q[rows], self.scores[rows], sought=self.sought)

    def log_density(self, x, scores_at: ScoresAt) -> np.ndarray:
        """The log density that the batch was drawn from, at each of the rows x."""
        log_q, scores = scores_at(self.q, x)
        return log_q if self.sought is None else log_q + self.sought.log_ratio(scores)


@dataclasses.dataclass(frozen=True)
class View:
    """The pool at one q: the useful rows, with the logarithms of their importance weights.

    Weights of a `power` below one let draws count that hardly occur under q: what is regressed with them holds as far
    as the regression does. `effective_size` is of the weights themselves.
    """

    scores: np.ndarray  # whitened
    ratios: np.ndarray  # ln p - ln q
    log_weights: np.ndarray
    power: float = 1.0

    @property
    def weights(self) -> np.ndarray:
        scaled = self.power * self.log_weights
        return np.exp(scaled if self.power == 1 else scaled - scaled.max())

    @property
    def effective_size(self) -> float:
        return _effective_size(np.exp(self.log_weights))

    def tempered(self, wanted: float) -> "View":
        """The view with the largest power at which so many draws are effective, or all of them."""
        known = np.isfinite(self.ratios) & np.isfinite(self.log_weights)
        view = View(self.scores[known], self.ratios[known], self.log_weights[known])
        low, high = 0.0, 1.0
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            enough = _effective_size(dataclasses.replace(view, power=middle).weights) >= wanted
            low, high = (middle, high) if enough else (low, middle)
        return dataclasses.replace(view, power=low)


_BISECTIONS = 40


def _effective_size(weights: np.ndarray) -> float:
    squares = np.sum(weights**2)
    return float(weights.sum() ** 2 / squares) if squares > 0 else 0.0


@register
@pytree
class Pool:
    """Batches, and the log density of every batch at the draws of every batch: `log_q[asked][drawn]`."""

    batches: tuple[Batch, ...] = ()
    log_q: tuple[tuple[np.ndarray, ...], ...] = ()

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def add(self, batch: Batch, scores_at: ScoresAt, capacity: int, most: int) -> "Pool":
        """The pool with one more batch, kept to about `capacity` draws and `most` batches: those with the least
        weight, in total or per draw, are dropped first.
        """
        pool = self._with(batch, scores_at)
        while len(pool.batches) > most:
            pool = pool._without(min(range(len(pool.batches) - 1), key=lambda i: pool._weight(i)))
        while len(pool) > capacity and len(pool.batches) > 1:
            least = min(range(len(pool.batches) - 1), key=lambda i: pool.batches[i].worth)
            if len(pool) - len(pool.batches[least]) < capacity / 2:
                break  # a batch larger than all others: dropping it would leave too few draws
            pool = pool._without(least)
        return pool

    def _weight(self, index: int) -> float:
        return self.batches[index].worth * len(self.batches[index])

    def _with(self, batch: Batch, scores_at: ScoresAt) -> "Pool":
        known = tuple((*row, old.log_density(batch.x, scores_at)) for row, old in zip(self.log_q, self.batches))
        all_others = _stack([b.x for b in self.batches]) if self.batches else None
        own = _split(batch.log_density(all_others, scores_at), self.batches) if self.batches else ()
        return Pool((*self.batches, batch), (*known, (*own, batch.log_q)))

    def _without(self, index: int) -> "Pool":
        drop = lambda items: tuple(item for i, item in enumerate(items) if i != index)  # noqa: E731
        return Pool(drop(self.batches), tuple(drop(row) for row in drop(self.log_q)))

    def view(self, q: Family, scores_at: ScoresAt, least: float = 1e-2) -> tuple["Pool", View]:
        """The pool with updated `worth` of each batch, and the rows whose weight, or weight times mean squared score,
        is at least `least`.
        """
        log_q, scores = scores_at(q, _stack([batch.x for batch in self.batches]))
        log_p = np.concatenate([batch.log_p for batch in self.batches])
        shares = np.log([len(batch) / len(self) for batch in self.batches])
        densities = np.stack([share + np.concatenate(row) for share, row in zip(shares, self.log_q)])
        logs = log_q - np.logaddexp.reduce(densities, 0)
        weights = np.exp(logs)
        # Keep rare values of discrete factors: their weight is small but their score is large.
        use = weights * np.maximum(1.0, np.mean(scores**2, 1))
        worths = [float(part.mean()) for part in _split(use, self.batches)]
        batches = tuple(dataclasses.replace(b, worth=worth) for b, worth in zip(self.batches, worths))
        useful = use >= least
        return Pool(batches, self.log_q), View(scores[useful], (log_p - log_q)[useful], logs[useful])


def _split(values: np.ndarray, batches) -> tuple[np.ndarray, ...]:
    return tuple(np.split(values, np.cumsum([len(batch) for batch in batches])[:-1]))


def _stack(parts):
    return jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
