"""Scheme I, Option II of the paper: conjugate gradients on equation 16, one product per step."""

import equinox as eqx
import jax.numpy as jnp

from curvi.curvature import BlockDiagonal
from curvi.record.plain import register
from curvi.solve.solution import SolveOutcome, Solver
from curvi.solve.system import check_system, conclude, default_tolerance, norm
from curvi.solve.truncated_cg import COMPILED, truncated_cg


@register
class CG(Solver):
    """Solve a positive definite system by preconditioned conjugate gradients.

    Attributes
    ----------
    tolerance
        Stop when the relative residual is below it; half the digits of the dtype by default.
    max_steps
        Largest number of products; ten times the number of parameters by default, since rounding delays the
        convergence that exact arithmetic reaches in that number.
    preconditioner
        A positive definite `BlockDiagonal` close to the operator, such as the Fisher blocks, to which -H tends as q
        approaches the posterior. The first step is then along the natural gradient.

    Notes
    -----
    The paper applies the method to the estimated Hessian, which is negative definite at best and in general
    indefinite. Pass -H plus damping; on p'Ap <= 0 the solve ends with NEGATIVE_CURVATURE and the iterate so
    far (the preconditioned right-hand side at the first step), which is still an ascent direction.

    References
    ----------
    Nocedal and Wright (2006), *Numerical Optimization*, algorithms 5.3 and 7.1.
    """

    tolerance: float | None = None
    max_steps: int | None = eqx.field(static=True, default=None)
    preconditioner: BlockDiagonal | None = None

    def __check_init__(self):
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError(f"max_steps={self.max_steps}, expected at least one step, or None for ten per parameter")
        if not (self.preconditioner is None or isinstance(self.preconditioner, BlockDiagonal)):
            raise TypeError(f"preconditioner is {type(self.preconditioner).__name__}, expected a BlockDiagonal or None")

    def __call__(self, operator, rhs, *, key=None):
        rhs = check_system(operator, rhs)
        if self.preconditioner is not None and self.preconditioner.size != operator.size:
            raise ValueError(f"preconditioner has {self.preconditioner.size} rows, the operator {operator.size}")
        precondition = None if self.preconditioner is None else self.preconditioner.solve
        tolerance = default_tolerance(self.tolerance, rhs.dtype)
        max_steps = 10 * operator.size if self.max_steps is None else self.max_steps
        # The recursive residual drifts from the true one, which decides the outcome: stop slightly lower.
        target = 0.9 * tolerance
        # Normalise the right-hand side: products of residuals underflow in float32 for norms below 1e-19.
        size = norm(rhs)
        unit = rhs / jnp.where(size == 0, 1, size)
        found = truncated_cg(
            operator.mv,
            unit,
            loop=COMPILED,
            max_products=max_steps,
            unfinished=lambda rest, product: norm(rest) > target,
            precondition=precondition,
        )
        code = jnp.where(found.negative, SolveOutcome.NEGATIVE_CURVATURE, SolveOutcome.SOLVED)
        code = jnp.where(found.bad, SolveOutcome.BAD_PRECONDITIONER, code).astype(jnp.int32)
        ran_out = (code == SolveOutcome.SOLVED) & (norm(found.rest) > target)
        code = jnp.where(ran_out, SolveOutcome.MAX_STEPS, code)
        # At the first step there is no iterate yet: return the direction M^-1 b.
        first = found.negative & ~found.bad & (found.num_products == 1)
        x = jnp.where(first, found.direction, found.x)
        return conclude(operator, rhs, size * x, found.num_products, code, tolerance)
