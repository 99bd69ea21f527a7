"""Conjugate gradients that stop at the edge of a ball and at negative curvature (Steihaug 1983; Toint 1981).

For A x = b the iterates grow in norm, so that the first one outside of a ball |x|^2 / 2 <= radius ends the search: x
is cut where its last step leaves the ball. A direction with d'Ad <= 0 is followed to the edge; where there is none the
search ends before it.

Written once, for two runners of a `Loop`: on the host, one operation after the other in numpy, or compiled, by JAX. On
the host nothing has to be compiled, which is most of the time of a small fit; compiled, nothing leaves the device.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

# Arrays of either kind; numbers, which on the host may be Python's own; and answers to questions about them.
Array = jax.Array | np.ndarray
Scalar = Array | float
Truth = Array | np.bool_ | bool
# One kind of arrays throughout: what is on the host stays there.
ArrayT = TypeVar("ArrayT", jax.Array, np.ndarray)
Tree = TypeVar("Tree")


@runtime_checkable
class Loop(Protocol):
    """How to choose between two values and how to repeat a step."""

    @property
    def xp(self) -> ModuleType:
        """numpy or jax.numpy."""
        ...

    def choose(self, condition: Truth, if_true: Callable[[], Tree], if_false: Callable[[], Tree]) -> Tree:
        """One of two values, given as functions so that the host computes only the one that it needs."""
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
    """Where the search ended.

    Attributes
    ----------
    x, rest
        The iterate, and b - A x by recursion.
    direction
        The last direction: one of negative curvature where `negative`.
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
    """Search for the solution of A x = b, A given by `multiply`, for as long as `unfinished(rest, product)` holds.

    `radius` None stands for no ball at all; a ball goes with no preconditioner: its norm is that of the coordinates.
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
    # Zero times the right-hand side: a number in it that is not finite must reach x.
    start = Truncated(0 * b, b, direction, b @ direction, xp.zeros((), "int32"), no, no, no)
    return loop.repeat(going, advance, start)
