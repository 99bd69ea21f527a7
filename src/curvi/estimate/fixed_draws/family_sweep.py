"""Sweeps for a q of any factors, hybrid ones included: derivatives in the parameters go through its draws."""

from typing import NamedTuple

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
    Unpack,
    at,
    combine,
    log_density,
    own_part,
    pack,
    program,
    put,
    split_structure,
)
from curvi.estimate.hybrid import drawn_from, exact_part, follow, staying_log_prob
from curvi.family import MeanField
from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget


class Point(NamedTuple):
    """Where to evaluate, and along what."""

    params: Float[Array, " P"]
    direction: Float[Array, " P"]


class FamilySweeps:
    """The two programs for one target and layout, as functions of numpy vectors."""

    def __init__(self, target: AbstractTarget, q: MeanField, size: int):
        self.structure, self.arrays = split_structure(target, q)
        self._dtype = np.dtype(q.params.dtype)
        self._no_direction = np.zeros(q.num_params, self._dtype)
        each, summed, vector = (size, CHUNK), (MOST_PARTS, q.num_params), (q.num_params,)
        hybrid = not q.reparameterised
        fisher = tuple((n, f.num_params, f.num_params) for f, n in zip(q.layout.factors, q.layout.counts))
        weights = (each, summed) if hybrid else (None, None)
        self._slopes = Unpack(Slopes(each, summed, *weights, (), vector, fisher))
        self._bends = Unpack(Bends(vector, vector if hybrid else None, vector))

    def slopes(self, params: np.ndarray, buffer: Buffer) -> Slopes:
        point = Point(params.astype(self._dtype), self._no_direction)
        return self._slopes(run_slopes(self.structure, self.arrays, buffer, point))

    def bends(self, params: np.ndarray, buffer: Buffer, direction: np.ndarray) -> Bends:
        point = Point(params.astype(self._dtype), direction.astype(self._dtype))
        return self._bends(run_bends(self.structure, self.arrays, buffer, point))


@program(0)
def run_slopes(structure, arrays, buffer: Buffer, point: Point):
    """`slopes` as one vector."""
    return pack(_slopes(*combine(structure, arrays), buffer, point.params))


@program(0)
def run_bends(structure, arrays, buffer: Buffer, point: Point):
    """`bends` as one vector."""
    return pack(_bends(*combine(structure, arrays), buffer, point))


def _slopes(target: AbstractTarget, q: MeanField, buffer: Buffer, params) -> Slopes:
    hybrid = not q.reparameterised

    def add(index, sums):
        values, grads, weights, weight_grads = sums
        log_p = log_density(target, q, at(buffer.rows, index))

        def draw(e):
            if hybrid:
                return _weighted(log_p, q, buffer.before, e)(params)
            value, slope = jax.value_and_grad(log_p)(q.replace(params).from_normal(e))
            return value, (), _pull_back(q, e)(params, slope), ()

        value, weight, grad, weight_grad = over_draws(target, CHUNK)(draw)(at(buffer.noise, index))
        own = own_part(buffer, index, params.dtype)
        return (
            put(values, value, index),
            grads + own * grad.mean(0),
            put(weights, weight, index) if hybrid else None,
            weight_grads + own * weight_grad.mean(0) if hybrid else None,
        )

    each = jnp.zeros(buffer.noise.shape[:2], params.dtype)
    summed = jnp.zeros((MOST_PARTS, params.size), params.dtype)
    zero = (each, summed, each if hybrid else None, summed if hybrid else None)
    values, grads, weights, weight_grads = jax.lax.fori_loop(0, buffer.num_chunks, add, zero)
    exact, exact_grad = jax.value_and_grad(_exact(q, buffer))(params)
    fisher = q.replace(params).fisher().blocks
    return Slopes(values, grads, weights, weight_grads, exact, exact_grad, fisher)


def _bends(target: AbstractTarget, q: MeanField, buffer: Buffer, point: Point) -> Bends:
    params, direction = point
    hybrid = not q.reparameterised

    def add(index, sums):
        product, weight_product = sums
        log_p = log_density(target, q, at(buffer.rows, index))

        def draw(e):
            if hybrid:
                return jax.jvp(_weighted(log_p, q, buffer.before, e), (params,), (direction,))[1][2:]
            x, dx = jax.jvp(lambda p: q.replace(p).from_normal(e), (params,), (direction,))
            slope, bent = jax.jvp(jax.grad(log_p), (x,), (dx,))
            return jax.jvp(_pull_back(q, e), (params, slope), (direction, bent))[1], ()

        moved, turned = over_draws(target, CHUNK)(draw)(at(buffer.noise, index))
        return product + moved.mean(0), weight_product + turned.mean(0) if hybrid else None

    zero = jnp.zeros_like(params)
    product, weight_product = jax.lax.fori_loop(0, buffer.num_chunks, add, (zero, zero if hybrid else None))
    return Bends(product, weight_product, jax.jvp(jax.grad(_exact(q, buffer)), (params,), (direction,))[1])


def _pull_back(q: MeanField, e):
    """Takes a gradient in the draw to one in the parameters."""
    return lambda params, slope: jax.vjp(lambda p: q.replace(p).from_normal(e), params)[1](slope)[0]


def _weighted(log_p, q: MeanField, before, e):
    """Of one draw, as a function of the parameters: ln p - ln q of what stays, its weight, and gradients of both."""
    before = q.replace(before)
    r = drawn_from(before)

    def there(params):
        x = follow(q.replace(params), r, e)
        value, path = jax.value_and_grad(lambda p: log_p(follow(q.replace(p), r, e)))(params)
        value = value - staying_log_prob(before, x)
        log_q, score = jax.value_and_grad(lambda p: staying_log_prob(q.replace(p), x))(params)
        weight = jnp.exp(log_q - staying_log_prob(r, x))
        found = value, weight, weight * (path + value * score), weight * score
        return tuple(part.astype(params.dtype) for part in found)  # log densities of integers may be wider

    return there


def _exact(q: MeanField, buffer: Buffer):
    if q.reparameterised:
        return lambda p: q.replace(p).entropy()
    return lambda p: exact_part(q.replace(p), q.replace(buffer.before))
