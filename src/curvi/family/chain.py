"""Regressions along a chain: triangular matrices with a few global coordinates, a border and a band below them.

    U = [G    ]      G  (g, g), lower triangular
        [C  W ]      C  (n, g), one row per element of the chain;  W  (n, n), lower triangular, with `width` bands

U is the inverse of a scale: e = U (x - m) regresses each element on the globals and on the `width` elements before it.
U'U is the precision, which has the same pattern, and U is found from it by a Cholesky factor in reverse order: as each
element is eliminated, what it leaves behind is tied already. Time and memory are O(n (g + width)^2).

Coordinates stand in *chain order*: globals, then the elements of the chain. Bands are arrays (n, width + 1), whose
entry (t, k) belongs to row t and column t - k.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import cholesky_banded, get_lapack_funcs

from curvi.family.arrow import BlockSet
from curvi.record.plain import register

(dtbtrs,) = get_lapack_funcs(("tbtrs",), dtype=np.float64)


@register
@dataclasses.dataclass(frozen=True)
class Chain:
    """The pattern: `size` coordinates, of which those of `elements`, row by row, are the chain and the rest global."""

    size: int
    elements: BlockSet
    width: int

    @property
    def length(self) -> int:
        return self.elements.count * self.elements.size

    @property
    def num_global(self) -> int:
        return self.size - self.length

    @property
    def reach(self) -> int:
        """Number of coordinates that a regression ties together."""
        return self.num_global + self.width + 1

    @property
    def num_below(self) -> int:
        """Number of entries below the diagonal."""
        g, n, w = self.num_global, self.length, self.width
        return g * (g - 1) // 2 + n * g + n * w - w * (w + 1) // 2

    def order(self) -> np.ndarray:
        """The coordinate at each place of the chain order."""
        chain = self.elements.index().ravel()
        return np.concatenate([np.setdiff1d(np.arange(self.size), chain), chain])

    def pattern(self) -> np.ndarray:
        """The free entries below the diagonal, in chain order."""
        rows, columns = np.indices((self.size, self.size))
        near = (columns >= self.num_global) & (rows - columns <= self.width)
        return (rows > columns) & ((columns < self.num_global) | near)


@functools.lru_cache(maxsize=32)
def inside(length: int, width: int) -> np.ndarray:
    """Which of the entries (length, width) of the bands below a diagonal lie in the matrix."""
    return np.arange(length)[:, None] > np.arange(width)


def before(values: np.ndarray, width: int) -> np.ndarray:
    """The `width` values before each one (n, width, ...), nearest first; zero before the first."""
    padded = np.concatenate([np.zeros((width, *values.shape[1:])), values])
    return np.stack([padded[width - k : len(padded) - k] for k in range(1, width + 1)], 1)


def after(band: np.ndarray) -> np.ndarray:
    """The entries below the diagonal of each column (n, width) from those of each row, and the other way round."""
    out = np.zeros_like(band)
    for k in range(1, band.shape[1] + 1):
        out[: len(band) - k, k - 1] = band[k:, k - 1]
    return out


class ChainMatrix(NamedTuple):
    """A matrix of the pattern, on the host."""

    top: np.ndarray  # (g, g)
    border: np.ndarray  # (n, g)
    band: np.ndarray  # (n, width + 1)

    @property
    def _columns(self) -> np.ndarray:
        """LAPACK's form: entry (k, t) belongs to row t + k and column t."""
        return np.concatenate([self.band[:, :1], after(self.band[:, 1:])], 1).T

    def _band_solve(self, v: np.ndarray, transposed: bool) -> np.ndarray:
        if not v.size:
            return v
        return dtbtrs(self._columns, v.reshape(len(v), -1), uplo="L", trans="T" if transposed else "N")[0].reshape(
            v.shape
        )

    def solve(self, v: np.ndarray) -> np.ndarray:
        """U^-1 v, for a vector or columns."""
        g = len(self.top)
        first = np.linalg.solve(self.top, v[:g])
        return np.concatenate([first, self._band_solve(v[g:] - self.border @ first, False)])

    def solve_transposed(self, v: np.ndarray) -> np.ndarray:
        """U'^-1 v."""
        g = len(self.top)
        rest = self._band_solve(v[g:], True)
        return np.concatenate([np.linalg.solve(self.top.T, v[:g] - self.border.T @ rest), rest])

    def transposed_times(self, other: "ChainMatrix") -> "ChainMatrix":
        """The entries of U' M in the pattern: a product of both forms is no longer triangular, so that only those of
        the lower triangle of U'M + M'U, which `gram_step` returns, are meant.
        """
        width, n = self.band.shape[1] - 1, len(self.band)
        band, border = np.zeros_like(self.band), np.zeros_like(self.border)
        for k in range(width + 1):  # row t adds to row t - k of the product
            rows = slice(k, n)
            border[: n - k] += self.band[rows, k, None] * other.border[rows]
            for j in range(width + 1 - k):
                band[: n - k, j] += self.band[rows, k] * other.band[rows, k + j]
        return ChainMatrix(self.top.T @ other.top + self.border.T @ other.border, border, band)

    def log_det(self) -> float:
        return float(np.log(np.diag(self.top)).sum() + np.log(self.band[:, 0]).sum())

    def plus(self, other: "ChainMatrix", share: float = 1.0) -> "ChainMatrix":
        return ChainMatrix(*(a + share * b for a, b in zip(self, other)))


def gram(matrix: ChainMatrix) -> ChainMatrix:
    """The lower triangle of U'U, its top whole."""
    return matrix.transposed_times(matrix)


def gram_step(matrix: ChainMatrix, step: ChainMatrix) -> ChainMatrix:
    """The lower triangle of U'M + M'U, its top whole."""
    one, other = matrix.transposed_times(step), step.transposed_times(matrix)
    return one.plus(other)


def root_of_gram(precision: ChainMatrix) -> ChainMatrix:
    """U with U'U equal to a matrix of the pattern; LinAlgError where that is not positive definite."""
    n, width = len(precision.band), precision.band.shape[1] - 1
    # In reverse order: row t of the band becomes column n - 1 - t.
    band = np.ascontiguousarray(cholesky_banded(precision.band[::-1].T, lower=True)[:, ::-1].T)
    band[:, 1:] *= inside(n, width)
    found = ChainMatrix(precision.top, precision.border, band)
    border = found._band_solve(precision.border, True)
    top = precision.top - border.T @ border
    root = np.linalg.cholesky(top[::-1, ::-1])[::-1, ::-1].T if len(top) else top
    return ChainMatrix(root, border, band)


def window_covariances(band: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Covariances (n, width, width) of the `width` elements before each one, for regressions z_t = sum_k a_tk z_{t-k} +
    s_t e_t with coefficients `band` (n, width), zero where there is no such element.

    V_{t+1} = A_t V_t A_t' + s_t^2 e_1 e_1'. In two levels: all stretches of about sqrt(n) steps at once, then from
    stretch to stretch, so that about 2 sqrt(n) steps are made one after the other.
    """
    n, width = band.shape
    length = math.isqrt(n - 1) + 1
    count = -(-n // length)
    a, s = np.zeros((count * length, width)), np.zeros(count * length)
    a[:n], s[:n] = band, scale
    a, s = a.reshape(count, length, width), s.reshape(count, length)
    response, own = np.empty((2, length, count, width, width))
    passed, made = np.broadcast_to(np.eye(width), (count, width, width)), np.zeros((count, width, width))
    for at in range(length):
        response[at], own[at] = passed, made
        passed, made = _shifted(a[:, at], passed), _shifted(a[:, at], _shifted(a[:, at], made).swapaxes(1, 2))
        made[:, 0, 0] += s[:, at] ** 2
    entering = np.zeros((count, width, width))
    for at in range(count - 1):
        entering[at + 1] = passed[at] @ entering[at] @ passed[at].T + made[at]
    found = own + response @ entering @ response.swapaxes(2, 3)
    return found.swapaxes(0, 1).reshape(count * length, width, width)[:n]


def _shifted(a: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """A M for companion matrices A with first row a."""
    return np.concatenate([a[:, None, :] @ matrix, matrix[:, :-1]], 1)
