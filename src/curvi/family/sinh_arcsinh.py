"""The sinh-arcsinh transformation of a standard normal number (Jones and Pewsey 2009), standardised.

    T(u) = (sinh((asinh(u) + eps) / delta) - a) / b,        a, b the mean and the sd of the numerator, u ~ N(0, 1)

eps > 0 skews to the right, delta < 1 makes both tails heavier; eps = 0 and delta = 1 is the identity. T(u) has mean
zero and variance one whatever its shape: location and scale of a marginal m + s T(u) stay its mean and sd, and at the
identity their scores are orthogonal to those of the shape, where eps and the mean would be correlated by 0.9 otherwise.

The two parameters are unbounded; eps = 2 tanh(p / 2) and ln delta = tanh(r) keep every moment finite and the tails
between those of sinh(z^2.7) and of its inverse, however far a step goes.

All functions take numpy or JAX arrays, one entry per coordinate in their last axis.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

MOST_SKEW, MOST_TAIL = 2.0, 1.0  # of |eps| and of |ln delta|
FAR = 3.0  # times these, an unbounded parameter hardly matters any more: tanh(3) is 0.995
# Trapezoidal sums: their error falls like exp(-2 pi / step) for functions that are analytic within a distance of one
# from the real line, as asinh is: 5e-12 here.
NODES = np.linspace(-8.4, 8.4, 71)
_DENSITY = np.exp(-0.5 * NODES**2)
WEIGHTS = _DENSITY / _DENSITY.sum()


class SinhArcsinh(NamedTuple):
    """Shapes of some marginals."""

    skew: Any  # eps
    log_tail: Any  # ln delta
    centre: Any
    scale: Any

    @classmethod
    def of(cls, skew, tail) -> "SinhArcsinh":
        """The transformations with these unbounded parameters."""
        xp = _xp(skew)
        skew, tail = MOST_SKEW * xp.tanh(skew / MOST_SKEW), MOST_TAIL * xp.tanh(tail / MOST_TAIL)
        return cls(skew, tail, *(_moments(skew, tail) if xp is np else _traced_moments(skew, tail)))

    def forward(self, u):
        """T(u)."""
        return (_xp(u).sinh(self._inner(u)) - self.centre) / self.scale

    def inverse(self, t):
        """u with T(u) = t."""
        xp = _xp(t)
        return xp.sinh(xp.exp(self.log_tail) * xp.arcsinh(self.centre + self.scale * t) - self.skew)

    def log_slope(self, u):
        """ln T'(u)."""
        xp = _xp(u)
        return xp.log(xp.cosh(self._inner(u)) / self.scale) - self.log_tail - 0.5 * xp.log1p(u * u)

    def entropy(self):
        """What the transformation adds to the entropy of each coordinate: E[ln T'(u)]."""
        _, nodes, weights = _with(self.skew)
        return weights @ self.log_slope(nodes[:, None])

    def _inner(self, u):
        xp = _xp(u)
        return (xp.arcsinh(u) + self.skew) * xp.exp(-self.log_tail)


def _moments(skew, log_tail):
    """Mean and sd of sinh((asinh(u) + eps) / delta)."""
    xp, nodes, weights = _with(skew)
    made = xp.sinh((xp.arcsinh(nodes)[:, None] + skew) * xp.exp(-log_tail))
    centre = weights @ made
    return centre, xp.sqrt(weights @ (made - centre) ** 2)


# Derivatives by sums of their own: those of many draws then share them, where they would each go through the nodes.
_traced_moments = jax.custom_jvp(_moments)


@_traced_moments.defjvp
def _moved_moments(at, along):
    (skew, log_tail), (by_skew, by_tail) = at, along
    _, nodes, weights = _with(skew)
    y = (jnp.arcsinh(nodes)[:, None] + skew) * jnp.exp(-log_tail)
    cosh = jnp.cosh(y)
    centre, scale = _traced_moments(skew, log_tail)
    away = (jnp.sinh(y) - centre) / scale
    moves = jnp.stack([cosh * jnp.exp(-log_tail), -y * cosh])
    of_centre = jnp.einsum("k,akn->an", weights, moves)
    of_scale = jnp.einsum("k,akn->an", weights, moves * away)
    moved = (of[0] * by_skew + of[1] * by_tail for of in (of_centre, of_scale))
    return (centre, scale), tuple(moved)


def _xp(v):
    return np if isinstance(v, np.ndarray | np.floating) else jnp


def _with(v):
    """The array module of v, and nodes and weights in its type."""
    xp = _xp(v)
    return xp, xp.asarray(NODES, v.dtype), xp.asarray(WEIGHTS, v.dtype)
