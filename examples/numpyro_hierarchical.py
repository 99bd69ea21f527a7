"""A hierarchical NumPyro model: sixty groups that share a mean and a spread."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import curvi

# Simulated, so that the answer is known: groups of 2 to 20 measurements around effects with mean 1 and spread 0.5.
rng = np.random.default_rng(1)
effects = rng.normal(1.0, 0.5, 60)
group = np.repeat(np.arange(60), rng.integers(2, 21, 60))
y = rng.normal(effects[group], 0.8)


def model(group, y, num_groups):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    spread = numpyro.sample("spread", dist.HalfNormal(2.0))
    noise = numpyro.sample("noise", dist.HalfNormal(2.0))
    with numpyro.plate("groups", num_groups):
        # Standardised effects: their posterior is close to a product, that of the effects themselves is not.
        standardised = numpyro.sample("standardised", dist.Normal(0.0, 1.0))
    effect = numpyro.deterministic("effect", mean + spread * standardised)
    numpyro.sample("y", dist.Normal(effect[group], noise), obs=y)


target = curvi.from_numpyro(model, jnp.asarray(group), jnp.asarray(y), 60)
print(curvi.check(target, key=jax.random.key(0)))

fit = curvi.fit(target, key=jax.random.key(0), progress=False)
print(fit)

mean, sd = fit.mean(), fit.sd(kind="linear_response")
for name, truth in (("mean", 1.0), ("spread", 0.5), ("noise", 0.8)):
    print(f"{name:<7} {mean[name]:.3f} +- {sd[name]:.3f}, in truth {truth}")
off = (mean["effect"] - effects) / sd["effect"]
print(f"effects: {np.mean(np.abs(off) < 2):.0%} of the true ones lie within two sds")
