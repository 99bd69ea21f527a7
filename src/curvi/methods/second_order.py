"""The two kinds of step of a second-order score method: the paper's literal step, and a safe one.

Literal: estimate at Gamma_{t-1}, solve with the raw Hessian, move by -epsilon H^-1 g. It diverges from most starts: the
estimate may be indefinite or singular, and its noise is large.

Safe: the estimate at Gamma_{t-1} is kept from the step before. Solve with -H, shrunk towards the Fisher information
by its measured noise; clip to a ball of given divergence; estimate at the candidate with fresh draws; accept unless
the ELBO clearly fell. Each estimate is used both to accept one step and as the model of the next, so an accepted step
costs one estimate. Where the gain no longer exceeds its noise, steps shorten like k^-1/2, slowly enough for stiff
directions (Polyak and Juditsky 1992), so that the iterates converge instead of fluctuating.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from curvi.control import RadiusControl
from curvi.curvature import Operator
from curvi.descent.newton import NewtonStep, newton_step
from curvi.estimate.local import Counts, Estimated, Estimator
from curvi.family import Family
from curvi.methods.stepwise import Record, as_counts
from curvi.model.target import AbstractTarget
from curvi.record.plain import register
from curvi.solve.solution import Solver

# Arguments: a local model, the radius, the length of the step and a key.
Descend = Callable[[Estimated, Array, Array, PRNGKeyArray], NewtonStep]


@register
class Safeguard(eqx.Module):
    """Settings of the safe step.

    Attributes
    ----------
    radius
        Control of the trust radius.
    damping
        Added to -H in units of the Fisher information.
    shrink
        Whether -H is shrunk towards the Fisher information by its measured noise.
    num_errors
        Number of standard errors by which the decrement must exceed zero for a step of full length.
    """

    radius: RadiusControl = RadiusControl()
    damping: float = 1e-3
    shrink: bool = eqx.field(static=True, default=True)
    num_errors: float = 2.0


@register
class SafeState(eqx.Module):
    """State of the safe loop: the accepted q, its local model, the radius, and the count of noisy steps."""

    q: Family
    local: Estimated
    radius: Float[Array, ""]
    noisy_steps: Int[Array, ""]
    ready: Array


@register
class LiteralState(eqx.Module):
    """State of the literal loop: q alone."""

    q: Family


def safe_init(estimator: Estimator, safeguard: Safeguard, target, q: Family, key) -> SafeState:
    """A state whose first step only estimates without moving, which avoids a second program for the first estimate."""
    local = zeros_like_output(estimator, target, q, key)
    return SafeState(
        q, local, jnp.asarray(safeguard.radius.initial, q.params.dtype), jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    )


def start_state(estimator: Estimator, safeguard: Safeguard | None, target, q: Family, key) -> SafeState | LiteralState:
    """The state of the safe loop, or of the literal one where there is no safeguard."""
    return LiteralState(q) if safeguard is None else safe_init(estimator, safeguard, target, q, key)


def newton_descent(
    safeguard: Safeguard, solver: Solver, curvature_of: Callable[[Estimated], Operator] = lambda local: local.curvature
) -> Descend:
    """Newton's step in the form that `safe_step` takes; `curvature_of(local)` is the operator of the solve."""

    def descend(local, radius, length, key):
        return newton_step(local, curvature_of(local), solver, radius, length, safeguard.damping, safeguard.shrink, key)

    return descend


def safe_step(
    estimator: Estimator, safeguard: Safeguard, descend: Descend, calls_per_copy: int, target, state: SafeState, key
):
    """One safe step; `descend(local, radius, length, key)` gives the `NewtonStep`."""
    key_descend, key_estimate = jax.random.split(key)
    length = noisy_length(state.noisy_steps, state.radius.dtype)
    newton = descend(state.local, state.radius, length, key_descend)
    step = newton.step
    direction = jnp.where(state.ready, step.direction, 0)
    candidate = state.q.replace(state.q.params + direction)
    local = estimator(target, candidate, key_estimate)

    actual = local.value - state.local.value
    actual_se = jnp.hypot(local.value_se, state.local.value_se)
    judged = (step.predicted, step.divergence, step.at_edge, actual, actual_se)
    accept, radius = safeguard.radius(state.radius, *judged)
    # A step to values that are not finite is rejected, and the radius shrinks below its size.
    finite = local.finite()
    shrunk = 0.1 * jnp.minimum(state.radius, jnp.where(jnp.isfinite(step.divergence), step.divergence, jnp.inf))
    accept = finite & (accept | ~state.ready)
    radius = jnp.where(state.ready, jnp.where(finite, radius, shrunk), state.radius)
    noisy_steps = jnp.where(
        state.ready & accept, count_noisy(state.noisy_steps, newton, safeguard.num_errors), state.noisy_steps
    )

    counts = as_counts(
        local.counts
        + Counts(log_density=newton.num_copies * calls_per_copy, hvp=step.num_products * local.calls_per_product)
    )
    record = Record(
        elbo=jnp.where(accept, local.value, state.local.value),
        elbo_se=jnp.where(accept, local.value_se, state.local.value_se),
        remaining_gain=jnp.where(state.ready, newton.remaining_gain, jnp.inf),
        remaining_gain_se=jnp.where(state.ready, newton.remaining_gain_se, jnp.inf),
        predicted_gain=jnp.where(state.ready, step.predicted, jnp.nan),
        gradient_gain=jnp.where(state.ready, newton.gradient_gain, jnp.inf),
        gradient_gain_se=jnp.where(state.ready, newton.gradient_gain_se, jnp.inf),
        num_draws=jnp.asarray(local.draw_values.size, jnp.int32),
        radius=state.radius,
        accepted=accept,
        shrinkage=newton.shrinkage,
        counts=counts,
    )
    moved = SafeState(candidate, local, radius, noisy_steps, jnp.ones((), bool))
    # After a rejection the next step estimates again at the same q: an estimate that was high by chance would reject
    # every later candidate.
    stayed = SafeState(state.q, state.local, radius, noisy_steps, jnp.zeros((), bool))
    return select(accept, moved, stayed), record


def count_noisy(noisy_steps, step: NewtonStep, num_errors: float):
    """The count of consecutive steps whose gradient does not exceed its noise."""
    return jnp.where(step.signal < num_errors, noisy_steps + 1, 0)


def noisy_length(noisy_steps, dtype):
    """Length of a step after this many noisy steps: k^-1/2."""
    return jax.lax.rsqrt(1.0 + noisy_steps).astype(dtype)


def literal_step(
    estimator: Estimator,
    solver: Solver,
    operator_of: Callable[[AbstractTarget, Family, Estimated], Operator],
    step_length: float,
    calls_per_copy: int,
    target: AbstractTarget,
    state: LiteralState,
    key: PRNGKeyArray,
) -> tuple[LiteralState, Record]:
    """Gamma_t = Gamma_{t-1} - epsilon H^-1 g, as in the paper: no damping, no trust region, no acceptance test."""
    key_estimate, key_solve = jax.random.split(key)
    local = estimator(target, state.q, key_estimate)
    solution = solver(operator_of(target, state.q, local), local.grad, key=key_solve)
    params = state.q.params - step_length * solution.x
    # Only steps that are not finite are rejected: q with NaN parameters has no draws, and the history should show
    # where this happened.
    finite = local.finite() & jnp.all(jnp.isfinite(params))
    counts = as_counts(local.counts + Counts(log_density=solution.num_draws * calls_per_copy))
    dtype = jnp.result_type(local.value)
    infinite = jnp.full((), jnp.inf, dtype)
    record = Record(
        elbo=local.value,
        elbo_se=local.value_se,
        remaining_gain=infinite,
        remaining_gain_se=infinite,
        predicted_gain=jnp.nan * infinite,
        gradient_gain=infinite,
        gradient_gain_se=infinite,
        num_draws=jnp.asarray(local.draw_values.size, jnp.int32),
        radius=infinite,
        accepted=finite,
        shrinkage=jnp.ones((), dtype),
        counts=counts,
    )
    return LiteralState(state.q.replace(jnp.where(finite, params, state.q.params))), record


def select(condition, if_true, if_false):
    """`if_true` or `if_false`, leaf by leaf, for two trees of the same structure."""
    return jax.tree.map(
        lambda a, b: jnp.where(condition, a, b) if eqx.is_array(a) else a, if_true, if_false, is_leaf=eqx.is_array
    )


def zeros_like_output(function, *args):
    """A tree of zeros with the structure of `function(*args)`, without calling it."""
    shapes = eqx.filter_eval_shape(function, *args)
    return jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf, shapes
    )
