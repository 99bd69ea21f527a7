"""The compiled programs of growing draws: a sweep over fixed noise for value and gradient, or for Hessian products.

Everything that a fit asks for is such a sweep: a candidate of the trust region, a product for conjugate gradients, the
Hessian at the mean, the checks at the end. There are two of them, each of which serves every number of draws: `slopes`
has value and gradient, `bends` has Hessian products, forward over reverse. What is done with the numbers is a few
operations on vectors, in numpy on the host: as part of the programs it would take longer to compile than the
model itself (docs/design.md). A program returns one vector, so that there is one transfer from the device; tuples
in the place of modules, since a sweep of a small model takes no longer than making a module does.
"""

import functools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from curvi.estimate.hybrid import drawn_from, exact_part, follow, staying_log_prob
from curvi.family import MeanField
from curvi.family.continuous import Normal
from curvi.over_draws import over_draws
from curvi.target import AbstractTarget, MinibatchTarget

CHUNK = 32  # draws of one vectorised pass


class Buffer(NamedTuple):
    """Noise in a buffer of fixed size, of which the first `num_chunks` chunks are in use."""

    noise: Float[Array, "M chunk n"]
    part: Int[Array, " M"]  # to which of the independent parts of the noise a chunk belongs
    num_chunks: Int[Array, ""]
    rows: Int[Array, "M B"]  # of the minibatch that a chunk sees; B = 0 where the target is not minibatched
    before: Float[Array, " P"]  # where factors that are not reparameterised were drawn


class Point(NamedTuple):
    """Where to evaluate, and along what."""

    params: Float[Array, " P"]
    direction: Float[Array, " P"]
    # 1; or 0, which puts every draw at the centre of q and makes its noise the direction of its Hessian product, or,
    # at order 1, the shift of the draw, times `shift`.
    spread: Float[Array, ""]
    shift: Float[Array, ""]


class Slopes(NamedTuple):
    """Value and gradient. Sums over chunks are of the means over their draws.

    For a hybrid q, ln p is less ln q of the factors that stay, and its gradient is that of ln p times the weight.
    """

    values: Float[Array, "M chunk"]  # ln p of each draw
    part_grads: Float[Array, "G P"]  # gradient of ln p, summed over the chunks of each part
    # Of a hybrid q (`curvi.estimate.hybrid`), else None: the weights of the draws, and their gradients as above.
    weights: Float[Array, "M chunk"] | None
    weight_grads: Float[Array, "G P"] | None
    # The entropy of q, or what stands in its place, and the Fisher information; None for normal factors alone: the host
    # knows theirs, and compilation counts.
    exact: Float[Array, ""] | None
    exact_grad: Float[Array, " P"] | None
    fisher: tuple[Float[Array, "n k k"], ...] | None


class Bends(NamedTuple):
    """Derivatives of the gradients of `Slopes` along a direction, summed over chunks."""

    product: Float[Array, " P"]
    weight_product: Float[Array, " P"] | None
    exact_product: Float[Array, " P"] | None


def slopes(target: AbstractTarget, q: MeanField, buffer: Buffer, point: Point, num_parts: int, num_kept: int):
    """One pass over the draws; beside `Slopes` the gradients at the draws of the first `num_kept` chunks."""
    params, dtype = point.params, point.params.dtype
    size, _, dimension = buffer.noise.shape
    hybrid = not q.reparameterised

    def add(index, sums):
        values, grads, weights, weight_grads, kept = sums
        log_p = _log_density(target, q, _at(buffer.rows, index))

        def draw(e):
            if hybrid:
                return *_weighted(log_p, q, buffer.before, e)(params), ()
            x = q.replace(params).from_normal(point.spread * e)
            if num_kept:
                x = (x[0] + point.shift * e,)
            value, slope = jax.value_and_grad(log_p)(x)
            return value, (), _pull_back(q, point, e)(params, slope), (), slope[0] if num_kept else ()

        value, weight, grad, weight_grad, slope = over_draws(target, CHUNK)(draw)(_at(buffer.noise, index))
        # Scatters would compile longer than all of this.
        own = (jnp.arange(num_parts) == _at(buffer.part, index)).astype(dtype)[:, None]
        return (
            _put(values, value, index),
            grads + own * grad.mean(0),
            _put(weights, weight, index) if hybrid else None,
            weight_grads + own * weight_grad.mean(0) if hybrid else None,
            _put(kept, slope, index) if num_kept else kept,
        )

    each, summed = jnp.zeros((size, CHUNK), dtype), jnp.zeros((num_parts, params.size), dtype)
    kept = jnp.zeros((num_kept, CHUNK, dimension), dtype)
    zero = (each, summed, each if hybrid else None, summed if hybrid else None, kept)
    values, grads, weights, weight_grads, kept = jax.lax.fori_loop(0, buffer.num_chunks, add, zero)
    if all_normal(q):
        return Slopes(values, grads, weights, weight_grads, None, None, None), kept
    exact, exact_grad = jax.value_and_grad(_exact(q, buffer))(params)
    fisher = q.replace(params).fisher().blocks
    return Slopes(values, grads, weights, weight_grads, exact, exact_grad, fisher), kept


def bends(target: AbstractTarget, q: MeanField, buffer: Buffer, point: Point, num_kept: int):
    """One pass over the draws; beside `Bends` the Hessian of ln p at the draws of the first `num_kept` chunks, each
    times its own direction.
    """
    params, direction, dtype = point.params, point.direction, point.params.dtype
    dimension, hybrid = buffer.noise.shape[2], not q.reparameterised

    def add(index, sums):
        product, weight_product, kept = sums
        log_p = _log_density(target, q, _at(buffer.rows, index))

        def draw(e):
            if hybrid:
                _, (_, _, bent, turned) = jax.jvp(_weighted(log_p, q, buffer.before, e), (params,), (direction,))
                return bent, turned, ()
            x, dx = jax.jvp(lambda p: q.replace(p).from_normal(point.spread * e), (params,), (direction,))
            if num_kept:
                dx = (dx[0] + (1 - point.spread) * e,)
            slope, bent = jax.jvp(jax.grad(log_p), (x,), (dx,))
            moved = jax.jvp(_pull_back(q, point, e), (params, slope), (direction, bent))[1]
            return moved, (), bent[0] if num_kept else ()

        moved, turned, bent = over_draws(target, CHUNK)(draw)(_at(buffer.noise, index))
        return (
            product + moved.mean(0),
            weight_product + turned.mean(0) if hybrid else None,
            _put(kept, bent, index) if num_kept else kept,
        )

    zero = jnp.zeros_like(params)
    kept = jnp.zeros((num_kept, CHUNK, dimension), dtype)
    start = (zero, zero if hybrid else None, kept)
    product, weight_product, kept = jax.lax.fori_loop(0, buffer.num_chunks, add, start)
    if all_normal(q):
        return Bends(product, weight_product, None), kept
    exact_product = jax.jvp(jax.grad(_exact(q, buffer)), (params,), (direction,))[1]
    return Bends(product, weight_product, exact_product), kept


def all_normal(q: MeanField) -> bool:
    return all(isinstance(factor, Normal) for factor in q.layout.factors)


def _log_density(target: AbstractTarget, q: MeanField, rows):
    density = target.on_rows(rows) if isinstance(target, MinibatchTarget) else target.full()

    def log_p(x):
        theta, log_det = q.to_model(x)
        return density(theta) + log_det

    return log_p


def _at(rows, index):
    return jax.lax.dynamic_index_in_dim(rows, index, 0, keepdims=False)


def _put(rows, row, index):
    """`rows` with `row` at `index`, or at the end where that is beyond it: none of these is kept for use then."""
    return jax.lax.dynamic_update_index_in_dim(rows, row, index, 0)


def _pull_back(q: MeanField, point: Point, e):
    """Takes a gradient in the draw to one in the parameters."""
    return lambda params, slope: jax.vjp(lambda p: q.replace(p).from_normal(point.spread * e), params)[1](slope)[0]


def _weighted(log_p, q: MeanField, before, e):
    """Of one draw, as a function of the parameters: ln p - ln q of what stays, its weight, and gradients of both."""
    before = q.replace(before)
    r = drawn_from(before)

    def at(params):
        x = follow(q.replace(params), r, e)
        value, path = jax.value_and_grad(lambda p: log_p(follow(q.replace(p), r, e)))(params)
        value = value - staying_log_prob(before, x)
        log_q, score = jax.value_and_grad(lambda p: staying_log_prob(q.replace(p), x))(params)
        weight = jnp.exp(log_q - staying_log_prob(r, x))
        return value, weight, weight * (path + value * score), weight * score

    return at


def _exact(q: MeanField, buffer: Buffer):
    if q.reparameterised:
        return lambda p: q.replace(p).entropy()
    return lambda p: exact_part(q.replace(p), q.replace(buffer.before))


# Level 3 takes longer to compile, and what it makes of wide loops can be slower.
_program = functools.partial(jax.jit, static_argnums=(0, 1, 2), compiler_options={"xla_backend_optimization_level": 1})


# Equinox's filtered jit would do the same at ten times the overhead a call, which counts where a call is short.


@_program
def run_slopes(structure, num_parts: int, num_kept: int, arrays, buffer: Buffer, point: Point):
    """`slopes` as one vector, and what is kept."""
    found, kept = slopes(*_combine(structure, arrays), buffer, point, num_parts, num_kept)
    return _pack(found), kept


@_program
def run_bends(structure, num_parts: int, num_kept: int, arrays, buffer: Buffer, point: Point):
    """`bends` as one vector, and what is kept."""
    found, kept = bends(*_combine(structure, arrays), buffer, point, num_kept)
    return _pack(found), kept


def split_structure(target: AbstractTarget, q: MeanField):
    """What the programs want of a target and a q: a hashable structure, and arrays."""
    arrays, rest = eqx.partition((target, q), eqx.is_array)
    leaves, tree = jax.tree.flatten(rest)
    return (tuple(leaves), tree), arrays


def _combine(structure, arrays) -> tuple[AbstractTarget, MeanField]:
    return eqx.combine(arrays, jax.tree.unflatten(structure[1], structure[0]))


def _pack(found):
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(found)])


class Unpack:
    """Takes the vectors of the programs apart."""

    def __init__(self, q: MeanField, size: int, num_parts: int):
        each, summed, vector = (size, CHUNK), (num_parts, q.num_params), (q.num_params,)
        hybrid = not q.reparameterised
        fisher = tuple((n, f.num_params, f.num_params) for f, n in zip(q.layout.factors, q.layout.counts))
        weights = (each, summed) if hybrid else (None, None)
        exact = (None, None, None) if all_normal(q) else ((), vector, fisher)
        self._slopes = _Parts(Slopes(each, summed, *weights, *exact))
        self._bends = _Parts(Bends(vector, vector if hybrid else None, exact[1]))

    def slopes(self, vector) -> Slopes:
        return self._slopes(vector)

    def bends(self, vector) -> Bends:
        return self._bends(vector)


class _Parts:
    def __init__(self, shapes):
        leaves, self.tree = jax.tree.flatten(shapes, is_leaf=_is_shape)
        ends = np.cumsum([0, *(math.prod(shape) for shape in leaves)])
        self.places = [(slice(start, end), shape) for start, end, shape in zip(ends, ends[1:], leaves)]

    def __call__(self, vector):
        whole = np.asarray(vector).astype(np.float64, copy=False)
        return jax.tree.unflatten(self.tree, [whole[place].reshape(shape) for place, shape in self.places])


def _is_shape(node) -> bool:
    return type(node) is tuple and all(isinstance(size, int) for size in node)
