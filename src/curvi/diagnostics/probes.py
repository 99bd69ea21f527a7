"""The measurements of a check: values and derivatives of a target around its start, in few compiled programs.

All use unconstrained coordinates z, one block per latent, and l(z) = ln p(theta(z)) + ln |d theta / d z|. Central
differences come with one at twice the step, from which their error is estimated.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.distributions import biject_to

from curvi.model import support as supports
from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget

_REACH = 3.0  # distance by which each latent is moved alone, in unconstrained units
_OFFSET = 0.1  # derivatives are taken slightly off the start, which is often a point of symmetry


class Values(NamedTuple):
    """ln p at the start, with one latent moved (by name), at two points alone and in a batch; and the outputs."""

    start: np.ndarray
    moved: dict[str, np.ndarray]
    alone: np.ndarray
    batched: np.ndarray
    outputs: dict[str, np.ndarray]


class Density(eqx.Module):
    """l(z) of a target, with discrete latents held at their start."""

    target: AbstractTarget
    start: dict

    def __init__(self, target: AbstractTarget):
        self.target = target
        continuous = [one for one in target.latents if not one.discrete]
        self.start = {one.name: target.init[one.name] for one in continuous}
        if any(not supports.is_real(one.support) for one in continuous):
            invert = jax.jit(
                lambda start: {one.name: biject_to(one.support).inv(start[one.name]) for one in continuous}
            )
            self.start = invert(self.start)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.start)

    def theta(self, z):
        """Latents on their supports and the log Jacobian."""
        theta, log_det = dict(self.target.init), 0.0
        for latent in self.target.latents:
            if not latent.discrete:
                bijection = biject_to(latent.support)
                theta[latent.name] = bijection(z[latent.name])
                log_det += jnp.sum(bijection.log_abs_det_jacobian(z[latent.name], theta[latent.name]))
        return theta, log_det

    def __call__(self, z):
        theta, log_det = self.theta(z)
        return self.target.full()(theta) + log_det

    def outputs(self, z):
        return {} if self.target.outputs is None else self.target.outputs(self.theta(z)[0])


@eqx.filter_jit
def evaluate(density, key):
    """The fields of `Values`."""
    if not density.names:
        return density({}), {}, jnp.zeros(0), jnp.zeros(0), density.outputs({})
    flat, unravel = ravel_pytree(density.start)
    sides = jnp.asarray([-_REACH, -1.0, 1.0, _REACH], flat.dtype)
    moved = flat + sides[:, None, None] * _blocks(density, jnp.ones_like(flat))
    near = flat + _OFFSET * jax.random.normal(key, (2, flat.size), flat.dtype)
    points = jnp.concatenate([flat[None], near, moved.reshape(-1, flat.size)])
    values = jax.lax.map(lambda point: density(unravel(point)), points)
    batched = over_draws(density, len(near))(lambda point: density(unravel(point)))(near)
    by_name = dict(zip(density.names, values[3:].reshape(len(sides), -1).T))
    return values[0], by_name, values[1:3], batched, density.outputs(density.start)


def _blocks(density, vector):
    """One row per latent: its part of the vector, zero elsewhere."""
    owner = np.concatenate([np.full(np.size(leaf), at) for at, leaf in enumerate(density.start.values())])
    return jnp.where(jnp.arange(len(density.names))[:, None] == owner, vector, 0)


def _differences(values, length):
    """Central differences from values at -2, -1, 1 and 2 lengths: with Richardson's extrapolation, and without."""
    near, far = (values[2] - values[1]) / (2 * length), (values[3] - values[0]) / (4 * length)
    return (4 * near - far) / 3, near


_STEPS = np.array([-2.0, -1.0, 1.0, 2.0])


@eqx.filter_jit
def slopes_by_latent(density, key):
    """By latent: its slope along a random direction, the same by differences, and their rounding error."""
    key_point, key_along = jax.random.split(key)
    flat, unravel = ravel_pytree(density.start)
    flat = flat + _OFFSET * jax.random.normal(key_point, flat.shape, flat.dtype)
    value, gradient = jax.value_and_grad(lambda point: density(unravel(point)))(flat)
    along = _blocks(density, jax.random.normal(key_along, flat.shape, flat.dtype))
    along = along / jnp.linalg.norm(along, axis=1, keepdims=True)
    epsilon = jnp.finfo(value.dtype).eps
    length = epsilon**0.25
    points = flat + length * jnp.asarray(_STEPS, flat.dtype)[:, None, None] * along
    values = jax.lax.map(lambda point: density(unravel(point)), points.reshape(-1, flat.size)).reshape(4, -1)
    near, far = _differences(values, length)
    parts = _blocks(density, gradient)
    found = {
        "slope": along @ gradient,
        "near": near,
        "far": far,
        "rounding": jnp.full(near.shape, 50 * epsilon * (jnp.abs(value) + 1) / length),
        "finite": jnp.all(jnp.isfinite(parts), axis=1),
        "used": jnp.any(parts != 0, axis=1) | (near != 0),
    }
    return _by_latent(density, found)


@eqx.filter_jit
def curvature_by_latent(density, key):
    """v'Hw and w'Hv for random v and w; by latent, derivatives of the gradient along w, by product and differences."""
    key_point, key_v, key_w, key_along = jax.random.split(key, 4)
    flat, unravel = ravel_pytree(density.start)
    flat = flat + _OFFSET * jax.random.normal(key_point, flat.shape, flat.dtype)
    gradient = jax.grad(lambda point: density(unravel(point)))
    v, w = (jax.random.normal(k, flat.shape, flat.dtype) for k in (key_v, key_w))
    v, w = v / jnp.linalg.norm(v), w / jnp.linalg.norm(w)
    times_w, times_v = jax.lax.map(lambda tangent: jax.jvp(gradient, (flat,), (tangent,))[1], jnp.stack([w, v]))
    along = _blocks(density, jax.random.normal(key_along, flat.shape, flat.dtype))
    along = along / jnp.linalg.norm(along, axis=1, keepdims=True)
    epsilon = jnp.finfo(flat.dtype).eps
    length = epsilon**0.25
    gradients = jax.lax.map(gradient, flat + length * jnp.asarray(_STEPS, flat.dtype)[:, None] * w)
    near, far = _differences(gradients @ along.T, length)
    size = jnp.max(jnp.linalg.norm(gradients, axis=1)) + 1
    rounding = jnp.full(near.shape, 50 * epsilon * size / length)
    norms = jnp.linalg.norm(times_v) + jnp.linalg.norm(times_w)
    return {
        "left": v @ times_w,
        "right": w @ times_v,
        "error": 1000 * epsilon * norms,
        "blocks": _by_latent(density, {"slope": along @ times_w, "near": near, "far": far, "rounding": rounding}),
    }


def _by_latent(density, columns: dict) -> dict[str, dict]:
    return {name: {key: column[at] for key, column in columns.items()} for at, name in enumerate(density.names)}


def agrees(one: dict) -> bool:
    """Whether a slope agrees with central differences within their error: truncation, estimated from two steps, and
    rounding.
    """
    error = 3 * abs(one["near"] - one["far"]) + one["rounding"]
    return bool(abs(one["slope"] - one["near"]) <= 1e-3 * abs(one["slope"]) + error)
