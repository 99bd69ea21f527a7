"""Stratified normal noise computed from counters: never stored, any slice made where it is needed.

The noise of coordinate i in draw k of a design of S = 2^m draws is a normal quantile of

    u = (x + v) / S,    x = a keyed bijection of k,    v = a uniform jitter inside the stratum,

a Latin hypercube. The bijection consists of rounds of x = (a x + c) mod S; x ^= x >> ceil(m / 2), with odd a and any c
hashed from the seed, the coordinate and the round. One round is a rank-1 lattice: a pair of coordinates then has one of
S^2 / 2 joint patterns, many of them far from independent; with four rounds the correlations of pairs are those of
random permutations. Without jitter every coordinate has the same midpoints, which bias E[exp e] in all of them alike;
with it each draw is exactly standard normal.

Draws of a design depend on one another: standard errors come from independent designs with other seeds.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from curvi.estimate.draws import Draws
from curvi.family import Family
from curvi.record.plain import register

ROUNDS = 4
MAX_DRAWS = 2**16  # of a design: multipliers and offsets of the bijection have 16 bits
_GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio: consecutive multiples spread evenly


def mix(h: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A bijective hash of 32 bits ("lowbias32", Wellons 2018)."""
    h = (h ^ (h >> 16)) * jnp.uint32(0x7FEB352D)
    h = (h ^ (h >> 15)) * jnp.uint32(0x846CA68B)
    return h ^ (h >> 16)


def seed_of(key: PRNGKeyArray) -> UInt32[Array, " 2"]:
    """The two words that seed a design."""
    return jax.random.bits(key, (2,), jnp.uint32)


def part_seed(seed: UInt32[Array, " 2"], part) -> UInt32[Array, " 2"]:
    """The seed of one of several independent designs."""
    return mix(mix(seed + jnp.uint32(part) * jnp.uint32(_GOLDEN)) + seed[::-1])


def column_words(seed: UInt32[Array, " 2"], coordinates: Int[Array, " n"]) -> UInt32[Array, "rounds n"]:
    """What the noise of each coordinate is made from: made once, small, and the same for all its draws."""
    first = mix(jnp.asarray(coordinates, jnp.uint32) ^ seed[0])
    return jnp.stack([mix(first + seed[1] + jnp.uint32(r * _GOLDEN % 2**32)) for r in range(ROUNDS)])


def strata(words: UInt32[Array, "rounds n"], draws: UInt32[Array, " k"], num_draws) -> UInt32[Array, "k n"]:
    """The stratum of each coordinate in each draw, a bijection of the `num_draws` indices of a design."""
    last = jnp.asarray(num_draws, jnp.uint32) - 1
    half = (jax.lax.population_count(last) + 1) // 2
    x = draws[:, None]
    for word in words:
        x = ((((word >> 16) | 1) * x) + (word & 0xFFFF)) & last
        x = x ^ (x >> half)
    return x


def stratified_noise(
    words: UInt32[Array, "rounds n"], draws: UInt32[Array, " k"], num_draws, dtype, jitter: bool = True
) -> Float[Array, "k n"]:
    """The noise of these draws of a design of `num_draws`, a power of two; to single precision in any dtype."""
    draws = jnp.asarray(draws, jnp.uint32)
    x = strata(words, draws, num_draws)
    last = jnp.asarray(num_draws, jnp.uint32) - 1
    # Mirrored into the lower half, where a floating-point number resolves the tail.
    low = jnp.minimum(x, last - x)
    inside = jnp.float32(0.5)
    if jitter:
        bits = mix(words[0] + mix(draws + jnp.uint32(_GOLDEN))[:, None]) >> 8
        inside = (bits.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-24)
    u = (low.astype(jnp.float32) + inside) / jnp.asarray(num_draws, jnp.float32)
    e = lower_quantile(u)
    return jnp.where(x == low, e, -e).astype(dtype)


def lower_quantile(u: Float[Array, "..."]) -> Float[Array, "..."]:
    """The standard normal quantile of u <= 1/2 in single precision (Giles 2012; exact in u, unlike its erfinv)."""
    w = -jnp.log(4 * u * (1 - u))
    centre = jnp.polyval(jnp.asarray(_CENTRE, jnp.float32), w - 2.5, unroll=len(_CENTRE))
    tail = jnp.polyval(jnp.asarray(_TAIL, jnp.float32), jnp.sqrt(jnp.maximum(w, 0)) - 3, unroll=len(_TAIL))
    return -math.sqrt(2) * (1 - 2 * u) * jnp.where(w < 5, centre, tail)


_CENTRE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087)
_CENTRE += (-0.00125372503, -0.00417768164, 0.246640727, 1.50140941)
_TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773)
_TAIL += (-0.0076224613, 0.00943887047, 1.00167406, 2.83297682)


@register
class Stratified(Draws):
    """Latin hypercubes computed from counters, in `num_designs` independent designs.

    Parameters
    ----------
    num_designs
        Independent designs that the draws are divided into: each must have a power of two of them.
    jitter
        Whether draws lie anywhere in their strata. Midpoints have less noise but are biased.
    """

    num_designs: int = eqx.field(static=True, default=4)
    jitter: bool = eqx.field(static=True, default=True)

    def noise(self, q: Family, key, num_draws):
        return self.at(key, jnp.arange(num_draws), jnp.arange(q.noise_size), num_draws, q.params.dtype)

    def at(self, key, draws, coordinates, num_draws: int, dtype) -> Float[Array, "k n"]:
        """The noise of some draws at some coordinates alone: the same numbers as in the whole of `noise`."""
        size, seed = num_draws // self.num_designs, seed_of(key)

        def one(draw):
            words = column_words(part_seed(seed, draw // size), coordinates)
            return stratified_noise(words, jnp.asarray([draw % size]), size, dtype, self.jitter)[0]

        return jax.vmap(one)(jnp.asarray(draws, jnp.uint32))

    def sample(self, q, key, num_draws):
        return jax.vmap(q.from_uniform)(ndtr(self.noise(q, key, num_draws)))

    def unit(self, q, num_draws):
        return max(1, num_draws // self.num_designs)

    def check(self, q, num_draws):
        size, rest = divmod(num_draws, self.num_designs)
        if rest or size < 1 or size & (size - 1) or size > MAX_DRAWS:
            raise ValueError(
                f"Stratified draws come in {self.num_designs} designs of a power of two of draws each, at most "
                f"{MAX_DRAWS:,}; got num_draws = {num_draws}"
            )
        super().check(q, num_draws)
