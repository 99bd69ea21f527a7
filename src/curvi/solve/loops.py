"""Two runners of one loop: on the host, one operation after the other in numpy, or compiled, by JAX.

What is written once against this interface runs as a part of a compiled program, or between the calls of one. On the
host nothing has to be compiled, which is most of the time of a small fit; compiled, nothing leaves the device.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Protocol, TypeVar

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
