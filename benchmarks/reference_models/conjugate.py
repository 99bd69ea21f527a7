"""Models whose posterior lies in the family: regression finds it in one step, to rounding."""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlog1py, xlogy
from numpyro.distributions import constraints

from curvi import factors
from curvi.family import MeanField
from curvi.model.target import Target


def poisson_gamma(counts=((3, 5, 4), (0, 1, 0), (12, 9, 15)), shape=2.0, rate=0.5) -> tuple[Target, MeanField]:
    """Counts in rows, a rate a row: lambda_i ~ Gamma(shape, rate), counts_ij ~ Poisson(lambda_i).

    The posterior of lambda_i is Gamma(shape + sum_j counts_ij, rate + number of columns).
    """
    table = np.asarray(counts)
    total, columns = table.sum(1), table.shape[1]

    def log_density(theta):
        rates = theta["rate"]
        return jnp.sum((shape - 1 + total) * jnp.log(rates) - (rate + columns) * rates)

    target = Target(log_density, {"rate": np.ones(len(total))}, {"rate": constraints.positive}, order=0)
    return target, MeanField(target, {"rate": factors.Gamma()})


def beta_bernoulli(successes=(1, 7, 30), failures=(4, 2, 11), prior=(1.0, 1.0)) -> tuple[Target, MeanField]:
    """Coins with a probability each: p_i ~ Beta(prior), successes and failures independent given p_i.

    The posterior of p_i is Beta(prior[0] + successes_i, prior[1] + failures_i).
    """
    ones, zeros = np.asarray(successes), np.asarray(failures)

    def log_density(theta):
        p = theta["p"]
        return jnp.sum(xlogy(prior[0] - 1 + ones, p) + xlog1py(prior[1] - 1 + zeros, -p))

    target = Target(log_density, {"p": np.full(len(ones), 0.5)}, {"p": constraints.unit_interval}, order=0)
    return target, MeanField(target, {"p": factors.Beta()})
