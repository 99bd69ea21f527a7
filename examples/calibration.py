"""Which parameters does a product of independent factors get wrong? Ranks of true values say it in words."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import curvi

jax.config.update("jax_enable_x64", True)
x = np.random.default_rng(0).normal(size=(12, 2)) @ np.array([[1.0, 2.0], [0.0, 1.0]])


def model(x, y=None):
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ slopes, 1.0), obs=y)


found = curvi.sbc(model, x, key=jax.random.key(0), observed="y", family="mean_field")
print(found)
print(found.summary())
svg = found.plot()  # found.plot("ranks.svg") writes it to a file
fit = found.fits[0]  # the first of the fits
