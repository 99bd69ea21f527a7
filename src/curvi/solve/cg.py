"""Scheme I, Option II of the paper: conjugate gradients on equation 16, one product a step."""

import equinox as eqx
import jax
import jax.numpy as jnp

from curvi.curvature import BlockDiagonal
from curvi.solve.solution import SolveOutcome, Solver
from curvi.solve.system import check_system, conclude, default_tolerance, norm


class CG(Solver):
    """Solve a positive definite system by preconditioned conjugate gradients.

    Attributes
    ----------
    tolerance
        Stop when the relative residual is below it; half the digits of the dtype by default.
    max_steps
        Products allowed; ten times the number of parameters by default, since rounding delays the end that
        exact arithmetic reaches in one times it.
    preconditioner
        A positive definite `BlockDiagonal` near the operator; the Fisher blocks, to which -H tends as q nears
        the posterior. The first step is then along the natural gradient.

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
        precondition = (lambda v: v) if self.preconditioner is None else self.preconditioner.solve
        tolerance = default_tolerance(self.tolerance, rhs.dtype)
        max_steps = 10 * operator.size if self.max_steps is None else self.max_steps
        # The residual of the recursion drifts from the true one, which decides the outcome: stop a bit lower.
        target = 0.9 * tolerance

        def unfinished(state):
            step, _, rest, _, _, code = state
            return (norm(rest) > target) & (step < max_steps) & (code == SolveOutcome.SOLVED)

        def advance(state):
            step, x, rest, direction, product, _ = state
            image = operator.mv(direction)
            curvature = direction @ image
            length = product / curvature
            new_rest = rest - length * image
            white = precondition(new_rest)
            new_product = new_rest @ white
            new_direction = white + (new_product / product) * direction
            moved = (x + length * direction, new_rest, new_direction, new_product)
            negative, bad = curvature <= 0, product <= 0
            # At the first step there is no iterate yet: the direction itself, M^-1 b, is the answer.
            stayed = (jnp.where((step == 0) & ~bad, direction, x), rest, direction, product)
            code = jnp.where(negative, SolveOutcome.NEGATIVE_CURVATURE, SolveOutcome.SOLVED)
            code = jnp.where(bad, SolveOutcome.BAD_PRECONDITIONER, code).astype(jnp.int32)
            chosen = [jnp.where(negative | bad, old, new) for old, new in zip(stayed, moved)]
            return (step + 1, *chosen, code)

        # A right-hand side of norm 1: products of residuals underflow in float32 for norms below 1e-19.
        size = norm(rhs)
        unit = rhs / jnp.where(size == 0, 1, size)
        direction = precondition(unit)
        # Zero times the right-hand side: a number in it that is not finite must reach x.
        start = (jnp.int32(0), 0 * unit, unit, direction, unit @ direction, jnp.int32(SolveOutcome.SOLVED))
        step, x, rest, _, _, code = jax.lax.while_loop(unfinished, advance, start)
        ran_out = (code == SolveOutcome.SOLVED) & (norm(rest) > target)
        code = jnp.where(ran_out, SolveOutcome.MAX_STEPS, code)
        return conclude(operator, rhs, size * x, step, code, tolerance)
