"""What a fit returns."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.diagnostics.linear_response import Covariance, linear_response, mean_shift, sample_covariance
from curvi.estimate.draws import Sobol
from curvi.family import MeanField
from curvi.outcome import Outcome
from curvi.target import AbstractTarget


@dataclasses.dataclass(frozen=True)
class CallCounts:
    """Calls of the model, each counted per draw: checks, rejected steps and the final evaluation included."""

    log_density: int = 0
    gradient: int = 0
    hvp: int = 0

    def plus(self, log_density=0, gradient=0, hvp=0) -> "CallCounts":
        return CallCounts(self.log_density + int(log_density), self.gradient + int(gradient), self.hvp + int(hvp))


@dataclasses.dataclass(frozen=True)
class Seconds:
    """Wall time: `compile` until the programs stood ready, `run` for everything else."""

    compile: float
    run: float


@dataclasses.dataclass(frozen=True)
class History:
    """Arrays with one entry a step: the estimates that the step made and what had been spent by then."""

    elbo: np.ndarray
    elbo_se: np.ndarray
    remaining_gain: np.ndarray
    remaining_gain_se: np.ndarray
    log_density: np.ndarray
    seconds: np.ndarray
    num_draws: np.ndarray
    radius: np.ndarray
    accepted: np.ndarray
    curvature_weight: np.ndarray

    def __len__(self) -> int:
        return len(self.elbo)


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted q with its verdict.

    Attributes
    ----------
    q
        The variational distribution.
    converged, outcome
        Whether the fit is done, and how it ended (`outcome.message` says what to do).
    elbo, elbo_se
        On fresh draws and the full data, with its standard error.
    remaining_gain, remaining_gain_se
        Nats still to be gained at this optimum, and the standard error; infinite where the Hessian is not negative
        definite.
    history, counts, seconds
        What happened, and what it cost.
    """

    q: MeanField
    outcome: Outcome
    elbo: float
    elbo_se: float
    remaining_gain: float
    remaining_gain_se: float
    history: History
    counts: CallCounts
    seconds: Seconds
    target: AbstractTarget = dataclasses.field(repr=False)
    method: object = dataclasses.field(repr=False, default=None)
    start_elbos: np.ndarray | None = dataclasses.field(repr=False, default=None)
    error_copies: np.ndarray | None = dataclasses.field(repr=False, default=None)

    @property
    def converged(self) -> bool:
        return self.outcome is Outcome.CONVERGED

    def sample(self, key, num_draws: int) -> dict[str, np.ndarray | jax.Array]:
        """`num_draws` draws by name, on the model's own supports, with the model's further outputs."""
        if num_draws < 1:
            raise ValueError(f"num_draws must be at least 1; got {num_draws}")
        return _sample(self.target, self.q, jax.random.split(key, num_draws))

    def log_ratios(self, key, num_draws: int) -> jax.Array:
        """ln p - ln q of fresh draws on the full data; their mean is the ELBO."""
        if num_draws < 1:
            raise ValueError(f"num_draws must be at least 1; got {num_draws}")
        return log_ratios(self.target, self.q, key, num_draws)

    @functools.cached_property
    def _moments(self):
        # Closed forms exist on working coordinates only; 4,096 fixed quasi-random draws give means on the supports.
        # Drawn outside of any compiled program: the points would be a constant of it.
        draws = _to_outputs(self.target, self.q, Sobol().sample(self.q, jax.random.key(0), 4096))
        return {name: _mean_and_sd(np.asarray(v)) for name, v in draws.items()}

    def mean(self) -> dict[str, np.ndarray]:
        """Posterior means by name, on the model's supports."""
        return {name: mean for name, (mean, _) in self._moments.items()}

    def sd(self, kind: str = "mean_field") -> dict[str, np.ndarray]:
        """Posterior standard deviations by name, on the model's supports.

        `kind="mean_field"` is the spread of q, too small where latents are correlated; `kind="linear_response"`
        corrects for that.
        """
        if kind == "linear_response":
            return self.covariance(kind).sd()
        _check_kind(kind)
        return {name: sd for name, (_, sd) in self._moments.items()}

    def covariance(self, kind: str = "linear_response", names=None) -> Covariance:
        """Joint posterior covariance of all or of the named latents and outputs (`matrix`, `labels`, `sd()`)."""
        _check_kind(kind)
        if kind == "linear_response":
            return linear_response(self.target, self.q, jax.random.key(0), names)
        return sample_covariance(self.sample(jax.random.key(0), 4096), names)

    @functools.cached_property
    def draws_error(self) -> dict[str, np.ndarray]:
        """Error of each posterior mean caused by the finite number of draws, in units of its posterior sd.

        One standard error, itself estimated from few copies; empty for methods that do not fix their draws.
        """
        if self.error_copies is None:
            return {}
        moved = [mean_shift(self.target, self.q, jnp.asarray(copy)) for copy in self.error_copies]
        sd = self.sd()
        return {name: np.sqrt(np.mean([np.square(m[name]) for m in moved], 0)) / sd[name] for name in moved[0]}

    def __str__(self) -> str:
        head = "converged" if self.converged else "not converged"
        return "\n".join(
            [
                f"curvi fit: {head} ({self.outcome.message})",
                f"  ELBO            {self.elbo:.4f} +- {self.elbo_se:.4f}",
                f"  remaining gain  {self.remaining_gain:.3g} +- {self.remaining_gain_se:.2g} nats",
                f"  cost            {len(self.history)} steps; calls: {self.counts.log_density} log density, "
                f"{self.counts.gradient} gradient, {self.counts.hvp} Hessian-vector",
                f"  seconds         {self.seconds.compile:.2f} compiling, {self.seconds.run:.2f} running",
            ]
        )


def _mean_and_sd(values: np.ndarray):
    return values.mean(0, dtype=np.float64), values.std(0, dtype=np.float64)


def _check_kind(kind: str) -> None:
    if kind not in ("mean_field", "linear_response"):
        raise ValueError(f'kind must be "mean_field" or "linear_response"; got {kind!r}')


@eqx.filter_jit
def _sample(target, q, keys):
    return _to_outputs(target, q, jax.vmap(q.sample)(keys))


@eqx.filter_jit
def _to_outputs(target, q, draws):
    def one(x):
        theta, _ = q.to_model(x)
        return theta if target.outputs is None else {**theta, **target.outputs(theta)}

    return jax.vmap(one)(draws)


FINAL_DRAWS = 4096  # behind the ELBO of a fit
_CHUNK = 256


def log_ratios(target: AbstractTarget, q: MeanField, key, num_draws: int) -> jax.Array:
    """ln p - ln q of `num_draws` independent draws on the full data, in chunks so that memory does not grow with
    their number.
    """
    if target.black_box:
        return _host_log_ratios(target, q, key, num_draws)
    chunks = -(-num_draws // _CHUNK)
    return _log_ratio_chunks(target, q, jax.random.split(key, chunks * _CHUNK).reshape(chunks, _CHUNK))[:num_draws]


@eqx.filter_jit
def _log_ratio_chunks(target, q, keys):
    density = target.full()

    def one(key):
        x = q.sample(key)
        theta, log_det = q.to_model(x)
        return density(theta) + log_det - q.log_prob(x)

    return jax.lax.map(jax.vmap(one), keys).reshape(-1)


def _host_log_ratios(target, q, key, num_draws: int) -> jax.Array:
    theta, log_det, log_q = _host_inputs(q, jax.random.split(key, num_draws))
    try:
        values = target.caller({name: np.asarray(rows) for name, rows in theta.items()})
    finally:
        target.caller.close()
    return jnp.asarray(values) + log_det - log_q


@eqx.filter_jit
def _host_inputs(q, keys):
    def one(key):
        x = q.sample(key)
        return *q.to_model(x), q.log_prob(x)

    return jax.vmap(one)(keys)


def mean_and_error(values) -> tuple[float, float]:
    """Mean and its standard error, in double precision; the error is infinite where a value is not finite."""
    array = np.asarray(values, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        mean, error = float(array.mean()), float(array.std(ddof=1) / len(array) ** 0.5)
    return mean, float("inf") if np.isnan(error) else error


def as_finite_or_inf(value) -> float:
    """A remaining gain as a Python number; what is not a number says nothing, and so counts as infinite."""
    number = float(jnp.asarray(value))
    return float("inf") if np.isnan(number) else number
