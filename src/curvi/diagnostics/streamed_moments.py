"""Means, sds and quantiles of a q with so many latents that its draws are not stored."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from curvi.diagnostics.on_draws import everything
from curvi.estimate.sampling import at_once
from curvi.estimate.strata import column_words, stratified_noise
from curvi.family import Family
from curvi.model import support as supports
from curvi.model.memory import device_bytes, words
from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget

NUM_DRAWS = 1024  # stratified: the error of a function of one latent falls like S^-3/2
_SEED = (0x6D6F6D65, 0x6E747300)


def streamed_mean_and_sd(target: AbstractTarget, q: Family) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean and sd by name, from stratified draws that are made where they are used."""
    pilot, sums, squares = _sums(target, q, min(at_once(target, q), 32))
    out = {}
    for name in pilot:
        first, second = (np.asarray(part[name], np.float64) / NUM_DRAWS for part in (sums, squares))
        out[name] = np.asarray(pilot[name], np.float64) + first, np.sqrt(np.maximum(second - first**2, 0.0))
    return out


@eqx.filter_jit
def _sums(target, q, chunk: int):
    """All quantities at the median of q, and the sums and squared sums of their differences from it."""
    words_of_columns = column_words(jnp.asarray(_SEED, jnp.uint32), jnp.arange(q.noise_size))

    def quantities(e):
        found = everything(target, q.to_model(q.from_uniform(ndtr(e)))[0])
        return {name: jnp.asarray(value, q.params.dtype) for name, value in found.items()}

    pilot = quantities(jnp.zeros(q.noise_size, q.params.dtype))
    each = over_draws(target.outputs, chunk)

    def add(index, sums):
        draws = (index * chunk + jnp.arange(chunk)).astype(jnp.uint32)
        found = each(quantities)(stratified_noise(words_of_columns, draws, NUM_DRAWS, q.params.dtype))
        away = jax.tree.map(jnp.subtract, found, {name: value[None] for name, value in pilot.items()})
        more = jax.tree.map(lambda x: x.sum(0), away), jax.tree.map(lambda x: (x**2).sum(0), away)
        return jax.tree.map(jnp.add, sums, more)

    zero = jax.tree.map(jnp.zeros_like, pilot)
    return pilot, *jax.lax.fori_loop(0, NUM_DRAWS // chunk, add, (zero, zero))


def streamed_quantiles(target: AbstractTarget, q: Family, wanted: np.ndarray) -> dict[str, np.ndarray]:
    """Quantiles by name, with a first axis for the probabilities.

    Where the map to the support is one for each element, it is monotone in the uniform number behind it, and a quantile
    is its value. Other latents and outputs have quantiles of their draws alone, where these can be stored.
    """
    simple = {latent.name for latent in q.latents if supports.bounds(latent.support) is not None}
    at = [_at_uniform(target, q, p) for p in wanted]
    other = [_at_uniform(target, q, 1 - p) for p in wanted]
    out = {}
    for name in at[0]:
        if name in simple:
            low, high = (np.stack([np.asarray(found[name]) for found in both]) for both in (at, other))
            rising = np.where(wanted < 0.5, 1, -1).reshape(-1, *[1] * (low.ndim - 1)) * (high - low) >= 0
            out[name] = np.where(rising, low, high)
        else:
            size = int(np.prod(at[0][name].shape)) * NUM_DRAWS * q.params.dtype.itemsize
            if size > device_bytes() / 16:
                raise ValueError(
                    f"quantiles of {name} need {NUM_DRAWS:,} stored draws of it, {words(size)}; "
                    "fit.sample and fit.mean give less, or name it in outputs by a summary of its own"
                )
            out[name] = np.quantile(_draws_of(target, q, name, min(at_once(target, q), 32)), wanted, axis=0)
    return out


@eqx.filter_jit
def _at_uniform(target, q, p):
    found = everything(target, q.to_model(q.from_uniform(jnp.full(q.noise_size, p, q.params.dtype)))[0])
    return found


@eqx.filter_jit
def _draws_of(target, q, name: str, chunk: int):
    words_of_columns = column_words(jnp.asarray(_SEED, jnp.uint32), jnp.arange(q.noise_size))

    def part(index):
        draws = (index * chunk + jnp.arange(chunk)).astype(jnp.uint32)
        noise = stratified_noise(words_of_columns, draws, NUM_DRAWS, q.params.dtype)
        return over_draws(target.outputs, chunk)(
            lambda e: everything(target, q.to_model(q.from_uniform(ndtr(e)))[0])[name]
        )(noise)

    found = jax.lax.map(part, jnp.arange(NUM_DRAWS // chunk))
    return found.reshape(NUM_DRAWS, *found.shape[2:])
