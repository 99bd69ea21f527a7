"""Conjugate gradients that stop at the edge of a ball and at negative curvature (Steihaug 1983; Toint 1981).

For A x = b the iterates grow in norm, so that the first one outside a ball |x|^2 / 2 <= radius ends the search: x is
the point where the last step leaves the ball. A direction with d'Ad <= 0 is followed to the edge; without a ball the
search ends before it.

The same code runs with two kinds of `Loop`: on the host in numpy, or compiled by JAX. The host avoids compilation,
which dominates the time of a small fit; the compiled version stays on the device.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

# Arrays of either kind; numbers, which on the host may be Python's own; and truth values.
Array = jax.Array | np.ndarray
Scalar = Array | float
Truth = Array | np.bool_ | bool
# One kind of array throughout: either numpy or JAX.
ArrayT = TypeVar("ArrayT", jax.Array, np.ndarray)
Tree = TypeVar("Tree")


@runtime_checkable
class Loop(Protocol):
    """Selection and repetition, on the host or compiled."""

    @property
    def xp(self) -> ModuleType:
        """numpy or jax.numpy."""
        ...

    def choose(self, condition: Truth, if_true: Callable[[], Tree], if_false: Callable[[], Tree]) -> Tree:
        """One of two values, given as functions so that the host computes only the one needed."""
        ...

    def repeat(self, going: Callable[[Tree], Truth], advance: Callable[[Tree], Tree], state: Tree) -> Tree:
        """The state after `advance` was applied for as long as `going` held."""
        ...


class _Host:
    xp = np

    def choose(self, condition, if_true, if_false):
        return if_true() if condition else if_false()

    def repeat(self, going, advance, state):
        while going(state):
            state = advance(state)
        return state


class _Compiled:
    xp = jnp

    def choose(self, condition, if_true, if_false):
        return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true(), if_false())

    def repeat(self, going, advance, state):
        return jax.lax.while_loop(going, advance, state)


HOST: Loop = _Host()
COMPILED: Loop = _Compiled()


# -- the search -------------------------------------------------------------------------------------------------------


class Truncated(NamedTuple):
    """The end of the search.

    Attributes
    ----------
    x, rest
        The iterate, and b - A x by recursion.
    direction
        The last direction, of negative curvature if `negative`.
    product
        rest' M^-1 rest, with M the preconditioner.
    num_products
        Products with A.
    on_edge, negative, bad
        Whether x lies on the edge of the ball; whether negative curvature was met; whether M is not definite.
    """

    x: Any
    rest: Any
    direction: Any
    product: Any
    num_products: Any
    on_edge: Any
    negative: Any
    bad: Any


def truncated_cg(
    multiply: Callable[[ArrayT], ArrayT],
    b: ArrayT,
    *,
    loop: Loop,
    max_products: int,
    unfinished: Callable[..., Truth],
    radius: Scalar | None = None,
    precondition: Callable[[ArrayT], ArrayT] | None = None,
) -> Truncated:
    """The result of conjugate gradients for A x = b, A given by `multiply`, while `unfinished(rest, product)` holds.

    `radius=None` means no ball. A ball excludes a preconditioner: its norm is that of the coordinates.
    """
    xp = loop.xp
    direction = b if precondition is None else precondition(b)

    def going(at: Truncated):
        return unfinished(at.rest, at.product) & (at.num_products < max_products) & ~(at.on_edge | at.negative | at.bad)

    def advance(at: Truncated) -> Truncated:
        image = multiply(at.direction)
        bend = at.direction @ image
        negative, bad = ~(bend > 0), ~(at.product > 0)
        length = at.product / loop.choose(negative, lambda: 1 + 0 * bend, lambda: bend)
        if radius is None:
            on_edge = negative & ~negative
            length = loop.choose(negative | bad, lambda: 0 * length, lambda: length)
        else:
            dd, xd, xx = at.direction @ at.direction, at.x @ at.direction, at.x @ at.x
            reach = 2 * radius
            on_edge = negative | (xx + length * (2 * xd + length * dd) >= reach)
            # |x + length d|^2 = 2 radius
            edge = lambda: (xp.sqrt(xp.maximum(xd * xd + dd * (reach - xx), 0.0)) - xd) / dd  # noqa: E731
            length = loop.choose(on_edge, edge, lambda: length)
        x, rest = at.x + length * at.direction, at.rest - length * image
        white = rest if precondition is None else precondition(rest)
        product = rest @ white
        ended = on_edge | negative | bad
        next_direction = loop.choose(ended, lambda: at.direction, lambda: white + product / at.product * at.direction)
        return Truncated(x, rest, next_direction, product, at.num_products + 1, on_edge, negative, bad)

    no = xp.zeros((), bool)
    # Zero times the right-hand side, so that a non-finite number in it propagates to x.
    start = Truncated(0 * b, b, direction, b @ direction, xp.zeros((), "int32"), no, no, no)
    return loop.repeat(going, advance, start)
