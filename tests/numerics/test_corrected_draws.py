"""Kinds of results: draws, quantiles, tables and ArviZ of q, and of the normal that linear response corrects."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

import curvi
from curvi import MeanField, Target, factors
from curvi.report.table import MEAN, RESPONSE_SD, SD

KEY = jax.random.key(0)
COVARIANCE = np.array([[1.0, 0.6, -0.3], [0.6, 0.5, 0.0], [-0.3, 0.0, 0.4]])
CENTRE = np.array([0.5, -1.0, 0.3])
PRECISION = np.linalg.inv(COVARIANCE)


def target(order=2):
    """A Gaussian in (a, ln s), with s positive, and an output of both."""

    def log_density(t):
        u = jnp.append(t["a"], jnp.log(t["s"])) - CENTRE
        return -u @ PRECISION @ u / 2 - jnp.log(t["s"])

    start = {"a": np.zeros(2), "s": np.array(1.0)}
    return Target(log_density, start, {"s": constraints.positive}, order, outputs=lambda t: {"mix": t["a"][0] * t["s"]})


@pytest.fixture(scope="module")
def fit():
    return curvi.fit(target(), key=KEY, family="mean_field", progress=False, tolerance=1e-5)


def coordinates(draws) -> np.ndarray:
    return np.column_stack([np.asarray(draws["a"]), np.log(np.asarray(draws["s"]))])


def test_draws_have_the_corrected_covariance(fit):
    draws = fit.sample(jax.random.key(1), 20_000, kind="linear_response")
    assert set(draws) == {"a", "s", "mix"} and np.all(np.asarray(draws["s"]) > 0)
    found = coordinates(draws)
    # Sample covariances of normals have standard errors sqrt((c_ii c_jj + c_ij^2) / n).
    error = np.sqrt((np.outer(np.diag(COVARIANCE), np.diag(COVARIANCE)) + COVARIANCE**2) / len(found))
    z = np.abs(np.cov(found.T) - COVARIANCE) / error
    assert z.max() < 4.5
    assert np.abs(found.mean(0) - CENTRE).max() < 4.5 * np.sqrt(np.diag(COVARIANCE).max() / len(found))
    np.testing.assert_allclose(draws["mix"], draws["a"][:, 0] * draws["s"], rtol=1e-10)
    # Those of q fail the same test.
    assert (np.abs(np.cov(coordinates(fit.sample(jax.random.key(1), 20_000)).T) - COVARIANCE) / error).max() > 20
    again = fit.sample(jax.random.key(1), 20_000, kind="linear_response")
    np.testing.assert_array_equal(again["a"], draws["a"])


def test_quantiles_and_means_of_the_corrected_normal(fit):
    z, sd = 1.6448536, np.sqrt(np.diag(COVARIANCE))
    low, high = fit.quantiles([0.05, 0.95], kind="linear_response")["s"]
    np.testing.assert_allclose(np.log([low, high]), CENTRE[2] + np.array([-z, z]) * sd[2], atol=0.02)
    mean = fit.mean(kind="linear_response")
    np.testing.assert_allclose(mean["s"], np.exp(CENTRE[2] + sd[2] ** 2 / 2), rtol=0.01)
    assert mean["s"] > 1.02 * fit.mean()["s"]
    table = fit.summary(probabilities=[0.05, 0.95], kind="linear_response")
    assert table["s"]["5%"] == pytest.approx(low) and table["s"][MEAN] == pytest.approx(float(mean["s"]))
    assert table["a[0]"][RESPONSE_SD] > 1.2 * table["a[0]"][SD]
    assert "Means and quantiles are those of the normal with the covariance of linear response." in str(table)


def test_densities_are_those_of_the_draws(fit):
    """The target is a normal in these coordinates, so that ln p - ln q is constant, its normaliser."""
    _, log_p, log_q = fit.draws_and_densities(KEY, 500, kind="linear_response")
    ratio = np.asarray(log_p - log_q)
    evidence = 1.5 * np.log(2 * np.pi) + 0.5 * np.linalg.slogdet(COVARIANCE)[1]
    np.testing.assert_allclose(ratio, evidence, atol=0.02)
    _, log_p, log_q = fit.draws_and_densities(KEY, 500)
    assert np.std(np.asarray(log_p - log_q)) > 0.3


def test_arviz_has_the_corrected_draws(fit):
    pytest.importorskip("arviz")
    data = fit.to_arviz(num_draws=2000, kind="linear_response")
    posterior = data["posterior"]
    assert posterior.attrs["draws"] == "linear_response" and data["posterior"]["a"].shape == (1, 2000, 2)
    assert np.std(np.asarray(posterior["a"])[0, :, 0]) == pytest.approx(1.0, rel=0.1)
    assert fit.to_arviz(num_draws=10)["posterior"].attrs["draws"] == "q"


def test_mean_field_is_another_word_for_q(fit):
    for name, sd in fit.sd().items():
        np.testing.assert_array_equal(sd, fit.sd(kind="q")[name])
        np.testing.assert_array_equal(sd, fit.sd(kind="mean_field")[name])
    np.testing.assert_array_equal(fit.covariance("q").matrix, fit.covariance("mean_field").matrix)


CALLS = {
    "sample": lambda fit, kind: fit.sample(KEY, 2, kind=kind),
    "mean": lambda fit, kind: fit.mean(kind=kind),
    "sd": lambda fit, kind: fit.sd(kind=kind),
    "quantiles": lambda fit, kind: fit.quantiles(0.5, kind=kind),
    "covariance": lambda fit, kind: fit.covariance(kind=kind),
    "summary": lambda fit, kind: fit.summary(kind=kind),
    "to_arviz": lambda fit, kind: fit.to_arviz(2, kind=kind),
    "draws_and_densities": lambda fit, kind: fit.draws_and_densities(KEY, 2, kind=kind),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_kind_is_named(fit, name):
    for kind in ("full", True, 3):
        with pytest.raises(ValueError, match=r'kind must be "q" .* or "linear_response" .*; got '):
            CALLS[name](fit, kind)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "summary"])
def test_without_second_derivatives_there_is_no_correction(fit, name):
    once = target(order=1)
    lacking = dataclasses.replace(fit, target=once, q=MeanField(once))
    with pytest.raises(ValueError, match="needs the Hessian of a twice differentiable target"):
        CALLS[name](lacking, "linear_response")


def test_latents_with_other_factors_are_named():
    mixed = target()
    q = MeanField(mixed, {"s": factors.LogNormal()})
    found = curvi.fit(mixed, key=KEY, family=q, progress=False)
    with pytest.raises(ValueError, match=r"those of s are not Normal: use kind=\"q\""):
        found.sample(KEY, 10, kind="linear_response")
    # Moments by the response of the means need no normal factors.
    assert found.sd(kind="linear_response")["a"][0] == pytest.approx(1.0, rel=0.05)


def test_single_precision():
    single = Target(
        lambda t: -(t["a"] @ jnp.asarray(PRECISION[:2, :2], jnp.float32) @ t["a"]) / 2,
        {"a": np.zeros(2, np.float32)},
    )
    found = curvi.fit(single, key=KEY, family="mean_field", progress=False)
    draws = np.asarray(found.sample(KEY, 5000, kind="linear_response")["a"])
    assert draws.dtype == np.float32
    np.testing.assert_allclose(np.cov(draws.T), np.linalg.inv(PRECISION[:2, :2]), rtol=0.15, atol=0.02)
