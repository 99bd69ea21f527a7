"""The compiled program of many fits: gradients of a block of fits, on draws that all of them share.

Everything else is numpy, vectorised over fits: compiling a whole loop would take longer than a thousand small fits. The
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
_MOST_FITS, _TOGETHER = 256, 8
_MOST_CHUNKS = 16  # of the noise in a call
# Steps of differences, in sds of q: to one side in double precision, to both sides in single precision.
_TINY, _SMALL = 1e-5, 0.02


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
        values, size = [], noise.shape[-1]
        slopes, matrices = np.zeros((len(chosen), GROUPS, size)), np.zeros((len(chosen), GROUPS, size, size))
        for begin in range(0, len(noise), _MOST_CHUNKS * CHUNK):
            part = noise[begin : begin + _MOST_CHUNKS * CHUNK]
            found, each = self._slopes(chosen, mean, factor, part)
            values.append(found)
            # Draws by group: those of its pair in every chunk.
            each = each.reshape(len(chosen), -1, GROUPS, 2, size).swapaxes(1, 2).reshape(len(chosen), GROUPS, -1, size)
            own = part.reshape(-1, GROUPS, 2, size).swapaxes(0, 1).reshape(GROUPS, -1, size)
            with np.errstate(invalid="ignore", over="ignore"):
                slopes += each.sum(2)
                matrices += np.swapaxes(each, 2, 3) @ own
        count = len(noise) / GROUPS
        return np.concatenate(values, 1), slopes / count, matrices / count

    def hessians(self, chosen: np.ndarray, mean, factor, noise: np.ndarray) -> np.ndarray:
        """For each fit and draw: L'HL, H the Hessian of ln p, from differences of gradients. Another program, for its
        products, would take as long to compile as a thousand small fits take.
        """
        exact = self.dtype.itemsize >= 8
        ahead = _TINY if exact else _SMALL
        base = self._slopes(chosen, mean, factor, noise)[1] if exact else None
        columns = []
        for column in np.moveaxis(factor, 2, 0):
            moved = self._slopes(chosen, mean + ahead * column, factor, noise)[1]
            back = base if exact else self._slopes(chosen, mean - ahead * column, factor, noise)[1]
            with np.errstate(invalid="ignore", over="ignore"):
                columns.append((moved - back) / (ahead if exact else 2 * ahead))
        bent = np.stack(columns, -1)
        with np.errstate(invalid="ignore"):
            turned = np.swapaxes(factor, 1, 2)[:, None] @ bent
        return (turned + np.swapaxes(turned, 2, 3)) / 2

    def per_hessian(self, size: int) -> int:
        """Gradients that a Hessian takes."""
        return size + 1 if self.dtype.itemsize >= 8 else 2 * size

    def _slopes(self, chosen, mean, factor, noise) -> tuple[np.ndarray, np.ndarray]:
        """ln p and its gradient at each draw, of as many as the program takes at a time."""
        size, num_chunks = noise.shape[-1], len(noise) // CHUNK
        buffer = np.zeros((_MOST_CHUNKS, CHUNK, size), self.dtype)
        buffer[:num_chunks] = noise.reshape(num_chunks, CHUNK, size)
        values, slopes = self._in_blocks(_gradients, chosen, mean, factor, (buffer, np.int32(num_chunks)))
        return values[:, :num_chunks].reshape(len(chosen), -1), slopes[:, :num_chunks].reshape(len(chosen), -1, size)

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
    num_together, each_draw = _over(density)

    def of_fit(given):
        data, mean, factor = given
        slope_of = jax.value_and_grad(lambda x: q.log_joint(lambda theta: density(theta, data), (x,)))

        def add(index, found):
            e = jax.lax.dynamic_index_in_dim(noise, index, 0, keepdims=False)
            made = each_draw(slope_of)(mean + e @ factor.T)
            return jax.tree.map(lambda o, f: jax.lax.dynamic_update_index_in_dim(o, f, index, 0), found, made)

        return jax.lax.fori_loop(0, count, add, (jnp.zeros(noise.shape[:2], mean.dtype), jnp.zeros_like(noise)))

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

    each = jax.jit(jax.vmap(of_fit))  # traced once for both uses

    def add(index, out):
        part = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, index * together, together), data)
        found = each(part)
        return jax.tree.map(lambda o, f: jax.lax.dynamic_update_slice_in_dim(o, f, index * together, 0), out, found)

    part = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((together, *leaf.shape[1:]), leaf.dtype), data)
    zeros = jax.tree.map(lambda one: jnp.zeros((block, *one.shape[1:]), one.dtype), jax.eval_shape(each, part))
    return jax.lax.fori_loop(0, -(-num_fits // together), add, zeros)


def _latents(functions, q: Family, data, x) -> dict:
    """Latents and outputs by name at a point in q's coordinates."""
    theta, _ = q.to_model((x,))
    return theta if functions[1] is None else {**theta, **functions[1](theta, data)}


def _over(density):
    """How many fits are computed together, and how functions are applied to the draws of a chunk: vectorised, unless
    jaxlib would split that many LAPACK calls.
    """
    if over_draws(density, _TOGETHER * CHUNK) is jax.vmap:
        return _TOGETHER, jax.vmap
    return 1, over_draws(density, CHUNK)
