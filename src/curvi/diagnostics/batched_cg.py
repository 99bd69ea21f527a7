"""Conjugate gradients for several right-hand sides at once, on the host: each has its own iteration, products are
shared.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Rows = Callable[[np.ndarray], np.ndarray]


class Solutions(NamedTuple):
    """Solutions, one per row; their largest relative residual, by recursion; whether negative curvature was met."""

    x: np.ndarray
    residual: float
    negative: bool


def batched_cg(multiply: Rows, rows: np.ndarray, precondition: Rows, tolerance: float, max_steps: int) -> Solutions:
    """A x = row for each row; `multiply` and `precondition` act on rows. A row that is done leaves the batch."""
    x, rest = np.zeros_like(rows), rows.copy()
    size = np.maximum(np.linalg.norm(rows, axis=1), 1e-300)
    white = precondition(rest)
    direction, product = white.copy(), np.sum(rest * white, 1)
    going = np.flatnonzero(np.linalg.norm(rest, axis=1) > tolerance * size)
    for _ in range(max_steps):
        if not len(going):
            break
        image = multiply(direction[going])
        bend = np.sum(direction[going] * image, 1)
        if not np.all(bend > 0):
            return Solutions(x, np.inf, True)
        length = (product[going] / bend)[:, None]
        x[going] += length * direction[going]
        rest[going] -= length * image
        going = going[np.linalg.norm(rest[going], axis=1) > tolerance * size[going]]
        white = precondition(rest[going])
        following = np.sum(rest[going] * white, 1)
        direction[going] = white + (following / product[going])[:, None] * direction[going]
        product[going] = following
    return Solutions(x, float((np.linalg.norm(rest, axis=1) / size).max(initial=0.0)), False)
