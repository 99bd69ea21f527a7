"""Compiled sweeps over fixed noise, chunk by chunk: all evaluations of the model in a fit on fixed draws.

Trust-region candidates, products for conjugate gradients, the Hessian at the mean and the final checks are all sweeps.
There are two programs, each for any number of draws: `gradients` computes values and gradients, `products` computes
Hessian-vector products, forward over reverse. The remaining vector operations run in numpy on the host: inside the
programs they would take longer to compile than the model itself. The family defines how draws depend on the parameters
(`curvi.family.path`).

A program returns one vector, so that there is one transfer from the device. Tuples are used instead of modules, whose
construction takes as long as a sweep of a small model.
"""

import functools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from curvi.estimate.hybrid import weighed
from curvi.family import Family
from curvi.model.minibatch import MinibatchTarget
from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget

# For XLA on a CPU. Level 3 takes longer to compile than level 1, and its code for wide loops can be slower. Fusion
# emitters double the compilation time and do not speed up small loops; JAX 0.11 removed the option. XLA raises an error
# for unknown options, and the next row is tried.
_OPTIONS = ({"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False},)
_OPTIONS += ({"xla_backend_optimization_level": 1}, {})
_row = [0 if jax.__version_info__ < (0, 11) else 1]


def program(*static: int):
    """A decorator that compiles a function with these static arguments, with XLA options for fast compilation.

    Equinox's `filter_jit` would have ten times the overhead per call, which matters for short calls.
    """

    def compiled(function):
        @functools.cache
        def version(row: int):
            return jax.jit(function, static_argnums=static, compiler_options=_OPTIONS[row])

        @functools.wraps(function)
        def run(*arguments):
            try:
                return version(_row[0])(*arguments)
            except jax.errors.JaxRuntimeError as error:
                if "No such compile option" not in str(error):
                    raise
            _row[0] += 1
            return run(*arguments)

        return run

    return compiled


CHUNK = 32  # draws per vectorised pass
MOST_PARTS, LEAST_PARTS = 8, 4  # independent parts of the noise, for standard errors


class Buffer(NamedTuple):
    """Noise in a buffer of fixed size, of which the first `num_chunks` chunks are in use."""

    noise: Float[Array, "M chunk n"]
    part: Int[Array, " M"]  # index of the independent part of the noise of each chunk
    num_chunks: Int[Array, ""]
    rows: Int[Array, "M B"]  # minibatch of each chunk; B = 0 where the target is not minibatched
    before: Float[Array, " P"]  # parameters at which factors without reparameterisation were drawn


class Gradients(NamedTuple):
    """Value and gradient in the coordinates of the path. Sums over chunks are sums of means over their draws.

    For a hybrid q, ln q of the weighted factors is subtracted from ln p, and the gradient is that of this difference
    times the importance weight.
    """

    values: Any  # (M, chunk), ln p of each draw
    part_grads: Any  # (G, C), gradient of ln p, summed over the chunks of each part
    # For a hybrid q, else None: the weights of the draws, and their gradients as above.
    weights: Any = None
    weight_grads: Any = None
    # The entropy of q or its substitute, its gradient and the Fisher information; None where the host computes them.
    exact: Any = None
    exact_grad: Any = None
    fisher: Any = None


class Products(NamedTuple):
    """Derivatives of the gradients along a direction, summed over chunks."""

    product: Any
    weight_product: Any = None
    exact_product: Any = None


class Sweeps:
    """The two programs for one target and family, as functions of numpy vectors.

    Each also returns results at single draws for the first `num_kept` chunks, which give rows of a Hessian.
    """

    def __init__(self, target: AbstractTarget, q: Family, size: int, num_kept: int):
        self.structure, self.arrays = split_structure(target, q)
        self._dtype, self._num_kept = np.dtype(q.params.dtype), num_kept
        path, hybrid = q.path, not q.reparameterised
        length = path.coordinates(np.asarray(q.params, np.float64)).size
        each, summed, vector = (size, CHUNK), (MOST_PARTS, length), (length,)
        weights = (each, summed) if hybrid else (None, None)
        exact = (None, None, None) if path.known_to_host else ((), vector, jax.eval_shape(q.fisher))
        self._gradients = _Unpack(Gradients(each, summed, *weights, *exact))
        exact_product = None if path.known_to_host else vector
        self._products = _Unpack(Products(vector, vector if hybrid else None, exact_product))

    def gradients(self, c: np.ndarray, buffer: Buffer) -> Gradients:
        return self.gradients_and_kept(c, buffer)[0]

    def gradients_and_kept(self, c: np.ndarray, buffer: Buffer) -> tuple[Gradients, jax.Array]:
        """`Gradients`, and the gradients in x at the draws that are kept, which stay on the device (`rows_of`)."""
        packed, kept = self._run(run_gradients, buffer, c)
        return self._gradients(packed), kept

    def gradients_at(self, c: np.ndarray, buffer: Buffer) -> np.ndarray:
        """The gradient in x at each draw."""
        return rows_of(self._run(run_gradients, buffer, c)[1])

    def products(self, c: np.ndarray, along: np.ndarray, buffer: Buffer) -> Products:
        return self._products(self._run(run_products, buffer, c, along)[0])

    def products_at(self, c: np.ndarray, along: np.ndarray, buffer: Buffer) -> np.ndarray:
        """The derivative of the gradient in x along the direction in which each draw moves."""
        return rows_of(self._run(run_products, buffer, c, along)[1])

    def _run(self, run, buffer: Buffer, *vectors):
        cast = (vector.astype(self._dtype) for vector in vectors)
        return run(self.structure, self._num_kept, self.arrays, buffer, *cast)


def rows_of(kept) -> np.ndarray:
    """One row per kept draw."""
    return np.asarray(kept, np.float64).reshape(-1, kept.shape[-1])


@program(0, 1)
def run_gradients(structure, num_kept: int, arrays, buffer: Buffer, c):
    """`Gradients` as one vector, and the gradients in x of the draws that are kept."""
    target, q = combine(structure, arrays)
    path, hybrid, each = q.path, not q.reparameterised, over_draws(target, CHUNK)

    def add(index, sums):
        values, grads, weights, weight_grads, kept = sums
        density, noise = _density(target, _at(buffer.rows, index)), _at(buffer.noise, index)
        own = _own_part(buffer, index, c.dtype)
        if hybrid:
            one = weighed(density, q, buffer.before)
            value, weight, grad, weight_grad = each(lambda e: one(e)(c))(noise)
            weights, weight_grads = _put(weights, weight, index), weight_grads + own * weight_grad.mean(0)
            return _put(values, value, index), grads + own * grad.mean(0), weights, weight_grads, kept
        value, grad, slopes = path.gradients(q, lambda q, x: q.log_joint(density, x), c, noise, each)
        kept = _put(kept, slopes, index) if num_kept else kept
        return _put(values, value, index), grads + own * grad, weights, weight_grads, kept

    each_draw = jnp.zeros(buffer.noise.shape[:2], c.dtype)
    summed = jnp.zeros((MOST_PARTS, c.size), c.dtype)
    weights = (each_draw, summed) if hybrid else (None, None)
    zero = (each_draw, summed, *weights, _nothing_kept(buffer, num_kept, c.dtype))
    values, grads, weight, weight_grads, kept = jax.lax.fori_loop(0, buffer.num_chunks, add, zero)
    found = Gradients(values, grads, weight, weight_grads)
    if path.known_to_host:
        return _pack(found), kept
    exact, exact_grad = jax.value_and_grad(_exact(q, buffer))(c)
    return _pack(found._replace(exact=exact, exact_grad=exact_grad, fisher=q.replace(c).metric())), kept


@program(0, 1)
def run_products(structure, num_kept: int, arrays, buffer: Buffer, c, along):
    """`Products` as one vector, and the products at the draws that are kept."""
    target, q = combine(structure, arrays)
    path, hybrid, each = q.path, not q.reparameterised, over_draws(target, CHUNK)

    def add(index, sums):
        product, weight_product, kept = sums
        density, noise = _density(target, _at(buffer.rows, index)), _at(buffer.noise, index)
        if hybrid:
            one = weighed(density, q, buffer.before)
            moved, turned = each(lambda e: jax.jvp(one(e), (c,), (along,))[1][2:])(noise)
            return product + moved.mean(0), weight_product + turned.mean(0), kept
        found, bent = path.products(q, lambda q, x: q.log_joint(density, x), c, along, noise, each)
        return product + found, weight_product, _put(kept, bent, index) if num_kept else kept

    zero = jnp.zeros_like(c)
    start = (zero, zero if hybrid else None, _nothing_kept(buffer, num_kept, c.dtype))
    product, weight_product, kept = jax.lax.fori_loop(0, buffer.num_chunks, add, start)
    exact = None if path.known_to_host else jax.jvp(jax.grad(_exact(q, buffer)), (c,), (along,))[1]
    return _pack(Products(product, weight_product, exact)), kept


def _density(target: AbstractTarget, rows):
    """The log density; for a minibatched target, on these rows."""
    return target.on_rows(rows) if isinstance(target, MinibatchTarget) else target.full()


def _exact(q: Family, buffer: Buffer):
    if q.reparameterised:
        return lambda params: q.replace(params).entropy()
    return lambda params: q.replace(params).exact_part(q.replace(buffer.before))


def _nothing_kept(buffer: Buffer, num_kept: int, dtype):
    return jnp.zeros((num_kept, CHUNK, buffer.noise.shape[2]), dtype)


def _at(rows, index):
    return jax.lax.dynamic_index_in_dim(rows, index, 0, keepdims=False)


def _put(rows, row, index):
    """`rows` with `row` at `index`, or at the last index if that is smaller; such rows are not used."""
    return jax.lax.dynamic_update_index_in_dim(rows, row, index, 0)


def _own_part(buffer: Buffer, index, dtype):
    """A one-hot column for the part of the chunk; a scatter would take longer to compile than the whole sweep."""
    return (jnp.arange(MOST_PARTS) == _at(buffer.part, index)).astype(dtype)[:, None]


# -- between host and program -----------------------------------------------------------------------------------------

_ARRAY = object()  # placeholder for an array in a structure


def split_structure(target: AbstractTarget, q: Family):
    """A target and a q as a hashable structure and a tuple of arrays, including the model's data.

    A plain tuple avoids flattening modules at every call.
    """
    leaves, tree = jax.tree.flatten((target, q))
    arrays = tuple(leaf for leaf in leaves if eqx.is_array(leaf))
    return (tuple(_ARRAY if eqx.is_array(leaf) else leaf for leaf in leaves), tree), arrays


def combine(structure, arrays) -> tuple[AbstractTarget, Family]:
    rest, tree = structure
    given = iter(arrays)
    return jax.tree.unflatten(tree, [next(given) if leaf is _ARRAY else leaf for leaf in rest])


def _pack(found):
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(found)])


class _Unpack:
    """Splits the vector of a program, given a named tuple of the packed shapes: None stays None, and a field that is
    not a shape is a tree of arrays.
    """

    def __init__(self, shapes):
        self.kind, self.places, start = type(shapes), [], 0
        for shape in shapes:
            if shape is None:
                self.places.append(None)
                continue
            if _is_shape(shape):
                # Most fields are a single array and need no tree operations.
                end = start + math.prod(shape)
                self.places.append((slice(start, end), shape))
                start = end
                continue
            leaves, tree = jax.tree.flatten(shape)
            ends = [start + int(end) for end in np.cumsum([0, *(math.prod(leaf.shape) for leaf in leaves)])]
            self.places.append(([(slice(a, b), leaf.shape) for a, b, leaf in zip(ends, ends[1:], leaves)], tree))
            start = ends[-1]

    def __call__(self, vector):
        whole = np.asarray(vector).astype(np.float64, copy=False)
        return self.kind(*[None if place is None else _unpacked(whole, *place) for place in self.places])


def _unpacked(whole: np.ndarray, place, shape):
    if type(place) is slice:
        return whole[place].reshape(shape)
    return jax.tree.unflatten(shape, [whole[part].reshape(size) for part, size in place])


def _is_shape(node) -> bool:
    return type(node) is tuple and all(isinstance(size, int) for size in node)
