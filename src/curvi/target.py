"""Targets: unnormalised log densities with names, shapes, supports and a differentiation order.

A target is all that inference knows of a model: l(theta) = ln p(theta, X) for a dict `theta` of named latents on the
model's own supports. The user's Python function is traced exactly once, when the target is made; from then on its
traced form is called, and arrays that it closed over are data of the target rather than constants baked into every
compiled program.
"""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpyro.distributions import constraints

from curvi import support as supports_of
from curvi.black_box import Caller

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


@dataclasses.dataclass(frozen=True, eq=False)
class Origin:
    """What the model behind a target can tell beside its log density. Compared by identity.

    Attributes
    ----------
    observed_data
        Observations by name.
    dims, coords
        Names of the axes of latents and outputs, and the labels along them, as ArviZ takes them.
    predict
        Takes a key and a dict of draws with a leading axis; returns groups of arrays by name with the same axis,
        "posterior_predictive" and "log_likelihood".
    """

    observed_data: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    dims: Mapping[str, list[str]] = dataclasses.field(default_factory=dict)
    coords: Mapping[str, object] = dataclasses.field(default_factory=dict)
    predict: Callable | None = None


def origin_of(target) -> Origin:
    """What the model behind a target can tell; nothing for a plain log density."""
    return getattr(target, "origin", None) or Origin()


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
    def black_box(self) -> bool:
        """Whether the log density is a Python function that no compiled program can call."""
        return False

    @property
    def dtype(self):
        """The floating-point type of the computation: that of the continuous latents, or JAX's default if all are
        discrete.
        """
        floats = [latent.dtype for latent in self.latents if not latent.discrete]
        return jnp.result_type(*floats) if floats else jnp.result_type(float)


class Target(AbstractTarget):
    """A log density as a target.

    Parameters
    ----------
    log_density
        Takes a dict of arrays by name, on the model's own supports, and returns a scalar: ln p(theta, X). Jacobians
        are added by curvi.
    init
        An example of that dict, and the point where inference starts. Its dtype is that of the computation.
    supports
        numpyro constraints by name; real for continuous latents that are not named.
    order
        How often `log_density` may be differentiated: 0, 1 or 2.
    outputs
        Optionally a function of the same dict that returns further named quantities to report with every draw.
    origin
        Optionally what an adapter knows of the model beside its log density.
    black_box
        Whether `log_density` is an ordinary Python function of a dict of numpy arrays (a simulator, legacy code), to be
        called from the host; with order=0. It may be noisy: then its expectation is the objective.
    workers, timeout
        Of a black box: how many spawned processes share the draws of a batch (0: none), and the most seconds a call may
        take.
    """

    latents: tuple[Latent, ...] = eqx.field(static=True)
    init: dict[str, Array]
    order: int = eqx.field(static=True)
    outputs: Callable | None
    function: LogDensity | None
    origin: Origin | None = eqx.field(static=True)
    caller: Caller | None = eqx.field(static=True)

    def __init__(
        self,
        log_density,
        init,
        supports=None,
        order=2,
        *,
        outputs=None,
        origin=None,
        black_box=False,
        workers=0,
        timeout=None,
    ):
        self.origin = origin
        self.latents, self.init = read_latents(init, supports)
        self.order = check_order(order)
        self.outputs = trace_outputs(outputs, self.init)
        if black_box:
            if self.order != 0:
                raise ValueError(f"a black box has no derivatives: pass order=0; got order={order}")
            self.function, self.caller = None, Caller(log_density, workers, timeout)
            return
        if workers or timeout is not None:
            raise ValueError("workers and timeout are for Python functions on the host: pass black_box=True")
        self.function, self.caller = trace(log_density, self.init, "log_density"), None

    @property
    def black_box(self) -> bool:
        return self.caller is not None

    def batch(self, key):
        return self.full()

    def full(self):
        if self.function is None:
            raise ValueError("a black-box log density cannot be compiled; fit it by the default, PooledRegression")
        return self.function


class MinibatchTarget(AbstractTarget):
    """A log density that is a prior plus a sum over data rows, estimated on random batches of rows.

    The estimate is log_prior(theta) + (N / B) * sum over the batch of log_likelihood_row(theta, row). The factor N/B
    stands here and nowhere else: estimators see one number per draw, so gradients and Hessians carry it exactly once.

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
        self.outputs = trace_outputs(outputs, self.init)
        self.data = jax.tree.map(jnp.asarray, data)
        self.num_rows = _count_rows(self.data)
        whole = isinstance(batch_size, int | np.integer) and not isinstance(batch_size, bool)
        if not whole or not 1 <= batch_size <= self.num_rows:
            raise ValueError(
                f"batch_size must be an integer from 1 to the number of rows, {self.num_rows}; got {batch_size!r}"
            )
        self.batch_size = int(batch_size)
        row = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self.data)
        self.prior = trace(log_prior, self.init, "log_prior")
        self.likelihood_row = trace(log_likelihood_row, self.init, "log_likelihood_row", row)

    @property
    def minibatched(self) -> bool:
        return self.batch_size < self.num_rows

    def batch(self, key):
        return self.on_rows(_choose_rows(key, self.num_rows, self.batch_size))

    def on_rows(self, rows: Int[Array, " B"]) -> LogDensity:
        """The log density estimated on a batch of these rows."""
        batch = jax.tree.map(lambda leaf: leaf[rows], self.data)
        scale = self.num_rows / self.batch_size
        return lambda theta: self.prior(theta) + scale * self._sum_rows(theta, batch)

    def full(self):
        return lambda theta: self.prior(theta) + self._sum_rows(theta, self.data)

    def _sum_rows(self, theta, rows):
        return jnp.sum(jax.vmap(lambda row: self.likelihood_row(theta, row))(rows))


def _choose_rows(key, num_rows: int, batch_size: int):
    """Indices of a batch without replacement; all rows in order if the batch holds them all."""
    if batch_size == num_rows:
        return jnp.arange(num_rows)
    return jax.random.choice(key, num_rows, (batch_size,), replace=False)


def trace(function, init, name: str, *more):
    """`function` traced once on abstract values like `init`, checked to return one real number."""
    if not callable(function):
        raise ValueError(f"{name} must be a function of a dict of latents; got {type(function).__name__}")
    traced = convert(function, init, *more)
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


def trace_outputs(outputs, init):
    """`outputs` traced once on abstract values like `init`, checked to return a dict; None stays None."""
    if outputs is None:
        return None
    if not callable(outputs):
        raise ValueError(f"outputs must be a function of a dict of latents; got {type(outputs).__name__}")
    traced = convert(outputs, init)
    if not isinstance(out := jax.eval_shape(traced, init), dict):
        raise ValueError(f"outputs must return a dict of arrays by name; it returned {type(out).__name__}")
    return traced


def convert(function, *examples):
    """The traced form of `function`: a pytree whose leaves are the arrays that it uses beside its arguments."""
    # The lambda always has a closure. A function that has none equinox leaves untraced, to be called again
    # at every use, with the arrays of its module as constants.
    traced = eqx.filter_closure_convert(lambda *args: function(*args), *examples)
    # numpy arrays stay on the host when they are captured: put them on the device once.
    return eqx.tree_at(lambda t: t.consts, traced, [jax.device_put(const) for const in traced.consts])


def read_latents(init, supports) -> tuple[tuple[Latent, ...], dict[str, Array]]:
    """Latents and start values from `init` and `supports`, with every mismatch named."""
    if not isinstance(init, Mapping) or not init:
        raise ValueError(f"init must be a non-empty dict of arrays by latent name; got {type(init).__name__}")
    supports = dict(supports or {})
    if unknown := sorted(set(supports) - set(init)):
        raise ValueError(
            f"supports names latents that are not in init: {', '.join(unknown)}; init has {', '.join(init)}"
        )
    latents, values = [], {}
    for name, raw in init.items():
        if not isinstance(name, str):
            raise ValueError(f"latent names must be strings; got {name!r}")
        support = supports.get(name, constraints.real)
        if not isinstance(support, constraints.Constraint):
            raise ValueError(f"the support of '{name}' must be a numpyro constraint; got {support!r}")
        value = _read_value(name, raw, support)
        values[name] = value
        latents.append(Latent(name, tuple(value.shape), np.dtype(value.dtype), support))
    return tuple(latents), values


def _read_value(name: str, raw, support) -> Array:
    """The start of one latent as an array of the dtype of its computation, checked to lie in the support.

    The checks are numpy's: on JAX arrays each would compile a program of its own.
    """
    value = np.asarray(raw)
    if not any(jnp.issubdtype(value.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
        raise ValueError(
            f"init of latent '{name}' must be an array of real numbers; got {type(raw).__name__} of {value.dtype}"
        )
    if value.size == 0:
        raise ValueError(f"latent '{name}' is empty (shape {value.shape}); leave it out")
    if not np.all(np.isfinite(value)):
        raise ValueError(f"init of latent '{name}' is not finite; give a finite start")
    if value.ndim < support.event_dim:
        raise ValueError(
            f"init of latent '{name}' has {value.ndim} axes; its support ({supports_of.describe(support)}) "
            f"needs at least {support.event_dim}"
        )
    # Checked before the cast to integers, which would round 0.7 to a valid 0.
    if not np.all(supports_of.elementwise(support)(value)):
        raise ValueError(
            f"init of latent '{name}' lies outside its support ({supports_of.describe(support)}): "
            f"{_shorten(value)}; give a start inside, or correct the support"
        )
    if supports_of.is_discrete(support):
        return jnp.asarray(value, jnp.int32)
    # An explicit dtype: a Python number would else be weakly typed and give way to the dtype of the data.
    own = jnp.issubdtype(value.dtype, jnp.floating) and not isinstance(raw, float)
    return jnp.asarray(value, jax.dtypes.canonicalize_dtype(value.dtype) if own else jnp.result_type(float))


def check_order(order) -> int:
    if order not in (0, 1, 2) or isinstance(order, bool):
        raise ValueError(f"order must be 0, 1 or 2 (how often the log density may be differentiated); got {order!r}")
    return int(order)


def check_scale(target: AbstractTarget, key, num_batches=64, num_errors=6.0, *, log_density=None) -> int:
    """The calls spent; raises ValueError unless batches average to the full log density, and that is `log_density`.

    Parameters
    ----------
    target
        The target whose batches are checked.
    key
        Chooses the batches.
    num_batches, num_errors
        How many batches are averaged, and how many standard errors their mean may lie off.
    log_density
        The whole log density as one function of the dict of latents, constants included. A
        log_likelihood_row that carries a factor N/B itself, or returns a mean, changes the batches and the
        sum over all rows alike: only this reference can show it.
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


def _shorten(value) -> str:
    text = np.array2string(np.asarray(value), precision=4, threshold=6)
    return text if len(text) < 80 else text[:77] + "..."
