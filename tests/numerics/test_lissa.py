"""Scheme II: the corrected recursion, its mean and variance over fresh draws, and the paper's own."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lissa_toy import DIAGONAL, RHS, moments, noisy, replicate, z_test

from curvi.curvature import DenseMatrix
from curvi.solve import LiSSA, SolveOutcome


def to_depth(depth, scale, **options):
    return LiSSA(depth=depth, scale=scale, tolerance=0.0, growth=np.inf, **options)


@pytest.mark.parametrize("scale", [None, 3.5])
def test_fixed_batch_agrees_with_dense_algebra(scale):
    operator, traces = noisy(0.3), []
    batch = jax.vmap(lambda key: operator.draw(key).dense())(jax.random.split(jax.random.key(1), 50)).mean(0)
    solver = LiSSA(depth=2000, scale=scale, tolerance=1e-10, check_every=7)

    @eqx.filter_jit
    def solve(operator, rhs):
        traces.append(1)
        return solver(operator, rhs)

    solution = solve(DenseMatrix(batch), RHS)
    assert solution.outcome is SolveOutcome.SOLVED and solution.num_draws == 0
    np.testing.assert_allclose(solution.x, np.linalg.solve(batch, RHS), rtol=1e-8)
    assert solve(DenseMatrix(2 * batch), RHS).num_products > 7 and len(traces) == 1


def test_truncates_at_the_given_depth():
    solution = to_depth(12, 3.5, check_every=5)(noisy(0.3), RHS)
    series = np.sum([(1 - DIAGONAL / 3.5) ** i for i in range(13)], axis=0) * np.asarray(RHS) / 3.5
    np.testing.assert_allclose(solution.x, series, rtol=1e-12)
    np.testing.assert_allclose(moments(3.5, 12, 0.3)[0], series, rtol=1e-12)
    assert solution.outcome is SolveOutcome.MAX_STEPS and solution.num_products == 12 + 3 + 1


def test_mean_over_fresh_draws_is_the_truncated_series():
    operator, (mean, second) = noisy(0.5), moments(3.5, 8, 0.5)
    right = replicate(to_depth(8, 3.5), operator)
    assert z_test(right.x, mean) and z_test(right.x**2, second) and jnp.all(right.num_draws == 8)
    averaged = replicate(to_depth(8, 3.5, num_copies=4), operator)
    assert z_test(averaged.x, mean) and jnp.all(averaged.num_draws == 32)
    assert jnp.all(averaged.x.var(0) < 0.5 * right.x.var(0))


def test_wrong_recursions_fail_the_same_test():
    operator, (mean, _) = noisy(0.5), moments(3.5, 8, 0.5)
    literal = replicate(to_depth(8, 3.5, literal=True), operator)
    assert not z_test(literal.x, mean)
    # One copy used at every step: not independent, so its powers have the wrong mean.
    keys = jax.random.split(jax.random.key(0), 4000)
    repeated = jax.jit(jax.vmap(lambda key: to_depth(8, 3.5)(operator.draw(key), RHS).x))(keys)
    assert not z_test(repeated, mean)


def test_variance_explodes_when_the_scale_bounds_the_mean_only():
    # |A| = 3 < C0 = 4 as the paper asks, but v'E[X^2]v < 2 C0 v'Av fails: 1 + 4 * 9 > 8 for the first v.
    expected = [moments(4.0, depth, 3.0)[1].sum() for depth in (4, 8, 16)]
    assert expected[1] > 20 * expected[0] and expected[2] > 400 * expected[1]
    few = replicate(to_depth(4, 4.0), noisy(3.0), num=500).x
    many = replicate(to_depth(8, 4.0), noisy(3.0), num=500).x
    assert jnp.sum(many**2) > 10 * jnp.sum(few**2) and jnp.std(many) > 10 * jnp.max(jnp.abs(RHS / DIAGONAL))
    # With C0 = 40 > (1 + 36) / 2 it settles.
    calm = [moments(40.0, depth, 3.0)[1].sum() for depth in (400, 800)]
    assert calm[1] < 1.01 * calm[0]


def test_norm_of_indefinite_draws_is_not_enough():
    # X = 0.1 +- 1 in one dimension has norm 1.1 at most, but E[X^2] / (2 E[X]) = 5.05.
    toy = {"spread": 1.0, "diagonal": np.array([0.1]), "rhs": np.ones(1)}
    for scale, explodes in ((1.5 * 1.1, True), (8.0, False)):
        early, late = moments(scale, 40, **toy)[1], moments(scale, 80, **toy)[1]
        assert late > 1000 * early if explodes else late < 3 * early
    # The mean is carried by a few huge replicates: nearly all are far from the solution.
    found = replicate(LiSSA(depth=40), noisy(1.0, toy["diagonal"]), jnp.ones(1), num=200)
    assert jnp.mean(found.code == SolveOutcome.SOLVED) < 0.1


def test_literal_recursion_has_the_wrong_fixed_point():
    operator = DenseMatrix(jnp.diag(jnp.asarray(DIAGONAL)))
    literal = LiSSA(depth=5000, scale=4.0, tolerance=1e-12, literal=True)(operator, RHS)
    np.testing.assert_allclose(literal.x, np.asarray(RHS) / (4.0 - 1.0 + DIAGONAL), rtol=1e-9)
    # It meets its own stop, and the true residual shows that nothing was solved.
    assert literal.outcome is SolveOutcome.RESIDUAL_TOO_LARGE and literal.residual > 0.3
    # With C0 = 1 both recursions are the same.
    small = DenseMatrix(jnp.diag(jnp.asarray(DIAGONAL / 4)))
    one = LiSSA(depth=500, scale=1.0, tolerance=1e-12, literal=True)(small, RHS)
    np.testing.assert_allclose(one.x, 4 * np.asarray(RHS) / DIAGONAL, rtol=1e-9)


def test_divergence_is_reported_with_the_best_iterate():
    indefinite = DenseMatrix(jnp.diag(jnp.array([1.0, -1.0, 2.0, 3.0])))
    solution = LiSSA(depth=1000)(indefinite, RHS)
    assert solution.outcome is SolveOutcome.DIVERGED and "natural gradient" in solution.message
    assert solution.residual < 10 and solution.num_products < 1000
    # A scale far too small overflows before the first check; the first iterate is all there is.
    small = LiSSA(depth=1000, scale=1e-3, check_every=500)(indefinite, RHS)
    assert small.outcome is SolveOutcome.DIVERGED
    np.testing.assert_allclose(small.x, RHS / 1e-3)


def test_noise_keeps_the_change_alive_but_not_the_residual():
    # |y_j - y_{j-1}| stays at the size of the noise; the residual of the mean is what matters.
    solver = LiSSA(depth=3000, scale=40.0, num_copies=8, tolerance=0.1)
    solution = solver(noisy(0.3), RHS, key=jax.random.key(2))
    assert solution.outcome is SolveOutcome.SOLVED and solution.num_draws < 8 * 3000


def test_same_key_same_bits():
    solve = eqx.filter_jit(lambda seed: LiSSA(depth=20)(noisy(0.3), RHS, key=jax.random.key(seed)))
    first, again, other = solve(jnp.array(1)), solve(jnp.array(1)), solve(jnp.array(2))
    assert jnp.array_equal(first.x, again.x) and not jnp.array_equal(first.x, other.x)
