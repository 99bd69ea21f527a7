"""A covariance C = D^2 + V V' of low rank beside a diagonal: its inverse, roots and derivatives, on the host.

V (d, r) is free of rotations that change nothing: in an order of the coordinates in which r *pivots* come first, it is
lower trapezoidal. All of it takes O(d r^2).
"""

import dataclasses
import functools

import numpy as np

from curvi.record.plain import register

LEAST = 0.1  # share of the metric of an unused factor: one of length zero would have none
NEGLIGIBLE = 1e-3  # of the length of V_i: smaller D_i are rounded up in densities


@register
@dataclasses.dataclass(frozen=True)
class Factors:
    """The pattern: `size` coordinates and one pivot for each factor; factor k is zero at the pivots before its own."""

    size: int
    pivots: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.pivots)

    @property
    def num_entries(self) -> int:
        return self.size * self.rank - self.rank * (self.rank - 1) // 2

    def free(self) -> np.ndarray:
        """Which entries of V are not zero, in the order of the coordinates (d, r)."""
        out = np.ones((self.size, self.rank), bool)
        out[list(self.pivots)] = np.tri(self.rank, dtype=bool)
        return out

    def order(self) -> np.ndarray:
        """The coordinates with the pivots first."""
        return np.concatenate([np.array(self.pivots, int), np.setdiff1d(np.arange(self.size), self.pivots)])


def pivoted(factors: np.ndarray) -> tuple[tuple[int, ...], np.ndarray]:
    """Pivots for a matrix (d, r), each the coordinate with the largest part that earlier ones leave, and the rotated
    matrix, which is zero where these ask for it.
    """
    rest, pivots = factors.copy(), []
    for _ in range(factors.shape[1]):
        size = np.sum(rest**2, 1)
        size[pivots] = -1
        pivots.append(int(np.argmax(size)))
        own = rest[pivots[-1]]
        unit = own / max(np.linalg.norm(own), 1e-300)
        rest = rest - np.outer(rest @ unit, unit)
    # V_p = L Q with L lower triangular: V Q' has the pivots' rows lower triangular.
    turned = np.linalg.qr(factors[pivots].T)[0]
    found = factors @ turned
    found *= np.where(np.diag(found[pivots]) < 0, -1.0, 1.0)
    found[pivots] = np.tril(found[pivots])
    return tuple(pivots), found


class FactorsMatrix:
    """C = D^2 + V V' at some D (d,), of either sign, and V (d, r), in the order of the coordinates."""

    def __init__(self, pattern: Factors, signed: np.ndarray, factors: np.ndarray):
        self.pattern, self.signed, self.factors = pattern, signed, factors
        # Where factors explain a coordinate, the best D_i is zero, and D^-2 would be infinite.
        self.scale = scale = np.maximum(np.abs(signed), NEGLIGIBLE * np.sqrt(np.sum(factors**2, 1)))
        self.weighted = factors / scale[:, None] ** 2  # D^-2 V
        self.capacitance = np.eye(pattern.rank) + factors.T @ self.weighted
        root = np.linalg.cholesky(self.capacitance)
        self.log_det = 2 * float(np.log(scale).sum() + np.log(np.diag(root)).sum())
        self.inner = np.linalg.solve(root, self.weighted.T).T  # B, with C^-1 = D^-2 - B B'
        self.solved = np.linalg.solve(self.capacitance, self.weighted.T).T  # C^-1 V

    def solve(self, v: np.ndarray) -> np.ndarray:
        """C^-1 v, for a vector or columns."""
        return (v.T / self.scale**2).T - self.inner @ (self.inner.T @ v)

    @functools.cached_property
    def inverse_diagonal(self) -> np.ndarray:
        """The diagonal of C^-1."""
        return self.scale**-2 - np.sum(self.inner**2, 1)

    @functools.cached_property
    def unique(self) -> np.ndarray:
        """D_i^2 (C^-1)_ii: the share of each coordinate that no factor explains."""
        return np.clip(self.scale**2 * self.inverse_diagonal, 0.0, 1.0)

    def inverse_squares(self, weights: np.ndarray) -> np.ndarray:
        """sum_j (C^-1)_ij^2 w_j."""
        inner, squared = self.inner, self.scale**-2
        own = (squared**2 - 2 * squared * np.sum(inner**2, 1)) * weights
        return own + np.einsum("ik,kl,il->i", inner, inner.T @ (weights[:, None] * inner), inner)

    # -- the metric ---------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _root(self) -> tuple:
        """Parts of a root of C that is lower triangular where the pivots come first."""
        first = np.array(self.pattern.pivots, int)
        rest = self.pattern.order()[len(first) :]
        own, others, scale = self.factors[first], self.factors[rest], self.scale[rest]
        lower = np.linalg.cholesky(np.diag(self.scale[first] ** 2) + own @ own.T)
        passed = np.linalg.solve(lower, own).T  # V_p' L_p^-T
        given = np.linalg.inv(np.eye(len(first)) + (own / self.scale[first, None] ** 2).T @ own)
        values, vectors = np.linalg.eigh((given + given.T) / 2)
        bent = others @ (vectors * np.sqrt(np.maximum(values, 0.0))) / scale[:, None]  # W: the rest given the pivots
        values, vectors = np.linalg.eigh(bent.T @ bent)
        # (1 + W W')^(1/2) = 1 + W E diag((sqrt(1 + l) - 1) / l) E' W', with W' W = E diag(l) E'
        values = 1 / (np.sqrt(1 + np.maximum(values, 0.0)) + 1)
        return first, rest, lower, others @ passed, scale, bent @ vectors, values

    def root(self, v: np.ndarray) -> np.ndarray:
        """R v for vectors or columns, R R' = C; lower triangular where the pivots come first."""
        first, rest, lower, side, scale, bent, values = self._root
        out = np.empty_like(v)
        out[first] = lower @ v[first]
        out[rest] = side @ v[first] + ((v[rest] + bent @ ((bent.T @ v[rest]).T * values).T).T * scale).T
        return out

    def root_transposed(self, v: np.ndarray) -> np.ndarray:
        """R' v."""
        first, rest, lower, side, scale, bent, values = self._root
        out = np.empty_like(v)
        out[first] = lower.T @ v[first] + side.T @ v[rest]
        own = (v[rest].T * scale).T
        out[rest] = own + bent @ ((bent.T @ own).T * values).T
        return out

    @functools.cached_property
    def of_factors(self) -> np.ndarray:
        """The metric of the factors among each other, V' C^-1 V, and a little where they are short."""
        return (1 - LEAST) * self.factors.T @ self.solved + LEAST * np.eye(self.pattern.rank)

    @functools.cached_property
    def turn(self) -> np.ndarray:
        """T, upper triangular, with T T' the inverse of `of_factors`."""
        return np.linalg.inv(np.linalg.cholesky(self.of_factors)).T

    @property
    def of_scales(self) -> np.ndarray:
        """The metric of D, of which the diagonal is taken, and a little where factors explain everything."""
        return 2 * ((1 - LEAST) * self.unique + LEAST) * np.maximum(self.inverse_diagonal, 1e-12 * self.scale**-2)
