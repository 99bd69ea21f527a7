"""Continuous factors: Normal, LogNormal, Student-t, Gamma, Beta, Dirichlet.

Positive quantities are parameterised by their logarithms. Fisher information under gamma = log a is F_gamma = a F_a a.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import digamma, gammaln, ndtri, polygamma

from curvi.family.factor import Factor
from curvi.family.quantile import continuous_quantile
from curvi.model import support as supports
from curvi.record.plain import register

_LOG_2PI_E = 2.8378770664093453  # log(2 pi e)
_START_LOG_SCALE = -2.0  # small enough that exponential links stay finite, large enough to sense curvature
_START_CONCENTRATION = 10.0


def block_rows(*rows):
    """Stack scalars-per-factor into (n, k, k) blocks."""
    return jnp.stack([jnp.stack(row, -1) for row in rows], -2)


def _trigamma(x):
    return polygamma(1, x)


def location_scale_start(value: np.ndarray) -> np.ndarray:
    return np.stack([value, np.full_like(value, _START_LOG_SCALE)], -1)


@register
@dataclasses.dataclass(frozen=True)
class Normal(Factor):
    """Normal(mu, sigma), gamma = (mu, log sigma); pushed through numpyro's `biject_to` for a constrained latent."""

    real_line: ClassVar[bool] = True
    location_scale: ClassVar[bool] = True
    reparameterised: ClassVar[bool] = True

    @property
    def num_params(self):
        return 2

    def resolve(self, support, shape):
        return self if not supports.is_discrete(support) else None

    def distribution(self, params):
        return dist.Normal(params[..., 0], jnp.exp(params[..., 1]))

    def entropy(self, params):
        return params[..., 1] + 0.5 * _LOG_2PI_E

    def fisher(self, params):
        zero = jnp.zeros_like(params[..., 0])
        return block_rows((jnp.exp(-2 * params[..., 1]), zero), (zero, zero + 2))

    def score(self, params, x):
        e = (x - params[..., 0]) * jnp.exp(-params[..., 1])
        return jnp.stack([e * jnp.exp(-params[..., 1]), e * e - 1], -1)

    def hessian(self, params, x):
        inverse = jnp.exp(-params[..., 1])
        e = (x - params[..., 0]) * inverse
        cross = -2 * e * inverse
        return block_rows((jnp.broadcast_to(-(inverse**2), cross.shape), cross), (cross, -2 * e * e))

    def natural(self, params):
        precision = jnp.exp(-2 * params[..., 1])
        return jnp.stack([params[..., 0] * precision, -precision / 2], -1)

    def from_natural(self, natural):
        precision = -2 * natural[..., 1]
        return jnp.stack([natural[..., 0] / precision, -jnp.log(precision) / 2], -1)

    def start(self, value):
        return location_scale_start(value)

    def from_normal(self, params, noise):
        return params[..., 0] + jnp.exp(params[..., 1]) * noise

    def from_uniform(self, params, u):
        return self.from_normal(params, ndtri(u[..., 0]))


@register
@dataclasses.dataclass(frozen=True)
class LogNormal(Factor):
    """exp of a Normal(mu, sigma), on a positive latent itself; gamma = (mu, log sigma)."""

    reparameterised: ClassVar[bool] = True

    @property
    def num_params(self):
        return 2

    def resolve(self, support, shape):
        return self if supports.is_positive(support) else None

    def distribution(self, params):
        return dist.LogNormal(params[..., 0], jnp.exp(params[..., 1]))

    def entropy(self, params):
        return params[..., 0] + params[..., 1] + 0.5 * _LOG_2PI_E

    # As for its logarithm, a Normal with the same parameters.

    def kl(self, params, other):
        return Normal().kl(params, other)

    def fisher(self, params):
        return Normal().fisher(params)

    def natural(self, params):
        return Normal().natural(params)

    def from_natural(self, natural):
        return Normal().from_natural(natural)

    def score(self, params, x):
        return Normal().score(params, jnp.log(x))

    def hessian(self, params, x):
        return Normal().hessian(params, jnp.log(x))

    def start(self, value):
        return location_scale_start(np.log(value))

    def from_normal(self, params, noise):
        return jnp.exp(params[..., 0] + jnp.exp(params[..., 1]) * noise)

    def from_uniform(self, params, u):
        return self.from_normal(params, ndtri(u[..., 0]))


@register
@dataclasses.dataclass(frozen=True)
class Gamma(Factor):
    """Gamma(shape a, rate b), gamma = (log a, log b), on a positive latent."""

    @property
    def num_params(self):
        return 2

    def resolve(self, support, shape):
        return self if supports.is_positive(support) else None

    def distribution(self, params):
        return dist.Gamma(jnp.exp(params[..., 0]), jnp.exp(params[..., 1]))

    def entropy(self, params):
        a = jnp.exp(params[..., 0])
        return a - params[..., 1] + gammaln(a) + (1 - a) * digamma(a)

    def fisher(self, params):
        a = jnp.exp(params[..., 0])
        return block_rows((a * a * _trigamma(a), -a), (-a, a))

    def natural(self, params):
        return jnp.exp(params)

    def from_natural(self, natural):
        return jnp.log(natural)

    def start(self, value):
        shape = np.full_like(value, np.log(_START_CONCENTRATION))
        return np.stack([shape, shape - np.log(value)], -1)

    def from_uniform(self, params, u):
        return continuous_quantile(self.distribution(params).cdf, jnp.exp, u[..., 0], -80.0, 80.0)


@register
@dataclasses.dataclass(frozen=True)
class Beta(Factor):
    """Beta(a, b), gamma = (log a, log b), on the unit interval."""

    @property
    def num_params(self):
        return 2

    def resolve(self, support, shape):
        return self if supports.is_unit_interval(support) else None

    def distribution(self, params):
        return dist.Beta(jnp.exp(params[..., 0]), jnp.exp(params[..., 1]))

    def entropy(self, params):
        a, b = jnp.exp(params[..., 0]), jnp.exp(params[..., 1])
        log_normaliser = gammaln(a) + gammaln(b) - gammaln(a + b)
        return log_normaliser - (a - 1) * digamma(a) - (b - 1) * digamma(b) + (a + b - 2) * digamma(a + b)

    def fisher(self, params):
        a, b = jnp.exp(params[..., 0]), jnp.exp(params[..., 1])
        both = _trigamma(a + b)
        cross = -a * b * both
        return block_rows((a * a * (_trigamma(a) - both), cross), (cross, b * b * (_trigamma(b) - both)))

    def natural(self, params):
        return jnp.exp(params)

    def from_natural(self, natural):
        return jnp.log(natural)

    def start(self, value):
        return np.stack([np.log(_START_CONCENTRATION * value), np.log(_START_CONCENTRATION * (1 - value))], -1)

    def from_uniform(self, params, u):
        return continuous_quantile(self.distribution(params).cdf, jax.nn.sigmoid, u[..., 0], -80.0, 40.0)


@register
@dataclasses.dataclass(frozen=True)
class Dirichlet(Factor):
    """Dirichlet(a_1, ..., a_K), gamma = log a, on a simplex. K is read off the latent's last axis."""

    size: int | None = None

    @property
    def num_params(self):
        return _known(self.size)

    @property
    def event_shape(self):
        return (_known(self.size),)

    @property
    def num_uniforms(self):
        return _known(self.size)

    def resolve(self, support, shape):
        return Dirichlet(shape[-1]) if supports.is_simplex(support) else None

    def distribution(self, params):
        return dist.Dirichlet(jnp.exp(params))

    def entropy(self, params):
        a = jnp.exp(params)
        total = a.sum(-1)
        log_normaliser = gammaln(a).sum(-1) - gammaln(total)
        return log_normaliser + (total - a.shape[-1]) * digamma(total) - ((a - 1) * digamma(a)).sum(-1)

    def fisher(self, params):
        a = jnp.exp(params)
        diagonal = jax.vmap(jnp.diag)(a * a * _trigamma(a))
        return diagonal - a[..., :, None] * a[..., None, :] * _trigamma(a.sum(-1))[..., None, None]

    def natural(self, params):
        return jnp.exp(params)

    def from_natural(self, natural):
        return jnp.log(natural)

    def start(self, value):
        return np.log(_START_CONCENTRATION * value)

    def from_uniform(self, params, u):
        gammas = continuous_quantile(dist.Gamma(jnp.exp(params), jnp.ones_like(params)).cdf, jnp.exp, u, -80.0, 80.0)
        return gammas / gammas.sum(-1, keepdims=True)


def _known(size: int | None) -> int:
    if size is None:
        raise ValueError("the size of this factor is not known yet; it is read off the latent when a MeanField is made")
    return size
