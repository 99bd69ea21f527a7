"""The draws of a family as vectors of unconstrained real numbers, for what works on all latents at once."""

import math
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro.distributions import biject_to

from curvi.family.layout import Layout

if TYPE_CHECKING:
    from curvi.family.base import Family

_NUM_DRAWS = 4096  # sds are right within 1.1 %


def join_leaves(x) -> Float[Array, " d"]:
    """The leaves of a draw, one after the other."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(x)])


def split_leaves(v: Float[Array, " d"], like):
    """The draw with the shapes of `like` whose leaves `join_leaves` joins to v."""
    leaves, tree = jax.tree.flatten(like)
    ends = [0]
    for leaf in leaves:
        ends.append(ends[-1] + leaf.size)
    parts = [v[a:b].reshape(leaf.shape) for a, b, leaf in zip(ends, ends[1:], leaves)]
    return jax.tree.unflatten(tree, parts)


@eqx.filter_jit
def sampled_moments(q: "Family", independent: bool = False):
    """Mean and covariance, or variances, of the vectors of 4,096 fixed draws: where there is no closed form."""
    keys = jax.random.split(jax.random.key(0), _NUM_DRAWS)
    vectors = jax.vmap(lambda key: q.to_vector(q.sample(key)))(keys)
    mean = vectors.mean(0)
    away = vectors - mean
    return mean, (jnp.sum(away**2, 0) if independent else away.T @ away) / (_NUM_DRAWS - 1)


def join_slots(layout: Layout, x) -> Float[Array, " d"]:
    """A draw of independent factors as a vector, latent after latent: a factor that stands on the model's own support
    goes through the inverse of its bijection.
    """
    parts = []
    for slot in layout.slots:
        part = x[slot.group][slot.start : slot.start + slot.count]
        if not layout.factor_of(slot).real_line:
            part = biject_to(slot.latent.support).inv(part.reshape(slot.latent.shape))
        parts.append(jnp.ravel(part))
    return jnp.concatenate(parts)


def split_slots(layout: Layout, v: Float[Array, " d"]) -> tuple[tuple[Array, ...], Float[Array, ""]]:
    """The inverse of `join_slots`, and the log Jacobian of the bijections in it."""
    groups: list[list[Array]] = [[] for _ in layout.factors]
    log_det, begin = jnp.zeros((), v.dtype), 0
    for slot in layout.slots:
        factor, transform = layout.factor_of(slot), biject_to(slot.latent.support)
        shape = transform.inverse_shape(slot.latent.shape)
        end = begin + (slot.count if factor.real_line else math.prod(shape))
        part, begin = v[begin:end], end
        if not factor.real_line:
            value = transform(part.reshape(shape))
            # Some of numpyro's bijections return JAX's default floating-point type.
            log_det = log_det + jnp.sum(transform.log_abs_det_jacobian(part.reshape(shape), value)).astype(v.dtype)
            part = value.reshape(-1, *factor.event_shape).astype(v.dtype)
        groups[slot.group].append(part)
    return tuple(jnp.concatenate(parts) for parts in groups), log_det
