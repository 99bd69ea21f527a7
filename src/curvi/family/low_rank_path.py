"""Draws m + D e + V f on fixed noise: coordinates, entropy and a metric, on the host.

Parameters are the mean, D, and the free entries of V coordinate by coordinate; coordinates of the program are the same
with the zeros of V; noise is e, then f. D itself, not its logarithm: where the factors explain a coordinate the best
D_i is zero, a maximum like any other in D_i, while its logarithm would fall for ever (Heywood's case).

The Fisher information has no root of O(d r^2), but the metric

    dm' C^-1 dm + sum_i w_i (dD_i)^2 + tr(dV' C^-1 dV (V' C^-1 V)),        w_i = 2 D_i^2 (C^-1)_ii^2,

has, and is at least a third of it: the last term is half of its largest value, reached where C^-1/2 dV V' C^-1/2 is
symmetric. Directions that turn factors into each other, which the gauge has almost removed, are shorter than it says.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from curvi.family.factors_matrix import Factors, FactorsMatrix
from curvi.family.matching import matched_columns, scaled_columns, whitened_columns
from curvi.family.path import HostPath

_LOG_2PI = float(np.log(2 * np.pi))
_LARGEST_WHITENED = 128  # coordinates up to which few draws average every quadratic exactly


class LowRankRoot:
    """The root of the metric."""

    def __init__(self, path: "LowRankPath", params: np.ndarray):
        self.path, self.at = path, path.matrix(params)

    def solve(self, v: np.ndarray) -> np.ndarray:
        """A gradient in whitened coordinates."""
        mean, scales, factors = self.path.split(v)
        turned = self.at.root_transposed(factors) @ self.at.turn
        return self._joined(self.at.root_transposed(mean), scales, turned)

    def solve_transpose(self, v: np.ndarray) -> np.ndarray:
        """The step of the parameters that a whitened one stands for."""
        mean, scales, factors = self.path.split(v)
        return self._joined(self.at.root(mean), scales, self.at.root(factors) @ self.at.turn.T)

    def _joined(self, mean, scales, factors) -> np.ndarray:
        return self.path.join(mean, scales * self.at.of_scales**-0.5, factors)


class LowRankPath(HostPath):
    """x = m + D e + V f: coordinates are m, D and V."""

    def __init__(self, pattern: Factors):
        self.pattern, self.size, self.free = pattern, pattern.size, pattern.free()
        self._last: tuple[np.ndarray | None, FactorsMatrix | None] = (None, None)

    def __eq__(self, other):
        return type(other) is LowRankPath and other.pattern == self.pattern

    def __hash__(self):
        return hash((LowRankPath, self.pattern))

    @property
    def noise_size(self):
        return self.size + self.pattern.rank

    @property
    def moment_size(self):
        """Few dimensions are averaged exactly; of many, the factors, with what they have to do with the rest."""
        return (self.size if self.size <= _LARGEST_WHITENED else 2) + self.pattern.rank

    # -- parts --------------------------------------------------------------------------------------------------------

    def split(self, v) -> tuple:
        """Mean, D and V of a vector like the parameters, in numpy or JAX."""
        size = self.size
        if isinstance(v, np.ndarray):
            factors = np.zeros(self.free.shape)
            factors[self.free] = v[2 * size :]
        else:
            factors = jnp.zeros(self.free.shape, v.dtype).at[np.nonzero(self.free)].set(v[2 * size :])
        return v[:size], v[size : 2 * size], factors

    def join(self, mean, scale, factors) -> np.ndarray:
        """A vector like the parameters, with any leading axes."""
        return np.concatenate([mean, scale, factors[..., self.free]], -1)

    def matrix(self, params: np.ndarray) -> FactorsMatrix:
        """The covariance; that of the last parameters is kept, since every part of an evaluation asks for it."""
        last, found = self._last
        if found is None or params is not last:
            found = FactorsMatrix(self.pattern, *self.split(params)[1:])
            self._last = (params, found)
        return found

    # -- in programs --------------------------------------------------------------------------------------------------

    def _points(self, c, noise):
        size = self.size
        mean, scale, factors = c[:size], c[size : 2 * size], c[2 * size :].reshape(size, -1)
        return mean + scale * noise[:, :size] + noise[:, size:] @ factors.T

    def _pull(self, slopes, noise):
        """The gradient in m, D and V, averaged over the draws."""
        size = self.size
        by_factors = slopes.T @ noise[:, size:] / noise.shape[0]
        return jnp.concatenate([slopes.mean(0), (slopes * noise[:, :size]).mean(0), by_factors.ravel()])

    def gradients(self, q, log_joint, c, noise, each):
        values, slopes = each(jax.value_and_grad(lambda x: log_joint(q, (x,))))(self._points(c, noise))
        return values, self._pull(slopes, noise), slopes

    def products(self, q, log_joint, c, along, noise, each):
        slope_of, size = jax.grad(lambda x: log_joint(q, (x,))), self.size

        def one(point_and_move):
            return jax.jvp(slope_of, (point_and_move[:size],), (point_and_move[size:],))[1]

        # Draws are linear in the coordinates.
        products = each(one)(jnp.concatenate([self._points(c, noise), self._points(along, noise)], 1))
        return self._pull(products, noise), products

    # -- on the host --------------------------------------------------------------------------------------------------

    def coordinates(self, params):
        mean, scale, factors = self.split(params)
        return np.concatenate([mean, scale, factors.ravel()])

    def tangent(self, params, direction):
        return self.coordinates(direction)

    def gradient(self, params, by_coordinates):
        size = self.size
        factors = by_coordinates[..., 2 * size :].reshape(*by_coordinates.shape[:-1], *self.free.shape)
        return self.join(by_coordinates[..., :size], by_coordinates[..., size : 2 * size], factors)

    def product(self, params, direction, gradient, by_coordinates):
        """With the derivative of the gradient of the entropy, which is not constant."""
        return self.gradient(params, by_coordinates) + self.entropy_product(params, direction)

    def entropy(self, params):
        return 0.5 * self.matrix(params).log_det + 0.5 * self.size * (1 + _LOG_2PI)

    def entropy_gradient(self, params):
        at = self.matrix(params)
        return self.join(np.zeros(self.size), at.signed * at.inverse_diagonal, at.solved)

    def entropy_product(self, params: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """dC = 2 D diag(dD) + dV V' + V dV', and d(C^-1) = -C^-1 dC C^-1."""
        at, (_, scale, step) = self.matrix(params), self.split(direction)
        moved, weights = at.solve(step), 2 * at.signed * scale
        diagonal = at.inverse_squares(weights) + 2 * np.sum(moved * at.solved, 1)
        unique = scale * at.inverse_diagonal - at.signed * diagonal
        bent = weights[:, None] * at.solved + step @ (at.factors.T @ at.solved) + at.factors @ (step.T @ at.solved)
        return self.join(np.zeros(self.size), unique, moved - at.solve(bent))

    def spreads(self, params):
        at = self.matrix(params)
        precision = np.maximum(at.inverse_diagonal, 1e-12 * at.scale**-2)
        factors = (np.diag(at.of_factors) * precision[:, None] + at.solved**2) ** -0.5
        return self.join(precision**-0.5, at.of_scales**-0.5, factors)

    def root(self, params):
        return LowRankRoot(self, params)

    def away(self, params, noise):
        _, scale, factors = self.split(params)
        return noise[..., : self.size] * scale + noise[..., self.size :] @ factors.T

    def log_q(self, params, noise):
        at, x = self.matrix(params), self.away(params, noise)
        return -0.5 * (np.sum((x / at.scale) ** 2, -1) - np.sum((x @ at.inner) ** 2, -1) - self.size)

    def whitened_scores(self, params, noise):
        at = self.matrix(params)
        u = at.solve(self.away(params, noise).T).T
        by_factors = u[:, :, None] * (u @ at.factors)[:, None, :] - at.solved
        scores = self.join(u, at.signed * (u**2 - at.inverse_diagonal), by_factors)
        root = self.root(params)
        return np.stack([root.solve(score) for score in scores])

    def sds(self, params):
        _, scale, factors = self.split(params)
        return np.sqrt(scale**2 + np.sum(factors**2, 1))

    def sds_moved(self, params, step):
        at, sds, (mean, scale, factors) = self.matrix(params), self.sds(params), self.split(step)
        moved = at.signed * scale + np.sum(at.factors * factors, 1)
        return np.concatenate([mean / sds, 2**0.5 * moved / sds**2])

    def match(self, half):
        """All columns whitened where pairs suffice; else those of the factors, and the others freed of them."""
        size, rank = self.size, self.pattern.rank
        if len(half) >= size + rank or len(half) < rank + 2:
            return matched_columns(half)
        shared = whitened_columns(half[:, size:])
        own = half[:, :size] - shared @ (shared.T @ half[:, :size] / len(half))
        return np.concatenate([scaled_columns(own), shared], 1)


low_rank_path = functools.lru_cache(maxsize=32)(LowRankPath)  # a mask of the size of V, made once per pattern
