"""Every operator: products, scaling, damping and whitening agree with dense algebra in its own dtype."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from solver_registry import OPERATORS, JitteredDraw, low_rank, problem, random_blocks

from curvi.curvature import BlockDiagonal, BlockLowRank, DenseMatrix, MatrixFree, Sampled

MIXED = ((3, 1), (2, 2), (2, 3), (1, 5))


def matrix_of(operator):
    """The matrix of blocks, or of blocks plus low rank, written down by numpy."""
    if isinstance(operator, BlockDiagonal):
        return scipy.linalg.block_diag(*[b for group in operator.blocks for b in np.asarray(group, np.float64)])
    vectors, weights = np.asarray(operator.vectors, np.float64), np.asarray(operator.weights, np.float64)
    return matrix_of(operator.diagonal) + (vectors.T * weights) @ vectors


def close(actual, expected):
    actual = np.asarray(actual)
    expected = np.asarray(expected, np.float64)
    atol = 50 * len(expected) * float(jnp.finfo(actual.dtype).eps) * np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


CASES = [(name, "float64") for name in OPERATORS] + [("mixed blocks", "float32")]


@pytest.mark.parametrize("name,dtype", CASES)
def test_agrees_with_dense_algebra(name, dtype):
    given = problem(name, dtype)
    operator, matrix, v = given.operator, given.matrix, given.rhs
    groups = {"blocks of 1": (12, 1), "blocks of 2": (6, 2), "blocks of 3": (4, 3), "blocks of 5": (3, 5)}
    layout = (groups[name],) if name in groups else MIXED
    blocks = random_blocks(np.random.default_rng(4), layout, dtype)

    @eqx.filter_jit
    def changed(operator, blocks, v):
        whitened = None if name == "matrix free" else operator.whiten(blocks.factorise()).dense()
        return operator.mv(v), operator.scale(-0.5).dense(), operator.add_blocks(blocks).dense(), whitened

    product, scaled, damped, whitened = changed(operator, blocks, v)
    assert operator.dtype == product.dtype == scaled.dtype == jnp.dtype(dtype)
    close(matrix.astype(dtype), matrix.T)
    if isinstance(operator, BlockLowRank):
        close(matrix.astype(dtype), matrix_of(operator))
    close(product, matrix @ np.asarray(v, np.float64))
    close(scaled, -0.5 * matrix)
    metric = matrix_of(blocks)
    close(damped, matrix + metric)
    if whitened is not None:
        half = np.linalg.solve(np.linalg.cholesky(metric), matrix)
        close(whitened, np.linalg.solve(np.linalg.cholesky(metric), half.T))


def test_matrix_free_whitens_once_and_keeps_damping():
    base = low_rank(MIXED, 6, "float64")
    metric = random_blocks(np.random.default_rng(4), MIXED, "float64")

    @eqx.filter_jit
    def build(base, metric):
        free = MatrixFree(base.mv, base.size).scale(2.0).add_blocks(base.diagonal)
        whole = free.whiten(metric.factorise()).scale(3.0).add_blocks(metric)
        with pytest.raises(ValueError, match="whitened or shifted already"):
            whole.whiten(metric.factorise())
        return whole.dense()

    lower = np.linalg.cholesky(matrix_of(metric))
    inner = 2.0 * matrix_of(base) + matrix_of(base.diagonal)
    close(build(base, metric), 3.0 * np.linalg.solve(lower, np.linalg.solve(lower, inner).T) + matrix_of(metric))


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_blocks_solve_and_factor(k):
    blocks = random_blocks(np.random.default_rng(k), ((3, k),), "float64")
    dense, v = matrix_of(blocks), np.random.default_rng(0).normal(size=3 * k)
    lower, expected = np.linalg.cholesky(dense), np.linalg.solve

    @jax.jit
    def products(blocks, v):
        factor = blocks.factorise()
        by_factor = factor.solve(v), factor.solve_transpose(v), factor.mv(v), factor.transpose_mv(v)
        return blocks.solve(v), *by_factor

    solved, forward, backward, product, transposed = products(blocks, v)
    close(solved, expected(dense, v))
    close(forward, expected(lower, v))
    close(backward, expected(lower.T, v))
    close(product, lower @ v)
    close(transposed, lower.T @ v)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_bad_blocks_are_not_finite(k):
    zero = BlockDiagonal((jnp.asarray(np.stack([np.eye(k), np.zeros((k, k))])),))
    x, lower = jax.jit(lambda a: (a.solve(jnp.ones(2 * k)), a.scale(-1.0).factorise().lower[0]))(zero)
    np.testing.assert_allclose(x[:k], 1.0)
    assert not np.any(np.isfinite(x[k:])) and not np.all(np.isfinite(lower))
    # A number that is not finite stays in its own block.
    broken = BlockDiagonal((jnp.asarray(np.stack([np.eye(k), np.full((k, k), np.nan)])),))
    assert np.isnan(jax.jit(lambda a: a.dense())(broken)).sum() == k * k


def test_sampled_changes_every_copy_alike_and_compiles_once():
    base = low_rank(((4, 2),), 3, "float64")
    sampled, key = Sampled(base, JitteredDraw(base, 0.3), 7), jax.random.key(0)
    diagonal, copy_traces, change_traces = matrix_of(base.diagonal), [], []

    @eqx.filter_jit
    def change(sampled, damping):
        change_traces.append(1)
        blocks = base.diagonal.scale(damping)
        return sampled.scale(-1.0).add_blocks(blocks).whiten(base.diagonal.factorise())

    @eqx.filter_jit
    def copy(operator, key):
        copy_traces.append(1)
        return operator.draw(key).dense()

    lower = np.linalg.cholesky(diagonal)
    for damping in (1.0, 2.0):
        changed = change(sampled, jnp.asarray(damping))
        matrix = damping * diagonal - matrix_of(sampled.draw(key))
        close(copy(changed, key), np.linalg.solve(lower, np.linalg.solve(lower, matrix).T))
        assert changed.calls_per_draw == 7
    assert len(copy_traces) == len(change_traces) == 1


def test_shapes_are_checked():
    base = low_rank(MIXED, 6, "float64")
    with pytest.raises(ValueError, match=r"expected \(S, P\), P, S"):
        BlockLowRank(base.diagonal, base.vectors.T, base.weights)


def test_dtype_without_arrays_is_the_default():
    assert MatrixFree(lambda v: v, 3).dtype == jnp.float64
    assert DenseMatrix(jnp.eye(2, dtype="float32")).dense().dtype == jnp.float32
