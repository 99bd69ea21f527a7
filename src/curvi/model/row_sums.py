"""Sums over many rows, block by block: memory for one block, whatever the number of rows and of derivatives."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def sum_rows(log_likelihood_row: Callable, rows, block: int) -> Float[Array, ""]:
    """The sum of a function of each row over a pytree of arrays that share their first axis."""
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    num_blocks = num_rows // block

    def total(part):
        return jnp.sum(jax.vmap(log_likelihood_row)(part))

    if num_blocks <= 1:
        return total(rows)

    # A derivative computes a block again instead of keeping what all blocks computed.
    @jax.checkpoint
    def of_block(at):
        # A slice, not a reshaped array: that would be a copy of all rows.
        return total(jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, at * block, block), rows))

    # Of no row: a zero that depends on the latents, for the type of the sum.
    start = total(jax.tree.map(lambda leaf: leaf[num_blocks * block :], rows))
    return jax.lax.scan(lambda sum_, at: (sum_ + of_block(at), None), start, jnp.arange(num_blocks))[0]
