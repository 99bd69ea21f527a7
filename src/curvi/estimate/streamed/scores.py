"""The score gradient on a design of stratified draws whose values are known: no evaluation of the model."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi.estimate.strata import column_words, part_seed, stratified_noise


class Scores(NamedTuple):
    """The score gradient (whitened: means, then log scales) with the variance of its mean; and the same along the
    direction that widens all sds alike, which one number a draw tells.
    """

    gradient: Float[Array, " P"]
    variance: Float[Array, " P"]
    wider: Float[Array, ""]
    wider_variance: Float[Array, ""]


@eqx.filter_jit
def scores(seed, values: Float[Array, "K m"], num_draws, size: int, chunk: int) -> Scores:
    """E[(r - b) s], r = ln p - ln q and b its mean, at draws with these values of ln p: the first `num_draws` of each
    row, whose number may change without compiling again.

    Draws of a hypercube are spread more evenly than independent ones, whose variance is the larger.
    """
    num_parts, most = values.shape
    dtype, drawn = values.dtype, jnp.arange(most) < num_draws
    total = num_parts * jnp.asarray(num_draws, dtype)

    def over(one, start):
        """Sums over all draws: `one(sums, noise, part, first draw)`, chunk by chunk."""

        def part(index, sums):
            words = column_words(part_seed(seed, index), jnp.arange(size))

            def add(step, sums):
                draws = (step * chunk + jnp.arange(chunk)).astype(jnp.uint32)
                place = jnp.int32(index), jnp.int32(step * chunk)
                return one(sums, stratified_noise(words, draws, num_draws, dtype), *place)

            return jax.lax.fori_loop(0, num_draws // chunk, add, sums)

        return jax.lax.fori_loop(0, num_parts, part, start)

    def square(sums, noise, part, first):
        return jax.lax.dynamic_update_slice(sums, jnp.sum(noise**2, -1)[None], (part, first))

    squares = over(square, jnp.zeros_like(values))
    ratios = values + squares / 2
    ratios = jnp.where(drawn, ratios - jnp.where(drawn, ratios, 0).sum() / total, 0)

    def add(sums, noise, part, first):
        r = jax.lax.dynamic_slice(ratios, (part, first), (1, chunk))[0]
        terms = (r[:, None] * noise, r[:, None] * (noise**2 - 1) * 2**-0.5)
        return tuple((s + t.sum(0), s2 + (t**2).sum(0)) for (s, s2), t in zip(sums, terms))

    zero = jnp.zeros(size, dtype)
    sums = over(add, ((zero, zero), (zero, zero)))
    gradient = jnp.concatenate([s for s, _ in sums]) / total
    variance = (jnp.concatenate([s2 for _, s2 in sums]) / total - gradient**2) / total
    terms = ratios * (squares - size) * (2 * size) ** -0.5  # zero beyond the draws
    wider = terms.sum() / total
    return Scores(gradient, variance, wider, jnp.sum(jnp.where(drawn, terms - wider, 0) ** 2) / total**2)
