"""Comparisons on paired draws: the difference of two ELBOs that are known, with less noise than either."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

import curvi
from curvi import MeanField, Target, factors

KEY = jax.random.key(0)
PRECISION = np.array([[2.0, 0.8], [0.8, 1.0]])


def gaussian(shift=0.0):
    return Target(lambda t: -t["x"] @ PRECISION @ t["x"] / 2 + shift, {"x": np.ones(2)})


def moved(fit, by):
    return dataclasses.replace(fit, q=fit.q.replace(jnp.asarray(fit.q.params) + by))


@pytest.fixture(scope="module")
def best():
    return curvi.fit(gaussian(), key=KEY, family="mean_field", progress=False, tolerance=1e-4)


def test_a_fit_against_itself(best):
    found = curvi.compare(best, best)
    assert found.difference == 0 and found.difference_se == 0 and np.isnan(found.z)
    assert "no difference" in str(found)


def test_a_known_difference_with_its_error(best):
    # The ELBO is a quadratic in the means: moving them by d costs d' P d / 2.
    step = np.array([0.2, -0.15])
    other = moved(best, jnp.asarray([step[0], 0, step[1], 0]))
    # And whatever is left to gain at `best` changes that by its gradient, which is tiny.
    truth = step @ PRECISION @ step / 2
    scores = []
    for seed in range(20):
        found = curvi.compare(best, other, key=jax.random.key(seed), num_draws=500)
        assert found.difference_se < found.unpaired_se / 2
        scores.append((found.difference - truth) / found.difference_se)
    assert abs(np.mean(scores)) < 3 / 20**0.5 and 0.5 < np.std(scores) < 1.6
    # A difference that is wrong by a few of these small errors would show.
    assert abs(np.mean(scores) + truth / found.difference_se) > 3 / 20**0.5
    worse = curvi.compare(best, moved(best, 0.5))
    assert worse.difference > 0 and "the first fit has the larger ELBO" in str(worse)
    assert "second" in str(curvi.compare(moved(best, 0.5), best)).splitlines()[0].split(":")[1]


def test_different_models(best):
    higher = curvi.fit(gaussian(shift=1.5), key=KEY, family="mean_field", progress=False, tolerance=1e-4)
    found = curvi.compare(higher, best)
    assert abs(found.difference - 1.5) < 0.01
    one = Target(lambda t: -t["s"], {"s": np.array(1.0)}, {"s": constraints.positive})
    exact = curvi.fit(one, family=MeanField(one, {"s": factors.LogNormal()}), key=KEY, progress=False)
    found = curvi.compare(exact, best)
    assert abs(found.difference - (exact.elbo - best.elbo)) < 5 * np.hypot(found.difference_se, best.elbo_se) + 0.1


def test_wrong_use(best):
    with pytest.raises(ValueError, match="two fits"):
        curvi.compare(best, best.q)
    with pytest.raises(ValueError, match="at least 2"):
        curvi.compare(best, best, num_draws=1)
