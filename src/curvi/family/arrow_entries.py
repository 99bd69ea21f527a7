"""Where the entries of a matrix in arrow form stand in a flat vector, and how noise of its blocks is matched."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from curvi.family.arrow import Arrow, ArrowMatrix
from curvi.family.matching import scaled_columns, whitened_columns


class ArrowEntries:
    """Places of entries: G row by row, then C and B of each set of blocks, with the zeros of G and B.

    Attributes
    ----------
    order, place
        The coordinate at each place of the block order, and the inverse.
    diagonal, below
        Places of the diagonal, in block order, and of the entries below it.
    shapes
        The shapes of C and B of each set.
    size
        Number of entries.
    """

    def __init__(self, arrow: Arrow):
        g = self.num_global = arrow.num_global
        indices = [blocks.index() for blocks in arrow.sets]
        local = np.concatenate([np.zeros(0, int), *(index.ravel() for index in indices)])
        self.order = np.concatenate([np.setdiff1d(np.arange(arrow.size), local), local])
        self.place = np.argsort(self.order)
        rows, columns = np.tril_indices(g, -1)
        start, diagonal, below = g * g, [np.arange(g) * (g + 1)], [rows * g + columns]
        self.shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for n, k in (index.shape for index in indices):
            below.append(start + np.arange(n * k * g))
            start += n * k * g
            first = start + np.arange(n)[:, None] * k * k
            diagonal.append((first + np.arange(k) * (k + 1)).ravel())
            rows, columns = np.tril_indices(k, -1)
            below.append((first + rows * k + columns).ravel())
            start += n * k * k
            self.shapes.append(((n, k, g), (n, k, k)))
        self.diagonal, self.below, self.size = np.concatenate(diagonal), np.concatenate(below), start
        # A matrix is a gather from (0, diagonal, below), the same in numpy and in programs.
        self._source = np.zeros(start, int)
        self._source[self.diagonal] = 1 + np.arange(arrow.size)
        self._source[self.below] = 1 + arrow.size + np.arange(len(self.below))

    def fill(self, diagonal, below) -> Any:
        """The flat entries of a lower triangular matrix, in numpy or JAX."""
        xp = np if isinstance(below, np.ndarray) else jnp
        return xp.concatenate([xp.zeros(1, below.dtype), diagonal, below])[self._source]

    def coordinates(self, params) -> Any:
        """Mean and flat entries from the parameters: the mean, ln of the diagonal, and what is below it; in numpy or
        JAX.
        """
        xp, size = np if isinstance(params, np.ndarray) else jnp, len(self.order)
        scale = xp.exp(params[size : 2 * size][self.order])
        return xp.concatenate([params[self.order], self.fill(scale, params[2 * size :])])

    def matrix(self, flat) -> ArrowMatrix:
        """The matrix with these flat entries, with any leading axes."""
        g, lead = self.num_global, flat.shape[:-1]
        start, parts = g * g, ([], [])
        for shapes in self.shapes:
            for part, shape in zip(parts, shapes):
                stop = start + int(np.prod(shape))
                part.append(flat[..., start:stop].reshape(*lead, *shape))
                start = stop
        return ArrowMatrix(flat[..., : g * g].reshape(*lead, g, g), tuple(parts[0]), tuple(parts[1]))

    def flat(self, matrix: ArrowMatrix) -> np.ndarray:
        """The flat entries of a matrix."""
        sets = (part.ravel() for pair in zip(matrix.sides, matrix.blocks) for part in pair)
        return np.concatenate([matrix.top.ravel(), *sets])

    @functools.cached_property
    def _row_and_column(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and column of each entry, as places of the block order."""
        start = g = self.num_global
        found = [np.divmod(np.arange(g * g), max(g, 1))]
        for (n, k, _), _ in self.shapes:
            places = start + np.arange(n * k).reshape(n, k)
            found.append((np.repeat(places.ravel(), g), np.tile(np.arange(g), n * k)))
            found.append((np.repeat(places.ravel(), k), np.repeat(places, k, 0).ravel()))
            start += n * k
        return np.concatenate([rows for rows, _ in found]), np.concatenate([columns for _, columns in found])

    @property
    def rows(self) -> np.ndarray:
        """The rows of the entries below the diagonal."""
        return self._row_and_column[0][self.below]

    @property
    def columns(self) -> np.ndarray:
        """Their columns."""
        return self._row_and_column[1][self.below]

    def match(self, half: np.ndarray) -> np.ndarray:
        """Noise (pairs, d) in block order with globals whitened, and blocks freed of them and whitened: quadratics of
        the pattern are then averaged exactly. It takes as many pairs as globals and one block together.
        """
        num, start = len(half), self.num_global
        first = whitened_columns(half[:, :start])
        out = [first]
        for (n, k, _), _ in self.shapes:
            part = half[:, start : start + n * k]
            start += n * k
            part = part - first @ (first.T @ part / num)
            if k == 1:
                out.append(scaled_columns(part))
                continue
            across = part.reshape(num, n, k).transpose(1, 2, 0)
            lower = np.linalg.cholesky(across @ across.transpose(0, 2, 1) / num + 1e-14 * np.eye(k))
            out.append(np.linalg.solve(lower, across).transpose(2, 0, 1).reshape(num, n * k))
        return np.concatenate(out, 1)
