"""Newton and natural-gradient steps inside a ball of given Kullback-Leibler divergence.

Everything happens in Fisher-whitened coordinates, p_white = L' p with F = L L': there the natural gradient is the
gradient, the Fisher blocks precondition every solver without being mentioned, and |p_white|^2 / 2 is the divergence
between q and the moved q in nats.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from curvi.curvature import Operator
from curvi.estimate.local import LocalModel
from curvi.solve import SolveOutcome
from curvi.solve.solution import Solver


class Step(eqx.Module):
    """A step and what the model expects of it.

    Attributes
    ----------
    direction
        The step in the flat parameters.
    predicted
        Gain in nats that the local model predicts for it.
    divergence
        |p|_F^2 / 2, the divergence it covers.
    at_edge
        Whether the ball, rather than the model's maximum along the direction, set its length.
    remaining_gain, remaining_gain_se
        The Newton decrement g'(-H)^-1 g / 2, corrected for the noise of g, and its standard error; infinite where -H
        is not definite.
    signal
        The natural gradient's decrement g'F^-1 g / 2, corrected for noise, in units of its standard error: whether the
        gradient stands out of its noise, whatever the curvature.
    curvature_weight
        How much of the estimated departure of -H from F was believed, 0 (natural gradient) to 1.
    """

    direction: Float[Array, " P"]
    predicted: Float[Array, ""]
    divergence: Float[Array, ""]
    at_edge: Array
    remaining_gain: Float[Array, ""]
    remaining_gain_se: Float[Array, ""]
    signal: Float[Array, ""]
    curvature_weight: Float[Array, ""]
    num_products: Int[Array, ""]
    num_copies: Int[Array, ""]
    code: Int[Array, ""]


def newton_step(
    local: LocalModel, curvature: Operator, solver: Solver, radius, length, damping: float, shrink: bool, key
) -> Step:
    """The step of (-H + damping F) p = g, clipped to the divergence `radius`; the natural gradient where the solve
    fails.

    `length` multiplies the step (1 except when averaging out noise). With `shrink`, -H is first shrunk towards F by
    its measured noise.
    """
    key_solve, key_noise, key_weight = jax.random.split(key, 3)
    factor = local.fisher.factorise()
    gradient = factor.solve(local.grad)
    identity = local.fisher.identity_like()
    weight = curvature_weight(local, factor, key_weight) if shrink else jnp.ones((), gradient.dtype)
    operator = curvature.whiten(factor).scale(-weight).add_blocks(identity.scale(1 - weight + damping))

    solution = solver(operator, gradient, key=key_solve)
    product = operator.mv(solution.x)
    slope, bend = gradient @ solution.x, solution.x @ product
    usable = jnp.isfinite(bend) & (slope > 0) & (bend > 0) & _trusted(solution.code)
    direction = jnp.where(usable, solution.x, gradient)
    bend = jnp.where(usable, bend, gradient @ gradient)
    slope = jnp.where(usable, slope, gradient @ gradient)

    noise = factor.solve(local.half_difference())
    noise_solution = solver(operator, noise, key=key_noise)
    gain, gain_se = _decrement(local, factor, solution.x, gradient, noise_solution.x, noise)
    plain_gain, plain_se = _decrement(local, factor, gradient, gradient, noise, noise)
    step = _clip(local, factor, direction, slope, bend, radius, length)
    # Where the solve failed, or found a direction of negative curvature, nothing bounds what is left to gain.
    gain = jnp.where(usable & (solution.code != SolveOutcome.NEGATIVE_CURVATURE), gain, jnp.inf)
    return step(
        remaining_gain=gain,
        remaining_gain_se=gain_se,
        signal=plain_gain / plain_se,
        curvature_weight=weight,
        num_products=solution.num_products + noise_solution.num_products + 1,
        num_copies=solution.num_draws + noise_solution.num_draws,
        code=solution.code,
    )


def natural_gradient_step(local: LocalModel, radius, length) -> Step:
    """The step F^-1 g, Newton's with H = -F, clipped to the divergence `radius`."""
    factor = local.fisher.factorise()
    gradient = factor.solve(local.grad)
    slope = gradient @ gradient
    noise = factor.solve(local.half_difference())
    gain, gain_se = _decrement(local, factor, gradient, gradient, noise, noise)
    zero = jnp.zeros((), jnp.int32)
    return _clip(local, factor, gradient, slope, slope, radius, length)(
        remaining_gain=gain,
        remaining_gain_se=gain_se,
        signal=gain / gain_se,
        curvature_weight=jnp.zeros((), gradient.dtype),
        num_products=zero,
        num_copies=zero,
        code=zero,
    )


def curvature_weight(local: LocalModel, factor, key, num_probes: int = 8):
    """The share of the estimated -H - F that is signal: <C1, C2> / |(C1 + C2)/2|^2 over two half-sample estimates.

    C = F^-1/2 (-H) F^-1/2 - I. Inner products of matrices are traces, taken by random signs (Hutchinson 1990), so
    nothing dense is formed.
    """
    if local.curvature_halves is None:
        return jnp.ones((), local.grad.dtype)
    probes = jax.random.rademacher(key, (num_probes, local.grad.size), local.grad.dtype)
    first, second = (jax.vmap(half.whiten(factor).scale(-1.0).mv)(probes) - probes for half in local.curvature_halves)
    both = jnp.sum(((first + second) / 2) ** 2)
    signal = jnp.sum(first * second)
    return jnp.clip(jnp.where(both > 0, signal / jnp.where(both > 0, both, 1), 1.0), 0.0, 1.0)


def _decrement(local, factor, x, gradient, noise_x, noise):
    """g'x/2 with x = (-H)^-1 g, less what the noise of g adds to it on average; and the standard error of the result.

    With e a copy of the noise of g, E[g' B e ...] gives E[g'Bg - e'Be] = (E g)' B (E g): the two half-sample
    gradients g + e and g - e are independent. Var = x'Cx + tr((BC)^2), C the covariance of g, the second term
    estimated by e'BCBe.
    """
    gain = (gradient @ x - noise @ noise_x) / 2
    variance = local.slope_variance(factor.solve_transpose(x)) + local.slope_variance(factor.solve_transpose(noise_x))
    return gain, jnp.sqrt(variance)


def _clip(local, factor, direction, slope, bend, radius, length):
    """The step along `direction` (whitened) with the best predicted gain inside the ball, as a partial `Step`."""
    square = direction @ direction
    best = jnp.where(bend > 0, slope / jnp.where(bend > 0, bend, 1), jnp.inf)
    edge = jnp.sqrt(2 * radius / jnp.where(square > 0, square, 1))
    t = length * jnp.minimum(best, edge)

    def finish(**rest):
        return Step(
            direction=factor.solve_transpose(t * direction),
            predicted=t * slope - t * t * bend / 2,
            divergence=t * t * square / 2,
            at_edge=edge <= best,
            **rest,
        )

    return finish


_TRUSTED = (
    SolveOutcome.SOLVED,
    SolveOutcome.RESIDUAL_TOO_LARGE,
    SolveOutcome.MAX_STEPS,
    SolveOutcome.NEGATIVE_CURVATURE,
    SolveOutcome.MODIFIED,
    SolveOutcome.GUARDED,
)


def _trusted(code):
    """Whether x may serve as a direction; its sign and bend are checked besides."""
    return jnp.any(code == jnp.asarray([int(outcome) for outcome in _TRUSTED]))
