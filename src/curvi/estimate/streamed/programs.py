"""Compiled sums over a design of stratified draws: value and gradient of the ELBO, and solves with its Hessian.

Gradients and steps are whitened (`curvi.family.on_device`). Noise is made chunk by chunk inside the loops; what is
largest is a chunk, or a vector of the parameters. Products of vectors are in the full precision of their type, whatever
the device would choose.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float

from curvi.estimate.fixed_draws.groups import Groups
from curvi.estimate.local import GroupNoise, variance_of_mean
from curvi.estimate.strata import column_words, part_seed, stratified_noise
from curvi.family import Family
from curvi.family.on_device import NormalOnDevice
from curvi.model.exact_sum import sum_by_terms
from curvi.model.over_draws import over_draws
from curvi.model.placement import LATENTS, constrain
from curvi.model.target import AbstractTarget
from curvi.solve.truncated_cg import COMPILED, truncated_cg

MAX_DRAWS = 8192  # of a sweep
NUM_PARTS = 8  # independent designs, from which standard errors come


class Sweep(NamedTuple):
    """Values and gradients on a design.

    Attributes
    ----------
    values
        (parts, most draws of a part, 2): ln p of each draw, and what rounding left of it where terms are visible.
    entropy
        H(q).
    grads
        (parts, P): whitened gradients of the ELBO.
    """

    values: Float[Array, "K m 2"]
    entropy: Float[Array, ""]
    grads: Float[Array, "K P"]


class Solved(NamedTuple):
    """The end of conjugate gradients for -H x = b, whitened: x, or a direction of negative curvature; its predicted
    gain, size in nats and products; whether the ball ended it and whether no negative curvature was met.
    """

    x: Float[Array, " P"]
    predicted: Float[Array, ""]
    divergence: Float[Array, ""]
    num_products: Array
    at_edge: Array
    definite: Array


class Judged(NamedTuple):
    """What the noise of a gradient adds to its decrement, and the largest step left for any latent, in sds."""

    slope: Float[Array, ""]
    added: Float[Array, ""]
    variance: Float[Array, ""]
    sds: Float[Array, ""]
    sds_error: Float[Array, ""]
    sds_noise: Float[Array, ""]
    worst: Array


def _each_part(seed, size: int, num_parts: int, one):
    """`one(words)` of each of the designs, stacked; the words of a design are those of all its columns."""

    def part(_, index):
        return None, one(column_words(part_seed(seed, index), jnp.arange(size)))

    return jax.lax.scan(part, None, jnp.arange(num_parts, dtype=jnp.uint32))[1]


def _log_joint(density):
    return lambda q, x: q.log_joint(density, x)


@eqx.filter_jit
def sweep(
    target: AbstractTarget, q: Family, seed, num_draws, *, num_parts: int, chunk: int, mesh: Mesh | None = None
) -> Sweep:
    """Values and gradients on `num_draws` draws, a power of two, in `num_parts` independent designs."""
    with jax.default_matmul_precision("highest"):
        normal, part_draws = NormalOnDevice.of(q), num_draws // num_parts
        groups = Groups(mesh, chunk)
        c, each, density = normal.coordinates, over_draws(target, groups.size), target.full()

        def one(words):
            words = constrain(words, mesh, None, LATENTS)

            def add(index, sums):
                values, grad = sums
                draws = (index * chunk + jnp.arange(chunk)).astype(jnp.uint32)
                noise = groups.arranged(stratified_noise(words, draws, part_draws, c.dtype))

                def of_group(noise, each):
                    found, slope, _ = q.path.gradients(q, _log_joint(density), c, noise, each)
                    return _exact_values(target, q, c, noise, each, found), slope

                rows, slope = groups.map(of_group, each, noise)
                rows = groups.one_axis(rows[None])[0]
                return jax.lax.dynamic_update_slice_in_dim(values, rows, index * chunk, 0), grad + slope

            start = jnp.zeros((MAX_DRAWS // num_parts, 2), c.dtype), groups.zeros((), False, (c.size,), c.dtype)
            num_chunks = part_draws // chunk
            values, total = jax.lax.fori_loop(0, num_chunks, add, start)
            return values, normal.gradient(groups.total(total) / num_chunks)

        values, grads = _each_part(seed, normal.mean.size, num_parts, one)
        return Sweep(constrain(values, mesh), constrain(normal.entropy(), mesh), constrain(grads, mesh, None, LATENTS))


def _exact_values(target, q, c, noise, each, found):
    """ln p of each draw with what rounding left of it, which is known where the terms are."""
    theta = jax.eval_shape(lambda: q.to_model((noise[0],))[0])
    if c.dtype == jnp.float64 or jax.eval_shape(target.terms, theta) is None:
        return jnp.stack([found, jnp.zeros_like(found)], -1)
    size = noise.shape[-1]

    def one(e):
        theta, log_det = q.to_model((c[:size] + c[size:] * e,))
        return jnp.stack(sum_by_terms(target.terms(theta), log_det))

    return each(one)(noise)


@eqx.filter_jit
def solve(
    target: AbstractTarget,
    q: Family,
    seed,
    num_draws,
    gradient,
    b,
    radius,
    residual,
    most,
    *,
    chunk: int,
    mesh: Mesh | None = None,
) -> Solved:
    """-H x = b on a design of `num_draws` draws, inside a ball of `radius` nats, to a relative residual or `most`
    products; `gradient` is that of q.
    """
    with jax.default_matmul_precision("highest"):
        normal, groups = NormalOnDevice.of(q), Groups(mesh, chunk)
        c, each, density = normal.coordinates, over_draws(target, groups.size), target.full()
        words = constrain(column_words(part_seed(seed, 0), jnp.arange(normal.mean.size)), mesh, None, LATENTS)
        num_chunks = num_draws // chunk

        def multiply(w):
            along = normal.tangent(w)

            def add(index, total):
                draws = (index * chunk + jnp.arange(chunk)).astype(jnp.uint32)
                noise = groups.arranged(stratified_noise(words, draws, num_draws, c.dtype))

                def of_group(noise, each):
                    return q.path.products(q, _log_joint(density), c, along, noise, each)[0]

                return total + groups.map(of_group, each, noise)

            total = jax.lax.fori_loop(0, num_chunks, add, groups.zeros((), False, (c.size,), c.dtype))
            return normal.minus_curvature(w, gradient, groups.total(total) / num_chunks)

        limit = residual**2 * (b @ b)
        found = truncated_cg(
            multiply,
            constrain(b, mesh, LATENTS),
            loop=COMPILED,
            max_products=most,
            unfinished=lambda rest, product: (product > limit) & ~(product != product),
            radius=radius,
        )
        predicted = (b @ found.x + found.rest @ found.x) / 2
        return Solved(found.x, predicted, found.x @ found.x / 2, found.num_products, found.on_edge, ~found.negative)


@eqx.filter_jit
def noise_of(grads: Float[Array, "K P"]) -> tuple[Float[Array, " P"], Float[Array, " P"], Float[Array, ""]]:
    """The mean of the parts' gradients, a copy of its noise, and half the square of that copy."""
    copy = GroupNoise(grads).copy()
    return grads.mean(0), copy, copy @ copy / 2


@eqx.filter_jit
def judge(grads: Float[Array, "K P"], x: Float[Array, " P"], copied: Float[Array, " P"]) -> Judged:
    """What the parts' gradients say of the step x = B g and of `copied` = B e, e a copy of the noise."""
    with jax.default_matmul_precision("highest"):
        noise = GroupNoise(grads)
        added = noise.copy() @ copied
        variance = jnp.asarray(noise.variance_along(x) + noise.variance_along(copied))
        own = variance_of_columns(grads)
        # Few parts know the error of each latent badly: half of it is the average over all.
        errors, moved = jnp.sqrt((own + own.mean()) / 2), jnp.abs(x)
        worst = jnp.argmax(moved - 2 * errors)
        return Judged(grads.mean(0) @ x, added, variance, moved[worst], errors[worst], errors.max(), worst)


def variance_of_columns(grads: Float[Array, "K P"]) -> Float[Array, " P"]:
    """`variance_of_mean` of each column."""
    return jnp.asarray(jax.vmap(variance_of_mean, 1)(grads))


@eqx.filter_jit
def moved(q: Family, x: Float[Array, " P"], share) -> Family:
    """q after a share of a whitened step."""
    return q.replace(NormalOnDevice.of(q).moved(share * x).params)


@eqx.filter_jit
def rescaled(q: Family, gradient: Float[Array, " P"]) -> Family:
    """q with the scales that its gradient asks for."""
    return q.replace(NormalOnDevice.of(q).with_best_scales(gradient).params)


@eqx.filter_jit
def slopes(before: Float[Array, " P"], after: Float[Array, " P"], q: Family, later: Family, x: Float[Array, " P"]):
    """The slopes of the ELBO along a step of whitened direction x at q, at its start and at its end."""
    with jax.default_matmul_precision("highest"):
        # The end's whitened coordinates differ: a mean's step of x sds at the start is x scale / scale' sds there.
        size = q.params.size // 2
        shrunk = jnp.exp(NormalOnDevice.of(q).log_scale - NormalOnDevice.of(later).log_scale)
        return before @ x, after[:size] @ (x[:size] * shrunk) + after[size:] @ x[size:]
