"""Log densities that are a prior plus a sum over rows of data, on random batches of rows."""

import math
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Int

from curvi.model.latents import Latent, check_order, read_latents
from curvi.model.location_scale import LocationScale, read_location_scale
from curvi.model.row_sums import sum_rows
from curvi.model.rows.rows import Rows
from curvi.model.target import AbstractTarget, LogDensity
from curvi.model.tracing import trace, trace_outputs

LEAST_BLOCK = 4096  # rows of a block of a sum over all rows, at least


class MinibatchTarget(AbstractTarget):
    """A log density that is a prior plus a sum over data rows, estimated on random batches of rows.

    The estimate is log_prior(theta) + (N / B) * sum over the batch of log_likelihood_row(theta, row). The factor N/B
    is applied only here: estimators get one number per draw, so gradients and Hessians contain it exactly once.

    Parameters
    ----------
    log_prior
        Takes the dict of latents, returns a scalar.
    log_likelihood_row
        Takes the dict of latents and one row of `data` (the same pytree without its first axis), returns a scalar.
    data
        A pytree of arrays that share their first axis, the rows; or `Rows`, which need not fit in memory. A row of
        these is a dict of their columns.
    batch_size
        Rows for which the model is computed at a time; methods that take random batches draw them without replacement.
    init, supports, order, outputs, location_scale
        As for `Target`.
    """

    latents: tuple[Latent, ...] = eqx.field(static=True)
    init: dict[str, Array]
    order: int = eqx.field(static=True)
    outputs: Callable | None
    prior: LogDensity
    likelihood_row: Callable
    location_scale: tuple[LocationScale, ...]
    data: object
    batch_size: int = eqx.field(static=True)
    num_rows: int = eqx.field(static=True)

    def __init__(
        self,
        log_prior,
        log_likelihood_row,
        data,
        batch_size,
        init,
        supports=None,
        order=2,
        *,
        outputs=None,
        location_scale=None,
    ):
        self.latents, self.init = read_latents(init, supports)
        self.order = check_order(order)
        self.outputs = trace_outputs(outputs, self.init)
        self.location_scale = read_location_scale(location_scale, self.latents, self.init)
        self.data = data if isinstance(data, Rows) else jax.tree.map(jnp.asarray, data)
        self.num_rows = data.num_rows if isinstance(data, Rows) else _count_rows(self.data)
        whole = isinstance(batch_size, int | np.integer) and not isinstance(batch_size, bool)
        if not whole or not 1 <= batch_size <= self.num_rows:
            raise ValueError(
                f"batch_size must be an integer from 1 to the number of rows, {self.num_rows}; got {batch_size!r}"
            )
        self.batch_size = int(batch_size)
        if isinstance(data, Rows):
            row = data.row
        else:
            row = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self.data)
        self.prior = trace(log_prior, self.init, "log_prior")
        self.likelihood_row = trace(log_likelihood_row, self.init, "log_likelihood_row", row)

    @property
    def minibatched(self) -> bool:
        return self.batch_size < self.num_rows

    @property
    def streamed(self) -> bool:
        return isinstance(self.data, Rows)

    def on_first_rows(self) -> "MinibatchTarget":
        """The same model with a few thousand of its rows alone, as arrays."""
        found = next(self.rows().chunks()).columns
        data = self.as_rows({name: jnp.asarray(column[:LEAST_BLOCK]) for name, column in found.items()})
        size = min(self.batch_size, _count_rows(data))
        supports = {latent.name: latent.support for latent in self.latents}
        own = self.init, supports, self.order
        return MinibatchTarget(self.prior, self.likelihood_row, data, size, *own, outputs=self.outputs)

    def rows(self) -> Rows:
        """The data as `Rows`, whose columns are the leaves of the pytree where it is one."""
        if isinstance(self.data, Rows):
            return self.data
        return Rows({str(at): leaf for at, leaf in enumerate(jax.tree.leaves(self.data))})

    def as_rows(self, columns: Mapping[str, ArrayLike]):
        """Columns of `rows()` in the structure of the data."""
        if isinstance(self.data, Rows):
            return columns
        return jax.tree.unflatten(jax.tree.structure(self.data), [columns[str(at)] for at in range(len(columns))])

    def batch(self, key):
        self._refuse_stream()
        return self.on_rows(_choose_rows(key, self.num_rows, self.batch_size))

    def on_rows(self, rows: Int[Array, " B"]) -> LogDensity:
        """The log density estimated on a batch of these rows."""
        self._refuse_stream()
        batch = jax.tree.map(lambda leaf: leaf[rows], self.data)
        scale = self.num_rows / self.batch_size
        return lambda theta: self.prior(theta) + scale * self._sum_rows(theta, batch)

    def full(self):
        self._refuse_stream()
        block = max(self.batch_size, LEAST_BLOCK)
        return lambda theta: self.prior(theta) + sum_rows(lambda row: self.likelihood_row(theta, row), self.data, block)

    def terms(self, theta):
        """The prior, and the log likelihood of each row."""
        self._refuse_stream()
        return {"prior": self.prior(theta), "rows": self._each_row(theta, self.data)}

    def _refuse_stream(self) -> None:
        if self.streamed:
            raise ValueError(
                "this needs all rows at once, and Rows are read a chunk at a time. The default method does so; for all "
                "else, give a part of the rows that fits in memory as arrays"
            )

    def _each_row(self, theta, rows):
        return jax.vmap(lambda row: self.likelihood_row(theta, row))(rows)

    def _sum_rows(self, theta, rows):
        return jnp.sum(self._each_row(theta, rows))


def _choose_rows(key, num_rows: int, batch_size: int):
    """Indices of a batch without replacement; all rows in order if the batch holds them all."""
    if batch_size == num_rows:
        return jnp.arange(num_rows)
    return jax.random.choice(key, num_rows, (batch_size,), replace=False)


def check_scale(target: AbstractTarget, key, num_batches=64, num_errors=6.0, *, log_density=None) -> int:
    """The evaluations spent; raises ValueError unless batches average to the full log density and it is `log_density`.

    Parameters
    ----------
    target
        The target whose batches are checked.
    key
        Determines the batches.
    num_batches, num_errors
        Number of batches averaged, and of standard errors by which their mean may differ.
    log_density
        The whole log density as one function of the dict of latents, including constants. A log_likelihood_row that
        already contains a factor N/B, or returns a mean, changes the batches and the sum over all rows alike: only
        this reference can detect it.
    """
    batches = jax.random.split(key, num_batches)
    reference = None if log_density is None else trace(log_density, target.init, "log_density")
    full, expected, values = (np.asarray(out) for out in _scale_values(target, reference, batches))
    if not (np.isfinite(full) and np.isfinite(expected) and np.all(np.isfinite(values))):
        raise ValueError(
            "minibatch scale: the log density is not finite at the start, so its scale cannot be checked; "
            "give another init"
        )
    spread = float(values.std(ddof=1)) / math.sqrt(num_batches)
    rounding = 100 * float(jnp.finfo(values.dtype).eps) * abs(float(full))
    if abs(values.mean() - full) > num_errors * spread + rounding:
        raise ValueError(
            f"minibatch scale: batches average to a log density of {values.mean():.6g} (standard error "
            f"{spread:.2g}), all rows give {full:.6g}. A batch must be scaled by the number of rows over the "
            "batch size, exactly once."
        )
    if abs(full - expected) > rounding:
        raise ValueError(
            f"minibatch scale: the prior and all rows sum to a log density of {full:.6g}, log_density gives "
            f"{expected:.6g}. log_likelihood_row must return the log likelihood of one row, without any N/B "
            "factor, and no mean."
        )
    return num_batches + 1


@eqx.filter_jit
def _scale_values(target, reference, batches):
    full = target.full()(target.init)
    expected = full if reference is None else reference(target.init)
    return full, expected, jax.lax.map(lambda key: target.batch(key)(target.init), batches)


def _count_rows(data) -> int:
    leaves = jax.tree.leaves(data)
    if not leaves or any(leaf.ndim == 0 for leaf in leaves):
        raise ValueError("data must be a pytree of arrays with at least one axis, the rows")
    counts = {leaf.shape[0] for leaf in leaves}
    if len(counts) != 1:
        raise ValueError(f"the leaves of data must share their first axis, the rows; found {sorted(counts)} rows")
    return counts.pop()
