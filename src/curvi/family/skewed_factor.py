"""The sinh-arcsinh factor: a normal factor with a skewness and tails of its own."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

from curvi.family.continuous import Normal, location_scale_start
from curvi.family.factor import Factor
from curvi.family.sinh_arcsinh import FAR, MOST_SKEW, MOST_TAIL, NODES, WEIGHTS
from curvi.family.sinh_arcsinh import SinhArcsinh as Shape
from curvi.model import support as supports
from curvi.record.plain import register

_ENTROPY = 0.5 * (1 + float(np.log(2 * np.pi)))  # of a standard normal


@register
@dataclasses.dataclass(frozen=True)
class SinhArcsinh(Factor):
    """x = mu + sigma T(u), u ~ N(0, 1), with gamma = (mu, log sigma, skewness, tail); T is the sinh-arcsinh
    transformation of `curvi.family.sinh_arcsinh`, which is the identity where the last two are zero, and leaves mu and
    sigma mean and sd.
    """

    real_line: ClassVar[bool] = True
    location_scale: ClassVar[bool] = True
    reparameterised: ClassVar[bool] = True

    @property
    def num_params(self):
        return 4

    def resolve(self, support, shape):
        return self if not supports.is_discrete(support) else None

    def distribution(self, params):
        raise NotImplementedError("density, draws and moments of a sinh-arcsinh factor are its own")

    def log_prob(self, params, x):
        shape = _shape(params)
        u = shape.inverse((x - params[..., 0]) * jnp.exp(-params[..., 1]))
        return -0.5 * u * u - 0.5 * jnp.log(2 * jnp.pi) - params[..., 1] - shape.log_slope(u)

    def entropy(self, params):
        return params[..., 1] + _shape(params).entropy() + _ENTROPY

    def fisher(self, params):
        """E[w' w'] + E[w w], with w the moves of u, by sums over nodes (`curvi.family.sinh_arcsinh_host`)."""
        nodes, weights = jnp.asarray(NODES, params.dtype), jnp.asarray(WEIGHTS, params.dtype)

        def one(p):
            at = lambda p, u: self.from_normal(p[None], u[None])[0]  # noqa: E731

            def moved(u):
                by_params, slope = jax.grad(at, (0, 1))(p, u)
                return by_params / slope

            moves, bent = jax.vmap(moved)(nodes), jax.vmap(jax.jacfwd(moved))(nodes)
            found = jnp.einsum("k,ka,kb->ab", weights, moves, moves) + jnp.einsum("k,ka,kb->ab", weights, bent, bent)
            return (found + found.T) / 2

        return jax.vmap(one)(params)

    def kl(self, params, other):
        """By sums over nodes, closer ones: asinh of sinh is less smooth than either."""
        finer = np.linspace(NODES[0], NODES[-1], 4 * len(NODES) - 3)
        weights = np.exp(-0.5 * finer**2)
        nodes, weights = (jnp.asarray(v, params.dtype) for v in (finer, weights / weights.sum()))

        def apart(u):
            x = self.from_normal(params, jnp.broadcast_to(u, params.shape[:-1]))
            return self.log_prob(params, x) - self.log_prob(other, x)

        return weights @ jax.vmap(apart)(nodes)

    def max_abs_param(self, dtype):
        return np.array([np.inf, np.inf, FAR * MOST_SKEW, FAR * MOST_TAIL])

    def start(self, value):
        return np.concatenate([location_scale_start(value), np.zeros((*value.shape, 2), value.dtype)], -1)

    def from_normal(self, params, noise):
        return params[..., 0] + jnp.exp(params[..., 1]) * _shape(params).forward(noise)

    def from_uniform(self, params, u):
        return self.from_normal(params, ndtri(u[..., 0]))

    def mean(self, params):
        return params[..., 0]

    def variance(self, params):
        return jnp.exp(2 * params[..., 1])

    def sample(self, key, params):
        return self.from_normal(params, jax.random.normal(key, params.shape[:-1], params.dtype))


def with_shape(factor: Factor, params: Float[Array, "n k"]) -> tuple[Factor, Float[Array, "n k"]]:
    """A normal factor as a skewed one whose shape is normal yet, with its parameters; any other as it is."""
    if not isinstance(factor, Normal):
        return factor, params
    return SinhArcsinh(), jnp.concatenate([params, jnp.zeros_like(params)], 1)


def _shape(params: Float[Array, "n k"]) -> Shape:
    return Shape.of(params[..., 2], params[..., 3])
