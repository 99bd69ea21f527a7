"""Two runners of one loop: on the host, one operation after the other in numpy, or compiled, by JAX.

What is written once against this interface runs as a part of a compiled program, or between the calls of one. On the
host nothing has to be compiled, which is most of the time of a small fit; compiled, nothing leaves the device.
"""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np


class Loop(Protocol):
    """How to choose between two values and how to repeat a step."""

    xp: Any  # numpy or jax.numpy

    def choose(self, condition, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
        """One of two values, given as functions so that the host computes only the one that it needs."""
        ...

    def repeat(self, going: Callable[[Any], Any], advance: Callable[[Any], Any], state: Any) -> Any:
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
