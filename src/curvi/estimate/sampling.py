"""Compiled draws of q on the model's supports, with their densities."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.family import Family
from curvi.model.over_draws import map_draws, over_draws
from curvi.model.target import AbstractTarget

FINAL_DRAWS = 4096  # draws for the ELBO of a fit
_CHUNK = 256


@eqx.filter_jit
def sample(target, q, keys):
    """The draw of each key by name, with the model's outputs."""
    return to_outputs(target, q, jax.vmap(q.sample)(keys))


@eqx.filter_jit
def to_outputs(target, q, draws):
    """Draws in working coordinates as latents and outputs by name."""

    def one(x):
        theta, _ = q.to_model(x)
        return theta if target.outputs is None else {**theta, **target.outputs(theta)}

    return over_draws(target.outputs, len(jax.tree.leaves(draws)[0]))(one)(draws)


def log_ratios(target: AbstractTarget, q: Family, key, num_draws: int) -> jax.Array:
    """ln p - ln q of `num_draws` independent draws on the full data, in chunks so that memory does not grow with
    their number.
    """
    if target.black_box:
        return _host_log_ratios(target, q, jax.random.split(key, num_draws))
    chunks = -(-num_draws // _CHUNK)
    return _log_ratio_chunks(target, q, jax.random.split(key, chunks * _CHUNK).reshape(chunks, _CHUNK))[:num_draws]


def _host_log_ratios(target, q, keys) -> jax.Array:
    theta, log_det, log_q = _host_inputs(q, keys)
    return jnp.asarray(_host_values(target, theta)) + log_det - log_q


def _host_values(target, theta) -> np.ndarray:
    """ln p of a black box at a batch of draws."""
    try:
        return target.caller({name: np.asarray(rows) for name, rows in theta.items()})
    finally:
        target.caller.close()


@eqx.filter_jit
def _host_inputs(q, keys):
    def one(key):
        x = q.sample(key)
        return *q.to_model(x), q.log_prob(x)

    return jax.vmap(one)(keys)


@eqx.filter_jit
def _log_ratio_chunks(target, q, keys):
    density = target.full()

    def one(key):
        x = q.sample(key)
        return q.log_joint(density, x) - q.log_prob(x)

    return jax.lax.map(over_draws(target, _CHUNK)(one), keys).reshape(-1)


def densities(target, q, keys):
    """ln p and ln q of the draws of these keys, on the model's supports, one chunk after the other."""
    if target.black_box:
        theta, log_det, log_q = _host_inputs(q, keys)
        return jnp.asarray(_host_values(target, theta)), log_q - log_det
    return _densities(target, q, keys)


@eqx.filter_jit
def _densities(target, q, keys):
    density = target.full()

    def one(key):
        x = q.sample(key)
        theta, log_det = q.to_model(x)
        return density(theta), q.log_prob(x) - log_det

    return map_draws(target, one, keys, _CHUNK)
