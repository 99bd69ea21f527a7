"""Leave-one-out densities from draws of q: exact on Gaussians, and right where q is not, if its weights allow that."""

import dataclasses
import warnings

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import curvi

KEY = jax.random.key(0)
RNG = np.random.default_rng(3)
X = RNG.normal(size=(25, 2)) @ np.array([[1.0, 0.5], [0.0, 0.8]])
Y = X @ [1.0, -0.5] + RNG.normal(size=25)


def regression(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def exact_loo():
    found = []
    for i in range(len(Y)):
        x, y = np.delete(X, i, 0), np.delete(Y, i)
        covariance = np.linalg.inv(np.eye(2) / 4 + x.T @ x)
        mean, variance = X[i] @ covariance @ x.T @ y, 1 + X[i] @ covariance @ X[i]
        found.append(-0.5 * (np.log(2 * np.pi * variance) + (Y[i] - mean) ** 2 / variance))
    return np.array(found)


@pytest.fixture(scope="module")
def fits():
    target = curvi.from_numpyro(regression, X, Y)
    return {name: curvi.fit(target, key=KEY, family=name, progress=False) for name in ("full_rank", "mean_field")}


def test_the_densities_of_a_gaussian_are_exact(fits):
    found, exact = curvi.loo(fits["full_rank"]), exact_loo()
    assert found.corrected and found.num_bad == 0 and found.pointwise["y"].shape == (25,)
    # 4,000 draws: densities are known within a few thousandths.
    assert np.abs(found.pointwise["y"] - exact).max() < 0.03
    assert found.elpd == pytest.approx(exact.sum(), abs=0.1)
    assert found.se == pytest.approx((25 * exact.var()) ** 0.5, rel=0.02)
    assert 1 < found.p_loo < 4


def test_the_correction_undoes_what_independent_factors_leave_out(fits):
    exact = exact_loo()
    corrected, plain = curvi.loo(fits["mean_field"]), curvi.loo(fits["mean_field"], correct=False)
    assert corrected.corrected and not plain.corrected
    off = [np.abs(one.pointwise["y"] - exact).max() for one in (corrected, plain)]
    assert off[0] < 0.05 and off[1] > 2 * off[0]
    assert "corrected for q" in str(corrected) and "not corrected" in str(plain)


def test_without_the_correction_the_numbers_are_those_of_arviz(fits):
    arviz = pytest.importorskip("arviz")
    fit, num = fits["mean_field"], 500
    key_draw, key_predict = jax.random.split(KEY)
    plain = curvi.loo(fit, key=KEY, num_draws=num, correct=False)
    draws, _, _ = fit.draws_and_densities(key_draw, num)
    terms = fit.predict(key_predict, draws)["log_likelihood"]["y"]
    data = arviz.from_dict(posterior={"b": np.asarray(draws["b"])[None]}, log_likelihood={"y": terms[None]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of observations with large k, which are compared, too, and of pandas
        theirs = arviz.loo(data, pointwise=True)
        compared = arviz.compare({"ours": plain.to_arviz(), "theirs": theirs}, method="pseudo-BMA")
    np.testing.assert_allclose(plain.pointwise["y"], theirs.loo_i.values, rtol=1e-6)
    np.testing.assert_allclose(plain.pareto_k["y"], theirs.pareto_k.values, rtol=1e-6)
    assert plain.p_loo == pytest.approx(theirs.p_loo, rel=1e-6)
    assert np.ptp(compared["elpd_loo"]) < 1e-6


def test_a_q_whose_weights_do_not_allow_it_is_left_as_it_is(fits):
    fit = fits["full_rank"]
    narrow = fit.q.with_moments(np.asarray(fit.q.mean()), 0.3 * np.asarray(fit.q.factor()))
    found = curvi.loo(_with(fit, narrow))
    assert not found.corrected and found.khat > 0.7


def _with(fit, q):
    return dataclasses.replace(fit, q=q)


def test_bad_input(fits):
    target = curvi.Target(lambda t: -(t["a"] ** 2), {"a": 0.0})
    plain = curvi.fit(target, key=KEY, family="mean_field", progress=False)
    with pytest.raises(ValueError, match="no model that could predict"):
        curvi.loo(plain)
    with pytest.raises(ValueError, match="num_draws must be a whole number of at least 100"):
        curvi.loo(fits["full_rank"], num_draws=10)
    with pytest.raises(ValueError, match="loo takes a fit"):
        curvi.loo(target)


def test_an_update_with_new_data_starts_at_the_old_q(fits):
    """The q of a fit to some data is the start of a fit to more, of the same model."""
    more_x, more_y = np.concatenate([X, X[:5]]), np.concatenate([Y, Y[:5]])
    target = curvi.from_numpyro(regression, more_x, more_y)
    update = curvi.fit(target, key=KEY, family=fits["full_rank"].q.onto(target), progress=False)
    assert update.converged
    covariance = np.linalg.inv(np.eye(2) / 4 + more_x.T @ more_x)
    np.testing.assert_allclose(update.q.moments()[1], covariance, atol=1e-6)
    np.testing.assert_allclose(update.q.moments()[0], covariance @ more_x.T @ more_y, atol=1e-6)
