"""Derivatives of what the sinh-arcsinh transformation of each coordinate does to entropy and Fisher information, in
numpy: by closed forms under sums over nodes.

A change of the shape moves u, the normal number that a draw stands for, by w(u) = dT / T'. The score of that for
u ~ N(0, R) is -w'(u_i) + w(u_i) (R^-1 u)_i, so that

    F_ij = (R^-1)_ij E[w_i(u_i) w_j(u_j)],    and E[w_i'^2] more where i = j.
"""

import functools

import numpy as np

from curvi.family.sinh_arcsinh import MOST_SKEW, MOST_TAIL, NODES, WEIGHTS, SinhArcsinh

NUM_HERMITE = 24


class HostShape:
    """The transformations with unbounded parameters `raw` (2, n): of skewness, then of tails."""

    def __init__(self, raw: np.ndarray):
        self.raw = raw
        self.at = SinhArcsinh.of(raw[0], raw[1])
        tanh = np.tanh(raw / np.array([[MOST_SKEW], [MOST_TAIL]]))
        # Derivatives of eps and ln delta in the unbounded parameters.
        self._first = 1 - tanh**2
        self._second = -2 * tanh * self._first / np.array([[MOST_SKEW], [MOST_TAIL]])

    @functools.cached_property
    def _parts(self):
        """y, sinh y, cosh y and delta at the nodes (K, n), and first derivatives of sinh y in eps and ln delta."""
        delta = np.exp(self.at.log_tail)
        y = (np.arcsinh(NODES)[:, None] + self.at.skew) / delta
        sinh, cosh = np.sinh(y), np.cosh(y)
        return y, sinh, cosh, delta, (cosh / delta, -y * cosh)

    @functools.cached_property
    def _moments(self):
        """First derivatives of the centre, and of ln scale (2, n)."""
        _, sinh, _, _, first = self._parts
        centre = np.stack([WEIGHTS @ one for one in first])
        spread = np.stack([WEIGHTS @ (one * (sinh - self.at.centre)) for one in first])
        return centre, spread / self.at.scale**2

    def entropy(self) -> np.ndarray:
        """E[ln T'] of each coordinate."""
        return self.at.entropy()

    def entropy_gradient(self) -> np.ndarray:
        """Its gradient (2, n)."""
        return self._first * self._bounded_gradient

    @functools.cached_property
    def _bounded_gradient(self) -> np.ndarray:
        y, _, _, delta, _ = self._parts
        tanh = np.tanh(y)
        return np.stack([WEIGHTS @ tanh / delta, -(WEIGHTS @ (y * tanh)) - 1]) - self._moments[1]

    def entropy_hessian(self) -> np.ndarray:
        """Its Hessian (2, 2, n)."""
        y, sinh, cosh, delta, first = self._parts
        tanh, square = np.tanh(y), 1 - np.tanh(y) ** 2
        mixed = -sinh * y / delta - cosh / delta
        second = ((sinh / delta**2, mixed), (mixed, y * cosh + y**2 * sinh))
        cross = -y * square / delta - tanh / delta
        of_log = ((square / delta**2, cross), (cross, y * tanh + y**2 * square))
        centre, log_scale = self._moments
        away, variance = sinh - self.at.centre, self.at.scale**2
        out = np.empty((2, 2, len(delta)))
        for j in range(2):
            for k in range(2):
                bent = WEIGHTS @ (first[j] * first[k] + away * second[j][k]) - centre[j] * centre[k]
                out[j, k] = WEIGHTS @ of_log[j][k] - bent / variance + 2 * log_scale[j] * log_scale[k]
                out[j, k] *= self._first[j] * self._first[k]
            out[j, j] += self._second[j] * self._bounded_gradient[j]
        return out

    @functools.cached_property
    def displacements(self) -> tuple[np.ndarray, np.ndarray]:
        """w and w' at the nodes (2, K, n)."""
        y, sinh, cosh, delta, _ = self._parts
        centre, log_scale = self._moments
        u = NODES[:, None]
        root = np.sqrt(1 + u**2)
        slope = cosh / (delta * root)
        bend = np.tanh(y) / (delta * root) - u / root**2  # T'' / T'
        moves = np.stack([root + 0 * y, -y * delta * root])
        bent = np.stack([u / root + 0 * y, -1 - y * delta * u / root])
        back = (centre[:, None] + log_scale[:, None] * (sinh - self.at.centre)) / slope
        first = self._first[:, None]
        return first * (moves - back), first * (bent - log_scale[:, None] + back * bend)

    def displacements_at(self, u: np.ndarray) -> np.ndarray:
        """w at draws u (S, n) of these coordinates (2, S, n)."""
        y, delta, root = (
            (np.arcsinh(u) + self.at.skew) / np.exp(self.at.log_tail),
            np.exp(self.at.log_tail),
            np.sqrt(1 + u**2),
        )
        centre, log_scale = self._moments
        slope = np.cosh(y) / (delta * root)
        moves = np.stack([root, -y * delta * root])
        back = (centre[:, None] + log_scale[:, None] * (np.sinh(y) - self.at.centre)) / slope
        return self._first[:, None] * (moves - back)

    def own_information(self, precision: np.ndarray) -> np.ndarray:
        """The blocks (n, 2, 2) of F of each coordinate, given the diagonal of R^-1."""
        moves, bent = self.displacements
        information = np.einsum("k,akn,bkn->nab", WEIGHTS, bent, bent)
        return information + precision[:, None, None] * np.einsum("k,akn,bkn->nab", WEIGHTS, moves, moves)

    def information(self, correlation: np.ndarray) -> np.ndarray:
        """F (2 n, 2 n) of all coordinates, for the correlations R of u."""
        size = len(correlation)
        precision = np.linalg.inv(correlation)
        coefficients = np.einsum("hk,akn->han", hermite() * WEIGHTS, self.displacements[0]).reshape(-1, 2 * size)
        powers, shared = np.ones((size, size)), np.zeros((2 * size, 2 * size))
        for row in coefficients:
            shared += np.tile(powers, (2, 2)) * np.outer(row, row)
            powers = powers * correlation
        out = np.tile(precision, (2, 2)) * shared
        # The diagonal without the error of a series that ends.
        own, at = self.own_information(np.diag(precision)), np.arange(size)
        for a in range(2):
            for b in range(2):
                out[a * size + at, b * size + at] = own[:, a, b]
        return out


@functools.cache
def hermite() -> np.ndarray:
    """Orthonormal Hermite polynomials at the nodes, one per row."""
    rows = [np.ones_like(NODES), NODES]
    for k in range(1, NUM_HERMITE - 1):
        rows.append((NODES * rows[k] - k**0.5 * rows[k - 1]) / (k + 1) ** 0.5)
    return np.stack(rows)
