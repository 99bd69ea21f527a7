"""Is the posterior right? What a fit says of that, apart from whether it converged."""

import dataclasses
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import curvi
from curvi import Target
from curvi.diagnostics import posterior_check
from curvi.diagnostics.posterior_errors import Seen
from curvi.diagnostics.reweighted import reweighted
from curvi.report.html import page

KEY = jax.random.key(0)
PRECISION = np.linalg.inv(np.array([[1.0, 0.9], [0.9, 1.0]]))


def correlated(theta):
    return -theta["a"] @ PRECISION @ theta["a"] / 2


@lru_cache
def narrow():
    return curvi.fit(Target(correlated, {"a": np.zeros(2)}), key=KEY, progress=False, family="mean_field")


@lru_cache
def wide():
    return curvi.fit(Target(correlated, {"a": np.zeros(2)}), key=KEY, progress=False)


@lru_cache
def shell():
    """A fit of which only target and q matter."""
    return curvi.fit(Target(lambda t: -(t["x"] ** 2), {"x": np.array(0.0)}), key=KEY, progress=False, num_steps=1)


@lru_cache
def product():
    return curvi.fit(Target(lambda t: -(t["x"] @ t["x"]) / 2, {"x": np.zeros(3)}), key=KEY, progress=False)


@lru_cache
def funnel():
    """Eight schools in the centred form, and left in it."""
    y, sigma = jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12]), jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def model():
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("schools", 8):
            numpyro.sample("y", dist.Normal(numpyro.sample("theta", dist.Normal(mu, tau)), sigma), obs=y)

    return curvi.fit(curvi.from_numpyro(model), key=KEY, progress=False, centering="off")


def _skewed_density(t):
    return 1.5 * t["x"] - jnp.exp(t["x"]) + 0.3 * jnp.sin(2 * t["x"]) - 0.02 * t["x"] ** 2


@lru_cache
def skewed():
    """So skewed a marginal that the best normal on the line has a wrong sd, though nothing is correlated."""
    target = Target(_skewed_density, {"x": np.array(0.0)})
    return curvi.fit(target, key=KEY, progress=False, marginals="normal")


@lru_cache
def followed():
    """The same with a marginal that has a skewness of its own."""
    return curvi.fit(Target(_skewed_density, {"x": np.array(0.0)}), key=KEY, progress=False, marginals="sinh_arcsinh")


@lru_cache
def bits():
    weights = jnp.array([0.3, -1.0, 2.0])
    target = Target(lambda t: t["bits"] @ weights, {"bits": np.zeros(3, int)}, {"bits": constraints.boolean}, order=0)
    return curvi.fit(target, key=KEY, progress=False)


# Fits, and whether their means or sds are wrong.
FITS = {narrow: True, wide: False, product: False, funnel: True, skewed: True, followed: False, bits: False}


def misjudged(rule) -> list[str]:
    return [fit.__wrapped__.__name__ for fit, wrong in FITS.items() if rule(fit()) is not wrong]


def test_the_check_warns_of_what_is_wrong_and_of_nothing_else():
    assert misjudged(lambda fit: fit.posterior_check.warns) == []
    assert narrow().converged, "its optimum was found"


def test_a_blind_rule_would_be_seen():
    assert "narrow" in misjudged(lambda fit: not fit.converged)
    assert misjudged(lambda fit: fit.khat > 1.0)


def test_sds_that_are_off_are_named_with_their_factor():
    check = narrow().posterior_check
    assert check.answer == "doubtful" and "too small" in check.reasons[0]
    assert abs(check.worst_factor - 1 / np.sqrt(1 - 0.9**2)) < 0.02 and check.worst_at in ("a[0]", "a[1]")
    assert check.next_family == "full_rank" and abs(check.predicted_gain + np.log(1 - 0.9**2) / 2) < 0.02
    assert 'family="full_rank"' in check.next and 'kind="linear_response"' in check.next and "polish" in check.next


def test_linear_response_is_not_asked_for_where_the_prediction_will_do():
    assert product().posterior_check.warns is False
    assert "_curvature" not in vars(product()) and "_curvature" not in vars(wide())


def test_no_sd_is_further_off_than_the_gain_allows():
    rng = np.random.default_rng(0)
    for size in (2, 5, 20):
        root = rng.normal(size=(size, size + 2))
        precision = root @ root.T
        scale = np.sqrt(np.diag(precision))
        precision /= scale * scale[:, None]
        gain = -np.linalg.slogdet(precision)[1] / 2
        assert np.sqrt(np.diag(np.linalg.inv(precision))).max() <= np.exp(gain) * (1 + 1e-9)


@pytest.mark.parametrize(("mean", "log_sd"), [(0.2, 0.0), (0.0, -0.15), (-0.1, 0.1)])
def test_weights_find_shift_and_widening_within_their_errors(mean, log_sd):
    size = 60
    target = Target(lambda t: -(t["x"] @ t["x"]) / 2, {"x": np.zeros(size)})
    factor = np.eye(size)
    factor[0, 0] = np.exp(log_sd)
    q = curvi.FullRank(target).with_moments(np.eye(size)[0] * mean, factor)
    fit = dataclasses.replace(shell(), target=target, q=q)
    found = reweighted(fit, fit.weighted_draws)
    sd = np.exp(log_sd)
    z = np.array([found.shift[0] + mean / sd, found.widening[0] + log_sd]) / [
        found.shift_error[0],
        found.widening_error[0],
    ]
    assert np.all(np.abs(z) < 3.5)
    blind = np.array([mean / sd / found.shift_error[0], log_sd / found.widening_error[0]])
    assert np.abs(blind).max() > 5, "an estimate of no change would fail"
    others = np.concatenate([found.shift[1:] / found.shift_error[1:], found.widening[1:] / found.widening_error[1:]])
    assert abs(np.mean(others**2) - 1) < 0.6, "and the others stay where they are, within errors of that size"


# -- what is not known ------------------------------------------------------------------------------------------------


def test_a_fit_without_its_target_says_what_it_knows(tmp_path):
    for fit in (narrow, wide):
        path = tmp_path / f"{fit.__wrapped__.__name__}.fit"
        dataclasses.replace(fit()).save(path)
        found = curvi.load(path)
        check = found.posterior_check
        assert "curvi.load" in check.next and "curvi.load" in str(found)
        if fit is wide:
            assert check.warns is None and "needs the target" in str(found)
            assert "not known" in page(found) and 'class="open"' in page(found)
        else:
            assert check.warns and "full_rank would gain 0.83" in check.reasons[0]


def test_a_check_that_was_made_is_kept_in_the_file(tmp_path):
    expected = narrow().posterior_check
    narrow().save(tmp_path / "narrow.fit")
    assert repr(curvi.load(tmp_path / "narrow.fit").posterior_check) == repr(expected)


def test_a_model_that_fails_is_not_known():
    def fails(key, num_draws):
        raise RuntimeError("the disk is full")

    fit = dataclasses.replace(wide())
    object.__setattr__(fit, "log_ratios", fails)
    assert fit.posterior_check.warns is None and "the disk is full" in str(fit)


def test_what_is_not_finite_is_not_known():
    fit = dataclasses.replace(wide(), target=Target(lambda t: jnp.nan * jnp.sum(t["a"]), {"a": np.zeros(2)}))
    fit = dataclasses.replace(fit, q=fit.q.onto(fit.target))
    check = fit.posterior_check
    assert check.answer == "not known" and "not finite" in str(check) and "curvi.check" in check.next


def test_black_boxes_are_judged_by_their_values():
    def density(theta):
        return -theta["a"] @ PRECISION @ theta["a"] / 2

    target = Target(density, {"a": np.zeros(2)}, order=0, black_box=True)
    fit = curvi.fit(target, key=KEY, progress=False, family="mean_field")
    check = fit.posterior_check
    assert check.warns and np.isfinite(check.khat) and "polish" not in check.next


def test_too_few_effective_draws_are_a_doubt_of_their_own():
    few = dataclasses.replace(wide().weighted_draws, khat=0.9, log_weights=np.log([0.5, *np.full(4095, 0.5 / 4095)]))
    seen = Seen(weighted=few, moments=reweighted(wide()))
    (doubt,) = posterior_check._doubts(seen, 0.01, 0.01, 1.01, "a[0]")
    assert "k-hat is 0.90" in doubt and "4 of 4,096" in doubt
    even = dataclasses.replace(seen, weighted=wide().weighted_draws)
    assert posterior_check._doubts(even, 0.01, 0.01, 1.01, "a[0]") == ()


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_the_two_answers_stand_apart():
    text = str(narrow())
    assert text.splitlines()[0] == "curvi fit: converged; posterior doubtful (GrowingDraws)"
    for word in ("optimum", "every mean and sd within 0.1 sd: largest step left", "posterior", "full_rank would gain"):
        assert word in text.replace("\n" + " " * 18, " ")
    assert any("posterior is doubtful" in note for note in narrow().summary().notes)
    assert "converged; posterior right" in str(wide())


def test_nothing_is_green_while_sds_are_off():
    wrong, right = page(narrow()), page(wide())
    assert '<header class="open">' in wrong and "Posterior: doubtful" in wrong and "Optimum: converged" in wrong
    assert '<header class="done">' in right
