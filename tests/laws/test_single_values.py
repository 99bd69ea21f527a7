"""What single values of discrete factors are worth, against enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from law_statistics import assert_zero_mean
from numpyro.distributions import constraints
from scipy.special import logsumexp
from scipy.stats import chi2

from curvi import MeanField, Target
from curvi.estimate.draws import bits_to_unit, latin_hypercube
from curvi.estimate.regression import pair_layout
from curvi.estimate.single_values import RARE, gain_beyond, num_draws
from curvi.methods.pooled_regression.programs import scores_at
from curvi.methods.pooled_regression.sampler import Sampler

NUM_VALUES = 5


def model(table, bit):
    """A categorical latent with these log probabilities and a bit with this logit; nothing ties them together."""
    return Target(
        lambda t: jnp.asarray(table)[t["z"]] + bit * t["b"],
        {"z": np.array(0), "b": np.array(0)},
        {"z": constraints.integer_interval(0, NUM_VALUES - 1), "b": constraints.boolean},
        order=0,
    )


def states(q):
    """All draws, with ln q, whitened scores and probabilities."""
    sizes = [len(factor.values) for factor in q.layout.factors]
    x = np.array(list(itertools.product(*(range(size) for size in sizes))))
    x = tuple(part[:, None] for part in x.T)
    return x, *scores_at(q, x)


def slopes(target, q):
    """E[s~ r] by enumeration, and the exact gain that is left, which a product can have in full here."""
    x, log_q, scores = states(q)
    log_p = np.asarray(jax.vmap(lambda x: target.full()(q.to_model(x)[0]))(x))
    ratio = log_p - log_q
    return (np.exp(log_q) * ratio) @ scores, logsumexp(log_p) - np.exp(log_q) @ ratio


@pytest.fixture
def excluded():
    """q that all but excludes a value with a third of the mass."""
    target = model([0.0, -1.0, 0.3, -2.0, 0.4], 0.7)
    q = MeanField(target)
    z = q.parameter_slices()["z"]
    params = np.asarray(q.params).copy()
    params[z] = [-1.0, 0.3, -2.0, -14.0]
    params[q.parameter_slices()["b"]] = 0.7
    return target, q.replace(jnp.asarray(params))


def beyond(q, linear, covariance):
    x, owner = q.every_value(tuple(np.zeros(count, np.int32) for count in q.layout.counts))
    return gain_beyond(scores_at(q, x)[1], owner, pair_layout(q).owner, linear, covariance)


def test_every_value_of_every_factor_once(excluded):
    _, q = excluded
    x, owner = q.every_value(tuple(np.zeros(count, np.int32) for count in q.layout.counts))
    assert len(owner) == NUM_VALUES + 2
    for group, factor in enumerate(q.layout.factors):
        assert sorted(x[group][owner == group, 0]) == list(factor.values)
        assert np.all(x[group][owner != group] == 0)


def test_none_where_nothing_is_discrete():
    q = MeanField(Target(lambda t: -(t["x"] ** 2), {"x": 0.0}, order=0))
    assert q.every_value((np.zeros(1),)) is None and q.num_rare_draws == 0


def test_a_value_that_q_all_but_excludes_is_worth_what_enumeration_says(excluded):
    target, q = excluded
    linear, gap = slopes(target, q)
    found, error = beyond(q, linear, np.zeros((len(linear),) * 2))
    quadratic = linear @ linear / 2
    assert gap > 0.3 and quadratic < 1e-3, "the quadratic model alone would call this the end"
    np.testing.assert_allclose(quadratic + found, gap, rtol=1e-6)
    assert error == 0


def test_noise_of_what_values_are_worth_adds_nothing_on_average(excluded):
    target, q = excluded
    linear, gap = slopes(target, q)
    rng = np.random.default_rng(0)
    # What 300 draws of the flattened q would leave: an error of half a nat for the rare value.
    x, _ = q.every_value(tuple(np.zeros(count, np.int32) for count in q.layout.counts))
    scores = scores_at(q, x)[1]
    covariance = 0.25 * np.linalg.inv(scores.T @ scores)
    root = np.linalg.cholesky(covariance)
    found, errors = np.array(
        [beyond(q, linear + root @ rng.normal(size=len(linear)), covariance) for _ in range(1000)]
    ).T
    quadratic = linear @ linear / 2
    # The logarithm of an unbiased sum is a little low, by half its relative variance.
    assert abs(found.mean() + quadratic - gap) < 0.5 * np.var(found) + 4 * found.std() / 1000**0.5
    np.testing.assert_allclose(np.sqrt(np.mean(errors**2)), found.std(), rtol=0.5)


def test_at_the_optimum_nothing_is_left_and_noise_cancels(excluded):
    target, q = excluded
    params = np.asarray(q.params).copy()
    params[q.parameter_slices()["z"]] = [-1.0, 0.3, -2.0, 0.4]
    q = q.replace(jnp.asarray(params))
    linear, gap = slopes(target, q)
    np.testing.assert_allclose([gap, linear @ linear], 0, atol=1e-12)
    found, error = beyond(q, linear, 1e-4 * np.eye(len(linear)))
    assert found < 1e-4 and error < 1e-3


def test_unknown_noise_is_an_unknown_gain(excluded):
    _, q = excluded
    linear = np.zeros(q.num_params)
    assert beyond(q, linear, np.full((len(linear),) * 2, np.inf)) == (np.inf, np.inf)


def test_each_value_shows_among_the_draws_that_look_for_rare_ones(excluded):
    _, q = excluded
    wide, size = q.flattened(), q.num_rare_draws
    seen = np.zeros(NUM_VALUES)
    for seed in range(50):
        points = bits_to_unit(latin_hypercube(seed, size, q.noise_size), q.params.dtype)
        x = jax.vmap(wide.from_uniform)(points)
        z = next(part for factor, part in zip(q.layout.factors, x) if len(factor.values) == NUM_VALUES)
        seen += np.isin(np.arange(NUM_VALUES), np.asarray(z))
    assert np.all(seen >= 40)


def test_what_draws_that_look_for_rare_values_are_drawn_from(excluded):
    """Their density sums to one, is that of the draws, and weighs them to means under q."""
    target, q = excluded
    x, log_q, _ = states(q)
    batches = [Sampler(target, jax.random.key(seed), 8, 0).draw_rare(q) for seed in range(200)]
    batch = batches[0]
    log_density = batch.log_density(x, scores_at)
    shown = np.isfinite(log_density)
    np.testing.assert_allclose(np.sum(np.exp(log_density)), 1, rtol=1e-6)
    # Every value below a tenth, and no state without any.
    groups = {len(factor.values): part for factor, part in zip(q.layout.factors, x)}
    chance = {v: np.exp(log_q)[groups[NUM_VALUES][:, 0] == v].sum() for v in range(NUM_VALUES)}
    rare = [v for v in range(NUM_VALUES) if chance[v] < RARE]
    assert len(rare) == 2 and set(groups[NUM_VALUES][shown, 0]) == set(rare)
    # The draws follow it: a chi-square statistic over the states they can show.
    drawn = [jax.tree.map(lambda *parts: np.concatenate(parts), *(b.x for b in batches))][0]
    columns = np.concatenate([part for part in drawn], 1), np.concatenate([part for part in x], 1)
    counts = np.array([np.sum(np.all(columns[0] == row, 1)) for row in columns[1]])
    expected = np.exp(log_density) * len(columns[0])
    assert np.all(counts[~shown] == 0)
    statistic = np.sum((counts - expected)[shown] ** 2 / expected[shown])
    assert statistic < chi2.ppf(0.9999, shown.sum() - 1)
    # Weights by q over it have mean one over what they show; those that took the draws for draws of q would not.
    inside = np.exp(log_q[shown]).sum()
    all_draws = np.concatenate([b.log_q for b in batches])
    own = scores_at(q, drawn)[0]
    np.testing.assert_allclose(np.mean(np.exp(own - all_draws)), inside, rtol=0.2)
    assert inside < 0.5


def test_a_value_is_drawn_the_more_often_the_more_its_error_costs():
    chance = np.array([0.5, 0.09, 0.02, 1e-3, 1e-8])
    numbers = [int(n) for n in num_draws(1 / chance - 1)]
    assert numbers[0] == 0 and numbers[-1] == 1 and numbers[1:] == sorted(numbers[1:], reverse=True)
    assert numbers[1] > 3


@pytest.mark.parametrize("size", [7, 32])
def test_one_point_in_each_slice_of_each_axis(size):
    points = latin_hypercube([3, 1], size, 4) / 2.0**32
    for axis in points.T:
        assert sorted(np.floor(axis * size)) == list(range(size))
    assert_zero_mean(np.stack([(latin_hypercube(seed, size, 4) / 2.0**32)[0] - 0.5 for seed in range(400)]))
