"""The log density estimated on a fixed random sample of the rows: an ordinary target in memory."""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from curvi.model.latents import Latent
from curvi.model.location_scale import LocationScale
from curvi.model.minibatch import LEAST_BLOCK, MinibatchTarget
from curvi.model.row_sums import sum_rows
from curvi.model.target import AbstractTarget, LogDensity


class RowSample(AbstractTarget):
    """ln p with the sum over all rows replaced by N / n times that over n rows, chosen once without replacement.

    What each row had at a reference point is subtracted from it: sums of differences are accurate in single precision
    near that point, while the sum itself would be rounded to whole nats. It changes ln p by a constant.

    Attributes
    ----------
    rows
        The rows, with n as first axis of every leaf.
    at_reference
        The log likelihood of each at the reference point; zeros before there is one.
    scale
        N / n.
    """

    latents: tuple[Latent, ...] = eqx.field(static=True)
    init: dict[str, Array]
    order: int = eqx.field(static=True)
    outputs: Callable | None
    prior: LogDensity
    likelihood_row: Callable
    location_scale: tuple[LocationScale, ...]
    rows: object
    at_reference: Float[Array, " n"]
    scale: Float[Array, ""]
    block: int = eqx.field(static=True)

    @classmethod
    def of(cls, target: MinibatchTarget, rows) -> "RowSample":
        """A sample of the rows of a target."""
        num_rows = jax.tree.leaves(rows)[0].shape[0]
        rows = jax.tree.map(jnp.asarray, rows)
        return cls(
            target.latents,
            target.init,
            target.order,
            target.outputs,
            target.prior,
            target.likelihood_row,
            target.location_scale,
            rows,
            jnp.zeros(num_rows, target.dtype),
            jnp.asarray(target.num_rows / num_rows, target.dtype),
            block_rows(target),
        )

    @property
    def batch_size(self) -> int:
        """Rows for which the model is computed at a time: what memory per draw grows with."""
        return min(self.block, len(self.at_reference))

    def about(self, theta: Mapping[str, ArrayLike]) -> tuple["RowSample", float]:
        """The same with this point as reference, and the constant by which that lowers ln p."""
        at = _at_reference(self, theta)
        total = float(self.scale) * float(np.asarray(at, np.float64).sum())
        return eqx.tree_at(lambda sample: sample.at_reference, self, at), total

    def batch(self, key):
        return self.full()

    def full(self):
        def log_density(theta):
            one = lambda pair: self.likelihood_row(theta, pair[0]) - pair[1]  # noqa: E731
            return self.prior(theta) + self.scale * sum_rows(one, (self.rows, self.at_reference), self.block)

        return log_density


def block_rows(target: MinibatchTarget) -> int:
    """Rows for which the model is computed at a time."""
    return max(target.batch_size, LEAST_BLOCK)


@eqx.filter_jit
def _at_reference(sample: RowSample, theta):
    num_rows, block = len(sample.at_reference), sample.block
    each = lambda row: sample.likelihood_row(theta, row)  # noqa: E731
    return jax.lax.map(each, sample.rows, batch_size=min(block, num_rows)).astype(sample.at_reference.dtype)
