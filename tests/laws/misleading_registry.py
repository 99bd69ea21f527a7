"""Models whose curvature at the mean of q is not that elsewhere: their control variate can lead to infinity."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from curvi import Target


@lru_cache
def flights():
    """Logistic regression with five crossed groups of effects, not centred, on millions of trials."""
    rng = np.random.default_rng(0)
    sizes = {"carrier": 16, "origin": 3, "month": 12, "hour": 20, "destination": 30}
    num_cells = 400
    groups = {name: rng.integers(size, size=num_cells) for name, size in sizes.items()}
    spreads = dict(zip(sizes, (0.3, 0.03, 0.4, 0.6, 0.2)))
    logit = -1.3 + sum(spreads[name] * rng.normal(size=size)[groups[name]] for name, size in sizes.items())
    trials = rng.integers(200, 2000, size=num_cells).astype(float)
    successes = rng.binomial(trials.astype(int), 1 / (1 + np.exp(-logit))).astype(float)

    def log_density(t):
        eta, prior = t["intercept"], -(t["intercept"] ** 2) / 8
        for name, of_cell in groups.items():
            scale, z = t[f"scale_{name}"], t[f"z_{name}"]
            eta = eta + scale * z[of_cell]
            prior = prior - scale**2 / 2 - jnp.sum(z**2) / 2
        return prior + jnp.sum(successes * eta - trials * jax.nn.softplus(eta))

    init, supports = {"intercept": np.zeros(())}, {}
    for name, size in sizes.items():
        init[f"scale_{name}"], init[f"z_{name}"] = np.ones(()), np.zeros(size)
        supports[f"scale_{name}"] = constraints.positive
    return Target(log_density, init, supports)


@lru_cache
def motorcycle(size=31):
    """Mean and log noise of a series, each a Gaussian process in a basis of sines; the first part has little noise."""
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(-1.7, 2.3, size=133))
    y = np.where(x < -0.8, 0.6, 0.4 - 2.2 * np.exp(-8 * (x + 0.4) ** 2) + np.exp(-4 * (x - 0.6) ** 2))
    y = y + np.where(x < -0.8, 0.03, 0.45) * rng.normal(size=x.shape)
    width = 3.5
    frequency = np.arange(1, size + 1) * np.pi / (2 * width)
    basis = np.sin(frequency * (x[:, None] + width)) / np.sqrt(width)

    def process(t, name):
        length, scale = t[f"length_{name}"], t[f"scale_{name}"]
        spectrum = scale * jnp.sqrt(2.5 * length) * jnp.exp(-((length * frequency) ** 2) / 4)
        prior = -((jnp.log(length) + 1) ** 2) * 2 - jnp.log(length) - scale**2 / 2 - jnp.sum(t[f"z_{name}"] ** 2) / 2
        return basis @ (spectrum * t[f"z_{name}"]), prior

    def log_density(t):
        (mean, prior), (log_noise, prior_noise) = process(t, "mean"), process(t, "noise")
        return prior + prior_noise - jnp.sum(log_noise + ((y - mean) * jnp.exp(-log_noise)) ** 2 / 2)

    init, supports = {}, {}
    for name in ("mean", "noise"):
        init |= {f"length_{name}": np.ones(()), f"scale_{name}": np.ones(()), f"z_{name}": np.zeros(size)}
        supports |= {f"{kind}_{name}": constraints.positive for kind in ("length", "scale")}
    return Target(log_density, init, supports)


TARGETS = {"flights": flights, "motorcycle": motorcycle}
