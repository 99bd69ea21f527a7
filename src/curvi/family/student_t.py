"""The Student-t factor."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from curvi.family import student_t_functions as functions
from curvi.family.continuous import block_rows, location_scale_start
from curvi.family.factor import Factor
from curvi.family.quantile import continuous_quantile
from curvi.model import support as supports
from curvi.record.plain import register


@register
@dataclasses.dataclass(frozen=True)
class StudentT(Factor):
    """Student-t(df, mu, sigma) with gamma = (mu, log sigma, log(df - 4)).

    Degrees of freedom stay above 4, so that the fourth moment exists: the estimate of the Hessian, a mean of products
    of scores with log densities that grow like squares, then has a variance.
    """

    real_line: ClassVar[bool] = True
    has_kl: ClassVar[bool] = False

    @property
    def num_params(self):
        return 3

    def resolve(self, support, shape):
        return self if not supports.is_discrete(support) else None

    def distribution(self, params):
        return dist.StudentT(4 + jnp.exp(params[..., 2]), params[..., 0], jnp.exp(params[..., 1]))

    def log_prob(self, params, x):
        df, z = 4 + jnp.exp(params[..., 2]), (x - params[..., 0]) * jnp.exp(-params[..., 1])
        return -params[..., 1] - functions.log_normaliser(df) - (df + 1) / 2 * jnp.log1p(z * z / df)

    def entropy(self, params):
        return functions.standard_entropy(4 + jnp.exp(params[..., 2])) + params[..., 1]

    def fisher(self, params):
        """Lange, Little and Taylor (1989), appendix B, in the unconstrained parameters."""
        above = jnp.exp(params[..., 2])
        df = 4 + above
        zero = jnp.zeros_like(df)
        location = (df + 1) / (df + 3) * jnp.exp(-2 * params[..., 1])
        scale = 2 * df / (df + 3)
        cross = -2 / ((df + 1) * (df + 3)) * above
        tail = functions.tail_information(df) * above**2
        return block_rows((location, zero, zero), (zero, scale, cross), (zero, cross, tail))

    def start(self, value):
        return np.concatenate([location_scale_start(value), np.full((*value.shape, 1), 1.0, value.dtype)], -1)

    def from_uniform(self, params, u):
        df, u = 4 + jnp.exp(params[..., 2]), u[..., 0]
        # Search from the median outwards, so that both tails keep full precision.
        smaller = jnp.minimum(u, 1 - u)
        size = continuous_quantile(lambda z: -functions.upper_tail(df, z), jnp.sinh, -smaller, 0.0, 60.0)
        return params[..., 0] + jnp.exp(params[..., 1]) * jnp.where(u < 0.5, -size, size)
