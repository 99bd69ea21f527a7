"""Pathwise estimator: derivatives of the model along the reparameterised draws x = T(noise; Gamma).

    L(Gamma) = E[ln p(T(noise; Gamma))] + H(q),

so gradient and Hessian are expectations of ordinary derivatives; Hessian-vector products come forward over reverse,
and no matrix is formed. At equal draws the noise is far below the score estimator's. Needs an order-2 target and
reparameterised factors; misses jumps and kinks.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from curvi.curvature import MatrixFree
from curvi.estimate.draws import Antithetic, Draws
from curvi.estimate.local import Counts, LocalModel, num_groups, variance_of_mean
from curvi.estimate.score import check_num_draws
from curvi.family import MeanField
from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget


def path_log_density(density, q: MeanField, noise):
    """ln p with Jacobians at the draw that `noise` gives: differentiate it with respect to q's parameters."""
    theta, log_det = q.to_model(q.from_normal(noise))
    return density(theta) + log_det


class Pathwise(eqx.Module):
    """Gradient and matrix-free Hessian by differentiating through the draws.

    Parameters
    ----------
    num_draws
        Draws of standard normal noise.
    draws
        Independent, antithetic or Sobol; antithetic by default, which removes odd noise for nothing.
    """

    num_draws: int = eqx.field(static=True)
    draws: Draws = Antithetic()

    def __check_init__(self):
        check_num_draws(self.num_draws, 1, "num_draws")

    def __call__(self, target: AbstractTarget, q: MeanField, key) -> LocalModel:
        self.draws.check(q, self.num_draws)
        key_noise, key_batch = jax.random.split(key)
        noise = self.draws.noise(q, key_noise, self.num_draws)
        groups = num_groups(self.num_draws // self.draws.unit(q, self.num_draws))
        noise = noise.reshape(groups, -1, noise.shape[-1])
        keys = jax.random.split(key_batch, groups)
        each = over_draws(target, self.num_draws)

        def group_values(params, group_noise, key_group):
            density = target.batch(key_group)
            moved = q.replace(params)
            return each(lambda e: path_log_density(density, moved, e))(group_noise)

        def group_value_and_grad(group_noise, key_group):
            def mean(params):
                values = group_values(params, group_noise, key_group)
                return values.mean(), values

            return jax.grad(mean, has_aux=True)(q.params)

        group_grads, log_p = each(group_value_and_grad)(noise, keys)
        log_q = jax.vmap(jax.vmap(lambda e: q.log_prob(q.from_normal(e))))(noise)
        entropy_blocks = q.entropy_hessian()
        curvature = MatrixFree(_PathwiseProduct(target, q, noise, keys), q.num_params, 1.0, entropy_blocks)
        group_grads = group_grads + q.entropy_gradient()
        group_values_ = log_p.mean(1)
        return LocalModel(
            value=group_values_.mean() + q.entropy(),
            value_se=jnp.sqrt(variance_of_mean(group_values_)),
            grad=group_grads.mean(0),
            curvature=curvature,
            fisher=q.fisher(),
            group_grads=group_grads,
            log_ratios=(log_p - log_q).reshape(-1),
            counts=Counts(log_density=self.num_draws, gradient=self.num_draws),
            calls_per_product=self.num_draws,
        )


class _PathwiseProduct(eqx.Module):
    """v -> (mean Hessian of ln p along the draws) v, forward over reverse."""

    target: AbstractTarget
    q: MeanField
    noise: jax.Array
    keys: jax.Array

    def __call__(self, v):
        each = over_draws(self.target, self.noise.shape[0] * self.noise.shape[1])

        def mean(params):
            moved = self.q.replace(params)

            def group(group_noise, key):
                density = self.target.batch(key)
                return each(lambda e: path_log_density(density, moved, e))(group_noise)

            return each(group)(self.noise, self.keys).mean()

        return jax.jvp(jax.grad(mean), (self.q.params,), (v,))[1]
