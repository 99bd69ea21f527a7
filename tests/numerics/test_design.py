"""Noise that is mirrored and matched, and the quadratic control variate where it is too little to be matched."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from curvi import MeanField, Target, fit
from curvi.estimate.draws import SOBOL_DIMENSIONS
from curvi.estimate.fixed_draws.expansion import Excess, Expansion
from curvi.estimate.fixed_draws.noise import correction_draws, matched_noise
from curvi.estimate.fixed_draws.objective import Objective
from curvi.family import normal_path
from curvi.family.triangular_path import TriangularPath

ROUNDING = 1e-12


def noise(num_draws, dimension, seed=0, **options):
    return matched_noise(np.random.default_rng(seed), num_draws, dimension, **options)


# -- moments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("match", [True, False])
@pytest.mark.parametrize(("num_draws", "dimension"), [(64, 1), (64, 16), (64, 40), (256, 3)])
def test_odd_moments_are_zero(num_draws, dimension, match):
    values = noise(num_draws, dimension, match=match)
    assert values.shape == (num_draws, dimension) and values.dtype == np.float64
    # Exactly: every draw is followed by its mirror image.
    assert np.array_equal(values[::2], -values[1::2])
    # An odd function of any pair of coordinates averages to zero.
    first, second = values[:, 0], values[:, -1]
    assert abs(np.mean(first**2 * second)) < ROUNDING


@pytest.mark.parametrize("num_scrambles", [1, 2, 4])
@pytest.mark.parametrize("dimension", [1, 5, 16])
def test_second_moments_are_the_identity(dimension, num_scrambles):
    """With as many pairs as dimensions or more, in each part by itself."""
    size = 32
    for part in noise(size * num_scrambles, dimension, num_scrambles=num_scrambles).reshape(num_scrambles, size, -1):
        # As many points as dimensions are a square matrix, of condition 1e3 at times: the Gram matrix has its square.
        atol = 1e-7 if 2 * dimension == size else ROUNDING
        assert np.allclose(part.T @ part / size, np.eye(dimension), rtol=0, atol=atol)


def test_columns_have_unit_moments_where_pairs_are_few():
    for part in noise(64, 40).reshape(2, 32, 40):
        moments = part.T @ part / 32
        assert np.allclose(np.diag(moments), 1, rtol=0, atol=ROUNDING)
        assert np.abs(moments - np.eye(40)).max() > 0.1


def test_unmatched_noise_has_the_moments_of_its_points():
    moments = noise(64, 5, match=False)
    assert np.abs(moments.T @ moments / 64 - np.eye(5)).max() > 1e-3


@pytest.mark.parametrize("match", [True, False, np.arange(12) % 2 == 0], ids=["matched", "independent", "half"])
def test_marginals_are_about_normal(match):
    values = noise(2048, 12, match=match)
    for column in values.T:
        # Scrambled Sobol points are far more even than independent ones, whose distance is about 0.87 / sqrt(n).
        farthest = 0.3 if np.any(match) else 2.5
        assert stats.kstest(column, "norm").statistic < farthest / np.sqrt(len(column))
    assert np.allclose(np.mean(values**4, 0), 3, atol=0.25 if np.any(match) else 0.9)


def test_chosen_columns_alone_are_matched():
    columns = np.array([True, False, True])
    values = noise(64, 3, match=columns)
    second = values.T @ values / 64
    assert np.allclose(second[np.ix_(columns, columns)], np.eye(2), atol=1e-9)
    assert abs(second[1, 1] - 1) > 1e-4


def test_pairs_that_are_not_matched_tell_their_own_error():
    """z-scores of a mean with a tail, by the spread of the pairs: the law that quasi-random points break."""
    z = []
    for seed in range(300):
        pairs = np.exp(0.5 * noise(1024, 1, seed, match=False)[:, 0]).reshape(-1, 2).mean(1)
        z.append((pairs.mean() - np.exp(0.125)) / (pairs.std(ddof=1) / np.sqrt(len(pairs))))
    assert 0.85 < np.std(z) < 1.15


def test_parts_are_independent():
    """Correlations between the draws of two parts, over seeds, have the spread and mean of chance."""
    pairs = [noise(32, 3, seed).reshape(2, 16, 3) for seed in range(200)]
    first, second = (np.stack([pair[part][::2] for pair in pairs]) for part in (0, 1))
    products = (first * second).mean(1)  # over the draws of a part: one look at the correlation
    z = products.mean(0) / (products.std(0, ddof=1) / np.sqrt(len(products)))
    assert np.all(np.abs(z) < 4)
    # The same check fails for parts that share their scramble.
    same = (first * first).mean(1)
    assert np.all(np.abs(same.mean(0)) > 0.9)


# -- arguments --------------------------------------------------------------------------------------------------------


def test_same_generator_same_bits():
    assert np.array_equal(noise(64, 7, seed=3), noise(64, 7, seed=3))
    assert not np.array_equal(noise(64, 7, seed=3), noise(64, 7, seed=4))


@pytest.mark.parametrize(("num_draws", "num_scrambles"), [(0, 2), (2, 2), (62, 2), (63, 1), (36, 8)])
def test_sizes_that_do_not_divide_are_refused(num_draws, num_scrambles):
    with pytest.raises(ValueError, match=f"must be a multiple of {2 * num_scrambles}; got {num_draws}"):
        noise(num_draws, 3, num_scrambles=num_scrambles)


def test_sizes_that_are_no_power_of_two():
    values = noise(24, 3)
    assert values.shape == (24, 3) and np.all(np.isfinite(values))


def test_beyond_the_dimensions_of_sobol_points():
    dimension = SOBOL_DIMENSIONS + 1
    values = noise(8, dimension)
    assert values.shape == (8, dimension)
    assert np.allclose(np.mean(values[:4] ** 2, 0), 1, atol=ROUNDING)
    assert np.array_equal(values[::2], -values[1::2])
    assert np.array_equal(values, noise(8, dimension))
    unmatched = noise(8, dimension, match=False)[::2]
    assert stats.kstest(unmatched.ravel(), "norm").pvalue > 1e-3


# -- the control variate ----------------------------------------------------------------------------------------------


def correlated(size, seed=0):
    """A dense precision of condition 100."""
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(size, size)))
    return (turn * np.geomspace(1, 100, size)) @ turn.T, rng.normal(size=size)


@pytest.mark.parametrize("kind", ["diagonal", "stored nowhere", "triangular"])
def test_excess_is_what_the_average_has_too_much(kind, monkeypatch):
    """mean over the noise of a quadratic = its expectation + excess, for draws m + L e."""
    if kind == "stored nowhere":
        monkeypatch.setattr(normal_path, "_LARGEST_STORED", 0)
    precision, centre = correlated(6)
    rng = np.random.default_rng(1)
    mean, factor = rng.normal(scale=0.5, size=6), np.diag(np.exp(rng.normal(scale=0.5, size=6)))
    if kind == "triangular":
        factor = factor + np.tril(rng.normal(scale=0.3, size=(6, 6)), -1)
    path = TriangularPath(6) if kind == "triangular" else normal_path.NormalPath(6)
    c = np.concatenate([mean, factor.ravel() if kind == "triangular" else np.diag(factor)])
    values = noise(8, 6, match=False)
    away = mean + values @ factor.T - centre
    average = -np.einsum("si,ij,sj->s", away, precision, away).mean() / 2
    still = mean - centre
    expectation = -(still @ precision @ still + np.trace(precision @ factor @ factor.T)) / 2
    control = Excess(path, -precision, values)
    gradient = control.gradient(c)
    assert np.isclose(average, expectation + c @ gradient / 2, rtol=1e-12)
    assert abs(c @ gradient) > 0.1
    # The same of parts, and its gradients.
    energies, gradients = control.over(values.reshape(2, 4, 6), c)
    assert np.isclose(energies.mean(), c @ gradient / 2, rtol=1e-12)
    assert np.allclose(gradients.mean(0), gradient, rtol=1e-10)


def objective_of(precision, centre, order=2):
    target = Target(
        lambda t: -(t["x"] - centre) @ precision @ (t["x"] - centre) / 2, {"x": np.zeros(len(centre))}, order=order
    )
    return Objective(target, MeanField(target), jax.random.key(0), 64)


@pytest.mark.parametrize(("size", "order"), [(6, 2), (6, 1), (40, 2), (70, 1), (150, 2)])
def test_hessian_at_the_mean(size, order):
    precision, centre = correlated(size)
    objective = objective_of(precision, centre, order)
    objective.expand(np.random.default_rng(2).normal(size=2 * size))
    assert np.allclose(objective.expansion.hessian, -precision, rtol=0, atol=1e-9)
    v = np.arange(1.0, size + 1)
    assert np.allclose(precision @ objective.expansion.unwhiten(objective.expansion.whiten(v)), v, rtol=0.02)


def test_no_metric_where_the_hessian_is_not_negative():
    assert Expansion(np.diag([-1.0, 2.0]), np.ones(2)).lower is None
    broken = Expansion(np.full((2, 2), np.nan), np.ones(2))
    assert not np.any(broken.hessian)


@pytest.mark.parametrize("order", [1, 2])
def test_the_corrected_elbo_of_a_gaussian_is_exact_on_any_noise(order):
    """Value, gradient and Hessian product, against the closed form."""
    size = 40
    precision, centre = correlated(size)
    objective = objective_of(precision, centre, order)
    rng = np.random.default_rng(3)
    params, direction = rng.normal(size=2 * size) / 4, rng.normal(size=2 * size)
    objective.exact_products = True
    objective.expand(params)
    noise_used = objective.noise(params, (9,), 64, match=False)
    look = objective(params, noise_used)

    def elbo(p):
        mu, log_sigma = p.reshape(-1, 2).T
        spread = jnp.diag(precision) @ jnp.exp(2 * log_sigma)
        away = mu - centre
        return -(away @ precision @ away + spread) / 2 + log_sigma.sum() + size * (np.log(2 * np.pi) + 1) / 2

    grad, product = jax.jvp(jax.grad(elbo), (jnp.asarray(params),), (jnp.asarray(direction),))
    assert np.isclose(look.value, elbo(params), rtol=1e-12)
    assert np.allclose(look.grad, grad, rtol=1e-9, atol=1e-9)
    # Differences of gradients are exact to the square of their width.
    accuracy = 1e-9 if order == 2 else 2e-3 * np.abs(product).max()
    assert np.allclose(look.curvature.mv(direction), product, rtol=1e-9, atol=accuracy)
    # Without the correction, 16 pairs a half are far off.
    objective.expansion = None
    assert abs(objective(params, objective.noise(params, (9,), 64, match=False)).value - elbo(params)) > 0.1


def test_a_gaussian_is_solved_with_fewer_pairs_than_dimensions():
    size = 40
    precision, centre = correlated(size)
    target = Target(lambda t: -(t["x"] - centre) @ precision @ (t["x"] - centre) / 2, {"x": np.zeros(size)})
    found = fit(target, key=jax.random.key(0), progress=False, tolerance=1e-8, family="mean_field")
    assert found.converged
    # 64 draws are 32 pairs; those of a correction are matched.
    assert set(found.history.num_draws) <= {64, correction_draws(size)}
    mu, log_sigma = np.asarray(found.q.params).reshape(size, 2).T
    assert np.allclose(np.exp(log_sigma), 1 / np.sqrt(np.diag(precision)), rtol=1e-6)
    assert np.allclose(mu, centre, atol=1e-6)
