"""A mixture with as many categorical assignments as data."""

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from curvi.model.factored import FactoredTarget


def mixture_data(num_rows: int, means=(-3.0, 0.0, 4.0), shares=(0.3, 0.5, 0.2), seed=0) -> np.ndarray:
    """Values of normal components of unit variance."""
    rng = np.random.default_rng(seed)
    return np.asarray(means)[rng.choice(len(means), num_rows, p=shares)] + rng.normal(size=num_rows)


def mixture(values, num_parts: int = 3) -> FactoredTarget:
    """Normal components of unit variance: means Normal(0, 5), shares Dirichlet(1), and an assignment for each value.

    The start spreads the means over the quantiles of the values.
    """
    values = np.asarray(values, float)

    def log_factors(theta):
        means, shares, part = theta["mean"], theta["share"], theta["part"]
        return {
            "prior": -0.5 * jnp.sum((means / 5) ** 2),
            "values": jnp.log(shares)[part] + jax.scipy.stats.norm.logpdf(values, means[part]),
        }

    starts = np.quantile(values, (np.arange(num_parts) + 0.5) / num_parts)
    init = {"mean": starts, "share": np.full(num_parts, 1 / num_parts), "part": np.zeros(len(values), int)}
    supports = {"share": constraints.simplex, "part": constraints.integer_interval(0, num_parts - 1)}
    return FactoredTarget(log_factors, init, supports, local={"part": "values"})
