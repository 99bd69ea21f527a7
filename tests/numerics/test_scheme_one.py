"""Scheme I where the paper errs: roots of weights, vanishing denominators, float32, indefiniteness."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from curvi.curvature import BlockDiagonal, BlockLowRank
from curvi.solve import CG, Dense, ShermanMorrison, SolveOutcome, Woodbury

# Compiled whole: operation by operation the same tests take several times longer.
solve = eqx.filter_jit(lambda solver, operator, rhs: solver(operator, rhs))


def low_rank(diagonal, vectors, weights, dtype="float64"):
    """A diagonal plus low rank as an operator, and as a matrix."""
    matrix = np.diag(diagonal) + (vectors.T * weights) @ vectors
    blocks = BlockDiagonal((jnp.asarray(diagonal[:, None, None], dtype),))
    return BlockLowRank(blocks, jnp.asarray(vectors, dtype), jnp.asarray(weights, dtype)), matrix


def test_zero_denominator_although_the_matrix_is_fine():
    # The first draw makes I - e e' singular, the second lifts it to I + e e' / 2.
    operator, matrix = low_rank(np.ones(4), np.eye(4)[[1, 1]], np.array([-1.0, 1.5]))
    rhs = jnp.arange(1.0, 5.0)
    assert np.linalg.cond(matrix) < 2
    guarded = solve(ShermanMorrison(), operator, rhs)
    assert guarded.outcome is SolveOutcome.GUARDED and guarded.residual > 0.1
    assert jnp.all(jnp.isfinite(guarded.x)) and "Woodbury" in guarded.message
    unguarded = solve(ShermanMorrison(guard=0.0), operator, rhs)
    assert unguarded.outcome is SolveOutcome.SINGULAR and not jnp.all(jnp.isfinite(unguarded.x))
    whole = solve(Woodbury(), operator, rhs)
    assert whole.outcome is SolveOutcome.SOLVED
    np.testing.assert_allclose(whole.x, np.linalg.solve(matrix, rhs), rtol=1e-12)


def test_small_denominators_lose_digits_that_woodbury_keeps():
    rng = np.random.default_rng(0)
    u = rng.normal(size=20)
    vectors = np.stack([u, *rng.normal(size=(3, 20)), u])
    weights = np.array([-(1 - 1e-6) / (u @ u), 0.05, 0.05, 0.05, 1.5 / (u @ u)])
    operator, matrix = low_rank(np.ones(20), vectors, weights)
    rhs = jnp.asarray(rng.normal(size=20))
    sequential, blocked = solve(ShermanMorrison(), operator, rhs), solve(Woodbury(), operator, rhs)
    assert np.linalg.cond(matrix) < 100
    assert blocked.residual < 1e-14 and sequential.residual > 1e3 * blocked.residual


@pytest.mark.parametrize("solver", [ShermanMorrison(), Woodbury()])
def test_float32_with_little_damping_loses_everything_and_says_so(solver):
    # The block diagonal is the damping alone; the draws make up the matrix, whose condition is good.
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(60, 10))
    answers = {}
    for dtype, damping in (("float32", 1e-8), ("float32", 1.0), ("float64", 1e-8)):
        operator, matrix = low_rank(np.full(10, damping), vectors, np.full(60, 1 / 60), dtype)
        assert np.linalg.cond(matrix) < 20
        answers[dtype, damping] = solve(solver, operator, jnp.asarray(rng.normal(size=10), dtype))
    lost = answers["float32", 1e-8]
    assert lost.outcome is not SolveOutcome.SOLVED and not lost.residual < 0.1
    assert answers["float32", 1.0].outcome is SolveOutcome.SOLVED
    assert answers["float64", 1e-8].outcome is SolveOutcome.SOLVED


def test_signed_weights_where_the_paper_needs_a_square_root():
    # ln p < 0 for every draw: c_i = sqrt(ln p / S) of equation 14 is not a real number, its square is.
    rng = np.random.default_rng(2)
    log_density = -rng.uniform(1.0, 3.0, size=7)
    with np.errstate(invalid="ignore"):
        assert np.all(np.isnan(np.sqrt(log_density / 7)))
    scores = rng.normal(size=(7, 5))
    hessian, _ = low_rank(-np.ones(5), scores, log_density / 7)
    expected = -np.eye(5) + sum(w / 7 * np.outer(s, s) for w, s in zip(log_density, scores))
    rhs = jnp.asarray(rng.normal(size=5))
    for solver in (ShermanMorrison(), Woodbury(), CG(), Dense()):
        solution = solve(solver, hessian.scale(-1.0), rhs)
        assert solution.outcome is SolveOutcome.SOLVED
        np.testing.assert_allclose(solution.x, np.linalg.solve(-expected, rhs), rtol=1e-6)


def test_newton_step_of_an_indefinite_estimate_leads_downhill():
    # Algorithm 0 inverts what it is given; the definite form keeps the ascent.
    operator = low_rank(np.ones(3), np.eye(3)[:1], np.array([-3.0]))[0]
    gradient = jnp.array([2.0, 0.1, 0.1])
    plain, definite = solve(Dense(), operator, gradient), solve(Dense(definite=True), operator, gradient)
    assert plain.outcome is SolveOutcome.SOLVED and plain.x @ gradient < 0
    assert definite.outcome is SolveOutcome.MODIFIED and definite.x @ gradient > 0
    np.testing.assert_allclose(definite.x, [1.0, 0.1, 0.1], rtol=1e-12)


def test_no_draws_leaves_the_blocks():
    operator = low_rank(np.full(3, 2.0), np.zeros((0, 3)), np.zeros(0))[0]
    for solver in (ShermanMorrison(), Woodbury()):
        np.testing.assert_allclose(solve(solver, operator, jnp.ones(3)).x, 0.5)
