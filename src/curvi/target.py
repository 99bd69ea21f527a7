"""Targets: unnormalised log densities with names, shapes, supports and a differentiation order.

A target is all that inference knows of a model: l(theta) = ln p(theta, X) for a dict `theta` of named latents on the model's own supports.
The user's Python function is traced exactly once, when the target is made; from then on its traced form is called, and arrays that it closed
over are data of the target rather than constants baked into every compiled program.
"""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.distributions import constraints

from curvi import support as supports_of

LogDensity = Callable[[dict[str, Array]], Float[Array, ""]]


@dataclasses.dataclass(frozen=True, eq=False)
class Latent:
    """One named latent: shape and dtype on the model's own support, and that support. Compared by identity."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    support: object

    @property
    def discrete(self) -> bool:
        return supports_of.is_discrete(self.support)


class AbstractTarget(eqx.Module):
    """What estimators ask of a target."""

    latents: eqx.AbstractVar[tuple[Latent, ...]]
    init: eqx.AbstractVar[dict[str, Array]]
    order: eqx.AbstractVar[int]
    outputs: eqx.AbstractVar[Callable | None]

    @abstractmethod
    def batch(self, key: PRNGKeyArray) -> LogDensity:
        """An unbiased log density, cheap enough for one step; the whole one unless the target is minibatched."""

    @abstractmethod
    def full(self) -> LogDensity:
        """The log density on all data."""

    @property
    def minibatched(self) -> bool:
        return False

    @property
    def dtype(self):
        """The floating-point type of the computation: that of the continuous latents, or JAX's default if all are discrete."""
        floats = [latent.dtype for latent in self.latents if not latent.discrete]
        return jnp.result_type(*floats) if floats else jnp.result_type(float)


class Target(AbstractTarget):
    """A log density as a target.

    Parameters
    ----------
    log_density
        Takes a dict of arrays by name, on the model's own supports, and returns a scalar: ln p(theta, X). Jacobians are added by curvi.
    init
        An example of that dict, and the point where inference starts. Its dtype is that of the computation.
    supports
        numpyro constraints by name; real for continuous latents that are not named.
    order
        How often `log_density` may be differentiated: 0, 1 or 2.
    outputs
        Optionally a function of the same dict that returns further named quantities to report with every draw.
    """

    latents: tuple[Latent, ...] = eqx.field(static=True)
    init: dict[str, Array]
    order: int = eqx.field(static=True)
    outputs: Callable | None
    function: LogDensity

    def __init__(self, log_density, init, supports=None, order=2, *, outputs=None):
        self.latents, self.init = read_latents(init, supports)
        self.order = check_order(order)
        self.function = trace(log_density, self.init, "log_density")
        self.outputs = outputs

    def batch(self, key):
        return self.function

    def full(self):
        return self.function


class MinibatchTarget(AbstractTarget):
    """A log density that is a prior plus a sum over data rows, estimated on random batches of rows.

    The estimate is log_prior(theta) + (N / B) * sum over the batch of log_likelihood_row(theta, row). The factor N/B stands here and nowhere
    else: estimators see one number per draw, so gradients and Hessians carry it exactly once.

    Parameters
    ----------
    log_prior
        Takes the dict of latents, returns a scalar.
    log_likelihood_row
        Takes the dict of latents and one row of `data` (the same pytree without its first axis), returns a scalar.
    data
        A pytree of arrays that share their first axis, the rows.
    batch_size
        Rows per batch, drawn without replacement.
    init, supports, order
        As for `Target`.
    """

    latents: tuple[Latent, ...] = eqx.field(static=True)
    init: dict[str, Array]
    order: int = eqx.field(static=True)
    outputs: Callable | None
    prior: LogDensity
    likelihood_row: Callable
    data: object
    batch_size: int = eqx.field(static=True)
    num_rows: int = eqx.field(static=True)

    def __init__(self, log_prior, log_likelihood_row, data, batch_size, init, supports=None, order=2, *, outputs=None):
        self.latents, self.init = read_latents(init, supports)
        self.order = check_order(order)
        self.outputs = outputs
        self.data = jax.tree.map(jnp.asarray, data)
        self.num_rows = _count_rows(self.data)
        if not isinstance(batch_size, int) or not 1 <= batch_size <= self.num_rows:
            raise ValueError(f"batch_size must be an integer from 1 to the number of rows, {self.num_rows}; got {batch_size!r}")
        self.batch_size = batch_size
        row = jax.tree.map(lambda leaf: leaf[0], self.data)
        self.prior = trace(log_prior, self.init, "log_prior")
        self.likelihood_row = trace(log_likelihood_row, self.init, "log_likelihood_row", row)

    @property
    def minibatched(self) -> bool:
        return self.batch_size < self.num_rows

    def batch(self, key):
        rows = _choose_rows(key, self.num_rows, self.batch_size)
        batch = jax.tree.map(lambda leaf: leaf[rows], self.data)
        scale = self.num_rows / self.batch_size
        return lambda theta: self.prior(theta) + scale * self._sum_rows(theta, batch)

    def full(self):
        return lambda theta: self.prior(theta) + self._sum_rows(theta, self.data)

    def _sum_rows(self, theta, rows):
        return jnp.sum(jax.vmap(lambda row: self.likelihood_row(theta, row))(rows))


def _choose_rows(key, num_rows: int, batch_size: int):
    """Indices of a batch without replacement. A full permutation where it is cheap; else a random start in a random affine order."""
    if batch_size == num_rows:
        return jnp.arange(num_rows)
    return jax.random.choice(key, num_rows, (batch_size,), replace=False)


def trace(function, init, name: str, *more):
    """`function` traced once on abstract values like `init`, checked to return one real number."""
    if not callable(function):
        raise ValueError(f"{name} must be a function of a dict of latents; got {type(function).__name__}")
    traced = eqx.filter_closure_convert(function, init, *more)
    out = jax.eval_shape(traced, init, *more)
    leaves = jax.tree.leaves(out)
    if len(leaves) != 1 or leaves[0].shape != ():
        shapes = [leaf.shape for leaf in leaves]
        raise ValueError(
            f"{name} must return one number, ln p(theta, X); it returned {len(leaves)} array(s) of shape {shapes}. "
            "If these are terms, return their sum (jnp.sum)."
        )
    if not jnp.issubdtype(leaves[0].dtype, jnp.floating):
        raise ValueError(f"{name} must return a real floating-point number; it returned {leaves[0].dtype}")
    return traced


def read_latents(init, supports) -> tuple[tuple[Latent, ...], dict[str, Array]]:
    """Latents and start values from `init` and `supports`, with every mismatch named."""
    if not isinstance(init, Mapping) or not init:
        raise ValueError(f"init must be a non-empty dict of arrays by latent name; got {type(init).__name__}")
    supports = dict(supports or {})
    if unknown := sorted(set(supports) - set(init)):
        raise ValueError(f"supports names latents that are not in init: {', '.join(unknown)}; init has {', '.join(init)}")
    latents, values = [], {}
    for name, raw in init.items():
        if not isinstance(name, str):
            raise ValueError(f"latent names must be strings; got {name!r}")
        value = jnp.asarray(raw)
        support = supports.get(name, constraints.real)
        if not isinstance(support, constraints.Constraint):
            raise ValueError(f"the support of '{name}' must be a numpyro constraint; got {support!r}")
        discrete = supports_of.is_discrete(support)
        if discrete:
            value = value.astype(jnp.int32)
        elif not jnp.issubdtype(value.dtype, jnp.floating):
            value = value.astype(jnp.result_type(float))
        if value.size == 0:
            raise ValueError(f"latent '{name}' is empty (shape {value.shape}); leave it out")
        if not bool(jnp.all(jnp.isfinite(value))):
            raise ValueError(f"init of latent '{name}' is not finite; give a finite start")
        if not bool(jnp.all(support(value))):
            raise ValueError(
                f"init of latent '{name}' lies outside its support ({supports_of.describe(support)}): "
                f"{_shorten(value)}; give a start inside, or correct the support"
            )
        values[name] = value
        latents.append(Latent(name, tuple(value.shape), np.dtype(value.dtype), support))
    return tuple(latents), values


def check_order(order) -> int:
    if order not in (0, 1, 2):
        raise ValueError(f"order must be 0, 1 or 2 (how often the log density may be differentiated); got {order!r}")
    return int(order)


def check_scale(target: MinibatchTarget, key, num_batches: int = 64, num_errors: float = 6.0) -> None:
    """Raise ValueError unless batch log densities average to the full-data one at the start.

    A log_likelihood_row that already carries a factor N/B, or that returns a mean, shows here before a fit is spent on it.
    """
    batches = jax.random.split(key, num_batches)
    full, values = _scale_values(target, batches)
    full, values = float(full), np.asarray(values)
    spread = float(values.std(ddof=1)) / math.sqrt(num_batches)
    rounding = 100 * float(jnp.finfo(values.dtype).eps) * abs(full)
    if np.all(np.isfinite(values)) and math.isfinite(full) and abs(values.mean() - full) > num_errors * spread + rounding:
        raise ValueError(
            f"minibatch scale: batches of {target.batch_size} rows average to a log density of {values.mean():.6g} "
            f"(standard error {spread:.2g}), all {target.num_rows} rows give {full:.6g}. log_likelihood_row must return the log "
            "likelihood of one row, without any N/B factor."
        )


@eqx.filter_jit
def _scale_values(target, batches):
    full = target.full()(target.init)
    return full, jax.lax.map(lambda key: target.batch(key)(target.init), batches)


def _count_rows(data) -> int:
    leaves = jax.tree.leaves(data)
    if not leaves or any(leaf.ndim == 0 for leaf in leaves):
        raise ValueError("data must be a pytree of arrays with at least one axis, the rows")
    counts = {leaf.shape[0] for leaf in leaves}
    if len(counts) != 1:
        raise ValueError(f"the leaves of data must share their first axis, the rows; found {sorted(counts)} rows")
    return counts.pop()


def _shorten(value) -> str:
    text = np.array2string(np.asarray(value), precision=4, threshold=6)
    return text if len(text) < 80 else text[:77] + "..."
