"""The full-rank normal q(x) = N(m, L L') in working coordinates, L lower triangular.

Parameters are the mean, the logarithms of L's diagonal, and its strict lower triangle row by row. Steps are measured in
the coordinates x = m + L (delta + (I + A) e), A lower triangular, in which the Fisher information is diagonal:

    KL = |delta|^2 / 2 + sum_i A_ii^2 + sum_{i>j} A_ij^2 / 2.

A step (delta, A) moves m by L delta and L by L A, which is lower triangular again.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

from curvi.curvature.blocks import BlockDiagonal
from curvi.family.base import Family
from curvi.family.continuous import Normal
from curvi.family.layout import Layout, lay_out
from curvi.family.path import HostPath
from curvi.model.latents import Latent
from curvi.model.target import AbstractTarget
from curvi.record.plain import register

MAX_DIMENSION = 1024  # latents; beyond, the factor alone has half a million entries
_LOG_2PI = float(np.log(2 * np.pi))


@register
class FullRank(Family[tuple[Array]]):
    """A normal distribution with a full covariance, over the unconstrained coordinates of a target's latents.

    Parameters
    ----------
    target
        Gives names, shapes, supports and the start; all its latents must be continuous.
    """

    params: Float[Array, " P"]
    layout: Layout = eqx.field(static=True)

    def __init__(self, target: AbstractTarget):
        if discrete := [latent.name for latent in target.latents if latent.discrete]:
            raise ValueError(
                f"FullRank needs continuous latents; {', '.join(discrete)} are discrete: use MeanField, or sum them out"
            )
        self.layout, start = lay_out(target, {latent.name: Normal() for latent in target.latents})
        mean, log_scale = start.reshape(-1, 2).T
        size = len(mean)
        if size > MAX_DIMENSION:
            raise ValueError(f"FullRank takes at most {MAX_DIMENSION} latents; this target has {size}: use MeanField")
        below = np.zeros(size * (size - 1) // 2, start.dtype)
        self.params = jax.device_put(np.concatenate([mean, log_scale, below]))

    @property
    def latents(self) -> tuple[Latent, ...]:
        return self.layout.latents

    @property
    def noise_size(self) -> int:
        return self.layout.counts[0]

    @property
    def reparameterised(self) -> bool:
        return True

    @property
    def min_draws(self) -> int:
        """Two independent parts of mirrored pairs, each with as many pairs as dimensions: with fewer, the ELBO of
        fixed draws has no maximum.
        """
        return 4 * self.noise_size

    @property
    def path(self) -> "TriangularPath":
        return TriangularPath(self.noise_size)

    def factor(self) -> Float[Array, "n n"]:
        """L."""
        size = self.noise_size
        rows, columns = np.tril_indices(size, -1)
        lower = jnp.zeros((size, size), self.params.dtype).at[rows, columns].set(self.params[2 * size :])
        return lower + jnp.diag(jnp.exp(self.params[size : 2 * size]))

    # -- draws and densities ------------------------------------------------------------------------------------------

    def from_normal(self, noise):
        return (self.params[: self.noise_size] + self.factor() @ noise,)

    def from_uniform(self, u):
        return self.from_normal(ndtri(u))

    def to_model(self, x):
        return self.layout.to_model(x, self.params.dtype)

    def moments(self):
        return self.params[: self.noise_size], self.factor() @ self.factor().T

    def log_prob(self, x):
        e = solve_triangular(self.factor(), x[0] - self.params[: self.noise_size], lower=True)
        return -0.5 * jnp.sum(e**2) - self._log_det() - 0.5 * self.noise_size * _LOG_2PI

    def entropy(self):
        return self._log_det() + 0.5 * self.noise_size * (1 + _LOG_2PI)

    def _log_det(self):
        return jnp.sum(self.params[self.noise_size : 2 * self.noise_size])

    def fisher(self) -> BlockDiagonal:
        """One dense block: for small dimensions; the default method never forms it."""
        size = self.noise_size

        def whitened(step):
            moved, lower = jax.jvp(lambda p: (p[:size], self.replace(p).factor()), (self.params,), (step,))[1]
            a = solve_triangular(self.factor(), lower, lower=True)
            rows, columns = np.tril_indices(size, -1)
            delta = solve_triangular(self.factor(), moved, lower=True)
            return jnp.concatenate([delta, 2**0.5 * jnp.diag(a), a[rows, columns]])

        root = jax.jacfwd(whitened)(jnp.zeros_like(self.params))
        return BlockDiagonal(((root.T @ root)[None],))

    # -- names --------------------------------------------------------------------------------------------------------

    def elements(self) -> list[str]:
        names = self.layout.elements()[0::2]
        rows, _ = np.tril_indices(self.noise_size, -1)
        return [*names, *names, *(names[row] for row in rows)]

    def parameter_labels(self) -> list[str]:
        names = self.layout.parameter_labels()[0::2]
        pairs = zip(*np.tril_indices(self.noise_size, -1))
        return [*names, *(f"spread of {n}" for n in names), *(f"{names[i]} with {names[j]}" for i, j in pairs)]

    def location_params(self) -> np.ndarray:
        return np.arange(self.num_params) < self.noise_size

    def largest_exponent(self) -> float:
        params, size = np.asarray(self.params, np.float64), self.noise_size
        spread = np.sqrt(np.sum(TriangularPath(size).factor(params) ** 2, 1))
        reached = np.abs(params[:size]) + 3 * spread
        pushed = [reached[slot.start : slot.start + slot.count].max() for slot in self.layout.slots if slot.pushed]
        return float(max([params[size : 2 * size].max(), *pushed]))


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


class TriangularPath(HostPath):
    """x = m + L e: coordinates are m and L row by row."""

    known_to_host: ClassVar[bool] = True

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
        return values, self._pull(slopes, noise), None

    def products(self, q, log_joint, c, along, noise, each):
        (mean, factor), (mean_step, factor_step) = self._place(c), self._place(along)
        slope_of = jax.grad(lambda x: log_joint(q, (x,)))
        points, moves = mean + noise @ factor.T, mean_step + noise @ factor_step.T

        def one(point_and_move):
            size = self.size
            return jax.jvp(slope_of, (point_and_move[:size],), (point_and_move[size:],))[1]

        return self._pull(each(one)(jnp.concatenate([points, moves], 1)), noise), None

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

    def product(self, params, direction, gradient, by_coordinates):
        out = self.gradient(params, by_coordinates)
        on_diagonal = slice(self.size, 2 * self.size)
        out[on_diagonal] += direction[on_diagonal] * gradient[on_diagonal]
        return out

    def entropy(self, params):
        return float(params[self.size : 2 * self.size].sum()) + 0.5 * self.size * (1 + _LOG_2PI)

    def entropy_gradient(self):
        return self._entropy_gradient

    def spreads(self, params):
        """The inverse root of the diagonal of the Fisher information."""
        inverse = np.linalg.inv(self.factor(params))
        row = np.sum(inverse**2, 0) ** -0.5  # of the mean, and of every entry in its row of L
        return np.concatenate([row, np.full(self.size, 2**-0.5), row[self.below[0]]])

    def root(self, params):
        return TriangularRoot(self, params)

    def whitened_scores(self, noise):
        i, j = self.below
        return np.concatenate([noise, (noise**2 - 1) / np.sqrt(2), noise[:, i] * noise[:, j]], 1)
