"""Scheme I, Option I of the paper: the Sherman-Morrison formula (equation 15), one draw at a time.

With A_0 block diagonal and A_k = A_{k-1} + w_k u_k u_k', equation 15 with u = w_k u_k and v = u_k reads

    A_k^-1 b = A_{k-1}^-1 b - (w_k / d_k) (u_k' A_{k-1}^-1 b) A_{k-1}^-1 u_k,
         d_k = 1 + w_k u_k' A_{k-1}^-1 u_k.

No inverse is formed: x = A_k^-1 b and the rows of Y = (A_k^-1 U')' are updated together from k - 1 to k, in
O(S P) memory and O(S^2 P) time. (The paper's O(d^2) per draw is that of updating a whole inverse.)
"""

import jax
import jax.numpy as jnp

from curvi.curvature.small import matmul
from curvi.record.plain import register
from curvi.solve.solution import SolveOutcome, Solver
from curvi.solve.system import check_system, conclude, low_rank_form


@register
class ShermanMorrison(Solver):
    """Solve block diagonal plus signed low rank by successive rank-one updates.

    Attributes
    ----------
    guard
        An update with |d_k| below it is left out, and the outcome is GUARDED; half the digits of the dtype by
        default.
    tolerance
        Relative residual up to which the outcome is SOLVED; half the digits of the dtype by default.

    Notes
    -----
    By the matrix determinant lemma d_k = det A_k / det A_{k-1}: it vanishes when an *intermediate* matrix is
    singular. With weights of both signs the eigenvalues may cross zero repeatedly as the draws are added,
    so this can happen although A_0 and the final matrix are both well conditioned. For the same reason
    the method is not backward stable: its error is governed by the worst conditioned A_k, and rounding errors
    made there persist. `Woodbury` needs only A_0 and the final matrix. With positive weights and
    A_0 positive definite every d_k >= 1.
    """

    guard: float | None = None
    tolerance: float | None = None

    def __check_init__(self):
        if isinstance(self.guard, int | float) and self.guard < 0:
            raise ValueError(f"guard={self.guard}, expected the smallest denominator to accept, a number >= 0")

    def __call__(self, operator, rhs, *, key=None):
        rhs = check_system(operator, rhs)
        form = low_rank_form(operator, "ShermanMorrison")
        guard = jnp.finfo(rhs.dtype).eps ** 0.5 if self.guard is None else self.guard

        def update(k, state):
            x, rows, skipped = state
            u, row = form.vectors[k], rows[k]
            denominator = 1 + form.weights[k] * (u @ row)
            # Written so that a NaN denominator propagates to x instead of being skipped.
            skip = jnp.abs(denominator) < guard
            factor = jnp.where(skip, 0, form.weights[k] / jnp.where(skip, 1, denominator))
            return x - factor * (u @ x) * row, rows - factor * jnp.outer(matmul(rows, u), row), skipped | skip

        start = form.diagonal.solve(rhs), jax.vmap(form.diagonal.solve)(form.vectors), jnp.asarray(False)
        count = form.weights.shape[0]
        x, _, skipped = jax.lax.fori_loop(0, count, update, start) if count else start
        code = jnp.where(skipped, SolveOutcome.GUARDED, SolveOutcome.SOLVED)
        return conclude(operator, rhs, x, 0, code, self.tolerance)
