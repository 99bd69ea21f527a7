"""Block-diagonal symmetric matrices: one small block per factor of q; O(P) to store, apply, factorise, solve.

A flat vector of parameters is the concatenation over groups of equal factors of an array (n, k): n factors
with k parameters each. The matrix keeps one array (n, k, k) per group. (Paper, equations 11 and 12: the
Hessians of ln q and of the entropy.)
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array, Float

from curvi.curvature.small import backward, cholesky_small, dense_group, forward, solve_small
from curvi.record.plain import register


def split(v: Float[Array, "... P"], blocks: tuple[Array | jax.ShapeDtypeStruct, ...]) -> list[Float[Array, "... n k"]]:
    """`v` split into one array (..., n, k) per group of `blocks`."""
    parts, start = [], 0
    for block in blocks:
        n, k = block.shape[-3], block.shape[-1]
        parts.append(v[..., start : start + n * k].reshape(*v.shape[:-1], n, k))
        start += n * k
    return parts


def join(parts) -> Float[Array, "... P"]:
    """The flat vector whose groups are `parts`."""
    return jnp.concatenate([part.reshape(*part.shape[:-2], -1) for part in parts], axis=-1)


@register
class BlockDiagonal(eqx.Module):
    """A symmetric block-diagonal matrix."""

    blocks: tuple[Float[Array, "_ _ _"], ...]

    @property
    def size(self) -> int:
        return sum(block.shape[-3] * block.shape[-1] for block in self.blocks)

    @property
    def dtype(self):
        return jnp.result_type(*self.blocks)

    def mv(self, v: Float[Array, " P"]) -> Float[Array, " P"]:
        # Multiply and sum rather than einsum: fused loops are faster than tiny batched matrix products.
        return join([(b * p[..., None, :]).sum(-1) for b, p in zip(self.blocks, split(v, self.blocks))])

    def add(self, other: "BlockDiagonal") -> "BlockDiagonal":
        return BlockDiagonal(tuple(a + b for a, b in zip(self.blocks, other.blocks, strict=True)))

    def scale(self, factor) -> "BlockDiagonal":
        return BlockDiagonal(tuple(factor * b for b in self.blocks))

    def solve(self, v: Float[Array, " P"]) -> Float[Array, " P"]:
        """The solution of (this) x = v by elimination with pivots; non-finite where a block is singular."""
        return join([solve_small(b, p) for b, p in zip(self.blocks, split(v, self.blocks))])

    def factorise(self) -> "BlockFactor":
        """The Cholesky factor; non-finite where a block is not positive definite."""
        return BlockFactor(tuple(cholesky_small(b) for b in self.blocks))

    def whiten(self, factor: "BlockFactor") -> "BlockDiagonal":
        """L^-1 (this) L^-T."""
        out = []
        for block, lower in zip(self.blocks, factor.lower):
            half = jnp.stack([forward(lower, block[..., j]) for j in range(block.shape[-1])], axis=-1)
            whole = jnp.stack([forward(lower, half[..., j, :]) for j in range(block.shape[-1])], axis=-2)
            out.append((whole + jnp.swapaxes(whole, -1, -2)) / 2)
        return BlockDiagonal(tuple(out))

    def dense(self) -> Float[Array, "P P"]:
        return jsl.block_diag(*[dense_group(block) for block in self.blocks])

    def identity_like(self) -> "BlockDiagonal":
        return BlockDiagonal(tuple(jnp.broadcast_to(jnp.eye(b.shape[-1], dtype=b.dtype), b.shape) for b in self.blocks))


class BlockFactor(eqx.Module):
    """The block Cholesky factor L of a metric L L'.

    Whitened coordinates are v_white = L' v, so that |v_white|^2 = v' L L' v.
    """

    lower: tuple[Float[Array, "_ _ _"], ...]

    def solve(self, v: Float[Array, " P"]) -> Float[Array, " P"]:
        """L^-1 v: maps a gradient to whitened coordinates."""
        return join([forward(lower, p) for lower, p in zip(self.lower, split(v, self.lower))])

    def solve_transpose(self, v: Float[Array, " P"]) -> Float[Array, " P"]:
        """L^-T v: maps a step back from whitened coordinates."""
        return join([backward(lower, p) for lower, p in zip(self.lower, split(v, self.lower))])

    def transpose_mv(self, v: Float[Array, " P"]) -> Float[Array, " P"]:
        """L' v: maps a step to whitened coordinates."""
        return join([(lo * p[..., :, None]).sum(-2) for lo, p in zip(self.lower, split(v, self.lower))])

    def mv(self, v: Float[Array, " P"]) -> Float[Array, " P"]:
        """L v."""
        return join([(lo * p[..., None, :]).sum(-1) for lo, p in zip(self.lower, split(v, self.lower))])
