"""A log density in plain JAX: waiting times between eruptions as a mixture of two normal distributions.

Two components would be interchangeable; an ordered support for the means decides which is which.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from numpyro.distributions import constraints

import curvi

# Simulated after the Old Faithful geyser: a third of the waits are short.
rng = np.random.default_rng(0)
waits = jnp.asarray(np.where(rng.random(270) < 0.36, rng.normal(54.5, 5.9, 270), rng.normal(80.0, 5.9, 270)))


def log_density(theta):
    """ln p(theta, waits), on the supports below; curvi adds the Jacobians of its own coordinates."""
    share, means, spread = theta["share"], theta["means"], theta["spread"]
    log_prior = jnp.sum(norm.logpdf(means, 70.0, 20.0)) + norm.logpdf(jnp.log(spread), 2.0, 1.0) - jnp.log(spread)
    short = jnp.log(share) + norm.logpdf(waits, means[0], spread)
    long = jnp.log1p(-share) + norm.logpdf(waits, means[1], spread)
    return log_prior + jnp.sum(logsumexp(jnp.stack([short, long]), axis=0))


target = curvi.Target(
    log_density,
    init={"share": jnp.asarray(0.5), "means": jnp.array([50.0, 90.0]), "spread": jnp.asarray(10.0)},
    supports={
        "share": constraints.unit_interval,
        "means": constraints.ordered_vector,
        "spread": constraints.positive,
    },
    outputs=lambda theta: {"gap": theta["means"][1] - theta["means"][0]},
)
print(curvi.check(target, key=jax.random.key(0)))

fit = curvi.fit(target, key=jax.random.key(0), progress=False)
print(fit)

mean, sd = fit.mean(), fit.sd(kind="linear_response")
for name in ("share", "means", "spread", "gap"):
    print(f"{name:<7} {np.round(mean[name], 3)} +- {np.round(sd[name], 3)}")
