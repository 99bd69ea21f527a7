"""Fixed noise for a deterministic objective: scrambled Sobol points, mirrored, and matched to the normal's second
moments; on the host and in the buffer of the programs.

Antithetic mirroring makes every odd sample moment exactly zero. Where there are at least as many pairs as dimensions,
the noise is also whitened, so that its second moments are exactly those of the standard normal: the sample average
then integrates every quadratic exactly, which is the second-order control variate (Miller, Foti, D'Amour and Adams
2017) for every expansion point at once and at no cost. With fewer pairs, each coordinate is scaled to unit second
moment. Whitening changes fourth moments by a relative 2 / pairs, below their sampling noise.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh
from scipy.special import ndtri

from curvi.estimate.draws import SOBOL_DIMENSIONS, sobol_net
from curvi.estimate.fixed_draws.expansion import Excess
from curvi.estimate.fixed_draws.groups import CHUNK, ONE_GROUP, Groups
from curvi.estimate.fixed_draws.sweep import LEAST_PARTS, MOST_PARTS, Buffer
from curvi.family.matching import matched_columns
from curvi.model.minibatch import MinibatchTarget
from curvi.model.placement import Placement, on_host
from curvi.model.target import AbstractTarget


@dataclasses.dataclass(frozen=True)
class FixedNoise:
    """Fixed noise in independent parts of equal size."""

    values: np.ndarray  # (draws, dimension)
    num_parts: int
    buffer: Buffer
    excess: Excess | None  # the control variate; None without one

    @property
    def num_draws(self) -> int:
        return len(self.values)

    @property
    def num_chunks(self) -> int:
        return -(-len(self.values) // CHUNK)

    def parts(self, num_parts: int) -> np.ndarray:
        return self.values.reshape(num_parts, -1, self.values.shape[-1])


class NoiseSource:
    """Makes the noise of a fit; each stream is seeded by the words of the key and the stream's own numbers.

    Random numbers come from numpy: every JAX operation outside a program would cost a compilation.
    """

    def __init__(
        self,
        target: AbstractTarget,
        key,
        capacity: int,
        matched: np.ndarray,
        dtype,
        needs_before: bool,
        match=None,
        groups: Groups = ONE_GROUP,
    ):
        self.groups = groups
        self.match = matched_columns if match is None else match
        self.words = np.asarray(jax.random.key_data(key)).astype(np.uint32)
        self.target, self.matched, self.dtype, self.needs_before = target, matched, dtype, needs_before
        self.dimension = len(matched)
        self.size = capacity // CHUNK  # of the buffer, in chunks
        self.epoch = epoch_draws(target)

    def generator(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng([*self.words, *stream])

    def draw(
        self,
        before: np.ndarray,
        stream: tuple[int, ...],
        num_draws: int,
        num_parts: int = 2,
        match: bool = True,
        excess: Callable[[np.ndarray], Excess] | None = None,
    ) -> FixedNoise:
        """Fresh noise of `num_draws` draws; the same stream gives the same noise.

        Factors that are not reparameterised are drawn at the parameters `before`. `excess` makes the control variate
        of the noise.

        With minibatches, each chunk has independent matched noise: the moments match within every batch, and models
        whose rows are quadratic have no noise.
        """
        rng = self.generator(*stream)
        independent = num_draws // CHUNK if self.epoch else num_parts
        values = matched_noise(rng, num_draws, self.dimension, independent, match & self.matched, self.match)
        return self.fixed(before, values, min(num_parts, MOST_PARTS), rng, excess)

    def fixed(self, before, values: np.ndarray, num_parts: int, rng=None, excess=None) -> FixedNoise:
        """This noise in a buffer."""
        size, num_chunks = self.size, -(-len(values) // CHUNK)
        buffer = np.zeros((size * CHUNK, self.dimension), self.dtype)
        buffer[: len(values)] = values
        mesh = self.groups.mesh
        put = jax.device_put if mesh is None else Placement(mesh).put
        part, count = _plan(size, num_chunks, num_parts, mesh)
        rows, nowhere = _nothing(size, mesh)
        before = put(before.astype(self.dtype)) if self.needs_before else nowhere
        if isinstance(self.target, MinibatchTarget):
            rng = self.generator() if rng is None else rng
            rows = put(self._rows_of_chunks(self.target, on_host(part)[:num_chunks], rng))
        # Moved to the device in advance: a transfer at each call would cost some microseconds.
        chunks = buffer.reshape(size, CHUNK, -1)
        chunks = put(chunks) if mesh is None else self.groups.of_noise(chunks)
        device = Buffer(chunks, part, count, rows, before)
        return FixedNoise(values, num_parts, device, None if excess is None else excess(values))

    def _rows_of_chunks(self, target: MinibatchTarget, part: np.ndarray, rng) -> np.ndarray:
        """Rows of the batch of each chunk.

        Within a part of the noise, batches run through random permutations of all rows, one after the other: a part of
        one epoch or more uses all rows about equally often, which removes almost all batch noise.
        """
        num_rows, batch_size = target.num_rows, target.batch_size
        rows = np.zeros((self.size, batch_size), np.int32)
        for index in np.unique(part):
            chunks = np.flatnonzero(part == index)
            orders = -(-len(chunks) * batch_size // num_rows)
            stream = np.concatenate([rng.permutation(num_rows) for _ in range(orders)])
            rows[chunks] = stream[: len(chunks) * batch_size].reshape(len(chunks), batch_size)
        return rows


@functools.lru_cache(maxsize=64)
def _plan(size: int, num_chunks: int, num_parts: int, mesh: Mesh | None) -> tuple[jax.Array, jax.Array]:
    """The part of the noise that each chunk of a buffer belongs to, and the number of chunks in use; on the device."""
    part = np.minimum(np.arange(size) * num_parts // max(num_chunks, 1), num_parts - 1).astype(np.int32)
    return _put((part, np.int32(num_chunks)), mesh)


@functools.lru_cache(maxsize=8)
def _nothing(size: int, mesh: Mesh | None) -> tuple[jax.Array, jax.Array]:
    """Placeholders for rows without minibatches, and for earlier parameters where all factors are reparameterised."""
    return _put((np.zeros((size, 0), np.int32), np.zeros(0)), mesh)


def _put(arrays, mesh: Mesh | None):
    return jax.device_put(arrays) if mesh is None else Placement(mesh).put_all(arrays)


def epoch_draws(target: AbstractTarget) -> int:
    """Number of draws in the chunks of one epoch (one batch per chunk); 0 where every draw uses all rows."""
    return CHUNK * -(-target.num_rows // target.batch_size) if isinstance(target, MinibatchTarget) else 0


_FEWEST, _LARGEST_MATCHED = 256, 512  # draws of a first correction; dimensions up to which its parts are matched


def correction_draws(dimension: int) -> int:
    """The number of draws of a first correction: parts with as many pairs as dimensions where that is affordable."""
    if dimension <= CHUNK // 2:
        return 2 * CHUNK
    if dimension > _LARGEST_MATCHED:
        return _FEWEST
    return max(_FEWEST, LEAST_PARTS * CHUNK * math.ceil(2 * dimension / CHUNK))


# -- the design -------------------------------------------------------------------------------------------------------


def matched_noise(
    rng,
    num_draws: int,
    dimension: int,
    num_scrambles: int = 2,
    match: bool | np.ndarray = True,
    by: Callable[[np.ndarray], np.ndarray] = matched_columns,
) -> np.ndarray:
    """Standard normal noise (num_draws, dimension), float64, made of `num_scrambles` independent parts of equal size.

    `match` says which columns have matched moments, and `by` matches them in one of each mirrored pair. If none has,
    the pairs are independent: error estimates from quasi-random points are often too small for heavy-tailed integrands.

    `rng` is a numpy generator: the noise is made on the host, once per round, and passed to a compiled program.
    """
    size, odd = divmod(num_draws, 2 * num_scrambles)
    if odd or not size:
        raise ValueError(f"num_draws must be a multiple of {2 * num_scrambles}; got {num_draws}")
    columns = np.broadcast_to(match, dimension)
    return np.concatenate([_part(rng, size, dimension, columns, by) for _ in range(num_scrambles)])


def _part(rng, num_pairs: int, dimension: int, columns: np.ndarray, by) -> np.ndarray:
    if not columns.any():
        half = rng.standard_normal((num_pairs, dimension))
    else:
        half = _normal_points(rng, num_pairs, dimension)
        half[:, columns] = by(half[:, columns])
    return np.stack([half, -half], 1).reshape(-1, dimension)


def _normal_points(rng, num_points: int, dimension: int) -> np.ndarray:
    if dimension > SOBOL_DIMENSIONS:
        return rng.standard_normal((num_points, dimension))
    # One scrambled net with digital shifts: independent scrambles would take longer than small fits.
    shift = rng.integers(2**32, size=dimension, dtype=np.uint32)
    # Use cell centres: the grid of 2^-32 contains zero.
    return ndtri(((sobol_net(num_points, dimension) ^ shift) + 0.5) * 2.0**-32)
