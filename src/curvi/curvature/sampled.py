"""An operator with fresh random copies, for the recursion of Scheme II of the paper."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import PRNGKeyArray

from curvi.curvature.operators import Operator


class Sampled(Operator):
    """An operator with a function that draws independent unbiased copies of it, as Scheme II needs.

    `draw(key)` returns an Operator with the expectation that `mean` estimates (or equals); each copy may
    itself average a few Monte Carlo draws, and costs `calls_per_draw` log-density evaluations. Damping and
    whitening are applied to the mean and to every copy alike. Give `draw` as an `eqx.Module` or
    `jax.tree_util.Partial`, rather than a lambda, where the operator is an argument of a jitted function.
    """

    mean: Operator
    draw: Callable[[PRNGKeyArray], Operator]
    calls_per_draw: int = eqx.field(static=True, default=0)

    @property
    def size(self) -> int:
        return self.mean.size

    @property
    def dtype(self):
        return self.mean.dtype

    def mv(self, v):
        return self.mean.mv(v)

    def scale(self, factor):
        return self._each("scale", factor)

    def add_blocks(self, blocks):
        return self._each("add_blocks", blocks)

    def shift(self, amount):
        return self._each("shift", amount)

    def whiten(self, factor):
        return self._each("whiten", factor)

    def dense(self):
        return self.mean.dense()

    def _each(self, change, argument):
        mean = getattr(self.mean, change)(argument)
        return Sampled(mean, _ChangedDraw(self.draw, change, argument), self.calls_per_draw)


class _ChangedDraw(eqx.Module):
    # A module rather than a closure, so that jit traces the argument and a changed operator compiles once.
    draw: Callable[[PRNGKeyArray], Operator]
    change: str = eqx.field(static=True)
    argument: Any

    def __call__(self, key):
        return getattr(self.draw(key), self.change)(self.argument)
