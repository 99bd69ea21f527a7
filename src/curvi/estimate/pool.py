"""Draws of several q, reused at another one by mixture importance weights.

A draw x of the pool came from the mixture of the q's that its batches were drawn from, whichever it was. So its weight
at the present q is q(x) / sum_k (n_k / n) q_k(x) (Veach and Guibas 1995: the balance heuristic), which the present
batch keeps bounded.
"""

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass
class Batch:
    """Draws of one q in working coordinates, one array a group of factors, with ln p, ln q and whitened scores."""

    q: object
    x: tuple[np.ndarray, ...]
    log_p: np.ndarray
    log_q: np.ndarray
    scores: np.ndarray
    worth: float = 1.0  # mean weight of its draws where the pool was last looked at from

    def __len__(self) -> int:
        return len(self.log_p)

    def finite(self) -> np.ndarray:
        return np.isfinite(self.log_p) & np.isfinite(self.log_q) & np.all(np.isfinite(self.scores), 1)

    def only(self, rows) -> "Batch":
        x = tuple(part[rows] for part in self.x)
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


class Pool:
    """Batches, up to about `capacity` draws and `most` batches; those that weigh least go first, a draw or in all.

    `look(q, x)` gives ln q and the whitened scores of the rows of x.
    """

    def __init__(self, look: Callable, capacity: int, most: int):
        self.look, self.capacity, self.most = look, capacity, most
        self.batches: list[Batch] = []
        self.log_q: dict[tuple[int, int], np.ndarray] = {}  # by identity of the batch that drew and of the one asked

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def add(self, batch: Batch) -> None:
        self.batches.append(batch)
        while len(self.batches) > self.most:
            self._drop(min(self.batches[:-1], key=lambda old: old.worth * len(old)))
        while len(self) > self.capacity and len(self.batches) > 1:
            least = min(self.batches[:-1], key=lambda old: old.worth)
            if len(self) - len(least) < self.capacity / 2:
                break  # a batch larger than all others: without it little would be left
            self._drop(least)

    def _drop(self, batch: Batch) -> None:
        self.batches = [kept for kept in self.batches if kept is not batch]
        self.log_q = {key: value for key, value in self.log_q.items() if id(batch) not in key}

    def view(self, q, least: float = 1e-2) -> View:
        """Rows whose weight, or weight times the square of their scores, is at least `least`."""
        log_q, scores = self.look(q, _stack([batch.x for batch in self.batches]))
        log_p = np.concatenate([batch.log_p for batch in self.batches])
        shares = np.log([len(batch) / len(self) for batch in self.batches])
        densities = np.stack([share + self._density(batch) for share, batch in zip(shares, self.batches)])
        weights = np.exp(log_q - np.logaddexp.reduce(densities, 0))
        ends = np.cumsum([len(batch) for batch in self.batches])[:-1]
        # A rare value of a discrete factor has a small weight and a large score: it is what little is known of it.
        use = weights * np.maximum(1.0, np.mean(scores**2, 1))
        for batch, part in zip(self.batches, np.split(use, ends)):
            batch.worth = float(part.mean())
        useful = use >= least
        return View(scores[useful], (log_p - log_q)[useful], weights[useful])

    def _density(self, asked: Batch) -> np.ndarray:
        """ln q of one batch at the draws of all."""
        missing = [b for b in self.batches if (id(b), id(asked)) not in self.log_q]
        if missing:
            log_q, _ = self.look(asked.q, _stack([b.x for b in missing]))
            ends = np.cumsum([len(b) for b in missing])[:-1]
            for b, part in zip(missing, np.split(log_q, ends)):
                self.log_q[id(b), id(asked)] = part
        return np.concatenate([self.log_q[id(b), id(asked)] for b in self.batches])


def _stack(parts):
    return tuple(np.concatenate(arrays) for arrays in zip(*parts))
