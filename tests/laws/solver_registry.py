"""The problems and solvers over which the laws of the solvers run; a new one is a new row."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.curvature import BlockDiagonal, BlockLowRank, DenseMatrix, MatrixFree, Operator, Sampled
from curvi.solve import CG, Dense, LiSSA, ShermanMorrison, Woodbury

DTYPES = ("float64", "float32")


TRACES = []


@eqx.filter_jit
def solve(solver, operator, rhs):
    """The solution; compiled once for all tests on problems of one shape."""
    TRACES.append(solver)
    return solver(operator, rhs)


_dense = eqx.filter_jit(lambda operator: operator.dense())


@dataclass
class Problem:
    operator: Operator
    rhs: jax.Array
    blocks: BlockDiagonal

    @cached_property
    def matrix(self) -> np.ndarray:
        return np.asarray(_dense(self.operator), np.float64)


class JitteredDraw(eqx.Module):
    """Copies of `base` with one more vector of either sign: unbiased, indefinite, larger than their mean."""

    base: BlockLowRank
    spread: float

    def __call__(self, key):
        key_vector, key_sign = jax.random.split(key)
        vector = jax.random.normal(key_vector, (1, self.base.size), self.base.dtype)
        sign = self.spread * jax.random.rademacher(key_sign, (1,), self.base.dtype)
        vectors = jnp.concatenate([self.base.vectors, vector])
        return BlockLowRank(self.base.diagonal, vectors, jnp.concatenate([self.base.weights, sign]))


def random_blocks(rng, groups, dtype, low=1.0, high=4.0) -> BlockDiagonal:
    """Blocks with eigenvalues between `low` and `high`, for groups (n, k)."""
    out = []
    for n, k in groups:
        q = np.linalg.qr(rng.normal(size=(n, k, k)))[0]
        out.append(jnp.asarray((q * rng.uniform(low, high, size=(n, 1, k))) @ np.swapaxes(q, -1, -2), dtype))
    return BlockDiagonal(tuple(out))


def low_rank(groups, num_draws, dtype, seed=0) -> BlockLowRank:
    """Weights of both signs and a zero, small enough that every partial sum is positive definite."""
    rng = np.random.default_rng(seed)
    blocks = random_blocks(rng, groups, dtype)
    vectors = rng.normal(size=(num_draws, blocks.size))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    weights = rng.choice([-0.7, 2.0], size=num_draws) / num_draws
    weights[0], weights[1], weights[-1] = -0.7 / num_draws, 0.0, 2.0 / num_draws
    return BlockLowRank(blocks, jnp.asarray(vectors, dtype), jnp.asarray(weights, dtype))


_MIXED = ((3, 1), (2, 2), (2, 3), (1, 5))


def _matrix_free(dtype):
    base = low_rank(_MIXED, 6, dtype, seed=5)
    product = jax.tree_util.Partial(jnp.matmul, base.dense())
    whitener = random_blocks(np.random.default_rng(6), _MIXED, dtype).factorise()
    return MatrixFree(product, base.size).scale(2.0).add_blocks(base.diagonal).whiten(whitener)


OPERATORS = {
    "blocks of 1": lambda dtype: low_rank(((12, 1),), 5, dtype),
    "blocks of 2": lambda dtype: low_rank(((6, 2),), 5, dtype),
    "blocks of 3": lambda dtype: low_rank(((4, 3),), 5, dtype),
    "blocks of 5": lambda dtype: low_rank(((3, 5),), 5, dtype),
    "mixed blocks": lambda dtype: low_rank(_MIXED, 6, dtype),
    "more draws than parameters": lambda dtype: low_rank(_MIXED, 40, dtype),
    "dense": lambda dtype: DenseMatrix(low_rank(_MIXED, 6, dtype, seed=2).dense()),
    "matrix free": _matrix_free,
    "sampled": lambda dtype: Sampled(base := low_rank(_MIXED, 6, dtype, seed=3), JitteredDraw(base, 0.1), 1),
}


@lru_cache
def problem(name, dtype) -> Problem:
    operator = eqx.filter_jit(OPERATORS[name])(dtype)
    rng = np.random.default_rng(10)
    groups = [(12, 1)] if operator.size == 12 else [(operator.size // 3, 3)]
    rhs = jnp.asarray(rng.normal(size=operator.size), dtype)
    return Problem(operator, rhs, random_blocks(rng, groups, dtype, 1.0, 2.0))


def _tight(given):
    return float(jnp.finfo(given.rhs.dtype).eps) ** 0.5


SOLVERS = {
    "Dense": lambda given: Dense(),
    "Dense definite": lambda given: Dense(definite=True),
    "ShermanMorrison": lambda given: ShermanMorrison(),
    "Woodbury": lambda given: Woodbury(),
    "CG": lambda given: CG(),
    "CG preconditioned": lambda given: CG(preconditioner=given.blocks),
    "LiSSA": lambda given: LiSSA(depth=5000, tolerance=_tight(given)),
}
LOW_RANK_ONLY = ("ShermanMorrison", "Woodbury")
DEFINITE_ONLY = ("Dense definite", "CG", "CG preconditioned", "LiSSA")

# Where only block sizes differ, the solvers that solve with blocks; in float32, the mixed ones.
CASES = [
    (solver, operator, dtype)
    for operator in OPERATORS
    for solver in SOLVERS
    for dtype in DTYPES
    if not (solver in LOW_RANK_ONLY and operator in ("dense", "matrix free"))
    if not (operator.startswith("blocks") and solver not in LOW_RANK_ONLY)
    if not (operator in ("sampled", "dense") and solver in ("Dense definite", "CG preconditioned"))
    if dtype == "float64" or operator == "mixed blocks"
]
