"""Laws of second-order regression: exact in the span of its features, consistent elsewhere, honest about its noise."""

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factor_registry import ROWS

from curvi.descent.dense import DenseModel
from curvi.estimate import SecondOrderRegression
from curvi.estimate import pairs as pairs_of
from curvi.estimate.left_out_parts import with_left_out_parts
from curvi.estimate.pairs import PairLayout, fit_pairs, pair_kernel, pair_part
from curvi.estimate.pool import Batch, Pool
from curvi.estimate.regression import pair_layout
from curvi.estimate.shrunk_pairs import shrunk_curvature


def estimate(problem, num_draws, seed=0, **settings):
    """Value, gradient, dense Hessian and noise of the regression."""

    def run(key):
        local = SecondOrderRegression(num_draws, **settings)(problem.target, problem.q, key)
        return local.value, local.grad, local.curvature.dense(), local.noise.groups

    return jax.jit(run), jax.random.key(seed)


def across(problem):
    return pair_layout(problem.q).across


@pytest.mark.parametrize("make", [exact.bits, exact.categories, exact.gaussian])
def test_exact_where_the_log_ratio_lies_in_the_span(make):
    problem = make()
    run, key = estimate(problem, 400)
    value, grad, hessian, _ = run(key)
    np.testing.assert_allclose(value, problem.value, atol=1e-9)
    np.testing.assert_allclose(grad, problem.gradient, atol=1e-8)
    np.testing.assert_allclose(hessian * across(problem), problem.hessian * across(problem), atol=1e-8)


@pytest.mark.parametrize("make", [exact.gamma_and_beta, exact.precision_and_location])
def test_consistent_elsewhere(make):
    problem = make()
    run, _ = estimate(problem, 1024)
    seeds = jax.random.split(jax.random.key(1), 24)
    values, grads, hessians, copies = (np.asarray(part) for part in jax.lax.map(run, seeds))
    assert_within(values, problem.value)
    assert_within(grads, problem.gradient)
    off = across(problem)
    assert_within(hessians[:, off], problem.hessian[off])
    # The spread that one regression reports is the spread between regressions.
    reported = np.sqrt(np.mean(copies.var(1, ddof=1) / copies.shape[1], 0))
    np.testing.assert_allclose(grads.std(0, ddof=1), reported, rtol=0.5)


def assert_within(samples, truth, num_errors=4.5):
    error = samples.std(0, ddof=1) / np.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(0) - truth) <= num_errors * error + 1e-9)


def test_regression_on_wrong_features_fails_the_law():
    # Raw scores instead of whitened ones: coefficients of features that are not orthonormal are no derivatives.
    problem = exact.gamma_and_beta()
    keys = jax.random.split(jax.random.key(1), 2000)
    x = jax.vmap(problem.q.sample)(keys)
    scores = jax.vmap(problem.q.score)(x)
    density = problem.target.full()
    ratios = jax.vmap(lambda row: density(problem.q.to_model(row)[0]) - problem.q.log_prob(row))(x)
    wrong = fit_pairs(np.asarray(scores), np.asarray(ratios), np.ones(2000), pair_layout(problem.q))
    factor = problem.q.fisher().factorise()
    white = fit_pairs(
        np.asarray(jax.vmap(factor.solve)(scores)), np.asarray(ratios), np.ones(2000), pair_layout(problem.q)
    )
    right = np.asarray(factor.mv(jnp.asarray(white.linear)))
    scale = np.linalg.norm(problem.gradient)
    assert np.linalg.norm(right - problem.gradient) < 0.05 * scale
    assert np.linalg.norm(np.asarray(factor.mv(jnp.asarray(wrong.linear))) - problem.gradient) > 0.3 * scale


def test_the_hessian_without_products_is_minus_the_fisher_information():
    problem = exact.bits()
    run, key = estimate(problem, 64, products=False)
    np.testing.assert_allclose(run(key)[2], -problem.q.fisher().dense(), atol=1e-12)


def test_too_few_draws_are_refused():
    problem = exact.bits()
    with pytest.raises(ValueError, match="needs more than 9 draws"):
        SecondOrderRegression(8)(problem.target, problem.q, jax.random.key(0))


# -- the algebra ------------------------------------------------------------------------------------------------------


def noisy_data(num_draws=60, seed=0, noise=0.5):
    """Two factors of two parameters and one of one: 8 products."""
    rng = np.random.default_rng(seed)
    layout = PairLayout(np.array([0, 0, 1, 1, 2]))
    scores = rng.normal(size=(num_draws, 5))
    pairs = rng.normal(size=(5, 5)) * layout.across
    pairs = (pairs + pairs.T) / 2
    response = 3 + scores @ np.arange(5.0) + pair_part(scores, pairs) + noise * rng.normal(size=num_draws)
    return scores, response, rng.uniform(0.2, 2.0, num_draws), layout, pairs


def test_kernel_is_the_product_of_the_features():
    scores, _, _, layout, _ = noisy_data()
    a, b = layout.pairs()
    features = scores[:, a] * scores[:, b]
    assert features.shape[1] == layout.num_pairs == 8
    np.testing.assert_allclose(pair_kernel(scores, layout), features @ features.T, atol=1e-10)


def test_kernel_and_products_give_one_answer(monkeypatch):
    data = noisy_data()[:4]
    by_products = fit_pairs(*data, ridge=0.02)
    monkeypatch.setattr(pairs_of, "uses_kernel", lambda *_: True)
    by_kernel = fit_pairs(*data, ridge=0.02)
    assert by_kernel.draw_weights is not None and by_products.draw_weights is None
    for name in ("value", "linear", "pairs", "left_out", "influence"):
        np.testing.assert_allclose(getattr(by_kernel, name), getattr(by_products, name), atol=1e-9, err_msg=name)


def ridge_regression(scores, response, weights, layout, ridge):
    """Coefficients by the normal equations, written out: intercept, scores, products."""
    a, b = layout.pairs()
    features = np.column_stack([np.ones(len(response)), scores, scores[:, a] * scores[:, b]])
    weights = weights / weights.mean()
    penalty = np.r_[np.zeros(6), np.full(len(a), ridge * len(response))]
    gram = features.T @ (weights[:, None] * features) + np.diag(penalty)
    return features, np.linalg.solve(gram, features.T @ (weights * response))


def test_coefficients_are_those_of_the_normal_equations():
    scores, response, weights, layout, _ = noisy_data()
    _, found = ridge_regression(scores, response, weights, layout, 0.1)
    fit = fit_pairs(scores, response, weights, layout, ridge=0.1)
    np.testing.assert_allclose(fit.value, found[0])
    np.testing.assert_allclose(fit.linear, found[1:6])
    np.testing.assert_allclose(fit.pairs[layout.pairs()], found[6:])


def test_left_out_residuals_are_those_of_a_fit_without_the_draw():
    scores, response, weights, layout, _ = noisy_data()
    weights = weights / weights.mean()
    fit = fit_pairs(scores, response, weights, layout, ridge=0.1)
    for i in (0, 17, 59):
        rest = np.arange(60) != i
        # The ridge is in units of the number of draws, and of the mean weight.
        mean = weights[rest].mean()
        _, found = ridge_regression(scores[rest], response[rest], weights[rest], layout, 0.1 * 60 / 59 / mean)
        a, b = layout.pairs()
        row = np.concatenate([[1.0], scores[i], scores[i, a] * scores[i, b]])
        np.testing.assert_allclose(fit.left_out[i], np.sqrt(weights[i]) * (response[i] - row @ found))


def test_the_ridge_follows_the_noise():
    quiet, loud = (fit_pairs(*noisy_data(noise=noise)[:4]).ridge for noise in (1e-3, 1e3))
    assert quiet < 1e-3 < 0.1 < loud


def test_curvature_from_noise_is_not_believed():
    scores, _, weights, layout, pairs = noisy_data(num_draws=200)
    rng = np.random.default_rng(1)
    shares = []
    for signal in (0.0, 1.0):
        response = signal * pair_part(scores, pairs) + rng.normal(size=200)
        # A ridge that shrinks nothing leaves the judgement to the half samples.
        found = fit_pairs(scores, response, weights, layout, ridge=1e-9)
        shares.append(shrunk_curvature(found, scores, response, weights, layout).shrinkage)
    assert shares[0] < 0.3 and shares[1] > 0.9


def test_a_score_that_does_not_vary_is_left_out():
    scores, response, weights, layout, _ = noisy_data()
    scores[:, 4] = 0.03
    fit = fit_pairs(scores, response - 500, weights, layout, products=False)
    assert abs(fit.linear[4]) < 1e-12 and not fit.complete
    assert abs(fit.value + 500) < 10


@pytest.mark.parametrize("shift", [0.0, 2.5], ids=["definite", "indefinite"])
@pytest.mark.parametrize("radius", [0.01, 0.5, 1e3])
def test_trust_region_step_is_the_best_of_the_ball(shift, radius):
    rng = np.random.default_rng(3)
    root = rng.normal(size=(5, 5))
    pairs = np.eye(5) * shift - root @ root.T / 5
    model = DenseModel.make(0.0, 0.0, rng.normal(size=5), np.eye(5), pairs)
    step = model.step(radius)
    assert step @ step / 2 <= radius * (1 + 1e-6)
    points = rng.normal(size=(20_000, 5))
    points *= (rng.random((20_000, 1)) ** 0.2) * np.sqrt(2 * radius) / np.linalg.norm(points, axis=1, keepdims=True)
    best = max(model.predicted(point) for point in points)
    assert model.predicted(step) >= best - 1e-9


def test_trust_region_step_leaves_a_saddle():
    pairs = np.diag([3.0, 0.0])
    step = DenseModel.make(0.0, 0.0, np.zeros(2), np.eye(2), pairs).step(0.5)
    np.testing.assert_allclose(np.abs(step), [1.0, 0.0], atol=1e-6)


def test_remaining_gain_is_corrected_for_noise():
    rng = np.random.default_rng(4)
    pairs = np.diag([0.5, -1.0, 0.0])
    slope, covariance = np.array([0.3, -0.2, 0.1]), np.diag([0.04, 0.09, 0.01])
    truth, noise = 0.5 * slope @ np.linalg.solve(np.eye(3) - pairs, slope), np.sqrt(np.diag(covariance))
    slopes = slope + noise * rng.normal(size=(4000, 3))
    found = np.array([DenseModel.make(0.0, 0.0, one, covariance, pairs).remaining_gain() for one in slopes])
    assert abs(found[:, 0].mean() - truth) < 4 * found[:, 0].std() / np.sqrt(4000)
    np.testing.assert_allclose(np.sqrt(np.mean(found[:, 1] ** 2)), found[:, 0].std(), rtol=0.35)


def test_the_gain_that_is_left_where_the_draws_led_adds_the_noise():
    """On a quadratic ELBO whose slope is known with noise: the step goes to the top of the estimate, where the draws
    show no slope at all, and the true slope is minus the noise.
    """
    rng = np.random.default_rng(7)
    pairs, covariance = np.diag([0.5, -1.0, 0.0]), np.diag([0.04, 0.09, 0.01])
    curvature, root = np.eye(3) - pairs, np.sqrt(np.diag(covariance))
    noise = root * rng.normal(size=(4000, 3))
    left = np.sum(noise * np.linalg.solve(curvature, noise.T).T, 1) / 2
    model = DenseModel.make(0.0, 0.0, np.zeros(3), covariance, pairs)
    nats, error = model.posterior_gain()
    assert abs(left.mean() - nats) < 4 * left.std() / np.sqrt(4000)
    np.testing.assert_allclose(error, left.std(), rtol=0.1)
    # The correction for draws that did not lead there is the opposite one.
    assert abs(left.mean() - model.remaining_gain()[0]) > 40 * left.std() / np.sqrt(4000)


def test_the_noise_of_draws_unlike_all_others_is_not_taken_from_their_copies():
    """Six bits, each 1 with probability 0.05, and a response with a deviation of its own at each of the 64 states: most
    draws are copies of a few states, and what is not known is the rest.
    """
    states = (np.arange(64)[:, None] >> np.arange(6)) & 1
    chance, layout = 0.05, PairLayout(np.arange(6))
    probability = np.prod(np.where(states, chance, 1 - chance), 1)
    scores = (states - chance) / np.sqrt(chance * (1 - chance))
    errors, told, taken = [], [], []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        response = rng.normal(size=64)
        drawn = rng.choice(64, 40, p=probability)
        part = scores[drawn], response[drawn], np.ones(40)
        found = fit_pairs(*part, layout, products=False)
        errors.append(found.linear - (probability * response) @ scores)
        told.append(np.diag(with_left_out_parts(found, *part, layout).covariance()))
        taken.append(np.diag(found.covariance()))
    truth = np.mean(np.square(errors))
    assert 0.5 < np.mean(told) / truth < 2.0
    assert np.median(np.mean(taken, 1)) < 0.5 * np.median(np.mean(told, 1))


# -- pooled draws -----------------------------------------------------------------------------------------------------


def normal_batch(rng, mean, size):
    x = mean + rng.normal(size=size)
    return Batch(mean, (x,), -(x**2), *normal_scores(mean, (x,)))


def normal_scores(mean, x):
    return -0.5 * (x[0] - mean) ** 2 - 0.5 * np.log(2 * np.pi), (x[0] - mean)[:, None]


def test_pooled_draws_weigh_to_the_mean_under_the_present_q():
    rng = np.random.default_rng(5)
    pool = Pool()
    for mean, size in ((0.0, 3000), (0.8, 2000), (1.5, 1000)):
        pool = pool.add(normal_batch(rng, mean, size), normal_scores, 10_000, 5)
    _, view = pool.view(1.0, normal_scores, 0.0)
    assert len(view.weights) == 6000 and 2000 < view.effective_size < 6000
    for power, truth in ((0, 1.0), (1, 1.0), (2, 2.0)):
        terms = view.weights * (view.scores[:, 0] + 1.0) ** power
        assert abs(terms.mean() - truth) < 4 * terms.std() / np.sqrt(6000)


def test_batches_that_weigh_least_leave_the_pool_first():
    rng = np.random.default_rng(6)
    pool = Pool()
    for mean in (0.0, 9.0, 0.1):
        pool = pool.add(normal_batch(rng, mean, 100), normal_scores, 350, 5)
    pool, _ = pool.view(0.0, normal_scores)
    pool = pool.add(normal_batch(rng, 0.2, 100), normal_scores, 350, 5)
    assert [batch.q for batch in pool.batches] == [0.0, 0.1, 0.2]


# -- natural parameters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_natural_parameters_lead_back(row):
    params = jnp.asarray(row.values)
    np.testing.assert_allclose(row.factor.from_natural(row.factor.natural(params)), params, atol=1e-10)
