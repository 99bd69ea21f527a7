"""What a full-rank fit shows of itself: linear response, sensitivity, curvature, comparison, files, pages, ArviZ."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import curvi
from curvi import FullRank, MeanField, Target
from curvi.diagnostics.curvature_report import extreme_eigenpairs
from curvi.diagnostics.hessian import WhitenedHessian
from curvi.diagnostics.linear_response import linear_response
from curvi.diagnostics.response import working_covariance
from curvi.report.table import RESPONSE_SD, SD

KEY = jax.random.key(3)
X = np.linspace(-1.0, 2.0, 12)
Y = np.array([0.1, 0.4, -0.2, 0.9, 0.6, 1.1, 0.7, 1.6, 1.2, 1.9, 1.4, 2.2])


def line():
    offset = numpyro.sample("offset", dist.Normal(0, 2))
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    numpyro.deterministic("at two", offset + 2 * slope)
    numpyro.sample("y", dist.Normal(offset + slope * X, noise), obs=Y)


@pytest.fixture(scope="module")
def model():
    return curvi.from_numpyro(line)


@pytest.fixture(scope="module")
def fit(model):
    found = curvi.fit(model, key=KEY, family="full_rank", progress=False)
    assert found.converged and isinstance(found.q, FullRank)
    return found


@pytest.fixture(scope="module")
def factorised(model):
    return curvi.fit(model, key=KEY, family="mean_field", progress=False)


# -- on a model -------------------------------------------------------------------------------------------------------


def exact_sds():
    """Posterior sds: given the noise, offset and slope are normal; the noise by quadrature."""
    design, noises = np.stack([np.ones_like(X), X], 1), np.exp(np.linspace(np.log(0.02), np.log(3.0), 2001))
    log_weights, means, covariances = [], [], []
    for noise in noises:
        marginal = noise**2 * np.eye(len(Y)) + 4 * design @ design.T
        log_weights.append(stats.multivariate_normal(np.zeros(len(Y)), marginal).logpdf(Y) - noise**2 / 2)
        covariances.append(np.linalg.inv(np.eye(2) / 4 + design.T @ design / noise**2))
        means.append(covariances[-1] @ design.T @ Y / noise**2)
    weights = np.exp(log_weights - np.max(log_weights)) * noises
    weights /= weights.sum()
    mean = weights @ np.array(means)
    apart = np.array(means) - mean
    covariance = np.einsum("k,kij->ij", weights, np.array(covariances) + apart[:, :, None] * apart[:, None, :])
    spread = np.sqrt(weights @ (noises - weights @ noises) ** 2)
    return {"offset": covariance[0, 0] ** 0.5, "slope": covariance[1, 1] ** 0.5, "noise": spread}


def test_linear_response_is_nearer_to_the_posterior_than_q(fit, factorised):
    own, response = fit.sd(), fit.sd(kind="linear_response")
    for name, sd in exact_sds().items():
        assert float(own[name]) < float(response[name]) == pytest.approx(sd, rel=0.1)
    assert own["offset"] > 1.1 * factorised.sd()["offset"]
    # The response of a mean field comes to the same as a full covariance.
    assert factorised.sd(kind="linear_response")["offset"] == pytest.approx(float(own["offset"]), rel=0.1)
    draws = fit.sample(KEY, 4000, kind="linear_response")
    assert np.corrcoef(draws["offset"], draws["slope"])[0, 1] == pytest.approx(
        np.corrcoef(*(fit.sample(KEY, 4000)[name] for name in ("offset", "slope")))[0, 1], abs=0.1
    )


def test_summary_and_errors(fit):
    table = fit.summary()
    assert table[("at two")][RESPONSE_SD] == pytest.approx(table["at two"][SD], rel=0.15)
    assert set(fit.draws_error_sd) == set(fit.mean()) and all(0 < e < 0.2 for e in fit.draws_error_sd.values())


def test_predictions_and_arviz(fit):
    groups = fit.predictive(KEY, 50)
    assert groups["posterior_predictive"]["y"].shape == groups["log_likelihood"]["y"].shape == (50, 12)
    assert fit.predictive(KEY, 5, kind="linear_response")["posterior_predictive"]["y"].shape == (5, 12)
    pytest.importorskip("arviz")
    data = fit.to_arviz(num_draws=200, predictive=True)
    assert data["posterior"]["slope"].shape == (1, 200) and data["log_likelihood"]["y"].shape == (1, 200, 12)
    ratios = np.asarray(data["sample_stats"]["lp"] - data["sample_stats"]["log_q"])
    assert ratios.mean() == pytest.approx(fit.elbo, abs=0.2)


def test_comparison(fit, factorised):
    found = curvi.compare(fit, factorised)
    assert found.difference > 2 * found.difference_se > 0
    assert curvi.compare(fit, fit).difference == 0 and np.isfinite(fit.khat)


def test_file(fit, model, tmp_path):
    fit.save(tmp_path / "fit.curvi")
    again = curvi.load(tmp_path / "fit.curvi", model)
    np.testing.assert_array_equal(again.q.params, fit.q.params)
    for kind in ("q", "linear_response"):
        np.testing.assert_array_equal(again.sd(kind)["slope"], fit.sd(kind)["slope"])
    np.testing.assert_array_equal(again.draws_error_sd["slope"], fit.draws_error_sd["slope"])
    bare = curvi.load(tmp_path / "fit.curvi")
    assert set(bare.mean()) == {"offset", "slope", "noise"}
    with pytest.raises(ValueError, match="needs the target"):
        bare.sd("linear_response")


def test_page(fit, tmp_path):
    fit.report(tmp_path / "report.html", "A line")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    for word in ("A line", "sd (q)", "sd (linear response)", "error of sd", "at two", "Curvature"):
        assert word in text


# -- on normal distributions of many dimensions -----------------------------------------------------------------------


def normal(size):
    rng = np.random.default_rng(size)
    precision = np.linalg.inv(np.cov(rng.normal(size=(3 * size, size)), rowvar=False))
    target = Target(lambda t: -t["x"] @ precision @ t["x"] / 2, {"x": np.zeros(size)})
    lower = np.linalg.cholesky(np.linalg.inv(precision))
    below = np.tril_indices(size, -1)
    params = np.concatenate([np.zeros(size), np.log(np.diag(lower)), lower[below]])
    return target, lower @ lower.T, params


@pytest.mark.parametrize("size", [4, 100])
def test_covariance_without_the_matrix(size):
    """Products alone: with 5,150 parameters the matrix would have 26 million entries."""
    target, covariance, params = normal(size)
    q = FullRank(target).replace(jnp.asarray(params))
    curved = WhitenedHessian(target, q, KEY, budget=1)
    found = linear_response(target, q, KEY, curved=curved)
    np.testing.assert_allclose(found.matrix, covariance, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(working_covariance(curved), covariance, rtol=1e-4, atol=1e-5)
    if size == 100:
        assert curved.blocks is None
        # At the posterior -H is the identity for the means: a product or two for each.
        assert curved.num_products <= 2 * 2 * size * curved.num_draws
    # The draws of a mean field miss the correlations by far.
    assert np.abs(np.diag(np.diag(covariance)) - covariance).max() > 0.01


@pytest.mark.parametrize("size", [4, 100])
def test_curvature_of_a_posterior_is_flat_nowhere(size):
    target, _, params = normal(size)
    q = FullRank(target).replace(jnp.asarray(params))
    curved = WhitenedHessian(target, q, KEY, budget=1)
    values, vectors = extreme_eigenpairs(curved, 2)
    # Identity for the means, twice that (or once, off the diagonal) less nothing for the factor.
    assert np.all((values > 0.99) & (values < 2.01)) and vectors.shape == (q.num_params, len(values))
    # A q that is half as wide along one coordinate sees a flat direction.
    narrow = params.copy()
    narrow[size] -= np.log(2)
    values, vectors = extreme_eigenpairs(WhitenedHessian(target, q.replace(jnp.asarray(narrow)), KEY, budget=1), 2)
    assert values[0] < 0.5
    assert "x[0]" in q.parameter_labels()[int(np.argmax(np.abs(vectors[:, 0])))]


def test_sensitivity_is_exact_on_normals():
    target, covariance, _ = normal(4)
    found = curvi.fit(target, key=KEY, family="full_rank", progress=False, tolerance=1e-6)
    tilted = found.sensitivity(lambda theta, t: t @ theta["x"], at=np.zeros(4))
    np.testing.assert_allclose(tilted.derivative["x"], covariance, rtol=0.01, atol=0.01)
    factorised = curvi.fit(target, key=KEY, family=MeanField(target), progress=False, tolerance=1e-6)
    again = factorised.sensitivity(lambda theta, t: t @ theta["x"], at=np.zeros(4))
    np.testing.assert_allclose(again.derivative["x"], tilted.derivative["x"], rtol=0.01, atol=0.01)
