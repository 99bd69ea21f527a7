"""The two compiled programs of many fits: gradients and Hessians of a block of fits, on draws that all of them share.

Everything else is numpy, vectorised over fits: compiling a whole loop would take longer than a thousand small fits. A
program knows neither how many fits there are nor how many draws: both come in blocks of a fixed size.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from curvi.estimate.fixed_draws.sweep import program
from curvi.family import Family
from curvi.many.model import StackedModel
from curvi.model.over_draws import over_draws
from curvi.record.packed import combine, split_structure

CHUNK = 16  # draws of a chunk
GROUPS = CHUNK // 2  # independent groups for standard errors: the mirrored pairs of a chunk
# Fits of a block, the unit of a call, and of them those that are computed side by side.
_MOST_FITS, _TOGETHER = 64, 8
_MOST_CHUNKS = 16  # of the noise in a call


class Programs:
    """The programs for one model and family; all results are numpy arrays in double precision."""

    def __init__(self, model: StackedModel, q: Family):
        self.model, self.q, self.dtype = model, q, np.dtype(q.params.dtype)
        self.structure, self.arrays = split_structure((model.density, model.outputs), q)
        self.size = _MOST_FITS

    def gradients(self, chosen: np.ndarray, mean, factor, noise: np.ndarray):
        """For each fit: ln p at each draw m + L e, and the gradients g of ln p and matrices g e', averaged over each of
        eight groups of mirrored pairs.
        """
        chunks = noise.reshape(-1, CHUNK, noise.shape[-1]).astype(self.dtype)
        values, size = [], noise.shape[-1]
        slopes, matrices = np.zeros((len(chosen), GROUPS, size)), np.zeros((len(chosen), GROUPS, size, size))
        for begin in range(0, len(chunks), _MOST_CHUNKS):
            part = chunks[begin : begin + _MOST_CHUNKS]
            buffer = np.zeros((_MOST_CHUNKS, *chunks.shape[1:]), self.dtype)
            buffer[: len(part)] = part
            found = self._in_blocks(_gradients, chosen, mean, factor, (buffer, np.int32(len(part))))
            values.append(found[0][:, : len(part)].reshape(len(chosen), -1))
            slopes, matrices = slopes + found[1], matrices + found[2]
        return np.concatenate(values, 1), slopes / len(chunks), matrices / len(chunks)

    def hessians(self, chosen: np.ndarray, mean, factor, noise: np.ndarray) -> np.ndarray:
        """For each fit and draw: L'HL, H the Hessian of ln p."""
        return self._in_blocks(_hessians, chosen, mean, factor, noise.astype(self.dtype))[0]

    def moments(self, chosen: np.ndarray, mean, factor, noise: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """For each fit: means and sds of latents and outputs by name over draws m + L e."""
        found = self._in_blocks(_moments, chosen, mean, factor, noise.astype(self.dtype))
        names = self._names(mean.shape[-1])
        return {name: (found[2 * at], found[2 * at + 1]) for at, name in enumerate(names)}

    def draws(self, chosen: np.ndarray, mean, factor, noise: np.ndarray) -> dict[str, np.ndarray]:
        """For each fit: latents and outputs by name at its own noise (fits, draws, d)."""
        found = self._in_blocks(_draws, chosen, mean, factor, noise.astype(self.dtype), own=True)
        return dict(zip(self._names(mean.shape[-1]), found, strict=True))

    @functools.cache  # noqa: B019  as long-lived as its programs
    def _names(self, size: int) -> list[str]:
        data = jax.tree.map(lambda leaf: leaf[0], self.model.data)
        at = jax.ShapeDtypeStruct((size,), self.dtype)
        functions, q = combine(self.structure, self.arrays)
        return list(jax.eval_shape(lambda x: _latents(functions, q, data, x), at))

    def _in_blocks(self, run, chosen, mean, factor, noise, own: bool = False) -> tuple[np.ndarray, ...]:
        parts = []
        for begin in range(0, len(chosen), self.size):
            # The last block is filled up with copies of its last fit, of which the program leaves out what it can.
            filled = np.minimum(np.arange(begin, begin + self.size), len(chosen) - 1)
            count = min(self.size, len(chosen) - begin)
            given = (mean[filled].astype(self.dtype), factor[filled].astype(self.dtype))
            data = self.model.at(chosen[filled]), *given, *((noise[filled],) if own else ())
            found = run(self.structure, self.arrays, np.int32(count), data, None if own else noise)
            parts.append((count, found))
        columns = zip(*([np.asarray(leaf)[:count] for leaf in found] for count, found in parts), strict=True)
        return tuple(np.concatenate(column).astype(np.float64, copy=False) for column in columns)


@program(0)
def _gradients(structure, arrays, num_fits, data, chunks):
    (density, _), q = combine(structure, arrays)
    noise, count = chunks
    num_together, each_draw, _ = _over(density, CHUNK, 1)
    size = noise.shape[-1]

    def of_fit(given):
        data, mean, factor = given
        slope_of = jax.value_and_grad(lambda x: q.log_joint(lambda theta: density(theta, data), (x,)))

        def add(index, sums):
            e = jax.lax.dynamic_index_in_dim(noise, index, 0, keepdims=False)
            values, slopes = each_draw(slope_of)(mean + e @ factor.T)
            pairs, noises = slopes.reshape(GROUPS, 2, size), e.reshape(GROUPS, 2, size)
            matrices = jnp.einsum("gpi,gpj->gij", pairs, noises) / 2
            kept = jax.lax.dynamic_update_index_in_dim(sums[0], values, index, 0)
            return kept, sums[1] + pairs.mean(1), sums[2] + matrices

        shapes = noise.shape[:2], (GROUPS, size), (GROUPS, size, size)
        return jax.lax.fori_loop(0, count, add, tuple(jnp.zeros(shape, mean.dtype) for shape in shapes))

    return _over_fits(of_fit, num_fits, data, num_together)


@program(0)
def _hessians(structure, arrays, num_fits, data, noise):
    (density, _), q = combine(structure, arrays)
    num_together, each_draw, each_column = _over(density, len(noise), noise.shape[-1])

    def of_fit(given):
        data, mean, factor = given
        slope_of = jax.grad(lambda x: q.log_joint(lambda theta: density(theta, data), (x,)))

        def one(x):
            # Rows L'H, one for each column of L.
            bent = each_column(lambda step: jax.jvp(slope_of, (x,), (step,))[1])(factor.T)
            return bent @ factor

        return (each_draw(one)(mean + noise @ factor.T),)

    return _over_fits(of_fit, num_fits, data, num_together)


@program(0)
def _moments(structure, arrays, num_fits, data, noise):
    functions, q = combine(structure, arrays)

    def of_fit(given):
        data, mean, factor = given
        draws = jax.vmap(lambda x: _latents(functions, q, data, x))(mean + noise @ factor.T)
        return tuple(moment for draw in draws.values() for moment in (draw.mean(0), draw.std(0)))

    return _over_fits(of_fit, num_fits, data, 1)


@program(0)
def _draws(structure, arrays, num_fits, data, _):
    functions, q = combine(structure, arrays)

    def of_fit(given):
        data, mean, factor, noise = given
        return tuple(jax.vmap(lambda x: _latents(functions, q, data, x))(mean + noise @ factor.T).values())

    return _over_fits(of_fit, num_fits, data, 1)


def _over_fits(of_fit, num_fits, data, together: int):
    """`of_fit` of the first fits of a block, some together, and zeros for the others."""
    block = len(jax.tree.leaves(data)[0])
    together = math.gcd(together, block)

    def add(index, out):
        part = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, index * together, together), data)
        found = jax.vmap(of_fit)(part)
        return jax.tree.map(lambda o, f: jax.lax.dynamic_update_slice_in_dim(o, f, index * together, 0), out, found)

    shapes = jax.eval_shape(jax.vmap(of_fit), data)
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    return jax.lax.fori_loop(0, -(-num_fits // together), add, zeros)


def _latents(functions, q: Family, data, x) -> dict:
    """Latents and outputs by name at a point in q's coordinates."""
    theta, _ = q.to_model((x,))
    return theta if functions[1] is None else {**theta, **functions[1](theta, data)}


def _over(density, num_draws: int, num_columns: int):
    """How many fits are computed together, and how functions are applied to all draws and to all columns: vectorised,
    unless jaxlib would split that many LAPACK calls.
    """
    if over_draws(density, _TOGETHER * num_draws * num_columns) is jax.vmap:
        return _TOGETHER, jax.vmap, jax.vmap
    return 1, over_draws(density, num_draws * num_columns), over_draws(density, num_columns)
