"""The dense method: the matrix is formed, O(P^2) memory and O(P^3) time (the paper's Algorithm 0)."""

import equinox as eqx
import jax.numpy as jnp

from curvi.curvature.small import matmul
from curvi.record.plain import register
from curvi.solve.solution import SolveOutcome, Solver
from curvi.solve.system import check_system, conclude


@register
class Dense(Solver):
    """Solve by LU, or by a symmetric eigendecomposition made positive definite.

    Attributes
    ----------
    definite
        Replace every eigenvalue lambda by max(|lambda|, floor max|lambda|), so that x is an ascent direction
        when the operator is -H and the right-hand side the gradient, even where H is indefinite; the outcome
        is MODIFIED when any eigenvalue was changed.
    floor
        Smallest eigenvalue kept, relative to the largest in magnitude; P times the precision of the dtype by
        default, since smaller ones are rounding errors.
    tolerance
        Relative residual up to which the outcome is SOLVED; half the digits of the dtype by default.

    Notes
    -----
    The paper's Algorithm 0 inverts the estimated Hessian as it is. The estimate may be singular or indefinite,
    and then its Newton step may decrease the ELBO. Forming the matrix counts as P products.
    """

    definite: bool = eqx.field(static=True, default=False)
    floor: float | None = None
    tolerance: float | None = None

    def __check_init__(self):
        if isinstance(self.floor, int | float) and not 0 < self.floor < 1:
            raise ValueError(f"floor={self.floor}, expected a fraction of the largest eigenvalue between 0 and 1")

    def __call__(self, operator, rhs, *, key=None):
        rhs = check_system(operator, rhs)
        matrix = operator.dense().astype(rhs.dtype)
        if not self.definite:
            return conclude(operator, rhs, jnp.linalg.solve(matrix, rhs), operator.size, tolerance=self.tolerance)
        values, vectors = jnp.linalg.eigh(matrix)
        floor = operator.size * jnp.finfo(rhs.dtype).eps if self.floor is None else self.floor
        least = floor * jnp.max(jnp.abs(values))
        changed = jnp.any(values < least)
        x = matmul(vectors, matmul(vectors.T, rhs) / jnp.maximum(jnp.abs(values), least))
        code = jnp.where(changed, SolveOutcome.MODIFIED, SolveOutcome.SOLVED)
        return conclude(operator, rhs, x, operator.size, code, self.tolerance)
