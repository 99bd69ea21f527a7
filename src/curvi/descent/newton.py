"""Newton and natural-gradient steps inside a ball of given Kullback-Leibler divergence.

All computations are in whitened coordinates, p_white = L' p with L L' the metric (the Fisher information or a
substitute). There the natural gradient is the gradient, every solver is preconditioned by the metric, and
|p_white|^2 / 2 approximates the divergence between q and the moved q in nats.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from curvi.curvature import BlockFactor, Operator
from curvi.estimate.local import Estimated, LocalModel, Products, Root
from curvi.record.pytree import pytree
from curvi.solve import SolveOutcome
from curvi.solve.solution import Solver
from curvi.solve.truncated_cg import ArrayT, Loop, Scalar, truncated_cg

_NOTHING = 1e-12  # nats, twice: a whitened gradient whose square is smaller needs no products


@pytree
class Step:
    """A step and the model's prediction for it.

    Attributes
    ----------
    direction
        The step in the flat parameters.
    predicted
        Gain in nats that the local model predicts for it.
    divergence
        |p|^2 / 2 in the metric: its size in nats.
    at_edge
        Whether the ball, rather than the model's maximum along the direction, set its length.
    definite
        Whether no direction of negative curvature was met.
    num_products
        Number of Hessian-vector products.
    """

    direction: Any
    predicted: Any
    divergence: Any
    at_edge: Any
    definite: Any
    num_products: Any


@pytree
class NewtonStep:
    """A step, with the remaining gain from its solve.

    Attributes
    ----------
    step
        The step itself.
    remaining_gain, remaining_gain_se
        The Newton decrement g'(-H)^-1 g / 2, corrected for the noise of g, and its standard error; infinite where -H
        is not definite.
    gradient_gain, gradient_gain_se
        The same with the Fisher information in place of -H, g'F^-1 g / 2: whether the gradient exceeds its
        noise, for any curvature.
    shrinkage
        The share of the estimated -H - F that was used, 0 (natural gradient) to 1.
    num_copies
        Fresh copies of the curvature that the solver drew.
    """

    step: Step
    remaining_gain: Any
    remaining_gain_se: Any
    gradient_gain: Any
    gradient_gain_se: Any
    shrinkage: Any
    num_copies: Any

    @property
    def signal(self):
        """The gradient's decrement in units of its standard error."""
        return self.gradient_gain / self.gradient_gain_se


def trust_region_step(
    local: LocalModel[ArrayT, Products[ArrayT], object],
    radius: Scalar,
    residual: Callable[..., Scalar],
    max_products: int,
    loop: Loop,
) -> Step:
    """The step inside the ball by truncated conjugate gradients.

    `residual` maps |b|^2, with b the whitened gradient, to the relative residual at which they stop.
    """
    root = local.root()
    b = root.solve(local.grad)
    square = b @ b
    limit = loop.xp.maximum(residual(square) ** 2 * square, _NOTHING)
    found = truncated_cg(
        lambda d: local.minus_curvature(root, d),
        b,
        loop=loop,
        max_products=max_products,
        unfinished=lambda rest, product: product > limit,
        radius=radius,
    )
    x = found.x
    predicted = (b @ x + found.rest @ x) / 2  # b'x - x'Ax / 2 with A x = b - rest
    direction = root.solve_transpose(x)
    return Step(direction, predicted, x @ x / 2, found.on_edge, ~found.negative, found.num_products)


@pytree
class Solved:
    """The solution of -H x = b in the flat parameters, and b'x / 2; where -H is not definite, x is a
    direction of negative curvature.
    """

    x: Any
    decrement: Any
    definite: Any
    num_products: Any


def solve_curvature(
    local: LocalModel[ArrayT, Products[ArrayT], object], b: ArrayT, residual: float, max_products: int, loop: Loop
) -> Solved:
    """-H x = b by conjugate gradients in the metric of the model."""
    root = local.root()
    white = root.solve(b)
    limit = residual**2 * (white @ white)
    found = truncated_cg(
        lambda d: local.minus_curvature(root, d),
        white,
        loop=loop,
        max_products=max_products,
        unfinished=lambda rest, product: product > limit,
    )
    # x = 0 would suggest that nothing is left to gain.
    x = loop.choose(found.negative, lambda: found.direction, lambda: found.x)
    return Solved(root.solve_transpose(x), white @ x / 2, ~found.negative, found.num_products)


def newton_step(
    local: Estimated, curvature: Operator, solver: Solver, radius, length, damping: float, shrink: bool, key
) -> NewtonStep:
    """The step p of (-H + damping F) p = g by any solver, clipped to the divergence `radius`; the natural gradient if
    the solve fails.

    `length` multiplies the step (1 except when averaging out noise). With `shrink`, -H is first shrunk towards F by
    its measured noise.
    """
    key_solve, key_noise, key_weight = jax.random.split(key, 3)
    root = local.fisher.factorise()
    gradient = root.solve(local.grad)
    weight = shrinkage(local, root, key_weight) if shrink else jnp.ones((), gradient.dtype)
    operator = curvature.whiten(root).scale(-weight).shift(1 - weight + damping)

    solution = solver(operator, gradient, key=key_solve)
    product = operator.mv(solution.x)
    slope, bend = gradient @ solution.x, solution.x @ product
    usable = jnp.isfinite(bend) & (slope > 0) & (bend > 0) & _trusted(solution.code)
    direction = jnp.where(usable, solution.x, gradient)
    bend = jnp.where(usable, bend, gradient @ gradient)
    slope = jnp.where(usable, slope, gradient @ gradient)

    solutions = [solution]

    def solve(v):
        solutions.append(solver(operator, root.solve(v), key=key_noise))
        return root.solve_transpose(solutions[-1].x)

    gain, gain_se = local.decrement(solve, root.solve_transpose(solution.x))
    num_products = sum(found.num_products for found in solutions) + 1
    # If the solve failed or found negative curvature, the remaining gain is unbounded.
    definite = usable & (solution.code != SolveOutcome.NEGATIVE_CURVATURE)
    return NewtonStep(
        _clip(root, direction, slope, bend, radius, length, definite, num_products),
        jnp.where(definite, gain, jnp.inf),
        gain_se,
        *local.decrement(natural(root)),
        weight,
        sum(found.num_draws for found in solutions),
    )


def natural_gradient_step(local: Estimated, radius, length) -> NewtonStep:
    """The step F^-1 g, Newton's with H = -F, clipped to the divergence `radius`; its Newton decrement is unknown."""
    root = local.fisher.factorise()
    gradient = root.solve(local.grad)
    slope = gradient @ gradient
    zero, unknown = jnp.zeros((), jnp.int32), jnp.full((), jnp.nan, gradient.dtype)
    step = _clip(root, gradient, slope, slope, radius, length, jnp.ones((), bool), zero)
    return NewtonStep(step, unknown, unknown, *local.decrement(natural(root)), jnp.zeros((), gradient.dtype), zero)


def natural(root: Root[ArrayT]) -> Callable[[ArrayT], ArrayT]:
    """F^-1 as a map."""
    return lambda v: root.solve_transpose(root.solve(v))


def shrinkage(local: Estimated, root: BlockFactor, key, num_probes: int = 8):
    """The share of the estimated -H - F that is signal: <C1, C2> / |(C1 + C2)/2|^2 over two half-sample estimates.

    C = F^-1/2 (-H) F^-1/2 - I. Inner products of matrices are traces, estimated with random signs (Hutchinson
    1990), so no dense matrix is formed.
    """
    if local.curvature_halves is None:
        return jnp.ones((), local.grad.dtype)
    probes = jax.random.rademacher(key, (num_probes, local.grad.size), local.grad.dtype)
    first, second = (jax.vmap(half.whiten(root).scale(-1.0).mv)(probes) - probes for half in local.curvature_halves)
    both = jnp.sum(((first + second) / 2) ** 2)
    signal = jnp.sum(first * second)
    return jnp.clip(jnp.where(both > 0, signal / jnp.where(both > 0, both, 1), 1.0), 0.0, 1.0)


def _clip(root: BlockFactor, direction, slope, bend, radius, length, definite, num_products) -> Step:
    """The step along `direction` (whitened) with the best predicted gain inside the ball."""
    square = direction @ direction
    best = jnp.where(bend > 0, slope / jnp.where(bend > 0, bend, 1), jnp.inf)
    edge = jnp.sqrt(2 * radius / jnp.where(square > 0, square, 1))
    t = length * jnp.minimum(best, edge)
    return Step(
        direction=root.solve_transpose(t * direction),
        predicted=t * slope - t * t * bend / 2,
        divergence=t * t * square / 2,
        at_edge=edge <= best,
        definite=definite,
        num_products=num_products,
    )


_TRUSTED = (
    SolveOutcome.SOLVED,
    SolveOutcome.RESIDUAL_TOO_LARGE,
    SolveOutcome.MAX_STEPS,
    SolveOutcome.NEGATIVE_CURVATURE,
    SolveOutcome.MODIFIED,
    SolveOutcome.GUARDED,
)


def _trusted(code):
    """Whether x may be used as a direction; its slope and curvature are checked separately."""
    return jnp.any(code == jnp.asarray([int(outcome) for outcome in _TRUSTED]))
