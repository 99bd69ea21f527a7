"""Minibatches: logistic regression on 5,000 rows, of which an evaluation sees 1,000."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

import curvi

rng = np.random.default_rng(0)
weights = np.array([-0.5, 1.0, 0.0, -1.5])
x = np.column_stack([np.ones(5_000), rng.normal(size=(5_000, 3))])
y = rng.random(5_000) < 1 / (1 + np.exp(-x @ weights))
rows = {"x": jnp.asarray(x), "sign": jnp.asarray(np.where(y, 1.0, -1.0))}


def log_prior(theta):
    return jnp.sum(norm.logpdf(theta["weights"], 0.0, 2.0))


def log_likelihood_row(theta, row):
    """Of one row, without any factor: curvi multiplies by the number of rows over the batch size."""
    return jax.nn.log_sigmoid(row["sign"] * (row["x"] @ theta["weights"]))


target = curvi.MinibatchTarget(log_prior, log_likelihood_row, rows, batch_size=1_000, init={"weights": jnp.zeros(4)})
print(curvi.check(target, key=jax.random.key(0)))

# Batches bring noise of their own: a tolerance that they can show.
fit = curvi.fit(target, key=jax.random.key(0), tolerance=0.5, progress=False)
print(fit)
for value, spread, truth in zip(fit.mean()["weights"], fit.sd()["weights"], weights):
    print(f"{value:7.3f} +- {spread:.3f}, in truth {truth}")
