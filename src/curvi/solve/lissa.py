"""Scheme II of the paper: the inverse as a truncated series, with a fresh draw of the operator at every term.

With copies X_1, X_2, ... of expectation A, the recursion (equations 20 and 21 for A / C0, corrected)

    y_0 = g,        y_j = g + y_{j-1} - X_j y_{j-1} / C0,        x_j = y_j / C0

has E[x_j] = sum_{i <= j} (I - A / C0)^i g / C0, which tends to A^-1 g when A is positive definite and
C0 > |A| / 2.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from curvi.curvature import Sampled
from curvi.record.plain import register
from curvi.solve.solution import SolveOutcome, Solver
from curvi.solve.system import check_system, conclude, norm


@register
class LiSSA(Solver):
    """Solve a positive definite system by the stochastic series, O(P) memory and one copy per step.

    With a `key` and a `Sampled` operator every step draws fresh copies; otherwise it uses the operator as
    given, and agrees with a dense solve. `x` is the last iterate: picking the best of several would bias it.

    Attributes
    ----------
    depth
        Largest number of steps.
    scale
        C0; by default `safety` times the largest norm of `num_norm_copies` copies (or of the operator, where
        nothing is drawn), each found by `num_power_steps` power iterations.
    safety
        Factor on the norm: power iteration underestimates it, and later draws may exceed earlier ones.
    num_copies
        Copies averaged in each step.
    tolerance
        Stop when |g - A x| / |g|, with the operator's own `mv` as A, is below it at one of the checks made
        every `check_every` steps. An inexact Newton method needs few digits (Dembo et al. 1982).
    growth
        Leave with DIVERGED, and the best iterate seen, when the relative residual exceeds it (x = 0 has 1).
    literal
        The paper's own step 7, y_j = g + y_{j-1} / C0 - X_j y_{j-1} / C0, and its stop
        |y_j - y_{j-1}| <= `tolerance`, for comparison. Its x tends to ((C0 - 1) I + A)^-1 g.

    Notes
    -----
    Unbiasedness needs copies that are independent of each other and of g, and no early stop (`tolerance=0`).
    It does not bound the variance, which stays bounded if v'E[X^2]v < 2 C0 v'Av for all v. For positive
    semidefinite copies of norm at most N, C0 > N / 2 is enough: hence the norm of the copies, not that of the
    mean as in the paper. Score copies are indefinite and much larger than their mean, and for them no
    multiple of the norm is always sufficient: average many draws per copy, add damping, and check for DIVERGED.
    The paper's X_i omits the entropy and has the sign of a maximisation: pass -H plus damping.

    References
    ----------
    Agarwal, Bullins and Hazan (2016), *Second order stochastic optimization in linear time*.
    """

    depth: int = eqx.field(static=True, default=100)
    scale: float | None = None
    safety: float = 1.5
    num_copies: int = eqx.field(static=True, default=1)
    num_norm_copies: int = eqx.field(static=True, default=8)
    num_power_steps: int = eqx.field(static=True, default=10)
    tolerance: float = 1e-2
    check_every: int = eqx.field(static=True, default=10)
    growth: float = 10.0
    literal: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        for name in ("depth", "num_copies", "num_norm_copies", "num_power_steps", "check_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}, expected a whole number >= 1")
        for name in ("scale", "safety", "growth"):
            value = getattr(self, name)
            if isinstance(value, int | float) and not value > 0:
                raise ValueError(f"{name}={value}, expected a positive number")

    def __call__(self, operator, rhs, *, key=None):
        rhs = check_system(operator, rhs)
        keys = jax.random.split(key) if key is not None and isinstance(operator, Sampled) else None

        def product(j, y):
            return operator.mv(y) if keys is None else self._copy(operator, jax.random.fold_in(keys[1], j))(y)

        scale = self._scale(operator, rhs, keys) if self.scale is None else jnp.asarray(self.scale, rhs.dtype)
        solve = self._literal if self.literal else self._recurse
        steps, checks, x, code = solve(operator, rhs, scale, product)
        norms = 0 if self.scale is not None else 1 if keys is None else self.num_norm_copies
        copies = 1 if keys is None else self.num_copies
        num_products = copies * (steps + norms * self.num_power_steps) + checks
        num_draws = 0 if keys is None else copies * (steps + norms)
        return conclude(operator, rhs, x, num_products, code, self.tolerance, num_draws)

    def _recurse(self, operator, rhs, scale, product):
        size = norm(rhs)

        def advance(state):
            start, y, best, least, _ = state
            end = jnp.minimum(start + self.check_every, self.depth)
            y = jax.lax.fori_loop(start, end, lambda j, y: rhs + y - product(j, y) / scale, y)
            error = norm(rhs - operator.mv(y / scale))
            # Comparisons with NaN are false, so overflow ends as DIVERGED.
            code = jnp.where(error <= self.growth * size, SolveOutcome.MAX_STEPS, SolveOutcome.DIVERGED)
            code = jnp.where(error <= self.tolerance * size, SolveOutcome.SOLVED, code).astype(jnp.int32)
            return end, y, jnp.where(error < least, y, best), jnp.fmin(error, least), code

        start = (jnp.int32(0), rhs, rhs, jnp.asarray(jnp.inf, rhs.dtype), jnp.int32(SolveOutcome.MAX_STEPS))
        going = lambda state: (state[0] < self.depth) & (state[-1] == SolveOutcome.MAX_STEPS)  # noqa: E731
        steps, y, best, _, code = jax.lax.while_loop(going, advance, start)
        x = jnp.where(code == SolveOutcome.DIVERGED, best, y) / scale
        return steps, -(-steps // self.check_every), x, code

    def _literal(self, operator, rhs, scale, product):
        def advance(state):
            j, y, _ = state
            new = rhs + y / scale - product(j, y) / scale
            return j + 1, new, norm(new - y)

        start = (jnp.int32(0), rhs, jnp.asarray(jnp.inf, rhs.dtype))
        going = lambda state: (state[0] < self.depth) & (state[-1] > self.tolerance)  # noqa: E731
        steps, y, change = jax.lax.while_loop(going, advance, start)
        code = jnp.where(change > self.tolerance, SolveOutcome.MAX_STEPS, SolveOutcome.SOLVED)
        return steps, 0, y / scale, code

    def _copy(self, operator, key):
        copies = [operator.draw(key_copy) for key_copy in jax.random.split(key, self.num_copies)]
        return lambda v: sum(copy.mv(v) for copy in copies) / self.num_copies

    def _scale(self, operator, rhs, keys):
        # A fixed irregular start: g itself may be orthogonal to the leading eigenvector.
        start = jnp.cos(jnp.arange(1, rhs.shape[0] + 1, dtype=rhs.dtype) ** 2)

        def spectral_norm(product):
            def advance(_, state):
                image = product(state[0] / norm(state[0]))
                return image, norm(image)

            return jax.lax.fori_loop(0, self.num_power_steps, advance, (start, norm(start)))[1]

        if keys is None:
            return self.safety * spectral_norm(operator.mv)
        each = jax.random.split(keys[0], self.num_norm_copies)
        return self.safety * jnp.max(jax.vmap(lambda key: spectral_norm(self._copy(operator, key)))(each))
