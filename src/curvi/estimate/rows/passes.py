"""Passes over all rows: sums of ln p and its gradient on a few draws, chunk by chunk.

The draws of a pass estimate only the *difference* between all rows and a sample of them in memory,

    E_q[ln p] = E_q[ln p_n] + E_q[ln p - ln p_n],      ln p_n: the sum over n rows times N / n,

the two-level form of multilevel Monte Carlo (Heinrich 2001; Giles 2008): the first term takes as many draws as it
wants, and the second hardly varies, since it is linear but for what n rows do not know of the curvature, and mirrored
draws average what is linear exactly. Both are summed relative to their rows at one reference point.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from curvi.estimate.fixed_draws.sweep import MOST_PARTS
from curvi.model.over_draws import over_draws
from curvi.model.row_sample import RowSample
from curvi.model.rows.reading import Chunk
from curvi.record.packed import combine
from curvi.record.plain import register
from curvi.record.pytree import pytree

DRAWS = 64  # of a pass
_LEAST_SPAN = 0.1  # of the largest singular value of moves: what is less is noise
_PAIRS = DRAWS // MOST_PARTS // 2  # of mirrored draws in each of its independent parts


@register
@pytree
class RowSums:
    """Sums over the rows that a pass has read so far, in double precision.

    Attributes
    ----------
    num_rows
        How many rows these are.
    values
        ln p of the rows less that at the reference, one number per draw: (parts, draws).
    slopes
        The gradient of its mean over the draws of each part, in the coordinates of the path.
    draw_slopes
        Its gradient in the latents, unconstrained, at each draw: (parts, draws, latents); zero where q has no location.
    constant
        ln p of the rows at the reference.
    fingerprint
        The sum of the bits of each column.
    """

    num_rows: int
    values: np.ndarray
    slopes: np.ndarray
    draw_slopes: np.ndarray
    constant: float
    fingerprint: np.ndarray

    @classmethod
    def none(cls, num_coordinates: int, num_columns: int, size: int) -> "RowSums":
        values = np.zeros((MOST_PARTS, 2 * _PAIRS))
        slopes, draw_slopes = np.zeros((MOST_PARTS, num_coordinates)), np.zeros((*values.shape, size))
        return cls(0, values, slopes, draw_slopes, 0.0, np.zeros(num_columns, np.uint64))

    def plus(self, num_rows: int, found: "ChunkSums", fingerprint: np.ndarray) -> "RowSums":
        values = self.values + np.asarray(found.values, np.float64).sum(0)
        slopes = self.slopes + np.asarray(found.slopes, np.float64)
        draw_slopes = self.draw_slopes + np.asarray(found.draw_slopes, np.float64)
        constant = self.constant + float(np.asarray(found.constants, np.float64).sum())
        return RowSums(self.num_rows + num_rows, values, slopes, draw_slopes, constant, self.fingerprint + fingerprint)


class ChunkSums(NamedTuple):
    """The sums over one chunk, on the device; values and constants by block of rows."""

    values: jax.Array
    slopes: jax.Array
    draw_slopes: jax.Array
    constants: jax.Array


def pass_noise(rng: np.random.Generator, size: int) -> np.ndarray:
    """Independent mirrored pairs of standard normal noise: (parts, draws, size)."""
    half = rng.standard_normal((MOST_PARTS, _PAIRS, size))
    return np.concatenate([half, -half], 1)


def halves_apart(draws: np.ndarray) -> np.ndarray:
    """Half the difference of what belongs to the two draws of each mirrored pair, one pair per row."""
    ahead, behind = draws[:, :_PAIRS], draws[:, _PAIRS:]
    return ((ahead - behind) / 2).reshape(-1, draws.shape[-1])


def found_hessian(moves: np.ndarray, bends: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """The symmetric matrix D of which `bends` are the products with `moves`, as far as these tell; zero beyond.

    In coordinates where q is standard normal, with P the projection on the span of the moves: PD + DP - PDP.
    """
    along, images = np.linalg.solve(factor, moves.T).T, bends @ factor
    inverse = np.linalg.pinv(along, _LEAST_SPAN)
    known = inverse @ images  # PD
    made = known + known.T - known @ (inverse @ along)
    inner = np.linalg.solve(factor.T, (made + made.T) / 2)
    return np.linalg.solve(factor.T, inner.T)


class ChunkProgram:
    """Computes the sums over chunks of at most `chunk_rows` rows, all padded to one shape."""

    def __init__(self, target, inputs: tuple, chunk_rows: int, block: int):
        self.target, (self.structure, self.arrays) = target, inputs
        self.block = min(block, chunk_rows)
        self.size = -(-chunk_rows // self.block) * self.block

    def __call__(self, c: np.ndarray, noise: np.ndarray, reference: dict, chunk: Chunk) -> ChunkSums:
        dtype = self.target.dtype
        rows = self.target.as_rows(chunk.padded(self.size))
        c, noise, count = np.asarray(c, dtype), np.asarray(noise, dtype), np.int32(chunk.num_rows)
        return ChunkSums(*_run_chunk(self.structure, self.block, self.arrays, c, noise, reference, rows, count))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _run_chunk(structure, block: int, arrays, c, noise, reference, rows, num_rows):
    sample, q = combine(structure, arrays)
    assert isinstance(sample, RowSample)
    path, each = q.path, over_draws(sample, noise.shape[1])
    size = jax.tree.leaves(rows)[0].shape[0]

    def add(sums, at):
        part = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, at * block, block), rows)
        counts = at * block + jnp.arange(block) < num_rows
        of_rows = jax.vmap(sample.likelihood_row, (None, 0))
        there = jnp.where(counts, of_rows(reference, part), 0)

        def log_rows(q, x):
            return jnp.sum(jnp.where(counts, of_rows(q.to_model(x)[0], part) - there, 0))

        values, slopes, each_slope = jax.vmap(lambda e: path.gradients(q, log_rows, c, e, each))(noise)
        each_slope = jnp.zeros_like(noise) if each_slope is None else each_slope
        return (sums[0] + slopes, sums[1] + each_slope), (values, there.sum())

    zero = jnp.zeros((noise.shape[0], c.size), c.dtype), jnp.zeros_like(noise)
    (slopes, draw_slopes), (values, constants) = jax.lax.scan(add, zero, jnp.arange(size // block))
    return values, slopes, draw_slopes, constants
