"""The Fisher information of a normal distribution in the entries of a scale matrix."""

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Float


def scale_fisher(
    precision: Float[Array, "d d"], scale: Float[Array, " d"], rows: np.ndarray, columns: np.ndarray
) -> Float[Array, "p p"]:
    """The Fisher information of N(m, L L') for the parameters m, ln of L's diagonal, `scale`, and the entries of L
    below it at these rows and columns.
    """
    size = len(scale)
    rows, columns = (np.concatenate([np.arange(size), at]) for at in (rows, columns))
    # Entries of one column of L share the precision of their rows; those of two columns share nothing.
    shared = precision[rows[:, None], rows] * (columns[:, None] == columns)
    scales = jnp.concatenate([scale, jnp.ones(len(rows) - size, scale.dtype)])  # the parameters are logarithms
    own = jnp.diag(jnp.asarray(np.arange(len(rows)) < size, scale.dtype))
    return block_diag(precision, scales[:, None] * shared * scales + own)
