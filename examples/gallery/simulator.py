"""A simulator: how fast influenza went through a boarding school, 1978.

The model is a program that draws epidemics; nothing but its values is known, and they are noisy. Boys in bed on days 1
to 14: British Medical Journal, 4 March 1978, page 587.
"""

import jax
import matplotlib.pyplot as plt
import numpy as np
from numpyro.distributions import constraints

import curvi

jax.config.update("jax_enable_x64", True)
POPULATION = 763
IN_BED = np.array([3, 8, 26, 76, 225, 298, 258, 233, 189, 128, 68, 29, 14, 4])


def simulate(rng, infection, recovery, num_paths):
    """Boys ill on each day in paths of an epidemic with binomial transitions, (paths, days)."""
    susceptible, ill = np.full(num_paths, POPULATION - 3), np.full(num_paths, 3)
    days = []
    for _ in IN_BED:
        days.append(ill)
        caught = rng.binomial(susceptible, -np.expm1(-infection * ill / POPULATION))
        recovered = rng.binomial(ill, -np.expm1(-recovery))
        susceptible, ill = susceptible - caught, ill + caught - recovered
    return np.stack(days, 1)


def log_density(theta) -> float:
    """ln prior plus a synthetic likelihood of the roots of the counts (Wood 2010), of fresh simulations."""
    infection, recovery = float(theta["infection"]), float(theta["recovery"])
    roots = np.sqrt(simulate(np.random.default_rng(), infection, recovery, 64))
    mean, variance = roots.mean(0), roots.var(0) + 1.0
    log_likelihood = -0.5 * np.sum((np.sqrt(IN_BED) - mean) ** 2 / variance + np.log(2 * np.pi * variance))
    log_prior = -0.5 * (np.log(infection / 1.5) ** 2 + np.log(recovery / 0.5) ** 2) - np.log(infection * recovery)
    return float(log_likelihood + log_prior)


start = {"infection": 1.5, "recovery": 0.5}
target = curvi.Target(log_density, start, dict.fromkeys(start, constraints.positive), order=0, black_box=True)
fit = curvi.fit(target, key=jax.random.key(0), tolerance=0.2, progress=False)
print(fit)
print(fit.summary())

draws = fit.sample(jax.random.key(1), 500)
rng = np.random.default_rng(0)
paths = np.concatenate([simulate(rng, float(a), float(b), 1) for a, b in zip(draws["infection"], draws["recovery"])])
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", width_ratios=[2, 1])
days = np.arange(1, len(IN_BED) + 1)
left.fill_between(days, *np.quantile(paths, [0.05, 0.95], axis=0), alpha=0.3, label="simulated, 90 %")
left.plot(days, np.median(paths, 0))
left.plot(days, IN_BED, "o", color="black", label="boys in bed")
left.set(xlabel="day", ylabel="ill")
left.legend()
right.hist(draws["infection"] / draws["recovery"], 30, color="lightgrey")
right.set(xlabel="reproduction number", ylabel="draws")
figure.savefig("simulator.png", dpi=100)
