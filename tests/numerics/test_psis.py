"""Pareto-smoothed weights: ArviZ's own numbers, exact tails, and what k-hat means."""

import numpy as np
import pytest
from scipy import stats

from curvi.estimate.psis import fit_pareto, khat_meaning, smooth_weights

RATIOS = {
    "normal": lambda rng: rng.normal(size=4096),
    "heavy": lambda rng: 2.5 * rng.standard_t(3, size=4096),
    "light": lambda rng: -rng.exponential(size=1000),
    "few": lambda rng: rng.normal(size=60),
    "shifted far": lambda rng: rng.normal(size=2000) - 1e5,
    "ties": lambda rng: np.round(rng.normal(size=3000), 1),
    "zero weights": lambda rng: np.where(rng.uniform(size=3000) < 0.9, -np.inf, rng.normal(size=3000)),
}


@pytest.mark.parametrize("name", RATIOS)
def test_agrees_with_arviz(name):
    arviz = pytest.importorskip("arviz")
    if not hasattr(arviz, "psislw"):
        pytest.skip("this ArviZ keeps PSIS elsewhere")
    for seed in range(3):
        ratios = RATIOS[name](np.random.default_rng(seed))
        with np.errstate(all="ignore"):
            weights, khat = arviz.psislw(ratios.copy())
        found = smooth_weights(ratios)
        assert np.isclose(found.khat, float(khat), rtol=1e-9, atol=1e-12)
        # Equal ratios share the smoothed weights of their ranks among them, in any order.
        arrange = np.sort if name == "ties" else np.asarray
        np.testing.assert_allclose(np.exp(arrange(found.log_weights)), np.exp(arrange(weights)), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("shape", [-0.2, 0.0, 0.4, 0.9])
def test_finds_the_shape_of_an_exact_tail(shape):
    rng = np.random.default_rng(1)
    found = [fit_pareto(np.sort(stats.genpareto(shape, scale=2.0).rvs(2000, random_state=rng))) for _ in range(20)]
    shapes, scales = np.array(found).T
    # The prior on the shape pulls by 10 / 2,010 of its distance to one half.
    assert abs(shapes.mean() - shape) < 3 * shapes.std() / 20**0.5 + 0.005 * abs(0.5 - shape) + 0.003
    assert abs(scales.mean() / 2 - 1) < 0.03


def test_importance_ratios_of_two_normals():
    # q = N(0, 1), p = N(0, v): the ratios have a Pareto tail of shape 1 - 1/v.
    rng = np.random.default_rng(0)
    x = rng.normal(size=200_000)
    for variance in (1.5, 3.0):
        found = smooth_weights(x**2 / 2 * (1 - 1 / variance))
        assert abs(found.khat - (1 - 1 / variance)) < 0.1
    weights = smooth_weights(x**2 / 2 * (1 - 1 / 1.5))
    assert abs(np.exp(weights.log_weights) @ x**2 - 1.5) < 0.05
    assert 0.5 * len(x) < weights.effective_draws < len(x)


def test_special_cases():
    constant = smooth_weights(np.full(100, -3.0))
    assert constant.khat == -np.inf and np.allclose(np.exp(constant.log_weights), 0.01)
    assert "q matches the posterior" in khat_meaning(constant.khat)
    # A common largest ratio bounds the tail.
    assert smooth_weights(np.log(np.random.default_rng(0).choice([0.5, 1.0, 2.0], 1000))).khat == -np.inf
    for wrong in ([0.0, np.nan, 1.0], [0.0, np.inf, 1.0], [-np.inf] * 3, [0.0, 1.0, 2.0]):
        found = smooth_weights(wrong)
        assert found.khat == np.inf and np.isclose(np.exp(found.log_weights).sum(), 1)
    assert "unknown" in khat_meaning(np.inf)
    words = [khat_meaning(k) for k in (-1.0, 0.3, 0.6, 0.8, 1.4)]
    assert words[0] == words[1] and len(set(words)) == 4


def test_given_ratios_stay_as_they_are():
    ratios = np.random.default_rng(0).normal(size=500)
    before = ratios.copy()
    smooth_weights(ratios)
    np.testing.assert_array_equal(ratios, before)
