"""Every solver on every operator: it solves, or says why it did not, and its residual is the true one."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from solver_registry import (
    CASES,
    DEFINITE_ONLY,
    DTYPES,
    LOW_RANK_ONLY,
    SOLVERS,
    TRACES,
    Problem,
    problem,
    solve,
)

from curvi.curvature import BlockDiagonal, BlockLowRank, DenseMatrix, MatrixFree
from curvi.solve import CG, Dense, LiSSA, ShermanMorrison, SolveOutcome, Woodbury


def true_residual(given, x):
    """The relative residual in float64, and how far one computed in the problem's dtype may be from it."""
    matrix, rhs, x = given.matrix, np.asarray(given.rhs, np.float64), np.asarray(x, np.float64)
    eps, scale = float(jnp.finfo(given.rhs.dtype).eps), np.linalg.norm(rhs)
    rounding = 4 * len(x) * eps * (1 + np.linalg.norm(np.abs(matrix) @ np.abs(x)) / scale)
    return np.linalg.norm(rhs - matrix @ x) / scale, rounding


@pytest.mark.parametrize("solver,operator,dtype", CASES)
def test_agrees_with_dense_algebra(solver, operator, dtype):
    given = problem(operator, dtype)
    solution = solve(SOLVERS[solver](given), given.operator, given.rhs)
    assert solution.outcome is SolveOutcome.SOLVED
    assert solution.x.dtype == solution.residual.dtype == jnp.dtype(dtype)
    assert solution.num_products > 0 and solution.num_draws == 0
    residual, rounding = true_residual(given, solution.x)
    assert abs(float(solution.residual) - residual) <= rounding
    # |x - x*| / |x*| <= condition times relative residual, which for a direct method is rounding alone.
    exact = np.linalg.solve(given.matrix, np.asarray(given.rhs, np.float64))
    condition = np.linalg.cond(given.matrix)
    iterative = solver.startswith(("CG", "LiSSA"))
    allowed = condition * (float(jnp.finfo(dtype).eps) ** 0.5 if iterative else rounding)
    assert np.linalg.norm(np.asarray(solution.x) - exact) <= allowed * np.linalg.norm(exact)


@lru_cache
def _difficult(name, dtype):
    size = 8
    rng = np.random.default_rng(1)
    u = np.linalg.qr(rng.normal(size=(size, 2)))[0].T
    diagonal, weights = (
        np.ones(size),
        {"singular": (-1.0, 0.5), "indefinite": (-3.0, 0.5)}.get(name, (0.5, -0.5)),
    )
    if name == "ill scaled":
        diagonal, u = np.logspace(-12, 12, size), u * 1e-3
    if name == "not finite":
        weights = (0.5, np.nan)
    blocks = BlockDiagonal((jnp.asarray(diagonal, dtype)[:, None, None],))
    operator = BlockLowRank(blocks, jnp.asarray(u, dtype), jnp.asarray(weights, dtype))
    return Problem(operator, jnp.asarray(rng.normal(size=size), dtype), blocks.identity_like())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["singular", "indefinite", "ill scaled", "not finite"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_failures_are_reported(solver, name, dtype):
    given = _difficult(name, dtype)
    solution = solve(SOLVERS[solver](given), given.operator, given.rhs)
    solved = solution.outcome is SolveOutcome.SOLVED
    if name == "not finite":
        assert solution.outcome is SolveOutcome.NON_FINITE and not jnp.isfinite(solution.residual)
        return
    residual, rounding = true_residual(given, solution.x)
    if np.isfinite(rounding):
        assert abs(float(solution.residual) - residual) <= rounding + 1e-6 * residual
    if solved:
        assert residual <= float(jnp.finfo(dtype).eps) ** 0.5 + rounding
    if name == "singular":
        assert not solved
    if name == "indefinite":
        assert solved is (solver not in DEFINITE_ONLY)
    if name == "indefinite" and solver != "LiSSA":
        # What the definite methods return instead is still an ascent direction.
        assert solved or solution.x @ given.rhs > 0


@pytest.mark.parametrize("solver", SOLVERS)
def test_zero_right_hand_side(solver):
    given = problem("mixed blocks", "float64")
    solution = solve(SOLVERS[solver](given), given.operator, jnp.zeros_like(given.rhs))
    assert solution.outcome is SolveOutcome.SOLVED and solution.residual == 0 and not jnp.any(solution.x)


@pytest.mark.parametrize("solver", SOLVERS)
def test_vmap_and_one_trace(solver):
    given = problem("mixed blocks", "float64")
    method = SOLVERS[solver](given)
    many = jnp.stack([given.rhs, -2.0 * given.rhs, jnp.ones_like(given.rhs)])
    together = jax.jit(jax.vmap(lambda rhs: method(given.operator, rhs)))(many)
    assert together.code.shape == (3,)
    before = len(TRACES)
    for i in range(3):
        alone = solve(method, given.operator.scale(1.0 + i), many[i])
        np.testing.assert_allclose(together.x[i], (1.0 + i) * alone.x, rtol=1e-6, atol=1e-7)
    assert len(TRACES) - before <= 1


def test_cg_traces_the_product_twice():
    traces = []
    operator = MatrixFree(lambda v: traces.append(1) or 2.0 * v, 5)
    solution = jax.jit(lambda rhs: CG()(operator, rhs))(jnp.arange(5.0))
    assert len(traces) == 2 and solution.outcome is SolveOutcome.SOLVED and solution.num_products == 2


def test_cg_leaves_with_a_message():
    given = _difficult("indefinite", "float64")
    first = CG()(given.operator.add_blocks(given.blocks.scale(-2.0)), given.rhs)
    assert first.outcome is SolveOutcome.NEGATIVE_CURVATURE
    np.testing.assert_allclose(first.x, given.rhs, rtol=1e-12)
    assert CG(max_steps=1)(given.operator.add_blocks(given.blocks.scale(3.0)), given.rhs).message.startswith("The st")
    bad = CG(preconditioner=given.blocks.scale(-1.0))(given.operator, given.rhs)
    assert bad.outcome is SolveOutcome.BAD_PRECONDITIONER
    assert all(outcome.message.endswith(".") for outcome in SolveOutcome)


@pytest.mark.parametrize("solver", LOW_RANK_ONLY)
def test_misuse_raises(solver):
    given = problem("dense", "float64")
    with pytest.raises(TypeError, match="BlockLowRank operator, got DenseMatrix"):
        SOLVERS[solver](given)(given.operator, given.rhs)
    with pytest.raises(ValueError, match="one flat vector"):
        Dense()(given.operator, given.rhs[:3])
    with pytest.raises(TypeError, match="cast one"):
        CG()(given.operator, given.rhs.astype("float32"))
    with pytest.raises(TypeError, match="wrap the matrix"):
        Dense()(given.matrix, given.rhs)
    wrong = [(Woodbury, "refine", -1), (LiSSA, "depth", 0), (LiSSA, "scale", -1.0), (Dense, "floor", 2.0)]
    for build, name, value in [*wrong, (ShermanMorrison, "guard", -1.0), (CG, "max_steps", 0)]:
        with pytest.raises(ValueError, match=f"{name}={value}, expected"):
            build(**{name: value})
    with pytest.raises(TypeError, match="BlockDiagonal"):
        CG(preconditioner=DenseMatrix(given.operator.matrix))
