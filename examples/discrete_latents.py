"""Discrete latents: which features matter in a regression, and which rows belong together."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.stats import norm
from numpyro.distributions import constraints

import curvi

jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)

# Six features, of which two matter. The coefficients are integrated out; the bits say which features are in.
features = rng.normal(size=(80, 6))
outcome = features @ np.array([1.0, 0.0, -0.7, 0.0, 0.0, 0.0]) + 0.5 * rng.normal(size=80)
gram, moments = features.T @ features / 0.25, features.T @ outcome / 0.25


def log_density(theta):
    """ln p(outcome, bits) up to a constant: a prior of 0.3 a feature, coefficients of those in are Normal(0, 1)."""
    used = theta["used"].astype(float)
    precision = jnp.eye(6) + used[:, None] * gram * used
    pull = used * moments
    evidence = pull @ jnp.linalg.solve(precision, pull) / 2 - jnp.linalg.slogdet(precision)[1] / 2
    return evidence + jnp.sum(used) * np.log(0.3 / 0.7)


target = curvi.Target(log_density, {"used": jnp.zeros(6, int)}, {"used": constraints.boolean}, order=0)
selection = curvi.fit(target, key=jax.random.key(0), progress=False)
print(selection)
print("probability that a feature is in:", np.round(selection.mean()["used"], 3))

# Waits between eruptions: two kinds, the kind of each wait is a latent of its own row.
waits = np.where(rng.random(300) < 0.36, rng.normal(54.5, 5.9, 300), rng.normal(80.0, 5.9, 300))


def log_factors(theta):
    """Terms by name: one of the global latents, and one number a row."""
    row = norm.logpdf(waits, theta["means"][theta["kind"]], 6.0)
    return {"prior": jnp.sum(norm.logpdf(theta["means"], 70.0, 20.0)), "rows": row}


mixture = curvi.FactoredTarget(
    log_factors,
    {"means": jnp.array([60.0, 75.0]), "kind": jnp.zeros(300, int)},
    {"kind": constraints.integer_interval(0, 1)},
    local={"kind": "rows"},
)
fit = curvi.fit(mixture, key=jax.random.key(1), progress=False)
print(fit)
print("means of the two kinds:", np.round(fit.mean()["means"], 2))


# The same in NumPyro, with unknown shares. The plate and the dependence of its sites tell which rows belong together.
def eruptions(waits):
    means = numpyro.sample("means", dist.Normal(70.0, 20.0).expand([2]))
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("rows", len(waits)):
        kind = numpyro.sample("kind", dist.Categorical(shares))
        numpyro.sample("wait", dist.Normal(means[kind], 6.0), obs=waits)


start = numpyro.infer.init_to_value(values={"means": np.array([60.0, 75.0])})
target = curvi.from_numpyro(eruptions, waits, init_strategy=start)
print("sites of each local latent:", dict(target.local))
fit = curvi.fit(target, key=jax.random.key(2), progress=False)
print(fit)
print("means and shares of the two kinds:", np.round(fit.mean()["means"], 2), np.round(fit.mean()["shares"], 2))
