"""Hessian-free Newton on the reparameterised objective (Fan, Wang, Beck, Kwok and Heller 2015)."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from curvi.control import RadiusControl
from curvi.descent.newton import newton_step
from curvi.estimate.local import Counts, num_groups
from curvi.estimate.pathwise import Pathwise
from curvi.family import Family
from curvi.methods.base import Needs
from curvi.methods.second_order import count_noisy, noisy_length
from curvi.methods.stepwise import Record, StepMethod, as_counts
from curvi.record.plain import register
from curvi.solve import CG
from curvi.solve.solution import Solver


@register
class RadiusState(eqx.Module):
    """q, the trust radius, and the number of consecutive steps dominated by noise."""

    q: Family
    radius: Float[Array, ""]
    noisy_steps: Int[Array, ""]


@register
class HessianFree(StepMethod):
    """Newton steps from pathwise Hessian-vector products and conjugate gradients, in a trust region, on fresh draws
    every step.

    Attributes
    ----------
    estimator
        A `Pathwise` estimator.
    solver
        Conjugate gradients; a loose tolerance, since the model is a Monte Carlo estimate.
    radius
        Control of the trust radius. Actual gains are measured on the draws of the step itself, so that common
        noise cancels.
    """

    estimator: Pathwise = Pathwise(64)
    solver: Solver = CG(tolerance=0.05, max_steps=30)
    radius: RadiusControl = RadiusControl()
    damping: float = 1e-6
    needs: ClassVar[Needs] = Needs(order=2, path=True)

    def start(self, target, q, key):
        return RadiusState(q, jnp.asarray(self.radius.initial, q.params.dtype), jnp.zeros((), jnp.int32))

    def step(self, target, state, key):
        key_estimate, key_step = jax.random.split(key)
        local = self.estimator(target, state.q, key_estimate)
        length = noisy_length(state.noisy_steps, state.radius.dtype)
        newton = newton_step(local, local.curvature, self.solver, state.radius, length, self.damping, False, key_step)
        step = newton.step
        candidate = state.q.replace(state.q.params + step.direction)
        moved = self.estimator(target, candidate, key_estimate)
        gained, gained_se = _paired_gain(local, moved, num_groups(self.estimator.num_draws))
        accept, radius = self.radius(state.radius, step.predicted, step.divergence, step.at_edge, gained, gained_se)
        finite = jnp.isfinite(gained) & local.finite()
        accept = accept & finite
        radius = jnp.where(finite, radius, 0.1 * state.radius)
        draws = self.estimator.num_draws
        counts = local.counts + Counts(log_density=draws, hvp=step.num_products * local.calls_per_product)
        record = Record(
            elbo=local.value,
            elbo_se=local.value_se,
            remaining_gain=newton.remaining_gain,
            remaining_gain_se=newton.remaining_gain_se,
            predicted_gain=step.predicted,
            gradient_gain=newton.gradient_gain,
            gradient_gain_se=newton.gradient_gain_se,
            num_draws=jnp.asarray(draws, jnp.int32),
            radius=state.radius,
            accepted=accept,
            shrinkage=newton.shrinkage,
            counts=as_counts(counts),
        )
        noisy_steps = count_noisy(state.noisy_steps, newton, 2.0)
        params = jnp.where(accept, candidate.params, state.q.params)
        return RadiusState(candidate.replace(params), radius, noisy_steps), record


def _paired_gain(local, moved, groups: int):
    """The ELBO gain on the draws of the local model, and its standard error over groups of draws."""
    differences = (moved.draw_values - local.draw_values).reshape(groups, -1).mean(1)
    spread = jnp.std(differences, ddof=1) / groups**0.5 if groups > 1 else jnp.zeros(())
    return moved.value - local.value, spread
