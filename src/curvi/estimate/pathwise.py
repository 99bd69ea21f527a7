"""Pathwise estimator: derivatives of the model along the reparameterised draws x = T(noise; Gamma).

    L(Gamma) = E[ln p(T(noise; Gamma))] + H(q),

so gradient and Hessian are expectations of ordinary derivatives. Hessian-vector products are forward over reverse, and
no matrix is formed. For the same draws the noise is far below the score estimator's. Needs an order-2 target and
reparameterised factors; wrong for densities with jumps or kinks.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi.curvature import MatrixFree
from curvi.estimate.draws import Antithetic, Draws
from curvi.estimate.local import Counts, Estimated, GroupNoise, LocalModel, num_groups, variance_of_mean
from curvi.estimate.score import check_num_draws
from curvi.family import Family
from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget
from curvi.record.plain import register


def path_log_density(density, q: Family, noise):
    """ln p with Jacobians at the draw from `noise`, to be differentiated in q's parameters."""
    return q.log_joint(density, q.from_normal(noise))


class PathwiseProduct(eqx.Module):
    """v -> (Hessian of the ELBO on fixed noise) v, forward over reverse, one chunk of draws after the other.

    `noise` is (chunks, draws, n); a minibatched target uses one batch per chunk, given by its key.
    """

    target: AbstractTarget
    q: Family
    noise: Float[Array, "M S n"]
    keys: Array

    def __call__(self, v):
        each = over_draws(self.target, self.noise.shape[1])

        def chunk(total, part):
            noise, key = part
            density = self.target.batch(key)

            def mean(params):
                moved = self.q.replace(params)
                return each(lambda e: path_log_density(density, moved, e))(noise).mean()

            return total + jax.jvp(jax.grad(mean), (self.q.params,), (v,))[1], None

        total = jax.lax.scan(chunk, jnp.zeros_like(v), (self.noise, self.keys))[0]
        entropy = jax.grad(lambda params: self.q.replace(params).entropy())
        return total / self.noise.shape[0] + jax.jvp(entropy, (self.q.params,), (v,))[1]

    def operator(self) -> MatrixFree:
        return MatrixFree(self, self.q.num_params)


@register
class Pathwise(eqx.Module):
    """Gradient and matrix-free Hessian by differentiating through the draws.

    Parameters
    ----------
    num_draws
        Draws of standard normal noise.
    draws
        Independent, antithetic or Sobol; antithetic by default, which cancels odd noise at no cost.
    """

    num_draws: int = eqx.field(static=True)
    draws: Draws = Antithetic()

    def __check_init__(self):
        check_num_draws(self.num_draws, 1, "num_draws")

    def __call__(self, target: AbstractTarget, q: Family, key) -> Estimated:
        self.draws.check(q, self.num_draws)
        key_noise, key_batch = jax.random.split(key)
        noise = self.draws.noise(q, key_noise, self.num_draws)
        groups = num_groups(self.num_draws // self.draws.unit(q, self.num_draws))
        noise = noise.reshape(groups, -1, noise.shape[-1])
        keys = jax.random.split(key_batch, groups)
        each = over_draws(target, self.num_draws)

        def group(group_noise, key_group):
            density = target.batch(key_group)

            def mean(params):
                moved = q.replace(params)
                values = each(lambda e: path_log_density(density, moved, e))(group_noise)
                return values.mean(), values

            return jax.grad(mean, has_aux=True)(q.params)

        group_grads, log_p = each(group)(noise, keys)
        group_grads = group_grads + q.entropy_gradient()
        values = log_p.mean(1)
        return LocalModel(
            value=values.mean() + q.entropy(),
            value_se=jnp.sqrt(variance_of_mean(values)),
            grad=group_grads.mean(0),
            curvature=PathwiseProduct(target, q, noise, keys).operator(),
            fisher=q.fisher(),
            noise=GroupNoise(group_grads),
            draw_values=log_p.reshape(-1) + q.entropy(),
            counts=Counts(log_density=self.num_draws, gradient=self.num_draws),
            calls_per_product=self.num_draws,
        )
