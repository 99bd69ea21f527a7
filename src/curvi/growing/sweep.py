"""The one compiled program of growing draws: a sweep over fixed noise, with value, gradient and Hessian product.

Everything that a fit asks for is such a sweep: a candidate of the trust region, a product for conjugate gradients, the
Hessian at the mean, the checks at the end. So the user's log density is differentiated in one place of one program,
which serves every number of draws. A target of order 1 is differentiated once; its products are then differences of
gradients over two sweeps. What is done with the numbers is a few operations on vectors, in numpy on the host:
as part of the program it would take longer to compile than the model itself (docs/design.md).
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from curvi.estimate.hybrid import drawn_from, exact_part, follow, staying_log_prob
from curvi.family import MeanField
from curvi.over_draws import over_draws
from curvi.target import AbstractTarget, MinibatchTarget

CHUNK = 32  # draws of one vectorised pass


class Buffer(eqx.Module):
    """Noise in a buffer of fixed size, of which the first `num_chunks` chunks are in use."""

    noise: Float[Array, "M chunk n"]
    part: Int[Array, " M"]  # to which of the independent parts of the noise a chunk belongs
    num_chunks: Int[Array, ""]
    rows: Int[Array, "M B"]  # of the minibatch that a chunk sees; B = 0 where the target is not minibatched
    before: Float[Array, " P"]  # where factors that are not reparameterised were drawn


class Point(eqx.Module):
    """Where to evaluate, and along what."""

    params: Float[Array, " P"]
    direction: Float[Array, " P"]
    # 1; or 0, which puts every draw at the centre of q and makes its noise the direction of its Hessian product, or,
    # for targets of order 1, the shift of the draw, times `shift`.
    spread: Float[Array, ""]
    shift: Float[Array, ""]


class Weights(eqx.Module):
    """Weights of the draws of q with factors that are not reparameterised: see `curvi.estimate.hybrid`."""

    values: Float[Array, "M chunk"]
    part_grads: Float[Array, "G P"]  # as those of ln p
    product: Float[Array, " P"]


class Sums(eqx.Module):
    """What a sweep finds. Sums over chunks are of the means over their draws.

    For a hybrid q, ln p is less ln q of the factors that stay; gradient and product are those of ln p times the weight.
    """

    values: Float[Array, "M chunk"]  # ln p of each draw
    weights: Weights | None  # None where all factors are reparameterised
    part_grads: Float[Array, "G P"]  # gradient of ln p, summed over the chunks of each part
    product: Float[Array, " P"]  # derivative of that gradient along the direction, summed over chunks; 0 for order 1
    # Of the draws of the first C chunks: the Hessian of ln p times the draw's own direction; for order 1 the gradient.
    kept: Float[Array, "C chunk n"]
    # Of the entropy of q, or what is exact in its place: value, gradient, derivative of that along the direction.
    entropy: tuple[Array, Array, Array]
    fisher: tuple[Float[Array, "n k k"], ...]


def sweep(target: AbstractTarget, q: MeanField, buffer: Buffer, point: Point, num_parts: int, num_kept: int) -> Sums:
    """One pass over the draws; `num_kept` chunks keep their draws' own Hessian products."""
    params, direction, dtype = point.params, point.direction, point.params.dtype
    size, _, dimension = buffer.noise.shape
    if not q.reparameterised:
        return _weighted_sweep(target, q, buffer, point, num_parts)

    def draw(log_p, e):
        """Of one draw: ln p, its gradient in Gamma, the derivative of that along the direction, and H dx."""

        def path(p):
            return q.replace(p).from_normal(point.spread * e)

        def pull_back(p, slope):
            return jax.vjp(path, p)[1](slope)[0]

        if target.order == 1:
            x = path(params)
            if num_kept:
                x = (x[0] + point.shift * e,)
            value, slope = jax.value_and_grad(log_p)(x)
            return value, pull_back(params, slope), jnp.zeros_like(params), slope[0] if num_kept else ()
        x, dx = jax.jvp(path, (params,), (direction,))
        if num_kept:
            dx = (dx[0] + (1 - point.spread) * e,)
        (value, slope), (_, bent) = jax.jvp(jax.value_and_grad(log_p), (x,), (dx,))
        grad, moved = jax.jvp(pull_back, (params, slope), (direction, bent))
        return value, grad, moved, bent[0] if num_kept else ()

    def add(index, sums):
        values, part_grads, product, kept = sums
        log_p = _log_density(target, q, buffer.rows[index])
        value, grad, moved, bent = over_draws(target, CHUNK)(lambda e: draw(log_p, e))(buffer.noise[index])
        return (
            values.at[index].set(value),
            part_grads.at[buffer.part[index]].add(grad.mean(0)),
            product + moved.mean(0),
            kept.at[index].set(bent, mode="drop") if num_kept else kept,
        )

    zero = (
        jnp.zeros((size, CHUNK), dtype),
        jnp.zeros((num_parts, params.size), dtype),
        jnp.zeros_like(params),
        jnp.zeros((num_kept, CHUNK, dimension), dtype),
    )
    values, part_grads, product, kept = jax.lax.fori_loop(0, buffer.num_chunks, add, zero)
    entropy = _along(lambda p: q.replace(p).entropy(), params, direction)
    return Sums(values, None, part_grads, product, kept, entropy, q.replace(params).fisher().blocks)


def _weighted_sweep(target: AbstractTarget, q: MeanField, buffer: Buffer, point: Point, num_parts: int) -> Sums:
    """`sweep` for q with factors that are not reparameterised."""
    params, direction, dtype = point.params, point.direction, point.params.dtype
    before, size = q.replace(buffer.before), buffer.noise.shape[0]
    r = drawn_from(before)

    def draw(log_p, e):
        """Of one draw: ln p - ln q of what stays, its weight, and the gradients of weight and of both together."""

        def at(p):
            x = follow(q.replace(p), r, e)
            value, path = jax.value_and_grad(lambda p: log_p(follow(q.replace(p), r, e)))(p)
            value = value - staying_log_prob(before, x)
            log_q, score = jax.value_and_grad(lambda p: staying_log_prob(q.replace(p), x))(p)
            weight = jnp.exp(log_q - staying_log_prob(r, x))
            return value, weight, weight * (path + value * score), weight * score

        if target.order == 1:
            return *at(params), jnp.zeros_like(params), jnp.zeros_like(params)
        now, (_, _, bent, turned) = jax.jvp(at, (params,), (direction,))
        return *now, bent, turned

    def add(index, sums):
        values, weights, grads, slopes, product, turning = sums
        log_p = _log_density(target, q, buffer.rows[index])
        value, weight, grad, slope, bent, turned = over_draws(target, CHUNK)(lambda e: draw(log_p, e))(
            buffer.noise[index]
        )
        part = buffer.part[index]
        return (
            values.at[index].set(value),
            weights.at[index].set(weight),
            grads.at[part].add(grad.mean(0)),
            slopes.at[part].add(slope.mean(0)),
            product + bent.mean(0),
            turning + turned.mean(0),
        )

    each, summed = jnp.zeros((size, CHUNK), dtype), jnp.zeros((num_parts, params.size), dtype)
    zero = (each, each, summed, summed, jnp.zeros_like(params), jnp.zeros_like(params))
    values, weights, grads, slopes, product, turning = jax.lax.fori_loop(0, buffer.num_chunks, add, zero)
    exact = _along(lambda p: exact_part(q.replace(p), before), params, direction)
    kept = jnp.zeros((0, CHUNK, 0), dtype)
    fisher = q.replace(params).fisher().blocks
    return Sums(values, Weights(weights, slopes, turning), grads, product, kept, exact, fisher)


def _log_density(target: AbstractTarget, q: MeanField, rows):
    density = target.on_rows(rows) if isinstance(target, MinibatchTarget) else target.full()

    def log_p(x):
        theta, log_det = q.to_model(x)
        return density(theta) + log_det

    return log_p


def _along(function, params, direction) -> tuple[Array, Array, Array]:
    """Value, gradient, and its derivative along the direction."""
    (value, slope), (_, bend) = jax.jvp(jax.value_and_grad(function), (params,), (direction,))
    return value, slope, bend


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def run_sweep(structure, num_parts: int, num_kept: int, arrays, buffer: Buffer, point: Point) -> Sums:
    """`sweep` on a target and a q that come as their arrays and the `structure` around them.

    Equinox's filtered jit would do the same at ten times the overhead a call, which counts where a call is short.
    """
    target, q = eqx.combine(arrays, jax.tree.unflatten(structure[1], structure[0]))
    return sweep(target, q, buffer, point, num_parts, num_kept)


def split_structure(target: AbstractTarget, q: MeanField):
    """What `run_sweep` wants of a target and a q: a hashable structure, and arrays."""
    arrays, rest = eqx.partition((target, q), eqx.is_array)
    leaves, tree = jax.tree.flatten(rest)
    return (tuple(leaves), tree), arrays
