"""Rows from files: 100,000 trips in ten Parquet files, read a chunk at a time, with a checkpoint to go on from."""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow
from jax.scipy.stats import norm
from pyarrow import parquet

import curvi

# Data as they may lie on a disk: one column each, of numbers.
folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
city = np.array([2.0, 2.4, 1.5])
for number in range(10):
    km, where = rng.gamma(2.0, 3.0, 10_000), rng.integers(0, 3, 10_000)
    minutes = np.exp(city[where] + 0.7 * np.log(km) + 0.3 * rng.standard_normal(10_000))
    table = pyarrow.table({"km": km, "city": where, "minutes": minutes})
    parquet.write_table(table, folder / f"trips-{number}.parquet")

rows = curvi.Rows(folder)
print(rows)


def log_prior(theta):
    return jnp.sum(norm.logpdf(theta["city"], 0.0, 3.0)) + norm.logpdf(theta["power"]) + norm.logpdf(theta["log_sd"])


def log_likelihood_row(theta, row):
    """Of one row, a dict of its columns, without any factor."""
    centre = theta["city"][row["city"]] + theta["power"] * jnp.log(row["km"])
    return norm.logpdf(jnp.log(row["minutes"]), centre, jnp.exp(theta["log_sd"]))


init = {"city": jnp.zeros(3), "power": jnp.zeros(()), "log_sd": jnp.zeros(())}
target = curvi.MinibatchTarget(log_prior, log_likelihood_row, rows, batch_size=4096, init=init)

# The same call begins, and goes on where an earlier process was killed.
kept = folder / "trips.curvi"
fit = curvi.fit(target, key=jax.random.key(0), start=kept, checkpoint=kept, checkpoint_seconds=10, progress=False)
print(fit)
for name, mean in fit.mean().items():
    print(name, np.round(mean, 3), "+-", np.round(fit.sd()[name], 4))
