"""Stratified noise from counters: like Latin hypercubes of random permutations, unbiased, the same in any slice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from law_statistics import assert_zero_mean, z_scores
from scipy.special import ndtri

from curvi import MeanField, Target
from curvi.estimate import strata as module
from curvi.estimate.strata import MAX_DRAWS, Stratified, column_words, lower_quantile, part_seed, strata
from curvi.estimate.strata import stratified_noise as noise_of

SEED = jnp.asarray([11, 5], jnp.uint32)
MANY = 10**5


def noise(num_draws, dimension, seed=SEED, dtype=jnp.float64, jitter=True):
    words = column_words(seed, jnp.arange(dimension))
    return np.asarray(noise_of(words, jnp.arange(num_draws), num_draws, dtype, jitter))


def q_of(dimension):
    return MeanField(Target(lambda t: -jnp.sum(t["x"] ** 2), {"x": np.zeros(dimension)}))


# -- the design -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_draws", [1, 2, 8, 64, 1024, MAX_DRAWS])
def test_every_coordinate_meets_every_stratum_once(num_draws):
    words = column_words(SEED, jnp.arange(7))
    found = np.asarray(strata(words, jnp.arange(num_draws, dtype=jnp.uint32), num_draws))
    assert np.array_equal(np.sort(found, 0), np.tile(np.arange(num_draws)[:, None], 7))


def correlations(values, num_pairs, seed):
    """Correlations of random pairs of columns."""
    rng = np.random.default_rng(seed)
    values = (values - values.mean(0)) / values.std(0)
    first, second = rng.integers(values.shape[1], size=(2, num_pairs))
    apart = first != second
    return np.mean(values[:, first[apart]] * values[:, second[apart]], 0)


def permuted(num_draws, dimension):
    rng = np.random.default_rng(0)
    column = ndtri((np.arange(num_draws) + 0.5) / num_draws).astype(np.float32)
    return np.stack([rng.permutation(column) for _ in range(dimension)], 1)


@pytest.mark.parametrize("num_draws", [32, 256])
def test_pairs_of_columns_are_like_random_permutations(num_draws):
    """Mean square, fourth moment and largest of their correlations, among 10^5 columns."""
    ours = correlations(noise(num_draws, MANY, dtype=jnp.float32, jitter=False), MANY, 1)
    theirs = correlations(permuted(num_draws, MANY // 10), MANY, 2)
    assert np.isclose(np.mean(ours**2) * (num_draws - 1), 1, rtol=0.03)
    assert np.isclose(np.mean(ours**4), np.mean(theirs**4), rtol=0.08)
    assert np.max(np.abs(ours)) < 1.25 * np.max(np.abs(theirs))


def test_one_round_alone_is_a_lattice(monkeypatch):
    """The same law finds what is wrong with it: many pairs of columns coincide."""
    monkeypatch.setattr(module, "ROUNDS", 1)
    ours = correlations(noise(256, MANY, dtype=jnp.float32, jitter=False), MANY, 1)
    theirs = correlations(permuted(256, MANY // 10), MANY, 2)
    assert np.mean(ours**4) > 5 * np.mean(theirs**4)
    assert np.max(np.abs(ours)) > 0.95


def test_parts_are_independent_designs():
    """Correlations between the draws of two parts have the spread of chance; those of one part with itself have not."""
    first, second = (noise(64, 20_000, part_seed(SEED, part)) for part in (0, 1))
    z = np.mean(first * second, 0) * 8
    assert abs(z.mean()) < 4 / np.sqrt(z.size) and np.isclose(z.std(), 1, rtol=0.03)
    assert np.mean(first * first, 0).min() * 8 > 4


# -- the distribution -------------------------------------------------------------------------------------------------


def test_the_quantile_is_that_of_the_normal():
    u = np.geomspace(2.0**-30, 0.5, 10_001).astype(np.float32)
    assert np.allclose(np.asarray(lower_quantile(jnp.asarray(u))), ndtri(u.astype(float)), rtol=0, atol=5e-4)
    middle = u > 1e-6
    assert np.allclose(np.asarray(lower_quantile(jnp.asarray(u)))[middle], ndtri(u.astype(float))[middle], atol=3e-6)


MOMENTS = {"mean": (lambda e: e, 0.0), "square": (lambda e: e**2, 1.0), "cube": (lambda e: e**3, 0.0)}
MOMENTS |= {"fourth": (lambda e: e**4, 3.0), "exp": (np.exp, np.exp(0.5))}


@pytest.mark.parametrize("num_draws", [8, 64])
@pytest.mark.parametrize("name", MOMENTS)
def test_averages_are_unbiased(name, num_draws):
    """Independent columns are independent samples of the average over a design."""
    function, expected = MOMENTS[name]
    assert_zero_mean(function(noise(num_draws, 40_000)).mean(0) - expected)


@pytest.mark.parametrize("name", ["square", "fourth", "exp"])
def test_midpoints_are_biased(name):
    """In every coordinate alike, so that the law finds it at once."""
    function, expected = MOMENTS[name]
    assert np.abs(z_scores(function(noise(64, 40_000, jitter=False)).mean(0) - expected)) > 100


def test_functions_of_one_coordinate_have_little_noise():
    """The error falls like S^-3/2 rather than S^-1/2."""
    few, many = (np.std(np.tanh(noise(size, 4000)).mean(0)) for size in (64, 256))
    assert few < 0.1 * 64**-0.5 and many < few / 6


# -- slices, types, keys ----------------------------------------------------------------------------------------------


def test_any_slice_is_the_same_numbers():
    q, design, key = q_of(40), Stratified(2), jax.random.key(3)
    whole = design.noise(q, key, 64)
    part = design.at(key, jnp.asarray([5, 40, 63]), jnp.asarray([39, 0]), 64, q.params.dtype)
    np.testing.assert_array_equal(part, whole[jnp.asarray([5, 40, 63])][:, jnp.asarray([39, 0])])
    np.testing.assert_array_equal(whole, jax.jit(lambda key: design.noise(q, key, 64))(key))
    assert design.unit(q, 64) == 32


def test_other_keys_give_other_noise():
    q = q_of(3)
    first, second = (np.asarray(Stratified().noise(q, jax.random.key(seed), 64)) for seed in (0, 1))
    assert np.mean(first == second) < 0.01


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_noise_has_the_type_that_is_asked_for(dtype):
    values = noise(64, 5, dtype=dtype)
    assert values.dtype == dtype and np.all(np.isfinite(values))
    assert np.array_equal(values.astype(np.float32), noise(64, 5, dtype=jnp.float32))


@pytest.mark.parametrize("num_draws", [6, 96, 4 * 2 * MAX_DRAWS])
def test_sizes_that_are_no_power_of_two_are_refused(num_draws):
    with pytest.raises(ValueError, match=f"designs of a power of two of draws each.*num_draws = {num_draws}"):
        Stratified().check(q_of(3), num_draws)
