"""Lower triangular matrices in arrow form: a few global coordinates, then sets of small blocks tied to them alone.

    L = [G          ]      G  (g, g), lower triangular
        [C_1 B_1    ]      C  (n, k, g), one slice per block of a set of n blocks of size k
        [C_2     B_2]      B  (n, k, k), lower triangular

Products, inverses and Cholesky factors stay in the pattern, so that such matrices form a group; storage and time are
O(n (k^2 + k g) + g^2). Coordinates stand in *block order*: globals, then set after set, block after block.

All functions take numpy or JAX arrays, with any leading axes where it says so.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from curvi.record.plain import register


@register
@dataclasses.dataclass(frozen=True)
class BlockSet:
    """`count` blocks of equal size, made of latents with one entry per block along one axis.

    `parts` has, for each latent, its first coordinate and the sizes before and after that axis.
    """

    name: str
    count: int
    parts: tuple[tuple[int, int, int], ...]

    @property
    def size(self) -> int:
        return sum(before * after for _, before, after in self.parts)

    def index(self) -> np.ndarray:
        """The coordinates of each block (count, size)."""
        columns = []
        for start, before, after in self.parts:
            entries = start + np.arange(before * self.count * after).reshape(before, self.count, after)
            columns.append(entries.transpose(1, 0, 2).reshape(self.count, -1))
        return np.concatenate(columns, 1)


@register
@dataclasses.dataclass(frozen=True)
class Arrow:
    """The pattern: `size` coordinates, of which those in no set of blocks are global."""

    size: int
    sets: tuple[BlockSet, ...]

    @property
    def num_global(self) -> int:
        return self.size - sum(blocks.count * blocks.size for blocks in self.sets)

    @property
    def reach(self) -> int:
        """The largest number of coordinates that are tied to each other: globals and one block."""
        return self.num_global + max((blocks.size for blocks in self.sets), default=0)

    @property
    def num_below(self) -> int:
        """Number of entries below the diagonal."""
        g = self.num_global
        sets = (blocks.count * blocks.size * (g + (blocks.size - 1) / 2) for blocks in self.sets)
        return g * (g - 1) // 2 + int(sum(sets))


class ArrowMatrix(NamedTuple):
    """A matrix of the pattern, or the entries of one in it."""

    top: Any  # (..., g, g)
    sides: tuple  # (..., n, k, g)
    blocks: tuple  # (..., n, k, k)

    def split(self, v) -> tuple[Any, list[Any]]:
        """The globals of vectors (..., d), and one array (..., n, k) per set."""
        start, parts = self.top.shape[-1], []
        for block in self.blocks:
            n, k = block.shape[-3], block.shape[-1]
            parts.append(v[..., start : start + n * k].reshape(*v.shape[:-1], n, k))
            start += n * k
        return v[..., : self.top.shape[-1]], parts

    def mv(self, v) -> Any:
        """L v; leading axes are those of the vectors."""
        first, rest = self.split(v)
        out = [first @ self.top.T]
        for side, block, part in zip(self.sides, self.blocks, rest):
            out.append(_flat(_einsum("nkg,...g->...nk", side, first) + _small(block, part)))
        return _join(out)

    def mv_transposed(self, v) -> Any:
        """L' v."""
        first, rest = self.split(v)
        out = [first @ self.top]
        for side, block, part in zip(self.sides, self.blocks, rest):
            out[0] = out[0] + _einsum("nkg,...nk->...g", side, part)
            out.append(_flat(_small(block.swapaxes(-1, -2), part)))
        return _join(out)

    def solve(self, v) -> Any:
        """L^-1 v."""
        first, rest = self.split(v)
        first = _solve(self.top, first)
        out = [first]
        for side, block, part in zip(self.sides, self.blocks, rest):
            out.append(_flat(_solve(block, part - _einsum("nkg,...g->...nk", side, first))))
        return _join(out)

    def times(self, other: "ArrowMatrix") -> "ArrowMatrix":
        """The product, which is of the same pattern."""
        sides = (c @ other.top + b @ d for c, b, d in zip(self.sides, self.blocks, other.sides))
        blocks = (b @ d for b, d in zip(self.blocks, other.blocks))
        return ArrowMatrix(self.top @ other.top, tuple(sides), tuple(blocks))

    def transposed_times(self, other: "ArrowMatrix") -> "ArrowMatrix":
        """The entries of L' M in the pattern, with whole square blocks; they depend on those of M in it alone."""
        top = self.top.T @ other.top
        for c, d in zip(self.sides, other.sides):
            top = top + _gram(c, d)
        sides = (b.swapaxes(-1, -2) @ d for b, d in zip(self.blocks, other.sides))
        blocks = (b.swapaxes(-1, -2) @ d for b, d in zip(self.blocks, other.blocks))
        return ArrowMatrix(top, tuple(sides), tuple(blocks))

    def solve_transposed(self, other: "ArrowMatrix") -> "ArrowMatrix":
        """The inverse of `transposed_times`."""
        sides = tuple(_inverse(b).swapaxes(-1, -2) @ d for b, d in zip(self.blocks, other.sides))
        blocks = tuple(_inverse(b).swapaxes(-1, -2) @ d for b, d in zip(self.blocks, other.blocks))
        top = other.top
        for c, d in zip(self.sides, sides):
            top = top - _gram(c, d)
        return ArrowMatrix(_inverse(self.top).T @ top, sides, blocks)

    def inverse(self) -> "ArrowMatrix":
        top, blocks = _inverse(self.top), tuple(_inverse(block) for block in self.blocks)
        sides = tuple(-(b @ c @ top) for b, c in zip(blocks, self.sides))
        return ArrowMatrix(top, sides, blocks)

    def symmetrised(self) -> "ArrowMatrix":
        """With both triangles of the square blocks averaged."""
        return ArrowMatrix(_even(self.top), self.sides, tuple(_even(block) for block in self.blocks))

    def row_squares(self) -> Any:
        """The sum of squares of each row."""
        rows = ((s**2).sum(-1) + (b**2).sum(-1) for s, b in zip(self.sides, self.blocks))
        return _join([(self.top**2).sum(-1), *(row.ravel() for row in rows)])

    def column_squares(self) -> Any:
        """The sum of squares of each column."""
        top = (self.top**2).sum(0)
        for side in self.sides:
            top = top + (side**2).sum((0, 1))
        return _join([top, *((block**2).sum(-2).ravel() for block in self.blocks)])

    def row_products(self, other: "ArrowMatrix") -> Any:
        """The inner product of each row with that of another matrix."""
        rows = (
            (s * t).sum(-1) + (b * d).sum(-1) for s, b, t, d in zip(self.sides, self.blocks, other.sides, other.blocks)
        )
        return _join([(self.top * other.top).sum(-1), *(row.ravel() for row in rows)])


def root_of_inverse(matrix: ArrowMatrix) -> tuple[ArrowMatrix, float]:
    """The lower triangular factor N of the inverse, N N' = M^-1, of a symmetric matrix of the pattern (its sides are
    the entries below the diagonal), and ln det M. Raises LinAlgError where it is not positive definite.
    """
    blocks, sides, top, log_det = [], [], matrix.top, 0.0
    for side, block in zip(matrix.sides, matrix.blocks):
        lower = np.linalg.cholesky(block)
        inverse = _inverse(lower)
        white = inverse @ side
        top = top - _gram(white, white)
        sides.append(-(inverse.swapaxes(-1, -2) @ white))
        blocks.append(np.linalg.cholesky(inverse.swapaxes(-1, -2) @ inverse))
        log_det += 2 * float(np.log(np.diagonal(lower, axis1=-2, axis2=-1)).sum())
    lower = np.linalg.cholesky(top)
    log_det += 2 * float(np.log(np.diag(lower)).sum())
    inverse = _inverse(lower)
    first = np.linalg.cholesky(inverse.T @ inverse)
    return ArrowMatrix(first, tuple(side @ first for side in sides), tuple(blocks)), log_det


# -- small matrices in numpy or JAX -----------------------------------------------------------------------------------


def _einsum(subscripts: str, *operands):
    xp = np if all(isinstance(operand, np.ndarray) for operand in operands) else jnp
    return xp.einsum(subscripts, *operands)


def _gram(c, d):
    """The sum over all blocks of c' d."""
    return c.reshape(-1, c.shape[-1]).T @ d.reshape(-1, d.shape[-1])


def _join(parts):
    xp = np if isinstance(parts[0], np.ndarray) else jnp
    return xp.concatenate(parts, -1)


def _flat(v):
    return v.reshape(*v.shape[:-2], -1)


def _small(blocks, v):
    """Products of small blocks (n, k, k) with vectors (..., n, k)."""
    # Multiply and sum: fused loops are faster than tiny batched matrix products.
    return blocks[..., 0] * v if blocks.shape[-1] == 1 else (blocks * v[..., None, :]).sum(-1)


def _even(matrix):
    return (matrix + matrix.swapaxes(-1, -2)) / 2


def _inverse(matrix):
    if matrix.shape[-1] == 1:
        return 1 / matrix
    return np.linalg.inv(matrix) if isinstance(matrix, np.ndarray) else jnp.linalg.inv(matrix)


def _solve(lower, v):
    """Solutions (..., k) of lower triangular systems (..., k, k)."""
    if lower.shape[-1] == 0:
        return v
    if lower.shape[-1] == 1:
        return v / lower[..., 0]
    if isinstance(v, np.ndarray):
        return np.linalg.solve(lower, v[..., None])[..., 0]
    solve = functools.partial(jax.lax.linalg.triangular_solve, left_side=True, lower=True)
    return solve(jnp.broadcast_to(lower, (*v.shape, v.shape[-1])), v[..., None])[..., 0]
