"""Models with as many latents as wanted: a chain with heavy-tailed sites, counts with a random effect per row."""

import jax
import jax.numpy as jnp
import numpy as np

import curvi


def chain_data(size: int, dtype) -> np.ndarray:
    """A wave seen through Cauchy noise."""
    rng = np.random.default_rng(0)
    return (2 * np.sin(np.arange(size) * 0.06) + 0.5 * rng.standard_cauchy(size)).astype(dtype)


def chain(size: int, dtype=np.float32) -> curvi.Target:
    """x_i tied to its neighbours, each with a Cauchy-like site: log-concave nowhere, correlated along the chain."""
    y = jnp.asarray(chain_data(size, dtype))

    def log_density(t):
        x = t["x"]
        return -2 * jnp.sum((x[1:] - x[:-1]) ** 2) - 1.5 * jnp.sum(jnp.log1p((y - x) ** 2)) - x[0] ** 2 / 2

    return curvi.Target(log_density, {"x": np.zeros(size, dtype)})


def counts(size: int, dtype=np.float32) -> curvi.Target:
    """y_i ~ Poisson(exp(mu + tau z_i)), z_i ~ Normal(0, 1), mu ~ Normal(0, 5), tau ~ Normal(0, 1) and positive."""
    from numpyro.distributions import constraints

    rng = np.random.default_rng(1)
    y = jnp.asarray(rng.poisson(np.exp(0.5 + 0.7 * rng.standard_normal(size))).astype(dtype))

    def log_density(t):
        eta = t["mu"] + t["tau"] * t["z"]
        rows = y * eta - jnp.exp(eta) - t["z"] ** 2 / 2
        return jnp.sum(rows) - t["mu"] ** 2 / 50 - t["tau"] ** 2 / 2

    init = {"mu": np.zeros((), dtype), "tau": np.ones((), dtype), "z": np.zeros(size, dtype)}
    return curvi.Target(log_density, init, {"tau": constraints.positive})


def independent(size: int, dtype=np.float32) -> curvi.Target:
    """A tied normal, the easiest model whose best mean field is not its posterior."""
    centre = jnp.asarray(np.sin(np.arange(size) * 0.05).astype(dtype))

    def log_density(t):
        away = t["x"] - centre
        return -jnp.sum(away**2) / 2 - jnp.sum((away[1:] - away[:-1]) ** 2) / 8

    return curvi.Target(log_density, {"x": np.zeros(size, dtype)})


MODELS = {"chain": chain, "counts": counts, "tied normal": independent}


def device_bytes_in_use() -> int:
    """The most bytes of the device in use so far; 0 on a CPU, where the process says it."""
    stats = jax.devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    return int(stats["peak_bytes_in_use"]) if stats else 0
