"""Functions shared by solvers: checks of a system before it is solved, and the outcome after."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi.curvature import BlockLowRank, MadeLowRank, Operator, Sampled
from curvi.solve.solution import Solution, SolveOutcome


def norm(v: Float[Array, " P"]) -> Float[Array, ""]:
    """The Euclidean norm, without overflow or underflow of the squares: float32 loses both beyond 1e19."""
    size = jnp.max(jnp.abs(v))
    unit = jnp.where((size > 0) & jnp.isfinite(size), size, 1)
    return unit * jnp.linalg.norm(v / unit)


def default_tolerance(tolerance, dtype):
    """`tolerance`, or half the digits of `dtype` where none is given."""
    return jnp.asarray(jnp.finfo(dtype).eps ** 0.5 if tolerance is None else tolerance, dtype)


def check_system(operator: Operator, rhs) -> Float[Array, " P"]:
    """`rhs` as an array, after a check that it fits the operator."""
    if not isinstance(operator, Operator):
        raise TypeError(f"got {type(operator).__name__} as operator; wrap the matrix in DenseMatrix or MatrixFree")
    rhs = jnp.asarray(rhs)
    if rhs.shape != (operator.size,):
        raise ValueError(f"rhs has shape {rhs.shape}, the operator has {operator.size} rows; pass one flat vector")
    held = operator.mean if isinstance(operator, Sampled) else operator
    # A bare function holds no array, so its dtype is unknown.
    known = any(eqx.is_inexact_array(leaf) for leaf in jax.tree.leaves(held))
    if not jnp.issubdtype(rhs.dtype, jnp.floating) or (known and held.dtype != rhs.dtype):
        raise TypeError(
            f"rhs is {rhs.dtype}, the operator {operator.dtype}; cast one to the floating dtype of the other"
        )
    return rhs


def low_rank_form(operator: Operator, method: str) -> BlockLowRank:
    """The operator as block diagonal plus low rank, or an error that suggests another solver."""
    form = operator.mean if isinstance(operator, Sampled) else operator
    if isinstance(form, MadeLowRank):
        form = form.stored()
    if not isinstance(form, BlockLowRank):
        raise TypeError(f"{method} needs a BlockLowRank operator, got {type(form).__name__}; use CG, or Dense if small")
    return form


def conclude(operator, rhs, x, num_products, code: Any = 0, tolerance=None, num_draws=0) -> Solution:
    """The `Solution`: a large true residual overrides SOLVED, and a non-finite number overrides all."""
    scale, error = norm(rhs), norm(rhs - operator.mv(x))
    residual = jnp.where(scale > 0, error / scale, error)
    code = jnp.asarray(code, jnp.int32)
    large = (code == SolveOutcome.SOLVED) & (residual > default_tolerance(tolerance, rhs.dtype))
    code = jnp.where(large, SolveOutcome.RESIDUAL_TOO_LARGE, code)
    finite = jnp.isfinite(residual) & jnp.all(jnp.isfinite(x))
    arrays = [leaf for leaf in jax.tree.leaves((operator, rhs)) if eqx.is_inexact_array(leaf)]
    given = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in arrays]))
    code = jnp.where(finite, code, jnp.where(given, SolveOutcome.SINGULAR, SolveOutcome.NON_FINITE))
    count = lambda number: jnp.asarray(number, jnp.int32)  # noqa: E731
    return Solution(x, residual, count(num_products + 1), count(code), count(num_draws))
