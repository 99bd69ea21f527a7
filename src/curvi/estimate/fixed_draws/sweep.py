"""Compiled sweeps over fixed noise, chunk by chunk: all that a fit on fixed draws asks of the model.

A candidate of the trust region, a product for conjugate gradients, the Hessian at the mean, the checks at the end:
everything is a sweep. There are two programs, each of which serves every number of draws: `gradients` has values and
gradients, `products` has Hessian products, forward over reverse. What is done with the numbers is a few operations on
vectors, in numpy on the host: as part of the programs it would take longer to compile than the model itself. How draws
follow the parameters is the family's own (`curvi.family.path`).

A program returns one vector, so that there is one transfer from the device; tuples stand in the place of modules,
since a sweep of a small model takes no longer than making a module does.
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

# For XLA on a CPU. Level 3 takes longer to compile than level 1, and what it makes of wide loops can be slower. Code
# from fusion emitters takes twice as long to compile as code without, and runs no faster in small loops; JAX 0.11 has
# lost the choice. What XLA does not know it refuses, and the next row is tried.
_OPTIONS = ({"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False},)
_OPTIONS += ({"xla_backend_optimization_level": 1}, {})
_row = [0 if jax.__version_info__ < (0, 11) else 1]


def program(*static: int):
    """Compiles a function with these static arguments, for fast compilation where XLA knows how.

    Equinox's filtered jit would do the same at ten times the overhead a call, which counts where a call is short.
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


CHUNK = 32  # draws of one vectorised pass
MOST_PARTS = 8


class Buffer(NamedTuple):
    """Noise in a buffer of fixed size, of which the first `num_chunks` chunks are in use."""

    noise: Float[Array, "M chunk n"]
    part: Int[Array, " M"]  # to which of the independent parts of the noise a chunk belongs
    num_chunks: Int[Array, ""]
    rows: Int[Array, "M B"]  # of the minibatch that a chunk sees; B = 0 where the target is not minibatched
    before: Float[Array, " P"]  # where factors that are not reparameterised were drawn


class Gradients(NamedTuple):
    """Value and gradient in the coordinates of the path. Sums over chunks are of the means over their draws.

    For a hybrid q, ln p is less ln q of the factors that are weighed, and its gradient is that of ln p times the
    weight.
    """

    values: Any  # (M, chunk), ln p of each draw
    part_grads: Any  # (G, C), gradient of ln p, summed over the chunks of each part
    # Of a hybrid q, else None: the weights of the draws, and their gradients as above.
    weights: Any = None
    weight_grads: Any = None
    # The entropy of q or what stands in its place, its gradient and the Fisher information; None where the host knows.
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

    Each also returns what it found at single draws, of the first `num_kept` chunks: rows of a Hessian are sweeps, too.
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
        return self._gradients(self._run(run_gradients, buffer, c)[0])

    def gradients_at(self, c: np.ndarray, buffer: Buffer) -> np.ndarray:
        """The gradient in x at each draw."""
        return _rows(self._run(run_gradients, buffer, c)[1])

    def products(self, c: np.ndarray, along: np.ndarray, buffer: Buffer) -> Products:
        return self._products(self._run(run_products, buffer, c, along)[0])

    def products_at(self, c: np.ndarray, along: np.ndarray, buffer: Buffer) -> np.ndarray:
        """The derivative of the gradient in x along the way that each draw moves."""
        return _rows(self._run(run_products, buffer, c, along)[1])

    def _run(self, run, buffer: Buffer, *vectors):
        cast = (vector.astype(self._dtype) for vector in vectors)
        return run(self.structure, self._num_kept, self.arrays, buffer, *cast)


def _rows(kept) -> np.ndarray:
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
    return _pack(found._replace(exact=exact, exact_grad=exact_grad, fisher=q.replace(c).fisher())), kept


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
    """The log density; of a minibatched target on these rows."""
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
    """`rows` with `row` at `index`, or at the end where that is beyond it: none of these is kept for use then."""
    return jax.lax.dynamic_update_index_in_dim(rows, row, index, 0)


def _own_part(buffer: Buffer, index, dtype):
    """A column with a one where the chunk belongs: scatters would compile longer than all of a sweep."""
    return (jnp.arange(MOST_PARTS) == _at(buffer.part, index)).astype(dtype)[:, None]


# -- between host and program -----------------------------------------------------------------------------------------

_ARRAY = object()  # stands for an array in a structure


def split_structure(target: AbstractTarget, q: Family):
    """What the programs want of a target and a q: a hashable structure, and arrays, the model's data among them.

    The arrays in a plain tuple: modules would be taken apart at every call.
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
    """Takes the vector of a program apart, given a named tuple of the shapes that were packed: None stays None, and a
    field that is no shape is a tree of arrays.
    """

    def __init__(self, shapes):
        self.kind, self.places, start = type(shapes), [], 0
        for shape in shapes:
            if shape is None:
                self.places.append(None)
                continue
            if _is_shape(shape):
                # Most fields are one array, and a tree of one leaf need not be put together.
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
