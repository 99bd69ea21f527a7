"""How far an answer is from the reference, and the ELBO of a Gaussian on fresh draws."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from peer_methods import Gaussian, Normals
from peer_problems import Flat, pick

NUM_PAIRS, CHUNK = 8_192, 256


def errors(reference: dict, mean: dict, sd: dict) -> dict | None:
    """Errors of means in reference sds and ratios of sds over the scalars that both sides have; None if there is none.

    `mean` and `sd` have arrays by site. A factor of 1.4 is a ratio of 1.4 or of 1 / 1.4.
    """
    names = [name for name in reference if pick(mean, name) is not None]
    if not names:
        return None
    known = [reference[name] for name in names]
    off = np.array([abs(pick(mean, name) - k["mean"]) / k["sd"] for name, k in zip(names, known)], float)
    ratio = np.array([pick(sd, name) / k["sd"] for name, k in zip(names, known)], float)
    with np.errstate(divide="ignore"):
        factor = np.maximum(ratio, 1 / ratio)
    return {
        "num_compared": len(names),
        "rms_mean": number(np.sqrt(np.mean(off**2))),
        "max_mean": number(off.max()),
        "median_sd": number(np.median(np.abs(ratio - 1))),
        "worst_sd_factor": number(factor.max()),
        "worst_mean_at": names[int(np.argmax(off))],
        "worst_sd_at": names[int(np.argmax(factor))],
    }


def moments(draws: dict) -> tuple[dict, dict]:
    """Means and sds by site of draws by site."""
    arrays = {name: np.asarray(values) for name, values in draws.items()}
    return {k: v.mean(0) for k, v in arrays.items()}, {k: v.std(0, ddof=1) for k, v in arrays.items()}


class Judge:
    """Judges Gaussians over the unconstrained coordinates of `Flat`, all of them on the same mirrored draws."""

    def __init__(self, flat: Flat):
        self.flat = flat
        self._outputs = jax.jit(lambda data, z: jax.lax.map(lambda x: flat.outputs(data, x), z, batch_size=CHUNK))

        def pair_values(data, mean, scale, noise):
            def one(e):
                return (flat(data, mean + scale @ e) + flat(data, mean - scale @ e)) / 2

            return jax.lax.map(one, noise, batch_size=CHUNK)

        self._values = jax.jit(lambda data, z: jax.lax.map(lambda x: flat(data, x), z, batch_size=CHUNK))
        self._pair_values = jax.jit(pair_values)
        self._noise = np.random.default_rng(20_261).standard_normal((NUM_PAIRS, flat.size))

    def elbo(self, q: Gaussian | Normals) -> tuple[float, float]:
        """The ELBO and its standard error."""
        scale = factor(q)
        log_q = -0.5 * (self._noise**2).sum(1) - np.log(np.diag(scale)).sum() - 0.5 * len(scale) * np.log(2 * np.pi)
        values = np.asarray(self._pair_values(self.flat.data, jnp.asarray(q.mean), jnp.asarray(scale), self._noise))
        ratios = values - log_q
        return float(ratios.mean()), float(ratios.std(ddof=1) / NUM_PAIRS**0.5)

    def moments(self, q: Gaussian | Normals) -> tuple[dict, dict]:
        """Means and sds of the latents on their supports and of the model's outputs."""
        step = self._noise[: NUM_PAIRS // 2] @ factor(q).T
        return self.draw_moments(np.concatenate([q.mean + step, q.mean - step]))

    def values(self, z: np.ndarray) -> np.ndarray:
        """The log density at every draw."""
        return np.asarray(self._values(self.flat.data, jnp.asarray(z)))

    def draw_moments(self, z: np.ndarray) -> tuple[dict, dict]:
        return moments(self._outputs(self.flat.data, jnp.asarray(z)))


def factor(q: Gaussian | Normals) -> np.ndarray:
    """The lower triangular factor of the covariance."""
    return np.asarray(q.cholesky) if isinstance(q, Gaussian) else np.diag(np.exp(q.log_sd))


def number(value) -> float | None:
    """A number for a line, with five digits; None where it is not finite."""
    return float(f"{float(value):.5g}") if math.isfinite(value) else None
