"""From the fit to Markov chains: how far is the posterior from q, and draws of the posterior itself.

A Poisson regression with two columns that say nearly the same. Needs BlackJAX: pip install "curvi[mcmc]".
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import curvi

rng = np.random.default_rng(0)
first = rng.normal(size=150)
columns = np.column_stack([np.ones(150), first, 0.9 * first + 0.3 * rng.normal(size=150)])
counts = rng.poisson(np.exp(columns @ np.array([0.5, 0.4, -0.2])))


def model(columns, counts=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("counts", dist.Poisson(jnp.exp(columns @ weights)), obs=counts)


target = curvi.from_numpyro(model, jnp.asarray(columns), jnp.asarray(counts))
fit = curvi.fit(target, key=jax.random.key(0), family="mean_field", progress=False)
print(fit)

# Four chains of NUTS from here. A product of factors makes the sds of columns that say the same too small.
polished = fit.polish(jax.random.key(1))
print(polished)
print("sds, divided by those of q:", np.round(polished.moved.sd["weights"], 2))

# The same start for NumPyro's own NUTS; BlackJAX takes `start.logdensity_fn` and `start.inverse_mass_matrix`.
start = fit.to_nuts(jax.random.key(2))
kernel = numpyro.infer.NUTS(**start.for_numpyro(), adapt_mass_matrix=False)
chains = numpyro.infer.MCMC(
    kernel, num_warmup=100, num_samples=500, num_chains=4, chain_method="vectorized", progress_bar=False
)
chains.run(jax.random.key(3), init_params=start.init_params)
draws = start.to_named(chains.get_samples(group_by_chain=True))
print("sds by NumPyro:", np.round(draws["weights"].std((0, 1)), 3), "by polish:", np.round(polished.sd()["weights"], 3))
