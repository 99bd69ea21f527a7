"""The anchored score estimator without stored draws: what they need is made from their keys, some at a time.

The same draws and the same numbers as `curvi.estimate.score.AnchoredScore` has with independent draws, in O(P) memory:
a pass over the draws for their values, one for the gradient and the blocks, and one for each product.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from curvi.curvature import BlockDiagonal, MadeLowRank
from curvi.estimate.local import Counts, Estimated, GroupNoise, LocalModel, num_groups, variance_of_mean
from curvi.family import Family
from curvi.model.memory import draws_at_once
from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget
from curvi.record.plain import register

_STORED = 2**26  # bytes of scores up to which they are stored
MOST_AT_ONCE = 8  # draws of a chunk, which takes up to twenty vectors of the parameters for each
VECTORS_A_DRAW = 20
_PARTS = 8  # groups of draws for standard errors; two of four parts each are the halves of the curvature


@register
class ScoreRows(eqx.Module):
    """The scores of q at the draws of some keys, one row per draw; keys as numbers, like all that a state holds."""

    q: Family
    kind: str = eqx.field(static=True)

    def draws(self, numbers: Array):
        return jax.vmap(self.q.sample)(jax.random.wrap_key_data(numbers, impl=self.kind))

    def __call__(self, numbers: Array):
        return jax.vmap(self.q.score)(self.draws(numbers))


def made(target: AbstractTarget, q: Family, num_draws: int) -> bool:
    """Whether the scores of so many independent draws are made rather than stored."""
    divides = num_draws % _PARTS == 0 and num_groups(num_draws) == _PARTS
    large = num_draws * q.num_params * q.params.dtype.itemsize > _STORED
    return large and divides and not target.minibatched


def keys_in_parts(target: AbstractTarget, q: Family, key, num_draws: int, at_once: int = MOST_AT_ONCE) -> Array:
    """The keys of the draws as numbers, in chunks as large as memory allows; an eighth of the draws is whole chunks."""
    eighth = num_draws // _PARTS
    most = draws_at_once(target, q.num_params, q.params.dtype.itemsize, at_once)
    chunk = next(size for size in range(min(most, eighth), 0, -1) if eighth % size == 0)
    key_draw, _ = jax.random.split(key)
    numbers = jax.random.key_data(jax.random.split(key_draw, num_draws))
    return numbers.reshape(-1, chunk, numbers.shape[-1])


def made_estimate(target: AbstractTarget, q: Family, key, num_draws: int, at_once: int = MOST_AT_ONCE) -> Estimated:
    """The local model by the anchored score from `num_draws` independent draws."""
    keys, density, fisher = keys_in_parts(target, q, key, num_draws, at_once), target.full(), q.fisher()
    each = over_draws(target, keys.shape[1])

    rows, zero = ScoreRows(q, str(jax.random.key_impl(key))), jnp.zeros_like(q.params)
    ratio = each(lambda x: q.log_joint(density, x) - q.log_prob(x))
    ratios = jax.lax.map(lambda part: ratio(rows.draws(part)), keys)
    weights = (ratios - ratios.mean()) / (num_draws - 1)

    def add(sums, part):
        slope, blocks = sums
        drawn, w = part
        x = rows.draws(drawn)
        more = BlockDiagonal(tuple(jnp.tensordot(w, b, axes=1) for b in jax.vmap(q.hessian)(x).blocks))
        return (slope + w @ jax.vmap(q.score)(x), blocks.add(more)), None

    def eighth(part):
        blank = zero, fisher.scale(0.0)
        return jax.lax.scan(add, blank, part)[0]

    split = lambda leaf: leaf.reshape(_PARTS, -1, *leaf.shape[1:])  # noqa: E731
    slopes, blocks = jax.lax.map(eighth, jax.tree.map(split, (keys, weights)))

    def curvature(first: int, last: int):
        share = _PARTS / (last - first)
        some = BlockDiagonal(tuple(share * block[first:last].sum(0) for block in blocks.blocks))
        taken = slice(first * len(keys) // _PARTS, last * len(keys) // _PARTS)
        return MadeLowRank(some.add(fisher.scale(-1.0)), rows, keys[taken], share * weights[taken])

    means = ratios.reshape(_PARTS, -1).mean(1)
    return LocalModel(
        ratios.mean(),
        jnp.sqrt(variance_of_mean(means)),
        slopes.sum(0),
        curvature(0, _PARTS),
        fisher,
        GroupNoise(_PARTS * slopes),
        ratios.reshape(-1),
        Counts(log_density=num_draws),
        (curvature(0, _PARTS // 2), curvature(_PARTS // 2, _PARTS)),
    )
