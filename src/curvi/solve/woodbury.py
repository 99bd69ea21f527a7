"""The blocked form of Scheme I, Option I: all draws of the Sherman-Morrison formula at once (Woodbury).

With G = U A^-1 U' of shape (S, S),

    (I + W G) c = W U A^-1 b,        x = A^-1 b - A^-1 U' c,        W = diag(w),

which needs no inverse of a weight, so that w_i = 0 and either sign are allowed. O(S^2 P + S^3) time.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl

from curvi.curvature.small import matmul
from curvi.record.plain import register
from curvi.solve.solution import Solver
from curvi.solve.system import check_system, conclude, low_rank_form, norm

_STORED = 2**25  # numbers in U up to which A^-1 U' is stored beside it


@register
class Woodbury(Solver):
    """Solve block diagonal plus signed low rank through an S x S system, with iterative refinement.

    Attributes
    ----------
    refine
        Refinement steps, one product each; a step is kept only if it lowers the residual.
    tolerance
        Relative residual up to which the outcome is SOLVED; half the digits of the dtype by default.

    Notes
    -----
    The block diagonal and the whole matrix must be well conditioned, but not the intermediate matrices.
    When the block diagonal is far worse conditioned than the sum (little damping in float32), precision is
    lost in A^-1 b - A^-1 U' c that refinement cannot recover: the residual shows this.
    """

    refine: int = eqx.field(static=True, default=1)
    tolerance: float | None = None

    def __check_init__(self):
        if self.refine < 0:
            raise ValueError(f"refine={self.refine}, expected a number of refinement steps >= 0")

    def __call__(self, operator, rhs, *, key=None):
        rhs = check_system(operator, rhs)
        form = low_rank_form(operator, "Woodbury")
        solve_blocks, weights, vectors = form.diagonal.solve, form.weights, form.vectors
        if vectors.size <= _STORED:
            gram = matmul(vectors, jax.vmap(solve_blocks)(vectors).T)
        else:  # A^-1 U' some columns at a time, so that U is all that is stored
            gram = jax.lax.map(lambda u: matmul(vectors, solve_blocks(u)), vectors, batch_size=8).T
        capacitance = jnp.eye(weights.shape[0], dtype=rhs.dtype) + weights[:, None] * gram
        factors = jsl.lu_factor(capacitance)

        def solve(b):
            first = solve_blocks(b)
            return first - solve_blocks(matmul(jsl.lu_solve(factors, weights * matmul(vectors, first)), vectors))

        x = solve(rhs)
        rest = rhs - operator.mv(x)
        for _ in range(self.refine):
            trial = x + solve(rest)
            rest_trial = rhs - operator.mv(trial)
            better = norm(rest_trial) < norm(rest)
            x, rest = jnp.where(better, trial, x), jnp.where(better, rest_trial, rest)
        return conclude(operator, rhs, x, 1 + self.refine, tolerance=self.tolerance)
