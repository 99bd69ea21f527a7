"""Draws m + L e on fixed noise, L lower triangular: coordinates, Fisher information and its root, on the host."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from curvi.family.log_scale_path import LogScalePath
from curvi.family.path import ExpandablePath, FixedPoint


class TriangularRoot:
    """The root of the Fisher information at a factor L: steps (delta, A) in the place of steps of the parameters."""

    def __init__(self, path: "TriangularPath", params: np.ndarray):
        self.path, self.factor = path, path.factor(params)

    def solve(self, v: np.ndarray) -> np.ndarray:
        """A gradient in whitened coordinates: L' g of the mean, the lower triangle of L' G of the factor."""
        mean, matrix = self.path.split(v, self.factor)
        return self.path.join(self.factor.T @ mean, self.factor.T @ matrix, 2**-0.5)

    def solve_transpose(self, v: np.ndarray) -> np.ndarray:
        """The step of the parameters that a whitened one stands for."""
        size, (rows, columns) = self.path.size, self.path.below
        a = np.zeros((size, size))
        a[rows, columns] = v[2 * size :]
        a[np.diag_indices(size)] = 2**-0.5 * v[size : 2 * size]
        moved = self.factor @ a
        return np.concatenate([self.factor @ v[:size], np.diag(a), moved[rows, columns]])


class TriangularPath(LogScalePath, ExpandablePath):
    """x = m + L e: coordinates are m and L row by row."""

    has_fixed_point: ClassVar[bool] = True

    def __init__(self, size: int):
        self.size = size
        self.below = np.tril_indices(size, -1)
        self._entropy_gradient = np.repeat([0.0, 1.0, 0.0], [size, size, len(self.below[0])])

    def __eq__(self, other):
        return type(other) is TriangularPath and other.size == self.size

    def __hash__(self):
        return hash((TriangularPath, self.size))

    # -- in programs --------------------------------------------------------------------------------------------------

    def _place(self, c):
        return c[: self.size], c[self.size :].reshape(self.size, self.size)

    def gradients(self, q, log_joint, c, noise, each):
        mean, factor = self._place(c)
        slope_of = jax.value_and_grad(lambda x: log_joint(q, (x,)))
        values, slopes = each(slope_of)(mean + noise @ factor.T)
        return values, self._pull(slopes, noise), slopes

    def products(self, q, log_joint, c, along, noise, each):
        (mean, factor), (mean_step, factor_step) = self._place(c), self._place(along)
        slope_of = jax.grad(lambda x: log_joint(q, (x,)))
        points, moves = mean + noise @ factor.T, mean_step + noise @ factor_step.T

        def one(point_and_move):
            size = self.size
            return jax.jvp(slope_of, (point_and_move[:size],), (point_and_move[size:],))[1]

        products = each(one)(jnp.concatenate([points, moves], 1))
        return self._pull(products, noise), products

    def _pull(self, slopes, noise):
        """The gradient in m and L, averaged over the draws."""
        return jnp.concatenate([slopes.mean(0), (slopes.T @ noise / noise.shape[0]).ravel()])

    # -- on the host --------------------------------------------------------------------------------------------------

    def factor(self, params: np.ndarray) -> np.ndarray:
        """L."""
        lower = np.zeros((self.size, self.size))
        lower[self.below] = params[2 * self.size :]
        lower[np.diag_indices(self.size)] = np.exp(params[self.size : 2 * self.size])
        return lower

    def from_moments(self, mean: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """The parameters with this mean and this L."""
        size = self.size
        if mean.shape != (size,) or factor.shape != (size, size):
            raise ValueError(
                f"expected a mean of shape ({size},) and a factor of shape ({size}, {size}) in working coordinates; "
                f"got {mean.shape} and {factor.shape}"
            )
        if not (np.all(np.isfinite(mean)) and np.all(np.isfinite(factor))):
            raise ValueError("mean and factor must be finite; check that the covariance is positive definite")
        if np.any(np.triu(factor, 1)) or not np.all(np.diag(factor) > 0):
            raise ValueError(
                "factor must be lower triangular with a positive diagonal, as np.linalg.cholesky(covariance) returns it"
            )
        return np.concatenate([mean, np.log(np.diag(factor)), factor[self.below]])

    def split(self, v: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A gradient in the parameters as those in m and in L."""
        matrix = np.zeros((self.size, self.size))
        matrix[self.below] = v[2 * self.size :]
        matrix[np.diag_indices(self.size)] = v[self.size : 2 * self.size] / np.diag(factor)
        return v[: self.size], matrix

    def join(self, mean: np.ndarray, matrix: np.ndarray, diagonal: float | np.ndarray) -> np.ndarray:
        """A vector like the parameters from a mean and a matrix, its diagonal multiplied; any leading axes."""
        on_diagonal = np.diagonal(matrix, axis1=-2, axis2=-1)
        return np.concatenate([mean, diagonal * on_diagonal, matrix[..., self.below[0], self.below[1]]], -1)

    def coordinates(self, params):
        return np.concatenate([params[: self.size], self.factor(params).ravel()])

    def tangent(self, params, direction):
        lower = np.zeros((self.size, self.size))
        lower[self.below] = direction[2 * self.size :]
        scale = np.exp(params[self.size : 2 * self.size])
        lower[np.diag_indices(self.size)] = scale * direction[self.size : 2 * self.size]
        return np.concatenate([direction[: self.size], lower.ravel()])

    def gradient(self, params, by_coordinates):
        matrix = by_coordinates[..., self.size :].reshape(*by_coordinates.shape[:-1], self.size, self.size)
        return self.join(by_coordinates[..., : self.size], matrix, np.exp(params[self.size : 2 * self.size]))

    def spreads(self, params):
        """The inverse root of the diagonal of the Fisher information."""
        inverse = np.linalg.inv(self.factor(params))
        row = np.sum(inverse**2, 0) ** -0.5  # of the mean, and of every entry in its row of L
        return np.concatenate([row, np.full(self.size, 2**-0.5), row[self.below[0]]])

    def root(self, params):
        return TriangularRoot(self, params)

    def whitened_scores(self, params, noise):
        i, j = self.below
        return np.concatenate([noise, (noise**2 - 1) / np.sqrt(2), noise[:, i] * noise[:, j]], 1)

    def away(self, params, noise):
        return noise @ self.factor(params).T

    def sds(self, params):
        return np.sqrt(np.sum(self.factor(params) ** 2, 1))

    def sds_moved(self, params, step):
        """A step (delta, A) in whitened coordinates changes the covariance by L (A + A') L'."""
        factor, sds = self.factor(params), self.sds(params)
        moved = self.tangent(params, step)[self.size :].reshape(self.size, self.size)
        return np.concatenate([step[: self.size] / sds, 2**0.5 * np.sum(moved * factor, 1) / sds**2])

    def natural_slope(self, params, step):
        factor, moved = self.factor(params), self.tangent(params, step)
        bent = np.linalg.solve(factor, moved[self.size :].reshape(self.size, self.size))
        return np.linalg.solve(factor, moved[: self.size]), bent + bent.T

    # -- the control variate, and the expected Hessian ----------------------------------------------------------------

    def at_mean(self, params, spread=0.0):
        return np.concatenate([params[: self.size], np.diag(np.broadcast_to(spread, self.size)).ravel()])

    def along_noise(self):
        return np.concatenate([np.zeros(self.size), np.eye(self.size).ravel()])

    def excess(self, hessian, noise):
        moments = noise.T @ noise / len(noise) - np.eye(self.size)

        def gradient(c):
            return np.concatenate([np.zeros(self.size), (hessian @ self._place(c)[1] @ moments).ravel()])

        return gradient

    def part_excess(self, hessian, parts, c):
        factor = self._place(c)[1]
        bent = hessian @ factor
        moments = np.einsum("psi,psj->pij", parts, parts) / parts.shape[1] - np.eye(self.size)
        gradients = np.concatenate([np.zeros((len(parts), self.size)), (bent @ moments).reshape(len(parts), -1)], 1)
        return gradients @ c / 2, gradients

    def scale_matrix(self, params):
        return self.factor(params)

    def whitened(self, params: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """L' E[grad] and -L' E[Hessian] L, symmetrised, from a gradient of the mean of ln p in m and L."""
        factor = self.factor(params)
        bend = factor.T @ slope[self.size :].reshape(self.size, self.size)
        return factor.T @ slope[: self.size], -(bend + bend.T) / 2

    def symmetrised(self, params, slope):
        """L' E[grad e'] = L' E[Hessian] L is symmetric, though no average over draws is."""
        factor = self.factor(params)
        bend = factor.T @ slope[self.size :].reshape(self.size, self.size)
        return np.concatenate([slope[: self.size], np.linalg.solve(factor.T, (bend + bend.T) / 2).ravel()])

    def fixed_point(self, params, slope, least, resolution):
        gradient, bend = self.whitened(params, slope)
        values, vectors = np.linalg.eigh(bend)
        along = vectors.T @ gradient
        definite = bool(values[0] > resolution**0.5 * values[-1])
        values = values if definite else np.maximum(values, least)
        predicted = float(along @ (along / values) + np.sum(values - 1 - np.log(values))) / 2

        def at(share: float) -> np.ndarray:
            precision = (1 - share) + share * values
            return self._rescaled(params, vectors @ (share * along / precision), (vectors / precision) @ vectors.T)

        return FixedPoint(predicted, definite, at)

    def _rescaled(self, params: np.ndarray, shift: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        """Parameters of the q whose mean and covariance are these in coordinates where q is standard normal."""
        factor = self.factor(params)
        try:
            root = np.linalg.cholesky((covariance + covariance.T) / 2)
        except np.linalg.LinAlgError:
            root = np.full_like(covariance, np.nan)
        moved = factor @ root
        with np.errstate(invalid="ignore"):
            return np.concatenate([params[: self.size] + factor @ shift, np.log(np.diag(moved)), moved[self.below]])

    def expected_hessian(self, params, slope):
        inverse = np.linalg.inv(self.factor(params))
        return -inverse.T @ self.whitened(params, slope)[1] @ inverse
