"""Second-order regression as an estimator of a local model of the ELBO (see `pairs`)."""

import equinox as eqx
import jax
import jax.numpy as jnp

from curvi.curvature import BlockDiagonal, BlockLowRank, DenseMatrix
from curvi.curvature.blocks import split
from curvi.estimate.draws import Independent
from curvi.estimate.local import Counts, Estimated, GroupNoise, LocalModel, num_groups
from curvi.estimate.pairs import PairFit, PairLayout, fit_pairs
from curvi.estimate.score import check_num_draws, draw_sample
from curvi.family import Family
from curvi.model.target import AbstractTarget
from curvi.record.plain import register


def pair_layout(q: Family) -> PairLayout:
    """Which products of scores are pairs: those of parameters of different factors."""
    return PairLayout(q.factor_of_param)


@register
class SecondOrderRegression(eqx.Module):
    """Gradient and Hessian of the ELBO by least squares of ln p - ln q on scores and products of scores.

    Exact where ln p - ln q lies in their span, consistent elsewhere. The Hessian's diagonal blocks are taken to be
    those of -F, which is exact at the optimum in natural parameters if ln p is linear in the sufficient statistics of
    each factor given the others.

    Parameters
    ----------
    num_draws
        Independent draws; more than the number of variational parameters.
    products
        Whether products of scores are regressed on; without them the Hessian is -F.
    """

    num_draws: int = eqx.field(static=True)
    products: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        check_num_draws(self.num_draws, 4, "num_draws")

    def __call__(self, target: AbstractTarget, q: Family, key) -> Estimated:
        if self.num_draws < q.num_params + 2:
            raise ValueError(
                f"least squares on {q.num_params} scores needs more than {q.num_params + 1} draws; "
                f"got num_draws = {self.num_draws}"
            )
        sample = draw_sample(target, q, key, self.num_draws, Independent())
        layout, fisher = pair_layout(q), q.fisher()
        factor = fisher.factorise()
        scores = jax.vmap(q.score)(sample.x)
        white = jax.vmap(factor.solve)(scores)
        ratios = sample.log_p - sample.log_q
        ones = jnp.ones_like(ratios)
        found = fit_pairs(white, ratios, ones, layout, jnp, products=self.products)
        grad = factor.mv(found.linear)
        return LocalModel(
            value=found.value,
            value_se=found.value_se,
            grad=grad,
            curvature=_curvature(found, fisher, factor, scores),
            fisher=fisher,
            noise=GroupNoise(_group_grads(found, factor, grad)),
            draw_values=ratios,
            counts=Counts(log_density=self.num_draws),
            curvature_halves=self._halves(white, ratios, ones, layout, fisher, factor, scores),
        )

    def _halves(self, white, ratios, ones, layout, fisher, factor, scores):
        half = self.num_draws // 2
        if not self.products or half < white.shape[1] + 2:
            return None
        parts = [slice(0, half), slice(half, 2 * half)]
        fits = [fit_pairs(white[p], ratios[p], ones[p], layout, jnp) for p in parts]
        first, second = (_curvature(fit, fisher, factor, scores[p]) for fit, p in zip(fits, parts))
        return first, second


def _curvature(found: PairFit, fisher: BlockDiagonal, factor, scores):
    """-F + L B L': block diagonal plus low rank where the kernel gives B as a weighted sum over the draws."""
    if found.pairs is None:
        size = fisher.size
        return BlockLowRank(fisher.scale(-1.0), jnp.zeros((0, size), fisher.dtype), jnp.zeros(0, fisher.dtype))
    if found.draw_weights is None:
        half = jax.vmap(factor.mv, in_axes=1, out_axes=1)(found.pairs)
        return DenseMatrix(jax.vmap(factor.mv)(half)).add_blocks(fisher.scale(-1.0))
    blocks = [-jnp.einsum("s,sni,snj->nij", found.draw_weights, part, part) for part in split(scores, fisher.blocks)]
    return BlockLowRank(BlockDiagonal(tuple(blocks)).add(fisher.scale(-1.0)), scores, found.draw_weights)


def _group_grads(found: PairFit, factor, grad):
    """Group gradients whose spread is the noise of the gradient: left-out residuals mapped through the regression."""
    groups = num_groups(found.left_out.shape[0])
    terms = (found.influence * found.left_out).reshape(found.influence.shape[0], groups, -1).sum(-1).T
    shifts = jax.vmap(factor.mv)(groups * (terms - terms.mean(0)))
    return grad + shifts
