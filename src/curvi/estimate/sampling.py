"""Compiled draws of q on the model's supports, with their densities."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.family import Family
from curvi.model.memory import draws_at_once
from curvi.model.over_draws import map_draws, over_draws
from curvi.model.target import AbstractTarget

FINAL_DRAWS = 4096  # draws for the ELBO of a fit
LARGE = 2**17  # numbers behind a draw from which a quarter of the draws serve
_CHUNK = 256


def final_draws(q: Family) -> int:
    """Draws for the ELBO of a fit, and for k-hat."""
    return FINAL_DRAWS if q.noise_size <= LARGE else FINAL_DRAWS // 4


def at_once(target: AbstractTarget, q: Family, memory: int | None = None) -> int:
    """Draws in a chunk: fewer than usual where they would take much of the memory."""
    return draws_at_once(target, q.noise_size, q.params.dtype.itemsize, _CHUNK, memory)


def sample(target, q, keys):
    """The draw of each key by name, with the model's outputs; in chunks, on the host, where they are large."""
    size = at_once(target, q)
    if size == _CHUNK or len(keys) <= size:
        return _sample(target, q, keys)
    out: dict[str, np.ndarray] = {}
    for begin in range(0, len(keys), size):
        part = keys[begin : begin + size]
        for name, draws in _sample(target, q, part).items():
            if begin == 0:
                out[name] = np.empty((len(keys), *draws.shape[1:]), draws.dtype)
            out[name][begin : begin + len(part)] = draws
    return out


@eqx.filter_jit
def _sample(target, q, keys):
    return to_outputs(target, q, jax.vmap(q.sample)(keys))


@eqx.filter_jit
def to_outputs(target, q, draws):
    """Draws in working coordinates as latents and outputs by name."""

    def one(x):
        theta, _ = q.to_model(x)
        return theta if target.outputs is None else {**theta, **target.outputs(theta)}

    return over_draws(target.outputs, len(jax.tree.leaves(draws)[0]))(one)(draws)


def log_ratios(target: AbstractTarget, q: Family, key, num_draws: int, memory: int | None = None) -> jax.Array:
    """ln p - ln q of `num_draws` independent draws on the full data, in chunks so that memory does not grow with
    their number.
    """
    return ratios_of_keys(target, q, jax.random.split(key, num_draws), memory)


def ratios_of_keys(target: AbstractTarget, q, keys, memory: int | None = None) -> jax.Array:
    """ln p - ln q at the draws of these keys."""
    if target.black_box:
        return _host_log_ratios(target, q, keys)
    count = len(keys)
    padded = keys[np.arange(-(-count // _CHUNK) * _CHUNK) % count]
    return _log_ratio_chunks(target, q, padded.reshape(-1, at_once(target, q, memory)))[:count]


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

    return jax.lax.map(over_draws(target, keys.shape[1])(one), keys).reshape(-1)


def densities(target, q, keys):
    """ln p and ln q of the draws of these keys, on the model's supports, one chunk after the other."""
    if target.black_box:
        theta, log_det, log_q = _host_inputs(q, keys)
        return jnp.asarray(_host_values(target, theta)), log_q - log_det
    return _densities(target, q, keys, at_once(target, q))


@eqx.filter_jit
def _densities(target, q, keys, chunk: int):
    density = target.full()

    def one(key):
        x = q.sample(key)
        theta, log_det = q.to_model(x)
        return density(theta), q.log_prob(x) - log_det

    return map_draws(target, one, keys, chunk)
