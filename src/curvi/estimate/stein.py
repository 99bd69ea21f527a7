"""Stein's estimator: curvature from gradients of the model alone (Stein 1981; Price 1958; Lin et al. 2019).

Along the draws x = T(e; Gamma), with r = ln p - ln q, J = dT/dGamma and v = J' grad_x r,

    grad L = E[v],    hess L = E[s v'] + E[dv/dGamma at fixed x] - F:

the Hessian is the derivative of an expectation under q of a function of x and Gamma. The first term has rank S;
the second is block diagonal, with the block (grad_x r) C of each factor,

    C = T_GG - T_Ge T_G' / T_e       (for a normal: -1 at (ln sigma, mu), else 0).

Their sum is symmetric in expectation only, so both are symmetrised, which gives rank 2 S of either sign:
s v' + v s' = ((s + v)(s + v)' - (s - v)(s - v)') / 2. Since r is anchored at q, all noise vanishes where q is the
posterior. Since E[s] = 0, v may be centred by the mean of the other draws.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from curvi.curvature import BlockDiagonal, BlockLowRank
from curvi.estimate.draws import Antithetic, Draws
from curvi.estimate.local import Counts, Estimated, GroupNoise, LocalModel, num_groups, variance_of_mean
from curvi.estimate.score import check_num_draws
from curvi.family import Family
from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget
from curvi.record.plain import register


@register
class Stein(eqx.Module):
    """Gradient and Hessian from gradients of the log density; needs order 1 and reparameterised factors.

    Parameters
    ----------
    num_draws
        Draws of standard normal noise; the curvature has rank twice their number.
    draws
        Independent, antithetic or Sobol; antithetic by default.
    """

    num_draws: int = eqx.field(static=True)
    draws: Draws = Antithetic()

    def __check_init__(self):
        check_num_draws(self.num_draws, 2, "num_draws")

    def __call__(self, target: AbstractTarget, q: Family, key) -> Estimated:
        self.draws.check(q, self.num_draws)
        key_noise, key_batch = jax.random.split(key)
        unit = self.draws.unit(q, self.num_draws)
        groups = num_groups(self.num_draws // unit)
        noise = self.draws.noise(q, key_noise, self.num_draws)

        each = over_draws(target, self.num_draws)

        def group(group_noise, key_group):
            density = target.batch(key_group)
            return each(lambda e: _one_draw(density, q, e))(group_noise)

        parts = noise.reshape(groups, -1, noise.shape[-1])
        found = each(group)(parts, jax.random.split(key_batch, groups))
        ratios, v, scores, blocks = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)
        centred = _left_out(v, unit)
        fisher = q.fisher()

        def curvature(part) -> BlockLowRank:
            s, w = scores[part], centred[part]
            means = tuple(_symmetric(b[part].mean(0)) for b in blocks)
            weights = jnp.concatenate([jnp.full(len(s), 0.25), jnp.full(len(s), -0.25)]).astype(s.dtype) / len(s)
            return BlockLowRank(BlockDiagonal(means).add(fisher.scale(-1.0)), jnp.concatenate([s + w, s - w]), weights)

        group_grads = v.reshape(groups, -1, v.shape[-1]).mean(1)
        values = ratios.reshape(groups, -1).mean(1)
        cut = unit * (self.num_draws // unit // 2)
        return LocalModel(
            value=values.mean(),
            value_se=jnp.sqrt(variance_of_mean(values)),
            grad=group_grads.mean(0),
            curvature=curvature(slice(None)),
            fisher=fisher,
            noise=GroupNoise(group_grads),
            draw_values=ratios,
            counts=Counts(log_density=self.num_draws, gradient=self.num_draws),
            curvature_halves=(curvature(slice(0, cut)), curvature(slice(cut, None))) if cut else None,
        )


def _one_draw(density, q: Family, e):
    """r, v, the score, and the blocks (grad_x r) C of one draw."""

    def log_ratio(x):
        return q.log_joint(density, x) - q.log_prob(x)

    x, pull_back = jax.vjp(lambda p: q.replace(p).from_normal(e), q.params)
    ratio, slope = jax.value_and_grad(log_ratio)(x)
    return ratio, pull_back(slope)[0], q.score(x), q.stein_blocks(e, slope).blocks


def _left_out(v, unit: int):
    """v less its mean over all other units."""
    units = v.reshape(-1, unit, v.shape[-1])
    others = units.sum((0, 1)) - units.sum(1, keepdims=True)
    return (units - others / (v.shape[0] - unit)).reshape(v.shape)


def _symmetric(blocks):
    return (blocks + jnp.swapaxes(blocks, -1, -2)) / 2
