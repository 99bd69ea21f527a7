"""Five-fold cross-validation of two regressions, and a bootstrap of one: each is one call."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import curvi

jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
x = rng.normal(size=(100, 3))
y = x @ [1.0, -0.5, 0.0] + 0.5 * x[:, 0] ** 2 + rng.normal(size=100)


def linear(x, y):
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(2.0))
    numpyro.sample("y", dist.Normal(x @ slopes, noise), obs=y)


def curved(x, y):
    linear(jnp.concatenate([x, x**2], 1), y)


# Folds: the rows that are left out, and the rows that are fitted, stacked along a first axis.
folds = rng.permutation(100).reshape(5, 20)
rest = np.stack([np.setdiff1d(np.arange(100), fold) for fold in folds])

for model, columns in ((linear, x), (curved, np.concatenate([x, x**2], 1))):
    many = curvi.fit_many(model, x[rest], y[rest], key=jax.random.key(0))
    draws = many.sample(jax.random.key(1), 1000)  # by name: (folds, draws, ...)
    fitted = np.einsum("fri,fdi->fdr", columns[folds], draws["slopes"])
    density = dist.Normal(fitted, draws["noise"][..., None]).log_prob(y[folds][:, None])
    score = jax.scipy.special.logsumexp(density, axis=1) - np.log(1000)
    print(f"{model.__name__}: log predictive density {score.sum():.1f}")

# Bootstrap: 200 resampled data sets. Lists with one entry per data set would do as well.
rows = rng.integers(0, 100, (200, 100))
many = curvi.fit_many(curved, x[rows], y[rows], key=jax.random.key(2))
print(many)
print("sd of the first slope over data sets", many.mean()["slopes"][:, 0].std().round(3))
fit = many[0]  # a curvi.Fit of the first data set
