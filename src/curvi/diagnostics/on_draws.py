"""Compiled averages over fixed noise for the curvature of the ELBO: rows of Hessians, products, rows of Jacobians.

All take a target and a q, split into structure and arrays (`split_structure`), coordinates c of the family's path
(`curvi.family.path`) and noise in chunks (chunks, draws, n), with one key per chunk for the batch of a minibatched
target. Directions share the evaluation of the model at each draw.
"""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from curvi.estimate.fixed_draws.sweep import program
from curvi.model.over_draws import over_draws
from curvi.record.packed import combine


def _log_joint(density):
    return lambda q, x: q.log_joint(density, x)


def _scan(add, zero, noise, keys):
    """The mean of `add(noise, key)` over the chunks."""
    total = jax.lax.scan(lambda sums, part: (jax.tree.map(jnp.add, sums, add(*part)), None), zero, (noise, keys))[0]
    return jax.tree.map(lambda leaf: leaf / noise.shape[0], total)


@program(0)
def gradient(structure, arrays, noise, keys, c):
    """The gradient of E_q[ln p] in c."""
    target, q = combine(structure, arrays)
    each = over_draws(target, noise.shape[1])

    def add(part, key):
        return q.path.gradients(q, _log_joint(target.batch(key)), c, part, each)[1]

    return _scan(add, jnp.zeros_like(c), noise, keys)


@program(0)
def products(structure, arrays, noise, keys, c, alongs):
    """The derivatives of `gradient` along each row of `alongs`."""
    target, q = combine(structure, arrays)
    each = over_draws(target, noise.shape[1])
    rows = over_draws(target, noise.shape[1] * len(alongs))

    def add(part, key):
        log_joint = _log_joint(target.batch(key))
        return rows(lambda along: q.path.products(q, log_joint, c, along, part, each)[0])(alongs)

    return _scan(add, jnp.zeros_like(alongs), noise, keys)


@program(0)
def entropy_products(structure, arrays, steps):
    """Products of the Hessian of q's entropy in the parameters with each step."""
    _, q = combine(structure, arrays)
    slope = jax.grad(lambda params: q.replace(params).entropy())
    return jax.vmap(lambda step: jax.jvp(slope, (q.params,), (step,))[1])(steps)


@program(0)
def hessian_rows(structure, arrays, noise, keys, c, index):
    """Rows h_j of the Hessian of ln p in x for a path of means and scales: the means over the draws of h_ji, of
    h_ji e_j, and of h_ji e_j e_i, for j in `index`.
    """
    target, q = combine(structure, arrays)
    each = over_draws(target, noise.shape[1])
    rows = over_draws(target, noise.shape[1] * len(index))
    alongs = jnp.zeros((len(index), c.size), c.dtype).at[jnp.arange(len(index)), index].set(1.0)

    def add(part, key):
        log_joint = _log_joint(target.batch(key))
        found = rows(lambda along: q.path.products(q, log_joint, c, along, part, each)[1])(alongs)
        own = found * part[:, index].T[:, :, None]
        return found.mean(1), own.mean(1), (own * part).mean(1)

    zero = jnp.zeros((len(index), noise.shape[2]), c.dtype)
    return _scan(add, (zero, zero, zero), noise, keys)


@program(0, 1)
def mean_rows(structure, own: bool, arrays, noise, c, index):
    """Derivatives in c of the means of elements of latents and outputs, by name in alphabetical order; if `own`, of
    the draw's own coordinates.
    """
    target, q = combine(structure, arrays)

    def element(x, i):
        return _flat(target, q, x, own)[i]

    each = over_draws(target.outputs, len(noise))
    rows = over_draws(target.outputs, len(noise) * len(index))
    return rows(lambda i: q.path.gradients(q, lambda q, x: element(x, i), c, noise, each)[1])(index)


def _flat(target, q, x, own: bool):
    if own:
        return ravel_pytree(x)[0]
    found = everything(target, q.to_model(x)[0])
    # In the order in which JAX returns dicts.
    return jnp.concatenate([jnp.ravel(found[name]).astype(q.params.dtype) for name in sorted(found)])


def everything(target, theta):
    """Latents and outputs by name."""
    return theta if target.outputs is None else {**theta, **target.outputs(theta)}
