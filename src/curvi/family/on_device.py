"""A product of normal factors in whitened coordinates, for programs that keep its parameters on the device.

A vector w of length 2 d has steps of the means in sds of q, then steps of the ln sds times sqrt 2: there the Fisher
information is the identity. Means and scales apart, as `NormalPath` takes them, are contiguous, unlike the parameters.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi.family.base import Family
from curvi.family.normal_path import NormalPath

_ROOT = math.sqrt(0.5)
_ENTROPY = 0.5 * (1 + math.log(2 * math.pi))  # of a standard normal
# Of the squared change of a scale. Few draws know a scale far above its own badly: one of a million that looks
# unbounded must not overflow the model, and can be widened again.
_LEAST_SQUARED, _MOST_SQUARED = 1 / 16, 1e6


class NormalOnDevice(NamedTuple):
    """Means and ln scales of a product of normal factors."""

    mean: Float[Array, " d"]
    log_scale: Float[Array, " d"]

    @classmethod
    def of(cls, q: Family) -> "NormalOnDevice":
        return cls(*q.params.reshape(-1, 2).T)

    @property
    def params(self) -> Float[Array, " P"]:
        return jnp.stack([self.mean, self.log_scale], -1).reshape(-1)

    @property
    def scale(self) -> Float[Array, " d"]:
        return jnp.exp(self.log_scale)

    @property
    def coordinates(self) -> Float[Array, " P"]:
        """Means and scales, as `NormalPath` takes them."""
        return jnp.concatenate([self.mean, self.scale])

    def gradient(self, by_coordinates: Float[Array, " P"]) -> Float[Array, " P"]:
        """The whitened gradient of the ELBO from that of E[ln p] in the coordinates."""
        size, scale = self.mean.size, self.scale
        along_scale = _ROOT * (scale * by_coordinates[size:] + 1)
        return jnp.concatenate([scale * by_coordinates[:size], along_scale])

    def tangent(self, w: Float[Array, " P"]) -> Float[Array, " P"]:
        """The direction of the coordinates along a whitened step."""
        size, scale = self.mean.size, self.scale
        return jnp.concatenate([scale * w[:size], _ROOT * scale * w[size:]])

    def minus_curvature(self, w: Float[Array, " P"], gradient: Float[Array, " P"], by_coordinates: Float[Array, " P"]):
        """-H w, whitened, from the whitened gradient and the derivative of the gradient in the coordinates along w."""
        size, scale = self.mean.size, self.scale
        # The gradient in ln scale without the entropy: it bends since scale = exp(ln scale).
        bend = gradient[size:] / _ROOT - 1
        along_scale = _ROOT * (scale * by_coordinates[size:] + _ROOT * w[size:] * bend)
        return -jnp.concatenate([scale * by_coordinates[:size], along_scale])

    def moved(self, w: Float[Array, " P"]) -> "NormalOnDevice":
        """After a whitened step."""
        size = self.mean.size
        return NormalOnDevice(self.mean + self.scale * w[:size], self.log_scale + _ROOT * w[size:])

    def with_best_scales(self, gradient: Float[Array, " P"]) -> "NormalOnDevice":
        """With the scales that the diagonal of the expected Hessian asks for, which Stein's identity reads off the
        whitened gradient; unchanged where it is not negative, and at most four times as wide.
        """
        squared = 1 - gradient[self.mean.size :] / _ROOT  # -E[Hessian_ii] scale_i^2
        change = -0.5 * jnp.log(jnp.clip(jnp.where(squared > 0, squared, 1.0), _LEAST_SQUARED, _MOST_SQUARED))
        return NormalOnDevice(self.mean, self.log_scale + change)

    def entropy(self) -> Float[Array, ""]:
        return self.log_scale.sum() + self.mean.size * _ENTROPY


def normal_on_device(q: Family) -> bool:
    """Whether q is a product of normal factors."""
    return isinstance(q.path, NormalPath)
