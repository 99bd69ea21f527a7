"""Draws from q: independent, antithetic, or scrambled Sobol points.

Dependent draws cover the space better, but a leave-one-out baseline is unbiased only if the draws it averages are
independent of the draw it is used for. `unit` is the number of consecutive draws that depend on one another; a unit is
left out as a whole.
"""

import functools
import math
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its statistics are imported where they are first used: they take as long as all of curvi
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, PRNGKeyArray

from curvi.family import Family
from curvi.family.base import DrawT
from curvi.record.plain import register

SOBOL_DIMENSIONS = 21_201  # SciPy's direction numbers (Joe and Kuo, 2008) end here


class Draws(eqx.Module):
    """A method to draw `num_draws` points from q, in working coordinates, along a leading axis."""

    @abstractmethod
    def sample(self, q: Family[DrawT], key: PRNGKeyArray, num_draws: int) -> DrawT:
        """The draws."""

    @abstractmethod
    def noise(self, q: Family, key: PRNGKeyArray, num_draws: int) -> Float[Array, "S n"]:
        """Standard normal noise for reparameterised draws, one row per draw."""

    @abstractmethod
    def unit(self, q: Family, num_draws: int) -> int:
        """How many consecutive draws form one independent unit."""

    def check(self, q: Family, num_draws: int) -> None:
        if num_draws < 1:
            raise ValueError(f"num_draws must be at least 1; got {num_draws}")
        if num_draws % (unit := self.unit(q, num_draws)) != 0:
            raise ValueError(
                f"{type(self).__name__} draws come in units of {unit}; num_draws = {num_draws} is not a multiple"
            )


@register
class Independent(Draws):
    """Independent draws."""

    def sample(self, q, key, num_draws):
        return jax.vmap(q.sample)(jax.random.split(key, num_draws))

    def noise(self, q, key, num_draws):
        return jax.random.normal(key, (num_draws, q.noise_size), q.params.dtype)

    def unit(self, q, num_draws):
        return 1


@register
class Antithetic(Draws):
    """Pairs (u, 1 - u) of uniform points: for a normal factor, noise of both signs."""

    def sample(self, q, key, num_draws):
        u = bits_to_unit(jax.random.bits(key, (num_draws // 2, q.noise_size), jnp.uint32), q.params.dtype)
        pairs = jnp.stack([u, 1 - u], 1).reshape(-1, q.noise_size)
        return jax.vmap(q.from_uniform)(pairs)

    def noise(self, q, key, num_draws):
        half = jax.random.normal(key, (num_draws // 2, q.noise_size), q.params.dtype)
        return jnp.stack([half, -half], 1).reshape(-1, q.noise_size)

    def unit(self, q, num_draws):
        return 2


@register
class Sobol(Draws):
    """Scrambled Sobol points in `num_scrambles` independent scrambles; beyond 21,201 dimensions, antithetic pairs.

    The net is scrambled once by SciPy (random linear matrices) and shifted digitally by the key, independently for
    each scramble: given the net, every point is uniform and different scrambles are independent, at the cost of one
    exclusive-or.
    """

    num_scrambles: int = eqx.field(static=True, default=4)

    def sample(self, q, key, num_draws):
        if q.noise_size > SOBOL_DIMENSIONS:
            return Antithetic().sample(q, key, num_draws)
        return jax.vmap(q.from_uniform)(self._points(q.noise_size, key, num_draws, q.params.dtype))

    def noise(self, q, key, num_draws):
        if q.noise_size > SOBOL_DIMENSIONS:
            return Antithetic().noise(q, key, num_draws)
        return ndtri(self._points(q.noise_size, key, num_draws, q.params.dtype))

    def _points(self, dimension, key, num_draws, dtype):
        net = jnp.asarray(sobol_net(num_draws // self.num_scrambles, dimension))
        shifts = jax.random.bits(key, (self.num_scrambles, 1, dimension), jnp.uint32)
        return bits_to_unit((net[None] ^ shifts).reshape(-1, dimension), dtype)

    def unit(self, q, num_draws):
        return 2 if q.noise_size > SOBOL_DIMENSIONS else max(1, num_draws // self.num_scrambles)

    def check(self, q, num_draws):
        if num_draws % self.num_scrambles != 0:
            raise ValueError(f"num_draws = {num_draws} must be a multiple of num_scrambles = {self.num_scrambles}")
        super().check(q, num_draws)


@functools.lru_cache(maxsize=8)
def sobol_net(num_points: int, dimension: int, seed: int = 0) -> np.ndarray:
    """A scrambled Sobol net as 32-bit integers, (num_points, dimension)."""
    engine = scipy.stats.qmc.Sobol(dimension, scramble=True, bits=32, rng=np.random.default_rng(seed))
    # Drawn up to the next power of two, where the net is balanced, and truncated.
    return _to_bits(engine.random(2 ** math.ceil(math.log2(max(num_points, 1))))[:num_points])


def latin_hypercube(seed, num_points: int, dimension: int) -> np.ndarray:
    """Uniform points as 32-bit integers, (num_points, dimension), one in each slice of each axis."""
    return _to_bits(scipy.stats.qmc.LatinHypercube(dimension, rng=np.random.default_rng(seed)).random(num_points))


def _to_bits(points) -> np.ndarray:
    return np.floor(points * 2.0**32).astype(np.uint64).astype(np.uint32)


def bits_to_unit(bits, dtype):
    """Uniform numbers in the open unit interval. Single precision keeps 23 bits, centred, which excludes both
    ends.
    """
    if jnp.finfo(dtype).bits >= 64:
        return (bits.astype(dtype) + 0.5) * 2.0**-32
    return ((bits >> 9).astype(dtype) + 0.5) * 2.0**-23
