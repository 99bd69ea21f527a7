"""The three kinds of answer: q, linear response, draws under importance weights; and which of them is given unasked."""

import dataclasses
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi import Target
from curvi.diagnostics.kinds import KINDS
from curvi.diagnostics.reweighted import reweighted
from curvi.estimate.psis import smooth_weights
from curvi.estimate.resample import chosen_evenly
from curvi.estimate.widened_draws import WidenedDraws, widened_ratios

KEY = jax.random.key(0)
SHAPE = 3.0


@lru_cache
def log_gamma():
    """ln of a gamma variable, with a normal q: a posterior with known moments that q misses."""
    target = Target(lambda t: jnp.sum(SHAPE * t["x"] - jnp.exp(t["x"])), {"x": np.zeros(2)})
    return curvi.fit(target, key=KEY, progress=False, marginals="normal")


# Mean and sd of ln Gamma(3): digamma(3) and the root of trigamma(3).
MEAN, SD = 0.9227843350984671, 0.6284397170385847


def test_reliable_weights_are_the_default_where_the_family_was_left_to_the_library():
    fit = log_gamma()
    assert fit.kind == "reweighted" and fit.weighted_draws.reliable
    np.testing.assert_array_equal(fit.mean()["x"], fit.mean("reweighted")["x"])
    named = curvi.fit(fit.target, key=KEY, progress=False, family="full_rank")
    assert named.kind == "q"
    gaussian = curvi.fit(Target(lambda t: -(t["x"] @ t["x"]) / 2, {"x": np.zeros(2)}), key=KEY, progress=False)
    assert gaussian.kind == "q", "where q is the posterior nothing is to be corrected"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_answers_every_question(kind):
    fit = log_gamma()
    moments = fit.mean(kind)["x"], fit.sd(kind)["x"]
    draws = np.asarray(fit.sample(jax.random.key(1), 4000, kind)["x"])
    assert draws.shape == (4000, 2)
    if kind != "linear_response":  # its sds are linear in the response, its draws are normal
        np.testing.assert_allclose(draws.mean(0), moments[0], atol=0.06)
        np.testing.assert_allclose(draws.std(0), moments[1], rtol=0.08)
        middle = fit.quantiles([0.5], kind)["x"][0]
        np.testing.assert_allclose(middle, np.median(draws, 0), atol=0.08)
    assert fit.covariance(kind).matrix.shape == (2, 2)
    again, log_p, log_q = fit.draws_and_densities(jax.random.key(1), 500, kind)
    assert again["x"].shape == (500, 2) and log_p.shape == log_q.shape == (500,)
    assert fit.summary(kind=kind)["x[0]"]["mean"] == pytest.approx(moments[0][0])
    assert set(fit.predictive(KEY, 10, kind)["posterior"]) == {"x"} if fit.target.outputs else True


def test_reweighted_moments_are_those_of_the_posterior_within_their_errors_and_those_of_q_are_not():
    fit = log_gamma()
    z_mean = (fit.mean()["x"] - MEAN) / (fit.draws_error["x"] * SD)
    z_sd = (fit.sd()["x"] / SD - 1) / fit.draws_error_sd["x"]
    assert np.abs([z_mean, z_sd]).max() < 3.5
    assert np.abs(fit.sd("q")["x"] / SD - 1).min() > 3 * fit.draws_error_sd["x"].max(), "q's sds would fail"
    expected = [-0.2013, 0.9837, 1.8408]  # ln of the quantiles of Gamma(3) at 0.05, 0.5, 0.95
    np.testing.assert_allclose(fit.quantiles([0.05, 0.5, 0.95])["x"].mean(1), expected, atol=0.06)


def test_densities_of_reweighted_draws_leave_no_weights_but_those_that_were_smoothed():
    _, log_p, log_q = log_gamma().draws_and_densities(KEY, 2000)
    left = log_p - log_q
    assert np.median(np.abs(left - np.median(left))) < 1e-9


@pytest.mark.parametrize("widened", [True, False])
def test_weights_towards_q_and_the_posterior_are_unbiased(widened):
    fit = log_gamma()
    drawn, keys = WidenedDraws(fit.q, widened), jax.random.split(jax.random.key(3), 20_000)
    ratios, own = widened_ratios(fit.target, drawn, keys)
    weights = np.exp(own)
    assert abs(weights.mean() - 1) < 4 * max(weights.std() / len(keys) ** 0.5, 1e-12)
    # Z = Gamma(3)^2 for two independent coordinates.
    values = np.exp(ratios - 2 * np.log(2.0))
    z = (values.mean() - 1) / (values.std() / len(keys) ** 0.5)
    assert abs(z) < 4
    if widened:
        assert weights.max() <= 2 + 1e-9, "q has half of the mixture"


def test_weights_that_forget_the_mixture_would_be_seen():
    target = Target(lambda t: -(t["x"] @ t["x"]) / 2, {"x": np.zeros(5)})
    q = curvi.FullRank(target).with_moments(np.zeros(5), np.eye(5))
    drawn, keys = WidenedDraws(q), jax.random.split(KEY, 20_000)
    ratios, own = widened_ratios(target, drawn, keys)
    squares = np.sum(np.asarray(jax.vmap(lambda key: drawn.to_model(drawn.sample(key))[0]["x"])(keys)) ** 2, 1)
    for log_weights, right in ((ratios, True), (ratios - own, False)):
        weights = np.exp(log_weights - np.logaddexp.reduce(log_weights))
        z = (weights @ squares - 5) / np.sqrt(weights**2 @ (squares - 5) ** 2)
        assert bool(abs(z) < 4) is right


def test_widened_draws_bring_more_effective_ones_where_q_is_narrow():
    target = Target(lambda t: -(t["x"] @ t["x"]) / 2, {"x": np.zeros(20)})
    q = curvi.FullRank(target).with_moments(np.zeros(20), 0.85 * np.eye(20))
    keys = jax.random.split(KEY, 4096)
    found = [smooth_weights(widened_ratios(target, WidenedDraws(q, wide), keys)[0]) for wide in (False, True)]
    assert found[1].khat < found[0].khat and found[1].effective_draws > 2 * found[0].effective_draws


def test_weights_are_made_once_kept_in_the_file_and_used_from_it(tmp_path):
    fit = log_gamma()
    assert "importance weights correct q" in str(fit)
    fit.save(tmp_path / "weights.fit")
    found = curvi.load(tmp_path / "weights.fit")
    assert found.kind == "reweighted"
    for name in ("mean", "sd"):
        np.testing.assert_allclose(getattr(found, name)()["x"], getattr(fit, name)()["x"], rtol=1e-12)
    assert str(found.posterior_check) == str(fit.posterior_check)


def test_black_boxes_and_unfinished_fits_are_not_asked_for_more():
    unfinished = dataclasses.replace(log_gamma(), outcome=curvi.Outcome.MAX_STEPS)
    assert unfinished.kind == "q"
    box = Target(lambda t: -(t["x"] @ t["x"]) / 2, {"x": np.zeros(2)}, order=0, black_box=True)
    fit = curvi.fit(box, key=KEY, progress=False)
    calls = fit.target.caller
    assert fit.kind == "q" and calls is not None
    with pytest.raises(ValueError, match='"reweighted"'):
        fit.mean("weighted")


def test_even_choices_are_unbiased_and_vary_less_than_independent_ones():
    weights = np.random.default_rng(0).dirichlet(np.full(50, 0.3))
    rng = np.random.default_rng(1)
    counts = np.stack([np.bincount(chosen_evenly(rng, weights, 40), minlength=50) for _ in range(4000)])
    error = counts.std(0) / 4000**0.5
    assert np.all(np.abs(counts.mean(0) - 40 * weights) < 5 * error + 1e-3)
    assert np.abs(counts - 40 * weights).max() <= 1 + 1e-9
    order = chosen_evenly(rng, weights, 40)
    assert not np.array_equal(order, np.sort(order)), "in random order, so that halves are alike"


def test_a_fit_with_more_latents_than_moments_are_taken_of_says_so():
    fit = log_gamma()
    many = dataclasses.replace(fit, q=curvi.MeanField(Target(lambda t: -(t["x"] @ t["x"]), {"x": np.zeros(20_000)})))
    with pytest.raises(ValueError, match="16,384 latents"):
        reweighted(many, fit.weighted_draws)
