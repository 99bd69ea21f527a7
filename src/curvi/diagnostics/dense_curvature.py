"""A symmetric matrix in two blocks of parameters (locations and scales), factored block by block.

    [[A, B], [B', D]],    D = L L',    W = L^-1 B',    A - W'W = M M'.

Three matrices of half the size are stored in the place of the whole. A matrix without structure has an empty D.
"""

import numpy as np
from scipy.linalg import get_lapack_funcs, solve_triangular

(_potrf,) = get_lapack_funcs(("potrf",), dtype=np.float64)


class NotDefiniteError(ValueError):
    """The matrix is not positive definite."""


class DenseCurvature:
    """The matrix, and its factors once they are needed.

    With `keep=False` its blocks are overwritten by the factors.
    """

    def __init__(self, locations: np.ndarray, cross: np.ndarray, scales: np.ndarray, keep: bool = True):
        self.blocks: tuple[np.ndarray, np.ndarray, np.ndarray] | None = (locations, cross, scales)
        self.keep = keep
        self._factors: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    @classmethod
    def whole(cls, matrix: np.ndarray) -> "DenseCurvature":
        """A matrix without structure."""
        size = len(matrix)
        return cls(matrix, np.zeros((size, 0)), np.zeros((0, 0)))

    @property
    def factors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """M, W and L; raises NotDefiniteError."""
        if self._factors is None:
            assert self.blocks is not None
            locations, cross, scales = self.blocks
            if not self.keep:
                self.blocks = None
            lower = _cholesky(scales, self.keep)
            link = _solve(lower, cross.T, overwrite=not self.keep)
            rest = locations.copy() if self.keep else locations
            for rows in _slabs(len(rest)):
                rest[rows] -= link[:, rows].T @ link
            self._factors = _cholesky(rest, False), link, lower
        return self._factors

    def half(self, locations: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Columns h with h'h = r' (matrix)^-1 r, for rows r given by their entries in the two blocks."""
        outer, link, lower = self.factors
        of_scales = _solve(lower, scales.T)
        return _solve(outer, locations.T - link.T @ of_scales), of_scales

    def solve(self, locations: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The inverse times each row."""
        outer, link, lower = self.factors
        first, second = self.half(locations, scales)
        first = _solve(outer, first, transposed=True)
        return first.T, _solve(lower, second - link @ first, transposed=True).T

    def product(self, locations: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The matrix times each row."""
        if self.blocks is not None:
            a, b, d = self.blocks
            return locations @ a + scales @ b.T, locations @ b + scales @ d
        outer, link, lower = self.factors
        both = locations @ link.T + scales @ lower
        return (locations @ outer) @ outer.T + both @ link, both @ lower.T


def _slabs(size: int, width: int = 512):
    return (slice(start, min(start + width, size)) for start in range(0, size, width))


def _cholesky(matrix: np.ndarray, keep: bool) -> np.ndarray:
    """The lower factor, in the place of the matrix unless it is kept; symmetric, so that its transpose will do."""
    if not len(matrix):
        return matrix
    if not np.all(np.isfinite(matrix.sum(0))):
        raise NotDefiniteError("the Hessian is not finite at draws of q")
    factor, info = _potrf(matrix.T, lower=1, clean=1, overwrite_a=0 if keep else 1)
    if info:
        raise NotDefiniteError("the matrix is not positive definite")
    return factor


def _solve(lower: np.ndarray, columns: np.ndarray, transposed: bool = False, overwrite: bool = False) -> np.ndarray:
    if not len(lower) or not columns.shape[1]:
        return columns
    return solve_triangular(
        lower, columns, lower=True, trans=1 if transposed else 0, overwrite_b=overwrite, check_finite=False
    )
