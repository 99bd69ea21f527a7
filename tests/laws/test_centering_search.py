"""The search for lambdas where latents are tied: whose draws tell of them, and climbs that end at another optimum."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from curvi import Bordered, Target
from curvi.estimate.fixed_draws.objective import Objective
from curvi.family.centering import (
    Centering,
    centerable,
    centered_columns,
    slope_terms,
    with_amounts,
    with_centering,
)
from curvi.methods.growing_draws.centering import _APART, _astray
from curvi.methods.growing_draws.state import CenteringSearch

KEY = jax.random.key(0)
NUM_GLOBAL, NUM_EFFECTS = 40, 6


def tied() -> Target:
    """Effects on one of many global scales, and tied to all of the rest."""

    def log_density(t):
        effects, scales = t["effects"], t["globals"]
        own = -jnp.sum(effects**2) / 2 * jnp.exp(-2 * scales[0]) - NUM_EFFECTS * scales[0]
        seen = -jnp.sum((effects - jnp.mean(scales) - 1.0) ** 2)
        return own + seen - jnp.sum(scales**2) / 2

    start = {"globals": np.full(NUM_GLOBAL, 0.2), "effects": np.zeros(NUM_EFFECTS)}
    return Target(log_density, start, location_scale={"effects": lambda t: (0.0, jnp.exp(t["globals"][0]))})


def centred(target: Target, amounts) -> Bordered:
    q = Bordered(target, {"effects": "effects"})
    shapes = {latent.name: latent.shape for latent in target.latents}
    written = Centering.as_written(centerable(q, target.location_scale), shapes, q.params.dtype)
    return with_centering(q, written).recentered(np.asarray(amounts, float))


def test_the_derivative_is_averaged_over_all_draws_of_a_climb():
    """Of fewer the moments do not match: their average is another one, by as much for every element."""
    target = tied()
    q = centred(target, np.linspace(0.1, 0.9, NUM_EFFECTS))
    objective = Objective(target, q, KEY, 256)
    params = np.asarray(q.params)
    fixed = objective.noise(params, (1,), 128, 1)
    assert q.min_draws <= fixed.num_draws

    def value(amounts):
        objective.follow(with_amounts(q, amounts))
        return objective(params, fixed)

    assert q.centering is not None
    amounts = q.centering.vector()
    kept = value(amounts).kept()
    assert kept is not None
    along, own = slope_terms(q, fixed.values[: len(kept)])
    each = kept[:, centered_columns(q)] * along + own
    step = 1e-5 * np.eye(NUM_EFFECTS)
    exact = [(value(amounts + e).value - value(amounts - e).value) / 2e-5 for e in step]
    np.testing.assert_allclose(each.mean(0), exact, rtol=1e-5, atol=1e-6)
    assert np.abs(each[:64].mean(0) - exact).max() > 1e-3


def search(values, slopes=0.0, again=()) -> CenteringSearch:
    """One element, tried in the middle and at both ends."""
    tried = np.array([[0.5], [0.0], [1.0]])
    slopes = np.broadcast_to(np.asarray(slopes, float), 3)[:, None]
    return CenteringSearch(tried, np.asarray(values, float), slopes, np.zeros((3, 2)), np.ones(1), again=again)


@pytest.mark.parametrize(
    ("values", "slopes", "again", "expected"),
    [
        ((-100.0, -99.0, -101.0), 0.0, (), None),
        ((-1_200.0, -99.0, -101.0), 0.0, (), 0),
        ((-1_200.0, -99.0, -1_300.0), 0.0, (0,), 2),
        ((-1_200.0, -99.0, -1_300.0), 0.0, (0, 2), None),
        ((-100.0, -99.0, -np.inf), 0.0, (), 2),
        ((-149.0, -99.0, -199.0), -100.0, (), None),  # the way down is that of the slopes
        ((-149.0, -99.0, -199.0), -50.0, (), 0),
        ((-np.inf, -np.inf, -np.inf), 0.0, (), None),
    ],
)
def test_a_climb_far_below_what_its_neighbours_say_is_repeated(values, slopes, again, expected):
    assert _APART < 50
    assert _astray(search(values, slopes, again)) == expected


def test_of_a_repeated_climb_the_better_one_counts():
    first = search((-1_200.0, -99.0, -101.0), again=(0,))
    under_way = dataclasses.replace(first, repeats=True)
    better = under_way.after(np.array([0.5]), -98.0, np.array([1.0]), np.ones(2))
    worse = under_way.after(np.array([0.5]), -1_300.0, np.array([1.0]), np.ones(2))
    assert list(better.values) == [-98.0, -99.0, -101.0] and better.params[0, 0] == 1 and better.slopes[0, 0] == 1
    assert list(worse.values) == [-1_200.0, -99.0, -101.0] and worse.params[0, 0] == 0
    assert not better.repeats and not worse.repeats
