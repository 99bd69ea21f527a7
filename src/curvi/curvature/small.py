"""Factorisations and solves of batches of small matrices, shape (n, k, k), one per factor of q."""

from functools import partial

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array

from curvi.model.over_draws import over_matrices

# By default a GPU may round float32 factors to ten bits (TF32), which silently makes solves inaccurate.
matmul = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

# Factors have few parameters. For up to four the elimination is unrolled and vectorised over the batch:
# LAPACK called once per 2 x 2 block costs a hundred times more than the arithmetic.
_UNROLL = 4


def _lapack(function, *arrays):
    """`function` of one matrix, and one vector, applied to a batch of them."""
    n, k, _ = arrays[0].shape
    return over_matrices(k**3, n)(function)(*arrays)


def dense_group(block):
    """The (n k, n k) matrix with the n blocks on its diagonal."""
    # Set rather than multiplied by an identity, so that a non-finite block does not spread to the zeros.
    n, k = block.shape[0], block.shape[-1]
    index = jnp.arange(n)
    return jnp.zeros((n, k, n, k), block.dtype).at[index, :, index, :].set(block).reshape(n * k, n * k)


def cholesky_small(a):
    """The lower Cholesky factors; non-finite where a matrix is not positive definite."""
    k = a.shape[-1]
    if k > _UNROLL:
        return _lapack(jnp.linalg.cholesky, a)
    rows: list[list[Array]] = [[jnp.zeros(a.shape[:-2], a.dtype)] * k for _ in range(k)]
    for i in range(k):
        for j in range(i + 1):
            rest = a[..., i, j] - sum((rows[i][m] * rows[j][m] for m in range(j)), jnp.zeros((), a.dtype))
            rows[i][j] = jnp.sqrt(rest) if i == j else rest / rows[j][j]
    return jnp.stack([jnp.stack(row, -1) for row in rows], -2)


def forward(lower, v):
    """L^-1 v."""
    k = lower.shape[-1]
    if k > _UNROLL:
        return _lapack(lambda one, b: jsl.solve_triangular(one, b, lower=True), lower, v)
    x = []
    for i in range(k):
        rest = sum((lower[..., i, m] * x[m] for m in range(i)), jnp.zeros((), v.dtype))
        x.append((v[..., i] - rest) / lower[..., i, i])
    return jnp.stack(x, -1)


def backward(lower, v):
    """L^-T v."""
    k = lower.shape[-1]
    if k > _UNROLL:
        return _lapack(lambda one, b: jsl.solve_triangular(one, b, lower=True, trans=1), lower, v)
    x: list = [None] * k
    for i in reversed(range(k)):
        rest = sum((lower[..., m, i] * x[m] for m in range(i + 1, k)), jnp.zeros((), v.dtype))
        x[i] = (v[..., i] - rest) / lower[..., i, i]
    return jnp.stack(x, -1)


def solve_small(a, v):
    """a^-1 v by elimination; non-finite where a matrix is singular."""
    k = a.shape[-1]
    if k == 1:
        return v / a[..., 0]
    if k == 2:
        # Cramer's rule on blocks scaled by their largest entry: no pivoting needed and no overflow.
        size = jnp.max(jnp.abs(a), axis=(-1, -2))
        p, q, s = a[..., 0, 0] / size, a[..., 0, 1] / size, a[..., 1, 1] / size
        det = size * (p * s - q * a[..., 1, 0] / size)
        x0, x1 = s * v[..., 0] - q * v[..., 1], p * v[..., 1] - (a[..., 1, 0] / size) * v[..., 0]
        return jnp.stack([x0 / det, x1 / det], -1)
    return _lapack(jnp.linalg.solve, a, v)
