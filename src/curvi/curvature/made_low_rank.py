"""Block diagonal plus a signed low-rank correction whose vectors are made where they are used, some at a time."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi.curvature.blocks import BlockDiagonal, BlockFactor
from curvi.curvature.operators import BlockLowRank, Operator
from curvi.curvature.small import matmul
from curvi.record.plain import register


@register
class MadeLowRank(Operator):
    """A + U' diag(w) U like `BlockLowRank`, without storing U: `make(part)` gives the rows of one part of it.

    A product makes all rows once, at O(S P) like the stored form, and holds one part of them at a time.
    """

    diagonal: BlockDiagonal
    make: Callable[[Any], Float[Array, "rows P"]]
    parts: Any  # what `make` takes, with a first axis for the parts
    weights: Float[Array, "parts rows"]
    whitener: BlockFactor | None = None

    @property
    def size(self) -> int:
        return self.diagonal.size

    def _rows(self, part):
        rows = self.make(part)
        return rows if self.whitener is None else jax.vmap(self.whitener.solve)(rows)

    def mv(self, v):
        inner = v if self.whitener is None else self.whitener.solve_transpose(v)

        def add(total, part):
            drawn, weights = part
            rows = self.make(drawn)
            return total + matmul(weights * matmul(rows, inner), rows), None

        total = jax.lax.scan(add, jnp.zeros_like(v), (self.parts, self.weights))[0]
        return self.diagonal.mv(v) + (total if self.whitener is None else self.whitener.solve(total))

    def scale(self, factor):
        return MadeLowRank(self.diagonal.scale(factor), self.make, self.parts, factor * self.weights, self.whitener)

    def add_blocks(self, blocks):
        return MadeLowRank(self.diagonal.add(blocks), self.make, self.parts, self.weights, self.whitener)

    def shift(self, amount):
        return self.add_blocks(self.diagonal.identity_like().scale(amount))

    def whiten(self, factor):
        if self.whitener is not None:
            raise ValueError("this operator is whitened already; whiten the original once")
        return MadeLowRank(self.diagonal.whiten(factor), self.make, self.parts, self.weights, factor)

    def stored(self) -> BlockLowRank:
        """The same with all S vectors stored, for solvers that need them."""
        rows = jax.lax.map(self._rows, self.parts)
        return BlockLowRank(self.diagonal, rows.reshape(-1, self.size), self.weights.reshape(-1))
