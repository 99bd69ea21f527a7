"""Errors from finite draws: over fits with different keys, means, sds and quantiles spread as each fit says."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from law_statistics import assert_zero_mean
from numpyro.distributions import constraints

import curvi
from curvi import Target
from curvi.diagnostics import draws_error
from curvi.methods import GrowingDraws

NUM_FITS = 60
PROBABILITIES = (0.05, 0.5, 0.95)


def skewed():
    def log_density(t):
        x, s = t["x"], t["s"]
        return 3 * jnp.log(s) - s * (1 + x @ x) + 0.5 * x[0] * x[1] - jnp.exp(x[0]) - 0.1 * x[1] ** 4

    return Target(log_density, {"x": np.zeros(2), "s": np.array(1.0)}, {"s": constraints.positive})


@pytest.fixture(scope="module")
def fits():
    target, few = skewed(), GrowingDraws(first_draws=64, max_draws=64)
    return [
        curvi.fit(target, key=jax.random.key(seed), family="mean_field", method=few, tolerance=1e-3, progress=False)
        for seed in range(NUM_FITS)
    ]


def observed_and_said(fits, what: str) -> tuple[np.ndarray, np.ndarray]:
    """A quantity of every fit, and the standard error that the fit gives it."""
    observed, said = [], []
    for fit in fits:
        sd, names = fit.sd(), list(fit.mean())
        if what == "quantiles":
            value, error = fit.quantiles(PROBABILITIES), fit.draws_error_quantiles(PROBABILITIES)
        else:
            value, error = (fit.mean(), fit.draws_error) if what == "means" else (sd, fit.draws_error_sd)
        observed.append(np.concatenate([np.ravel(value[name]) for name in names]))
        said.append(np.concatenate([np.ravel(error[name] * sd[name]) for name in names]))
    return np.stack(observed), np.stack(said)


def excess(observed, said) -> np.ndarray:
    """One number per fit, with mean zero if errors are right: the squared deviation less the squared error, in units
    of the variance, averaged over the elements.
    """
    square = (observed - observed.mean(0)) ** 2 * len(observed) / (len(observed) - 1)
    return np.mean((square - said**2) / observed.var(0), 1)


@pytest.mark.parametrize("what", ["means", "sds", "quantiles"])
def test_spread_over_keys(fits, what):
    observed, said = observed_and_said(fits, what)
    assert np.all(observed.std(0) > 0) and np.all(said > 0)
    assert_zero_mean(excess(observed, said))
    for factor in (0.5, 2.0):
        with pytest.raises(AssertionError):
            assert_zero_mean(excess(observed, factor * said), 4.0)


def test_of_a_normal_in_closed_form():
    """With copies a and b of the errors of mean and ln scale: |a| / s of the mean, |b| of the sd, |a / s + z b| of a
    quantile.
    """
    target = Target(lambda t: -(t["x"] @ t["x"]) / 2, {"x": np.zeros(2)})
    fit = curvi.fit(target, key=jax.random.key(0), family="mean_field", progress=False)
    copy = np.array([0.03, 0.02, -0.05, 0.01])
    fit = dataclasses.replace(fit, error_copies=copy[None])
    scale = np.exp(np.asarray(fit.q.params)[1::2])
    np.testing.assert_allclose(fit.draws_error["x"], np.abs(copy[0::2]) / scale, rtol=1e-6)
    np.testing.assert_allclose(fit.draws_error_sd["x"], np.abs(copy[1::2]), rtol=0.01)
    z = np.array([-1.6448536, 0.0, 1.6448536])[:, None]
    expected = np.abs(copy[0::2] / scale + z * copy[1::2])
    np.testing.assert_allclose(fit.draws_error_quantiles([0.05, 0.5, 0.95])["x"], expected, rtol=0.01, atol=1e-4)
    # Copies add up as variances.
    twice = dataclasses.replace(fit, error_copies=np.stack([copy, 3 * copy]))
    np.testing.assert_allclose(twice.draws_error_sd["x"], fit.draws_error_sd["x"] * 5**0.5, rtol=1e-10)


def test_quantiles_of_functions_of_several_latents():
    """The sum of two normals, whose quantiles do not follow any single draw."""
    target = Target(
        lambda t: -(t["x"] @ t["x"]) / 2, {"x": np.zeros(2)}, outputs=lambda t: {"sum": t["x"][0] + t["x"][1]}
    )
    fit = curvi.fit(target, key=jax.random.key(0), family="mean_field", progress=False)
    scale = np.exp(np.asarray(fit.q.params)[1::2])
    fit = dataclasses.replace(fit, error_copies=np.array([[0.0, 0.02, 0.0, 0.04]]))
    wide = np.sqrt(np.sum(scale**2))
    of_sd = np.sum(scale**2 * np.array([0.02, 0.04])) / wide**2
    np.testing.assert_allclose(fit.draws_error_sd["sum"], of_sd, rtol=0.02)
    found = fit.draws_error_quantiles([0.1, 0.9])["sum"]
    np.testing.assert_allclose(found, 1.2815516 * of_sd, rtol=0.1)


def test_without_copies_and_bad_probabilities():
    target = Target(lambda t: -(t["x"] @ t["x"]) / 2, {"x": np.zeros(2)})
    fit = dataclasses.replace(
        curvi.fit(target, key=jax.random.key(0), family="mean_field", progress=False), error_copies=None
    )
    assert fit.draws_error == fit.draws_error_sd == fit.draws_error_quantiles(0.5) == {}
    with pytest.raises(ValueError, match="between 0 and 1"):
        fit.draws_error_quantiles(1.0)


def test_a_latent_that_does_not_vary_has_no_error():
    still = np.ones((64, 2))
    mean, sd = draws_error._moments_off(still, np.zeros((64, 2)), np.zeros(64))
    assert not mean.any() and not sd.any()
