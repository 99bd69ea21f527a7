"""Discrete diagnosis: which tumours are malignant, from tests of unknown quality and no diagnosis at all.

569 patients of Wisconsin (Wolberg et al. 1995, bundled with scikit-learn). Six measurements of cells are cut at fixed
quantiles into tests that are positive or not. Whether a tumour is malignant is a latent bit of each patient; how often
a test is positive with and without it is unknown, too (Dawid and Skene 1979). The true diagnoses are looked at last.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from sklearn.datasets import load_breast_cancer

import curvi

jax.config.update("jax_enable_x64", True)
data = load_breast_cancer()
names = ["mean radius", "mean texture", "mean concavity", "area error", "worst smoothness", "worst symmetry"]
values = data.data[:, [list(data.feature_names).index(name) for name in names]]
tests = (values > np.quantile(values, 0.6, axis=0)).astype(int)


def model(tests):
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    # Rows: without and with the disease. The priors say that tests are better than chance, and so which is which.
    prior = dist.Beta(jnp.array([[2.0], [4.0]]), jnp.array([[4.0], [2.0]]))
    rate = numpyro.sample("rate", prior.expand([2, 6]).to_event(2))
    with numpyro.plate("patients", len(tests)):
        malignant = numpyro.sample("malignant", dist.Bernoulli(share))
        numpyro.sample("test", dist.Bernoulli(rate[malignant]).to_event(1), obs=tests)


fit = curvi.fit(curvi.from_numpyro(model, tests), key=jax.random.key(0), progress=False)
print(fit)
print(fit.summary(names=["share", "rate"]))

probability, truth = fit.mean()["malignant"], data.target == 0
print(f"{np.mean((probability > 0.5) == truth):.1%} of the diagnoses agree with the truth")
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
found, (low, high) = fit.mean()["rate"], fit.quantiles([0.05, 0.95])["rate"]
for row, words in enumerate(("benign", "malignant")):
    left.errorbar(found[row], np.arange(6), xerr=[found[row] - low[row], high[row] - found[row]], fmt="o", label=words)
    right.hist(probability[truth == row], np.linspace(0, 1, 21), alpha=0.6, label=f"in truth {words}")
left.set_yticks(np.arange(6), names)
left.set_xlabel("share of positive tests")
left.legend()
right.set(xlabel="probability of a malignant tumour", ylabel="patients")
right.legend()
figure.savefig("diagnosis.png", dpi=100)
