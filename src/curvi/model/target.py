"""Targets: unnormalised log densities with names, shapes, supports and a differentiation order.

A target is the interface of a model to inference: l(theta) = ln p(theta, X) for a dict `theta` of named latents on the
model's own supports.
"""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from curvi.model.black_box import Caller
from curvi.model.latents import Latent, check_order, read_latents
from curvi.model.location_scale import LocationScale, read_location_scale
from curvi.model.origin import Origin
from curvi.model.tracing import trace, trace_outputs

LogDensity = Callable[[dict[str, Array]], Float[Array, ""]]


class AbstractTarget(eqx.Module):
    """The interface of a target to estimators."""

    latents: eqx.AbstractVar[tuple[Latent, ...]]
    init: eqx.AbstractVar[dict[str, Array]]
    order: eqx.AbstractVar[int]
    outputs: eqx.AbstractVar[Callable | None]

    @abstractmethod
    def batch(self, key: PRNGKeyArray) -> LogDensity:
        """An unbiased estimate of the log density for one step; the full one unless the target is minibatched."""

    @abstractmethod
    def full(self) -> LogDensity:
        """The log density on all data."""

    @property
    def minibatched(self) -> bool:
        return False

    @property
    def streamed(self) -> bool:
        """Whether rows of data are read a chunk at a time, so that no program can have them all."""
        return False

    @property
    def black_box(self) -> bool:
        """Whether the log density is a Python function that no compiled program can call."""
        return False

    def terms(self, theta: dict[str, Array]) -> dict[str, Array] | None:
        """Terms by name whose sum is ln p(theta, X), by site or by row, if the target has them; else None."""
        return None

    def close(self) -> None:
        """Close what the log density has opened, such as worker processes; the next call opens it again."""

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
        numpyro constraints by name; real for latents that are not named.
    order
        How often `log_density` may be differentiated: 0, 1 or 2.
    outputs
        Optionally a function of the same dict that returns further named quantities to report with every draw.
    origin
        Optionally information about the model from an adapter.
    terms
        Optionally a function of the same dict that returns the terms of the log density by name.
    location_scale
        Optionally, by the name of a latent, a function of the same dict that returns the location and the scale around
        which the latent is drawn given other latents: `{"a": lambda t: (t["mu"], t["tau"])}` for a ~ Normal(mu, tau).
        `curvi.fit` then learns its centring.
    black_box
        Whether `log_density` is an ordinary Python function of a dict of numpy arrays (a simulator, legacy code), to be
        called from the host; with order=0. It may be noisy: then its expectation is the objective.
    data_rows
        Optionally the number of rows of the data: arrays that the log density closes over with that many rows are those
        that `curvi.fit(mesh=...)` spreads over an axis `rows`.
    workers, timeout
        For a black box: the number of spawned processes that share the draws of a batch (0: none), or a
        `concurrent.futures.Executor`, such as Dask's `client.get_executor()`, or a function that makes one and so
        replaces one that broke; and the time limit of a call in seconds.
    """

    latents: tuple[Latent, ...] = eqx.field(static=True)
    init: dict[str, Array]
    order: int = eqx.field(static=True)
    outputs: Callable | None
    function: LogDensity | None
    location_scale: tuple[LocationScale, ...]
    site_terms: Callable | None = eqx.field(static=True)
    origin: Origin | None = eqx.field(static=True)
    caller: Caller | None = eqx.field(static=True)
    data_rows: int | None = eqx.field(static=True)

    def __init__(
        self,
        log_density,
        init,
        supports=None,
        order=2,
        *,
        outputs=None,
        origin=None,
        terms=None,
        location_scale=None,
        black_box=False,
        workers=0,
        timeout=None,
        data_rows=None,
    ):
        self.origin, self.site_terms = origin, terms
        self.data_rows = _check_rows(data_rows)
        self.latents, self.init = read_latents(init, supports)
        self.order = check_order(order)
        self.outputs = trace_outputs(outputs, self.init)
        self.location_scale = read_location_scale(location_scale, self.latents, self.init)
        if black_box:
            if self.order != 0:
                raise ValueError(f"a black box has no derivatives: pass order=0; got order={order}")
            self.function, self.caller = None, Caller(log_density, workers, timeout)
            return
        if (workers != 0) or timeout is not None:
            raise ValueError("workers and timeout are for Python functions on the host: pass black_box=True")
        self.function, self.caller = trace(log_density, self.init, "log_density"), None

    @property
    def black_box(self) -> bool:
        return self.caller is not None

    def terms(self, theta):
        return None if self.site_terms is None else self.site_terms(theta)

    def close(self):
        if self.caller is not None:
            self.caller.close()

    def batch(self, key):
        return self.full()

    def full(self):
        if self.function is None:
            raise ValueError("a black-box log density cannot be compiled; fit it by the default, PooledRegression")
        return self.function


def _check_rows(number) -> int | None:
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
        raise ValueError(f"data_rows must be the number of rows of the data, or None; got {number!r}")
    return number
