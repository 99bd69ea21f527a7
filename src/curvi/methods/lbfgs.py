"""L-BFGS on the reparameterised objective (Fan, Wang, Beck, Kwok and Heller 2015)."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from curvi.estimate.draws import Antithetic, Draws
from curvi.estimate.local import Counts
from curvi.estimate.pathwise import path_log_density
from curvi.estimate.score import check_num_draws
from curvi.family import Family
from curvi.methods.base import Needs
from curvi.methods.stepwise import Record, StepMethod, as_counts
from curvi.model.over_draws import over_draws
from curvi.record.plain import register


@register
class LBFGSState(eqx.Module):
    """q, the state of optax's L-BFGS, and the noise, fixed for the whole run."""

    q: Family
    optimiser: Any
    noise: Float[Array, "S n"]
    key: Any


@register
class LBFGS(StepMethod):
    """L-BFGS with a zoom line search on the reparameterised objective on fixed draws.

    On fixed draws the objective is deterministic, as a line search needs; the result has their bias, about P / S
    nats (Giordano et al. 2024).

    Attributes
    ----------
    num_draws
        Fixed draws.
    memory_size
        Number of pairs of steps and gradient differences kept.
    """

    num_draws: int = eqx.field(static=True, default=256)
    memory_size: int = eqx.field(static=True, default=10)
    draws: Draws = Antithetic()
    needs: ClassVar[Needs] = Needs(order=1, path=True)

    def __check_init__(self):
        check_num_draws(self.num_draws, 1, "num_draws")

    def fixed_draws(self, q):
        return self.num_draws

    def _optimiser(self):
        return optax.lbfgs(memory_size=self.memory_size)

    def start(self, target, q, key):
        self.draws.check(q, self.num_draws)
        noise = self.draws.noise(q, key, self.num_draws)
        return LBFGSState(q, self._optimiser().init(q.params), noise, key)

    def step(self, target, state, key):
        optimiser = self._optimiser()
        density, each = target.batch(state.key), over_draws(target, self.num_draws)

        def neg_elbo(params):
            q = state.q.replace(params)
            return -each(lambda e: path_log_density(density, q, e))(state.noise).mean() - q.entropy()

        found = optax.value_and_grad_from_state(neg_elbo)(state.q.params, state=state.optimiser)
        value, gradient = (jnp.asarray(part) for part in found)
        updates, inner = optimiser.update(
            gradient, state.optimiser, state.q.params, value=value, grad=gradient, value_fn=neg_elbo
        )
        params = jnp.asarray(optax.apply_updates(state.q.params, updates))
        finite = jnp.all(jnp.isfinite(params))
        q = state.q.replace(jnp.where(finite, params, state.q.params))
        fisher = state.q.fisher()
        gain = gradient @ fisher.solve(gradient) / 2
        evaluations = optax.tree_utils.tree_get(inner, "num_linesearch_steps") + 1
        infinite, unknown = jnp.full((), jnp.inf, value.dtype), jnp.full((), jnp.nan, value.dtype)
        record = Record(
            elbo=-value,
            elbo_se=infinite,
            remaining_gain=unknown,
            remaining_gain_se=unknown,
            predicted_gain=unknown,
            gradient_gain=gain,
            gradient_gain_se=jnp.zeros_like(gain),
            num_draws=jnp.asarray(self.num_draws, jnp.int32),
            radius=unknown,
            accepted=finite,
            shrinkage=jnp.ones((), value.dtype),
            counts=as_counts(Counts(log_density=evaluations * self.num_draws, gradient=evaluations * self.num_draws)),
        )
        return LBFGSState(q, inner, state.noise, state.key), record
