"""Draws m + sigma e of a product of normal factors on fixed noise: coordinates and Fisher information on the host."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from curvi.family.path import ExpandablePath

_LARGEST_STORED = 2048  # dimensions up to which the matrix of a control variate is stored
_LEAST_SQUARED = 1e-6
_ENTROPY = 0.5 * (1 + np.log(2 * np.pi))  # of a standard normal


class NormalPath(ExpandablePath):
    """A product of n normal factors with parameters (mean, ln scale) interleaved: x = mean + scale * e."""

    def __init__(self, num_factors: int):
        self.size = num_factors
        self._entropy_gradient = np.tile([0.0, 1.0], num_factors)
        self._half = np.full(num_factors, 2**-0.5)
        self._last: tuple[np.ndarray | None, np.ndarray] = (None, self._half)

    def __eq__(self, other):
        return type(other) is NormalPath and other.size == self.size

    def __hash__(self):
        return hash((NormalPath, self.size))

    def gradients(self, q, log_joint, c, noise, each):
        mean, scale = c[: self.size], c[self.size :]
        slope_of = jax.value_and_grad(lambda x: log_joint(q, (x,)))
        values, slopes = each(lambda e: slope_of(mean + scale * e))(noise)
        return values, jnp.concatenate([slopes.mean(0), (slopes * noise).mean(0)]), slopes

    def products(self, q, log_joint, c, along, noise, each):
        mean, scale, mean_step, scale_step = c[: self.size], c[self.size :], along[: self.size], along[self.size :]
        slope_of = jax.grad(lambda x: log_joint(q, (x,)))

        def one(e):
            return jax.jvp(slope_of, (mean + scale * e,), (mean_step + scale_step * e,))[1]

        products = each(one)(noise)
        return jnp.concatenate([products.mean(0), (products * noise).mean(0)]), products

    # -- on the host --------------------------------------------------------------------------------------------------

    def coordinates(self, params):
        return np.concatenate([params[0::2], self.scale(params)])

    def tangent(self, params, direction):
        return np.concatenate([direction[0::2], self.scale(params) * direction[1::2]])

    def gradient(self, params, by_coordinates):
        return _interleave(by_coordinates[..., : self.size], self.scale(params) * by_coordinates[..., self.size :])

    def product(self, params, direction, gradient, by_coordinates):
        scales = self.scale(params) * by_coordinates[self.size :] + direction[1::2] * gradient[1::2]
        return _interleave(by_coordinates[: self.size], scales)

    def location(self, v: np.ndarray) -> np.ndarray:
        """The entries of a vector like the parameters that belong to means."""
        return v[..., 0::2]

    def scale(self, params: np.ndarray) -> np.ndarray:
        """The scales; those of the last parameters are kept, since every part of an evaluation asks for them."""
        if params is not self._last[0]:
            self._last = (params, np.exp(params[..., 1::2]))
        return self._last[1]

    def log_scale_entries(self, v: np.ndarray) -> np.ndarray:
        """The entries that belong to ln scales, to be changed in place."""
        return v[..., 1::2]

    def at_mean(self, params, spread=0.0):
        return np.concatenate([params[0::2], np.broadcast_to(spread, self.size)])

    def along_noise(self):
        return np.concatenate([np.zeros(self.size), np.ones(self.size)])

    def sds(self, params):
        return self.scale(params)

    def away(self, params, noise):
        return self.scale(params) * noise

    def with_best_scales(self, params: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Parameters with the scales that the expected Hessian's diagonal asks for, by Stein's identity; exact where
        ln p is quadratic. Where it is not negative, scales stay.
        """
        scale = self.scale(params)
        squared = -slope[self.size :] * scale  # -E[Hessian_ii] sigma_i^2
        change = np.where(squared > _LEAST_SQUARED, -0.5 * np.log(np.maximum(squared, _LEAST_SQUARED)), 0.0)
        return _interleave(params[0::2], params[1::2] + change)

    def scale_matrix(self, params):
        return np.diag(self.scale(params))

    def excess(self, hessian, noise):
        size, times = self.size, _excess_matrix(hessian, noise)

        def gradient(c):
            out = np.zeros(2 * size)
            out[size:] = times(c[size:])
            return out

        return gradient

    def part_excess(self, hessian, parts, c):
        sigma = c[self.size :]
        pulled = parts * ((parts * sigma) @ hessian)
        gradients = pulled.mean(1) - np.diag(hessian) * sigma
        return gradients @ sigma / 2, np.concatenate([np.zeros_like(gradients), gradients], 1)

    def entropy(self, params: np.ndarray) -> float:
        return float(params[1::2].sum()) + self.size * _ENTROPY

    def entropy_gradient(self, params: np.ndarray) -> np.ndarray:
        return self._entropy_gradient

    def spreads(self, params: np.ndarray) -> np.ndarray:
        """The inverse root of the Fisher information, which is diagonal."""
        return _interleave(self.scale(params), self._half)

    def whitened_scores(self, params: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Scores in coordinates where the Fisher information is the identity: e and (e^2 - 1) / sqrt 2 per factor."""
        return _interleave(noise, (noise**2 - 1) / np.sqrt(2))


def _excess_matrix(hessian: np.ndarray, noise: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Products with K = H0 * (mean e e' - I), which is not stored where it is large."""
    if noise.shape[-1] <= _LARGEST_STORED:
        matrix = hessian * (noise.T @ noise / len(noise) - np.eye(noise.shape[-1]))
        return lambda v: matrix @ v
    half = noise[::2]  # both draws of a mirrored pair contribute equally
    return lambda v: np.mean(half * ((half * v) @ hessian), 0) - np.diag(hessian) * v


def independent_params(means: np.ndarray, sds: np.ndarray) -> np.ndarray:
    """The parameters of independent normal factors."""
    return _interleave(means, np.log(sds))


def _interleave(means: np.ndarray, scales: np.ndarray) -> np.ndarray:
    out = np.empty((*means.shape[:-1], 2 * means.shape[-1]))
    out[..., 0::2], out[..., 1::2] = means, scales
    return out
