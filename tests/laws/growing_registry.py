"""Problems for growing draws, whose ELBO is known to rounding; those that differ in numbers alone share a program."""

from functools import lru_cache

import equinox as eqx
import exact
import jax.numpy as jnp
import numpy as np

from curvi import Target

_LOG_2PI_E = float(np.log(2 * np.pi)) + 1


def rotated(size, condition, seed=0):
    """A dense precision with eigenvalues from 1 to `condition`, and a centre."""
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(size, size)))
    return (turn * np.geomspace(1, condition, size)) @ turn.T, rng.normal(size=size)


@lru_cache
def _any_gaussian(size, dtype=float) -> Target:
    """A Gaussian whose precision and centre are one array, data of the target."""
    packed = jnp.zeros((size + 1, size), dtype)

    def log_density(theta):
        away = theta["x"] - packed[0]
        return -away @ (packed[1:] @ away) / 2

    return Target(log_density, {"x": np.zeros(size, dtype)})


@lru_cache
def gaussian(size, condition, dtype=float) -> exact.Exact:
    precision, centre = rotated(size, condition)
    packed = jnp.asarray(np.concatenate([centre[None], precision]), dtype)
    target = eqx.tree_at(lambda t: t.function.consts[0], _any_gaussian(size, dtype), packed)
    params = np.stack([centre, -np.log(np.diag(precision)) / 2], -1)
    return exact.Exact(target, exact._at(target, params), exact.gaussian_elbo(precision, centre))


@lru_cache
def logistic_regression(size=6, num_rows=40) -> exact.Exact:
    """Each logit is normal under q: the ELBO is a sum of integrals over the line, by Gauss-Hermite quadrature."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(num_rows, size)) @ (np.eye(size) + 0.5)
    y = (rng.random(num_rows) < 1 / (1 + np.exp(-x @ rng.normal(size=size)))).astype(float)
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    weights = weights / weights.sum()

    def log_density(theta):
        logits = x @ theta["w"]
        return jnp.sum(y * logits - jnp.logaddexp(0.0, logits)) - jnp.sum(theta["w"] ** 2) / 8

    def elbo(params):
        mu, log_sigma = params.reshape(size, 2).T
        variance = jnp.exp(2 * log_sigma)
        mean, spread = x @ mu, jnp.sqrt(x**2 @ variance)
        softplus = jnp.logaddexp(0.0, mean[:, None] + spread[:, None] * nodes) @ weights
        return jnp.sum(y * mean - softplus) - jnp.sum(mu**2 + variance) / 8 + log_sigma.sum() + size * _LOG_2PI_E / 2

    target = Target(log_density, {"w": np.zeros(size)})
    return exact.Exact(target, exact._at(target, np.tile([0.5, -1.0], (size, 1))), elbo)


@lru_cache
def funnel() -> exact.Exact:
    """x1 ~ N(0, 9), x0 ~ N(0, exp(x1)), from far out."""
    target = Target(
        lambda t: -(t["x"][1] ** 2) / 18 - t["x"][1] / 2 - jnp.exp(-t["x"][1]) * t["x"][0] ** 2 / 2,
        {"x": np.array([2.0, 3.0])},
    )

    def elbo(params):
        (a, log_s), (b, log_t) = params.reshape(2, 2)
        square, variance = a**2 + jnp.exp(2 * log_s), jnp.exp(2 * log_t)
        return -(b**2 + variance) / 18 - b / 2 - jnp.exp(variance / 2 - b) * square / 2 + log_s + log_t + _LOG_2PI_E

    return exact.Exact(target, exact._at(target, [[0.0, -0.4], [0.0, 0.3]]), elbo)


@lru_cache
def poisson() -> exact.Exact:
    """Counts with a log link on two covariates: skewed, closed form."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(12, 3))
    y = rng.poisson(np.exp(x @ np.array([0.5, -0.3, 0.8]))).astype(float)

    def elbo(params):
        mu, log_sigma = params.reshape(3, 2).T
        variance = jnp.exp(2 * log_sigma)
        rate = jnp.exp(x @ mu + x**2 @ variance / 2)
        return jnp.sum(y * (x @ mu) - rate) - jnp.sum(mu**2 + variance) / 2 + log_sigma.sum() + 1.5 * _LOG_2PI_E

    target = Target(
        lambda t: jnp.sum(y * (x @ t["w"]) - jnp.exp(x @ t["w"])) - jnp.sum(t["w"] ** 2) / 2, {"w": np.zeros(3)}
    )
    return exact.Exact(target, exact._at(target, np.tile([0.3, -1.0], (3, 1))), elbo)


# Name: builder. Problems that are not quadratic.
SKEWED = {
    "logistic": exact.logistic,
    "logistic regression": logistic_regression,
    "positive and real": exact.precision_and_location,
    "poisson": poisson,
    "funnel": funnel,
}
