"""Black-box variational inference: stochastic gradient ascent on the score gradient, the first-order methods that the
paper builds on.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from curvi.descent.newton import natural
from curvi.estimate import AnchoredScore
from curvi.estimate.local import Estimator
from curvi.family import Family
from curvi.methods.stepwise import Record, StepMethod, as_counts
from curvi.record.plain import register


def robbins_monro(scale: float = 1.0, delay: float = 10.0, power: float = 0.7) -> optax.GradientTransformation:
    """Step length scale * (t + delay)^-power (Robbins and Monro 1951; Ranganath, Gerrish and Blei 2014)."""
    return optax.sgd(lambda step: scale * (step + delay) ** -power)


class AdaptiveRateState(NamedTuple):
    """Running means of the gradient and of its squared norm, and their memory in steps."""

    mean: Any
    square: Any
    memory: Any


def adaptive_rate(memory: float = 10.0) -> optax.GradientTransformation:
    """The adaptive rate of Ranganath, Wang, Blei and Xing (2013), equations 13 to 17: rho = |E g|^2 / E|g|^2, memory
    (1 - rho) + 1.

    Minimises the expected distance to the next optimum of the current bound, assuming unit curvature: meant for
    natural gradients.
    """

    def init(params):
        zero = jax.tree.map(jnp.zeros_like, params)
        dtype = jax.tree.leaves(params)[0].dtype
        return AdaptiveRateState(zero, jnp.zeros((), dtype), jnp.asarray(memory, dtype))

    def update(updates, state, params=None):
        # Before the first gradient the means are the gradient itself, so that the first rate is one.
        fresh = state.square == 0
        share = jnp.where(fresh, 1.0, 1 / state.memory)
        mean = jax.tree.map(lambda m, g: (1 - share) * m + share * g, state.mean, updates)
        square = (1 - share) * state.square + share * optax.tree_utils.tree_norm(updates, squared=True)
        rate = optax.tree_utils.tree_norm(mean, squared=True) / jnp.where(square > 0, square, 1)
        memory_next = jnp.where(fresh, state.memory, state.memory * (1 - rate) + 1)
        # optax minimises, hence the sign.
        return jax.tree.map(lambda g: -rate * g, updates), AdaptiveRateState(mean, square, memory_next)

    return optax.GradientTransformation(init, update)


@register
class FirstOrderState(eqx.Module):
    """q and the state of the optimiser."""

    q: Family
    optimiser: Any


@register
class BBVI(StepMethod):
    """Gradient ascent on the ELBO with any optax optimiser (Paisley et al. 2012; Ranganath et al. 2014).

    Attributes
    ----------
    optimiser
        An optax gradient transformation for minimisation: `optax.adam(0.01)`, `robbins_monro()`, `adaptive_rate()`.
    estimator
        Gradient: `PaperScore`, `AnchoredScore` (default) or `Pathwise`, with their control variates.
    natural
        Whether the gradient is multiplied by the inverse Fisher information first.
    """

    optimiser: Any = eqx.field(static=True)
    estimator: Estimator = AnchoredScore(32)
    natural: bool = eqx.field(static=True, default=False)
    default_num_steps: ClassVar[int] = 10_000

    def __init__(self, optimiser=None, estimator=None, natural=False):
        self.optimiser = optax.adam(0.01) if optimiser is None else optimiser
        self.estimator = AnchoredScore(32) if estimator is None else estimator
        self.natural = natural

    def start(self, target, q, key):
        return FirstOrderState(q, self.optimiser.init(q.params))

    def step(self, target, state, key):
        local = self.estimator(target, state.q, key)
        gradient = local.fisher.solve(local.grad) if self.natural else local.grad
        updates, optimiser = self.optimiser.update(-gradient, state.optimiser, state.q.params)
        params = jnp.asarray(optax.apply_updates(state.q.params, updates))
        finite = local.finite() & jnp.all(jnp.isfinite(params))
        moved = FirstOrderState(state.q.replace(params), optimiser)
        state = jax.tree.map(lambda a, b: jnp.where(finite, a, b), moved, state)
        size, size_se = local.decrement(natural(local.fisher.factorise()))
        dtype = jnp.result_type(local.value)
        unknown = jnp.full((), jnp.nan, dtype)
        record = Record(
            elbo=local.value,
            elbo_se=local.value_se,
            remaining_gain=unknown,
            remaining_gain_se=unknown,
            predicted_gain=unknown,
            gradient_gain=size,
            gradient_gain_se=size_se,
            num_draws=jnp.asarray(local.draw_values.size, jnp.int32),
            radius=unknown,
            accepted=finite,
            shrinkage=jnp.zeros((), dtype),
            counts=as_counts(local.counts),
        )
        return state, record
