"""Sweeps for a q of normal factors, x = mean + scale * e: little more than the derivatives of the log density.

What else the parameters do is known to the host: entropy, Fisher information, the logarithm of the scales. A program
that does not have it compiles sooner.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi.estimate.fixed_draws.sweep import (
    CHUNK,
    MOST_PARTS,
    Bends,
    Buffer,
    Slopes,
    at,
    combine,
    log_density,
    own_part,
    pack,
    program,
    put,
    split_structure,
)
from curvi.family import MeanField
from curvi.family.continuous import Normal
from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget

_ENTROPY = 0.5 * (1 + np.log(2 * np.pi))  # of a standard normal


def all_normal(q: MeanField) -> bool:
    return all(isinstance(factor, Normal) for factor in q.layout.factors)


class NormalSweeps:
    """The two programs for one target, as functions of numpy vectors.

    Each also returns what it found at single draws, of the first `num_kept` chunks: rows of a Hessian are sweeps, too.
    """

    def __init__(self, target: AbstractTarget, q: MeanField, size: int, num_kept: int):
        self.structure, self.arrays = split_structure(target, q)
        self.num_kept, self._dtype, self._dimension = num_kept, np.dtype(q.params.dtype), q.num_factors
        self._num_values = size * CHUNK
        self.entropy_grad = np.tile([0.0, 1.0], q.num_factors)

    def slopes(self, params: np.ndarray, buffer: Buffer) -> Slopes:
        log_scale = params[1::2]
        scale = np.exp(log_scale)
        found = _host(self._run(run_slopes, buffer, params[0::2], scale)[0])
        values, grads = found[: self._num_values], found[self._num_values :].reshape(2, MOST_PARTS, -1)
        entropy = log_scale.sum() + log_scale.size * _ENTROPY
        return Slopes(values, _interleave(*grads), None, None, entropy, self.entropy_grad, (), scale)

    def gradient(self, params: np.ndarray, buffer: Buffer) -> np.ndarray:
        """The gradient of ln p summed over chunks, and nothing else: for differences."""
        found = _host(self._run(run_slopes, buffer, params[0::2], np.exp(params[1::2]))[0])
        return _interleave(*found[self._num_values :].reshape(2, MOST_PARTS, -1).sum(1))

    def bends(self, params: np.ndarray, buffer: Buffer, direction: np.ndarray) -> Bends:
        scale = np.exp(params[1::2])
        found = self._run(run_bends, buffer, params[0::2], scale, direction[0::2], scale * direction[1::2])[0]
        return Bends(_interleave(*_host(found).reshape(2, -1)), None, None)

    def slopes_at(self, mean: np.ndarray, scale: np.ndarray, buffer: Buffer) -> np.ndarray:
        """Gradients of ln p at mean + scale * e of each draw."""
        return self._rows(self._run(run_slopes, buffer, mean, scale)[1])

    def products_at(self, mean: np.ndarray, buffer: Buffer) -> np.ndarray:
        """The Hessian of ln p at `mean`, times the noise of each draw."""
        return self._rows(self._run(run_bends, buffer, mean, 0.0, 0.0, 1.0)[1])

    def _rows(self, kept) -> np.ndarray:
        return np.asarray(kept, np.float64).reshape(-1, self._dimension)

    def _run(self, run, buffer: Buffer, *line) -> tuple:
        """Draws at mean + scale * e, moving along mean_step + scale_step * e: the rows of one array."""
        rows = np.zeros((4, self._dimension), self._dtype)
        for row, part in zip(rows, line):
            row[:] = part
        return run(self.structure, self.num_kept, self.arrays, buffer, rows)


@program(0, 1)
def run_slopes(structure, num_kept: int, arrays, buffer: Buffer, line: Float[Array, "4 n"]):
    """ln p of each draw, its gradient in means and log scales summed over the chunks of each part; what is kept."""
    target, q = combine(structure, arrays)
    size, _, dimension = buffer.noise.shape
    dtype, mean, scale = line.dtype, line[0], line[1]

    def add(index, sums):
        values, means, scales, kept = sums
        log_p, noise = log_density(target, q, at(buffer.rows, index)), at(buffer.noise, index)
        draw = lambda e: jax.value_and_grad(lambda x: log_p((x,)))(mean + scale * e)  # noqa: E731
        value, slope = over_draws(target, CHUNK)(draw)(noise)
        own = own_part(buffer, index, dtype)
        means, scales = means + own * slope.mean(0), scales + own * (scale * (slope * noise).mean(0))
        return put(values, value, index), means, scales, put(kept, slope, index) if num_kept else kept

    summed = jnp.zeros((MOST_PARTS, dimension), dtype)
    zero = (jnp.zeros((size, CHUNK), dtype), summed, summed, jnp.zeros((num_kept, CHUNK, dimension), dtype))
    *found, kept = jax.lax.fori_loop(0, buffer.num_chunks, add, zero)
    return pack(found), kept


@program(0, 1)
def run_bends(structure, num_kept: int, arrays, buffer: Buffer, line: Float[Array, "4 n"]):
    """How the gradient in means and log scales changes along the line, summed over chunks; what is kept."""
    target, q = combine(structure, arrays)
    dimension, dtype = buffer.noise.shape[2], line.dtype
    mean, scale, mean_step, scale_step = line

    def add(index, sums):
        means, scales, kept = sums
        log_p, noise = log_density(target, q, at(buffer.rows, index)), at(buffer.noise, index)

        def draw(e):
            x, dx = mean + scale * e, mean_step + scale_step * e
            return jax.jvp(jax.grad(lambda x: log_p((x,))), (x,), (dx,))

        slope, bent = over_draws(target, CHUNK)(draw)(noise)
        moved = (noise * (scale * bent + scale_step * slope)).mean(0)
        return means + bent.mean(0), scales + moved, put(kept, bent, index) if num_kept else kept

    zero = jnp.zeros(dimension, dtype)
    start = (zero, zero, jnp.zeros((num_kept, CHUNK, dimension), dtype))
    *found, kept = jax.lax.fori_loop(0, buffer.num_chunks, add, start)
    return pack(found), kept


def _host(vector) -> np.ndarray:
    return np.asarray(vector).astype(np.float64, copy=False)


def _interleave(means: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """In the order of the parameters: mean and log scale of one factor after the other."""
    out = np.empty((*means.shape[:-1], 2 * means.shape[-1]))
    out[..., 0::2], out[..., 1::2] = means, scales
    return out
