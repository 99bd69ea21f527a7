"""Hessian-free Newton on the reparameterised objective (Fan, Wang, Beck, Kwok and Heller 2015)."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from curvi.control import RadiusControl
from curvi.descent import newton_step
from curvi.estimate.local import Counts
from curvi.estimate.pathwise import Pathwise
from curvi.family import MeanField
from curvi.methods.base import Method, Record, as_counts
from curvi.methods.second_order import count_noisy, noisy_length
from curvi.solve import CG


class RadiusState(eqx.Module):
    """q, the trust radius, and for how long noise has ruled."""

    q: MeanField
    radius: Float[Array, ""]
    noisy_steps: Int[Array, ""]


class HessianFree(Method):
    """Newton steps from pathwise Hessian-vector products and conjugate gradients, in a trust region, on fresh draws
    every step.

    Attributes
    ----------
    estimator
        A `Pathwise` estimator.
    solver
        Conjugate gradients; a loose tolerance, since the model is a Monte Carlo estimate.
    radius
        Control of the trust radius. Actual gains are measured on the draws of the step itself, which pairs the noise
        away.
    """

    estimator: Any = Pathwise(64)
    solver: Any = CG(tolerance=0.05, max_steps=30)
    radius: RadiusControl = RadiusControl()
    damping: float = 1e-6
    needs_order: ClassVar[int] = 2
    needs_reparameterised: ClassVar[bool] = True

    def init(self, target, q, key):
        return RadiusState(q, jnp.asarray(self.radius.initial, q.params.dtype), jnp.zeros((), jnp.int32))

    def step(self, target, state, key):
        key_estimate, key_step = jax.random.split(key)
        local = self.estimator(target, state.q, key_estimate)
        length = noisy_length(state.noisy_steps, state.radius.dtype)
        step = newton_step(local, local.curvature, self.solver, state.radius, length, self.damping, False, key_step)
        candidate = state.q.replace(state.q.params + step.direction)
        value, value_se = self._paired_gain(target, state.q, candidate, local, key_estimate)
        accept, radius = self.radius(state.radius, step, value, value_se)
        finite = jnp.isfinite(value) & local.finite()
        accept = accept & finite
        radius = jnp.where(finite, radius, 0.1 * state.radius)
        draws = self.estimator.num_draws
        counts = local.counts + Counts(log_density=draws, hvp=step.num_products * local.calls_per_product)
        record = Record(
            elbo=local.value,
            elbo_se=local.value_se,
            remaining_gain=step.remaining_gain,
            remaining_gain_se=step.remaining_gain_se,
            num_draws=jnp.asarray(draws, jnp.int32),
            radius=state.radius,
            accepted=accept,
            curvature_weight=step.curvature_weight,
            counts=as_counts(counts),
        )
        noisy_steps = count_noisy(state.noisy_steps, step, 2.0)
        params = jnp.where(accept, candidate.params, state.q.params)
        return RadiusState(candidate.replace(params), radius, noisy_steps), record

    def _paired_gain(self, target, q, candidate, local, key):
        """ELBO gained on the very draws of the local model, and its standard error over groups of draws."""
        moved = self.estimator(target, candidate, key)
        groups = local.group_grads.shape[0]
        differences = (moved.log_ratios - local.log_ratios).reshape(groups, -1).mean(1)
        spread = jnp.std(differences, ddof=1) / groups**0.5 if groups > 1 else jnp.zeros(())
        return moved.value - local.value, spread
