"""Symmetric operators given by their action on a vector.

The Hessian of the ELBO has as many rows as there are variational parameters P, but never needs to be formed:
with a factorised q its score estimate is block diagonal plus a signed rank-S correction,

    H = A + U' diag(w) U,        A block diagonal,  U of shape (S, P),  w of shape (S,) with either sign,

so that a product costs O(S P). (The paper, equation 14, writes the correction with c_i = sqrt(ln p / S),
imaginary for ln p < 0; the signed weights w replace the squares.) Each operator gives `mv`, `dense`, `scale`,
`add_blocks` and `whiten`; solvers use the structure only where they need it.
"""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi.curvature.blocks import BlockDiagonal, BlockFactor
from curvi.curvature.small import matmul
from curvi.record.plain import register


class Operator(eqx.Module):
    """A symmetric linear map on flat parameter vectors."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of rows."""

    @abstractmethod
    def mv(self, v: Float[Array, " P"]) -> Float[Array, " P"]:
        """The product with `v`."""

    @abstractmethod
    def scale(self, factor) -> "Operator":
        """The operator times a number."""

    @abstractmethod
    def add_blocks(self, blocks: BlockDiagonal) -> "Operator":
        """The operator plus a block-diagonal one (damping)."""

    @abstractmethod
    def shift(self, amount) -> "Operator":
        """The operator plus a multiple of the identity: damping in whitened coordinates."""

    @abstractmethod
    def whiten(self, factor: BlockFactor) -> "Operator":
        """L^-1 (operator) L^-T, with the metric equal to L L'."""

    def dense(self) -> Float[Array, "P P"]:
        """The matrix itself, P products: for small problems, tests and the dense method."""
        return jax.vmap(self.mv, out_axes=1)(jnp.eye(self.size, dtype=self.dtype))

    @property
    def dtype(self):
        """The floating dtype of the stored arrays; the default one if there are none."""
        arrays = [leaf for leaf in jax.tree.leaves(self) if eqx.is_inexact_array(leaf)]
        return jnp.result_type(*arrays) if arrays else jnp.result_type(float)


@register
class DenseMatrix(Operator):
    """A symmetric matrix stored densely."""

    matrix: Float[Array, "P P"]

    @property
    def size(self) -> int:
        return self.matrix.shape[0]

    def mv(self, v):
        return matmul(self.matrix, v)

    def scale(self, factor):
        return DenseMatrix(factor * self.matrix)

    def add_blocks(self, blocks):
        return DenseMatrix(self.matrix + blocks.dense())

    def shift(self, amount):
        return DenseMatrix(self.matrix + amount * jnp.eye(self.size, dtype=self.matrix.dtype))

    def whiten(self, factor):
        half = jax.vmap(factor.solve, in_axes=1, out_axes=1)(self.matrix)
        return DenseMatrix(jax.vmap(factor.solve)(half))

    def dense(self):
        return self.matrix


@register
class BlockLowRank(Operator):
    """Block diagonal plus a signed low-rank correction: A + U' diag(w) U (paper, Scheme I, equation 14)."""

    diagonal: BlockDiagonal
    vectors: Float[Array, "S P"]
    weights: Float[Array, " S"]

    def __check_init__(self):
        size, shape, count = self.diagonal.size, self.vectors.shape, self.weights.shape[-1]
        if shape[-2:] != (count, size):
            raise ValueError(f"vectors, blocks, weights: expected (S, P), P, S; got {shape}, {size}, {count}")

    @property
    def size(self) -> int:
        return self.vectors.shape[1]

    def mv(self, v):
        return self.diagonal.mv(v) + matmul(self.weights * matmul(self.vectors, v), self.vectors)

    def scale(self, factor):
        return BlockLowRank(self.diagonal.scale(factor), self.vectors, factor * self.weights)

    def add_blocks(self, blocks):
        return BlockLowRank(self.diagonal.add(blocks), self.vectors, self.weights)

    def shift(self, amount):
        return self.add_blocks(self.diagonal.identity_like().scale(amount))

    def whiten(self, factor):
        return BlockLowRank(self.diagonal.whiten(factor), jax.vmap(factor.solve)(self.vectors), self.weights)

    def dense(self):
        return self.diagonal.dense() + matmul(self.vectors.T * self.weights, self.vectors)


class MatrixFree(Operator):
    """scale * L^-1 (base) L^-T + blocks + shift I, for a base given only by its products (`product(v)`)."""

    product: Callable
    length: int = eqx.field(static=True)
    factor: Float[Array, ""] | float = 1.0
    blocks: BlockDiagonal | None = None
    whitener: BlockFactor | None = None
    added: Float[Array, ""] | float = 0.0

    @property
    def size(self) -> int:
        return self.length

    def mv(self, v):
        inner = v if self.whitener is None else self.whitener.solve_transpose(v)
        product = self.factor * self.product(inner)
        out = product if self.whitener is None else self.whitener.solve(product)
        out = out if self.blocks is None else out + self.blocks.mv(v)
        return out + self.added * v

    def scale(self, factor):
        blocks = None if self.blocks is None else self.blocks.scale(factor)
        return MatrixFree(self.product, self.length, factor * self.factor, blocks, self.whitener, factor * self.added)

    def shift(self, amount):
        return MatrixFree(self.product, self.length, self.factor, self.blocks, self.whitener, self.added + amount)

    def add_blocks(self, blocks):
        total = blocks if self.blocks is None else self.blocks.add(blocks)
        return MatrixFree(self.product, self.length, self.factor, total, self.whitener, self.added)

    def whiten(self, factor):
        if self.whitener is not None or not (isinstance(self.added, float) and self.added == 0.0):
            raise ValueError("this operator is whitened or shifted already; whiten the original once")
        blocks = None if self.blocks is None else self.blocks.whiten(factor)
        return MatrixFree(self.product, self.length, self.factor, blocks, factor)
