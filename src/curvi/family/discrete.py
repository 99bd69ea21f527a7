"""Discrete factors: Bernoulli, Categorical, Poisson."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln

from curvi.family.continuous import _known
from curvi.family.factor import Factor
from curvi.family.quantile import count_quantile
from curvi.model import support as supports
from curvi.record.plain import register

_START_LOGIT = 0.5  # logit of the given value at the start: breaks symmetry, but leaves other values likely


def _least_log_probability(dtype) -> float:
    """The smallest log probability for which the Fisher information has a Cholesky factor in this precision."""
    return -11.5 if jnp.finfo(dtype).bits < 64 else -18.5


@register
@dataclasses.dataclass(frozen=True)
class Bernoulli(Factor):
    """Bernoulli with gamma = logit, on a boolean latent."""

    @property
    def num_params(self):
        return 1

    def resolve(self, support, shape):
        return self if supports.is_boolean(support) else None

    def distribution(self, params):
        return dist.BernoulliLogits(params[..., 0])

    def log_prob(self, params, x):
        logit = params[..., 0]
        return jnp.where(x.astype(bool), jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit))

    def score(self, params, x):
        return (x.astype(params.dtype) - jax.nn.sigmoid(params[..., 0]))[..., None]

    def hessian(self, params, x):
        return jnp.broadcast_to(-self.fisher(params), (*x.shape, 1, 1))

    def entropy(self, params):
        logit = params[..., 0]
        p = jax.nn.sigmoid(logit)
        return -p * jax.nn.log_sigmoid(logit) - (1 - p) * jax.nn.log_sigmoid(-logit)

    def kl(self, params, other):
        logit, before = params[..., 0], other[..., 0]
        p = jax.nn.sigmoid(logit)
        ahead = jax.nn.log_sigmoid(logit) - jax.nn.log_sigmoid(before)
        return p * ahead + (1 - p) * (jax.nn.log_sigmoid(-logit) - jax.nn.log_sigmoid(-before))

    def fisher(self, params):
        p = jax.nn.sigmoid(params)
        return (p * jax.nn.sigmoid(-params))[..., None]

    @property
    def values(self):
        return range(2)

    def flattened(self, params, share):
        p = (1 - share) * jax.nn.sigmoid(params / 2) + share / 2
        return jnp.log(p) - jnp.log1p(-p)

    def max_abs_param(self, dtype):
        return -_least_log_probability(dtype)

    def with_min_probability(self, params, least):
        max_abs_param = np.log(1 / least - 1)
        return jnp.clip(params, -max_abs_param, max_abs_param)

    def from_natural(self, natural):
        least = _least_log_probability(natural.dtype)
        return jnp.clip(natural, least, -least)

    def start(self, value):
        return np.where(value.astype(bool), _START_LOGIT, -_START_LOGIT)[..., None]

    def from_uniform(self, params, u):
        return (u[..., 0] > jax.nn.sigmoid(-params[..., 0])).astype(jnp.int32)


@register
@dataclasses.dataclass(frozen=True)
class Categorical(Factor):
    """Categorical over K integers from `lowest` on, gamma = K - 1 logits against the first one.

    K logits would be redundant: the Fisher information would be singular.
    """

    size: int | None = None
    lowest: int = 0

    @property
    def num_params(self):
        return _known(self.size) - 1

    def resolve(self, support, shape):
        if (ends := supports.integer_range(support)) is None or ends[1] <= ends[0]:
            return None
        return Categorical(ends[1] - ends[0] + 1, ends[0])

    def distribution(self, params):
        return dist.CategoricalLogits(self._logits(params))

    def _logits(self, params):
        return jnp.concatenate([jnp.zeros_like(params[..., :1]), params], -1)

    def sample(self, key, params):
        return self.lowest + super().sample(key, params)

    def log_prob(self, params, x):
        log_p = jax.nn.log_softmax(self._logits(params), -1)
        return jnp.take_along_axis(log_p, (x - self.lowest)[..., None], -1)[..., 0]

    def score(self, params, x):
        p = jax.nn.softmax(self._logits(params), -1)
        return (jax.nn.one_hot(x - self.lowest, p.shape[-1], dtype=p.dtype) - p)[..., 1:]

    def hessian(self, params, x):
        return jnp.broadcast_to(-self.fisher(params), (*x.shape, self.num_params, self.num_params))

    def entropy(self, params):
        log_p = jax.nn.log_softmax(self._logits(params), -1)
        return -(jnp.exp(log_p) * log_p).sum(-1)

    def kl(self, params, other):
        log_p, before = (jax.nn.log_softmax(self._logits(logits), -1) for logits in (params, other))
        return (jnp.exp(log_p) * (log_p - before)).sum(-1)

    def fisher(self, params):
        p = jax.nn.softmax(self._logits(params), -1)[..., 1:]
        return jax.vmap(jnp.diag)(p) - p[..., :, None] * p[..., None, :]

    @property
    def values(self):
        return range(self.lowest, self.lowest + _known(self.size))

    def flattened(self, params, share):
        p = (1 - share) * jax.nn.softmax(self._logits(params) / 2, -1) + share / _known(self.size)
        return jnp.log(p[..., 1:]) - jnp.log(p[..., :1])

    def max_abs_param(self, dtype):
        return -_least_log_probability(dtype)

    def with_min_probability(self, params, least):
        return self._at_least(params, np.log(least))

    def from_natural(self, natural):
        return self._at_least(natural, _least_log_probability(natural.dtype))

    def _at_least(self, params, log_least):
        log_p = jnp.maximum(jax.nn.log_softmax(self._logits(params), -1), log_least)
        return log_p[..., 1:] - log_p[..., :1]

    def start(self, value):
        logits = _START_LOGIT * np.eye(_known(self.size))[value - self.lowest]
        return logits[..., 1:] - logits[..., :1]

    def from_uniform(self, params, u):
        cumulative = jnp.cumsum(jax.nn.softmax(self._logits(params), -1), -1)[..., :-1]
        return self.lowest + (u > cumulative).sum(-1).astype(jnp.int32)

    def mean(self, params):
        p = jax.nn.softmax(self._logits(params), -1)
        return self.lowest + p @ jnp.arange(p.shape[-1], dtype=p.dtype)

    def variance(self, params):
        p = jax.nn.softmax(self._logits(params), -1)
        values = jnp.arange(p.shape[-1], dtype=p.dtype)
        return p @ values**2 - (p @ values) ** 2


@register
@dataclasses.dataclass(frozen=True)
class Poisson(Factor):
    """Poisson(rate), gamma = log rate, on counts.

    The entropy has no closed form. Up to rate 30 it is the sum over 0 ... `_TERMS` - 1, whose neglected tail is below
    1e-15 of the mass (rate 30, 120 terms); above, the asymptotic series in 1/rate to fifth order, whose error at the
    switch is below 1e-8.
    """

    @property
    def num_params(self):
        return 1

    def resolve(self, support, shape):
        return self if supports.is_count(support) else None

    def distribution(self, params):
        return dist.Poisson(jnp.exp(params[..., 0]))

    def log_prob(self, params, x):
        count = x.astype(params.dtype)
        return count * params[..., 0] - jnp.exp(params[..., 0]) - gammaln(count + 1)

    def score(self, params, x):
        return x.astype(params.dtype)[..., None] - jnp.exp(params)

    def hessian(self, params, x):
        return jnp.broadcast_to(-self.fisher(params), (*x.shape, 1, 1))

    def entropy(self, params):
        log_rate = params[..., 0]
        # Each form is given rates in its own range only: an overflow outside would make gradients NaN.
        small = log_rate < _LOG_SWITCH
        summed = _poisson_entropy_sum(jnp.where(small, log_rate, _LOG_SWITCH))
        return jnp.where(small, summed, _poisson_entropy_series(jnp.where(small, _LOG_SWITCH, log_rate)))

    def kl(self, params, other):
        rate, before = jnp.exp(params[..., 0]), jnp.exp(other[..., 0])
        return rate * (params[..., 0] - other[..., 0]) - rate + before

    def fisher(self, params):
        return jnp.exp(params)[..., None]

    def start(self, value):
        return np.log(value + 0.5)[..., None]

    def from_uniform(self, params, u):
        rate = jnp.exp(params[..., 0])
        return count_quantile(dist.Poisson(rate).cdf, u[..., 0], rate + 12 * jnp.sqrt(rate) + 40)


_TERMS = 120
_LOG_2PI_E = 2.8378770664093453  # log(2 pi e)
_LOG_SWITCH = 3.4011973816621555  # rate 30


def _poisson_entropy_sum(log_rate):
    counts = jnp.arange(_TERMS, dtype=log_rate.dtype)
    log_p = counts * log_rate[..., None] - jnp.exp(log_rate)[..., None] - gammaln(counts + 1)
    return -(jnp.exp(log_p) * log_p).sum(-1)


def _poisson_entropy_series(log_rate):
    inverse = jnp.exp(-log_rate)
    tail = inverse * (1 / 12 + inverse * (1 / 24 + inverse * (19 / 360 + inverse * (9 / 80 + inverse * 863 / 2520))))
    return 0.5 * (_LOG_2PI_E + log_rate) - tail
