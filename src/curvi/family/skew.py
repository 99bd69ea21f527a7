"""Skewed marginals of a joint normal distribution: each coordinate x = m + s u becomes m + s T(u), with T the
sinh-arcsinh transformation (`curvi.family.sinh_arcsinh`), m and s the mean and sd of x, and u standard normal.

The correlations are those of the normal u, a Gaussian copula. Mean and sd of every coordinate stay m and s.
"""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi.family.sinh_arcsinh import FAR, MOST_SKEW, MOST_TAIL, NODES, WEIGHTS, SinhArcsinh
from curvi.family.sinh_arcsinh_host import hermite

if TYPE_CHECKING:
    from curvi.family.joint_normal import JointNormal


def with_shape(params, count: int, dimension: int):
    """Parameters with those of shapes that change nothing, after the first `count`."""
    xp = np if isinstance(params, np.ndarray) else jnp
    return xp.concatenate([params[:count], xp.zeros(2 * dimension, params.dtype), params[count:]])


def largest_shape(dimension: int) -> np.ndarray:
    """The largest useful absolute values of the parameters of shapes."""
    return np.repeat([FAR * MOST_SKEW, FAR * MOST_TAIL], dimension)


def shape_of(q: "JointNormal") -> SinhArcsinh:
    """The shapes of the marginals of q."""
    first, size = q.num_normal_params, q.dimension
    return SinhArcsinh.of(q.params[first : first + size], q.params[first + size : first + 2 * size])


def skewed_draw(q: "JointNormal", x: Float[Array, " d"]) -> Float[Array, " d"]:
    """The skewed draw made of a normal one."""
    mean, sd = q.mean(), q.normal_sds()
    return mean + sd * shape_of(q).forward((x - mean) / sd)


def skewed_log_prob(q: "JointNormal", z: Float[Array, " d"]) -> Float[Array, ""]:
    """ln q of a skewed draw."""
    mean, sd, shape = q.mean(), q.normal_sds(), shape_of(q)
    u = shape.inverse((z - mean) / sd)
    return q.normal_log_prob(mean + sd * u) - jnp.sum(shape.log_slope(u))


def skewed_entropy(q: "JointNormal") -> Float[Array, ""]:
    return q.normal_entropy() + jnp.sum(shape_of(q).entropy())


def skewed_covariance(q: "JointNormal") -> Float[Array, "d d"]:
    """By Mehler's formula: E[T_i T_j] is the sum of the products of Hermite coefficients times powers of the
    correlation.
    """
    sd = q.normal_sds()
    correlation = q.covariance() / sd / sd[:, None]
    nodes, rows = _at_nodes(sd.dtype)
    powers, total = jnp.ones_like(correlation), jnp.zeros_like(correlation)
    for row in rows @ shape_of(q).forward(nodes[:, None]):
        total, powers = total + powers * jnp.outer(row, row), powers * correlation
    total = total.at[jnp.diag_indices(len(sd))].set(1.0)
    return sd * sd[:, None] * total


def _at_nodes(dtype):
    """Nodes, and Hermite polynomials times weights."""
    return jnp.asarray(NODES, dtype), jnp.asarray(hermite() * WEIGHTS, dtype)


@eqx.filter_jit
def skewed_fisher(q: "JointNormal") -> Float[Array, "p p"]:
    """The Fisher information of the normal's parameters and those of the shapes, dense.

    A change of the parameters moves u by w(u) = (dm / s + T d ln s + dT) / T' + dR R^-1 u / 2, with R the correlations.
    The score of that is -div w + w' R^-1 u for u ~ N(0, R), and its covariance

        E[tr(grad w grad w)] + E[w' R^-1 w],

    in which pairs of functions of two coordinates average to sums over their Hermite coefficients.
    """
    size, count = q.dimension, q.num_normal_params

    def parts(params):
        moved = q.replace(jnp.concatenate([params, q.params[count:]]))
        sd, covariance = moved.normal_sds(), moved.covariance()
        return moved.mean(), jnp.log(sd), covariance / sd / sd[:, None]

    normal = q.params[:count]
    mean_moves, log_sd_moves, correlation_moves = jax.jacfwd(parts)(normal)
    _, log_sd, correlation = parts(normal)
    precision = jnp.linalg.inv(correlation)
    # Coefficients (p, 4, d) of the four functions of each coordinate, one row per parameter.
    along = jnp.zeros((count + 2 * size, 4, size), normal.dtype)
    along = along.at[:count, 0].set((mean_moves * jnp.exp(-log_sd)[:, None]).T).at[:count, 1].set(log_sd_moves.T)
    at = jnp.arange(size)
    along = along.at[count + at, 2, at].set(1.0).at[count + size + at, 3, at].set(1.0)
    turns = jnp.moveaxis(correlation_moves, -1, 0) @ precision  # dR R^-1 of each parameter of the normal
    turns = jnp.concatenate([turns, jnp.zeros((2 * size, size, size), normal.dtype)])

    nodes, rows = _at_nodes(normal.dtype)
    weights = jnp.asarray(WEIGHTS, normal.dtype)
    moves, bent = _functions(q.params[count : count + 2 * size].reshape(2, size), nodes)  # (4, K, d)
    # w' in the coordinate itself, averaged with each other; and the Hermite sums of pairs of coordinates.
    own = jnp.einsum("k,aki,bki->abi", weights, bent, bent)
    out = jnp.einsum("pai,abi,qbi->pq", along, own, along)
    powers = jnp.ones_like(correlation)
    for row in jnp.einsum("hk,aki->hai", rows, moves):
        loaded = jnp.einsum("pai,ai->pi", along, row)
        out = out + loaded @ (precision * powers) @ loaded.T
        powers = powers * correlation
    tilted = jnp.einsum("pai,ai->pi", along, jnp.einsum("k,aki->ai", weights, bent))
    mixed = tilted @ jnp.diagonal(turns, axis1=1, axis2=2).T
    return out + mixed + mixed.T + 0.5 * jnp.einsum("pij,qji->pq", turns, turns)


def _functions(raw: Float[Array, "2 d"], nodes: Float[Array, " K"]):
    """What mean, ln sd and the two parameters of the shape of each coordinate do to u, and derivatives in u, (4, K, d)
    each.
    """

    def moved(pair, u):
        at = lambda pair, u: SinhArcsinh.of(pair[0][None], pair[1][None]).forward(u[None])[0]  # noqa: E731
        by_pair, slope = jax.grad(at, (0, 1))(pair, u)
        return jnp.concatenate([jnp.stack([jnp.ones_like(u), at(pair, u)]), by_pair]) / slope

    each = lambda f: jax.vmap(jax.vmap(f, (None, 0)), (1, None), 2)(raw, nodes)  # noqa: E731
    return (jnp.moveaxis(each(f), 1, 0) for f in (moved, jax.jacfwd(moved, 1)))


def label_shapes(names: list[str]) -> list[str]:
    """Labels of the parameters of shapes, given names of coordinates."""
    return [*(f"skewness of {name}" for name in names), *(f"tail of {name}" for name in names)]
