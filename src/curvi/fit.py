"""The front door: `fit` runs a method on a target until a certificate says that little is left to gain."""

import time

import equinox as eqx
import jax
import numpy as np

from curvi.certificate import certify
from curvi.family import MeanField
from curvi.loop import CHUNK, StopRule, blank_smoothed, run_chunk
from curvi.methods import HessianFree, Method, SchemeI
from curvi.methods.base import check_fit
from curvi.outcome import Outcome
from curvi.progress import Progress, open_progress
from curvi.results import CallCounts, Fit, History, Seconds, as_finite_or_inf, log_ratios, mean_and_error
from curvi.start import find_start
from curvi.target import AbstractTarget, MinibatchTarget, check_scale

_FINAL_DRAWS = 4096
_MAX_CERTIFICATES = 6
_CHUNK_SECONDS = 0.25  # how often the host looks at the loop


def fit(
    target: AbstractTarget,
    *,
    key=None,
    family: MeanField | None = None,
    method: Method | None = None,
    num_steps: int | None = None,
    tolerance: float = 0.05,
    progress: bool = True,
) -> Fit:
    """Fit a factorised q to a target.

    Parameters
    ----------
    target
        What to fit: `Target`, `MinibatchTarget`, or `from_numpyro(...)`.
    key
        A key from `jax.random.key(seed)`. The same key and inputs give the same bits.
    family
        Where to start and with which factors; `MeanField(target)` by default.
    method
        One of `curvi.methods`; by default Hessian-free Newton for order-2 targets, Scheme I elsewhere.
    num_steps
        Most steps; the method's own default if None.
    tolerance
        Stop when the remaining gain plus two standard errors is below this many nats.
    progress
        Whether to show progress. The computation is the same with and without.

    Returns
    -------
    A `Fit`. Numerical trouble is an outcome of it; ValueError is raised for wrong input and where no finite start exists.
    """
    _check_input(target, key, family, method, num_steps, tolerance)
    q = MeanField(target) if family is None else family
    method = _default_method(target, q) if method is None else method
    check_fit(method, target, q)
    clock = _Clock()
    key_start, key_run, key_certify, key_final = jax.random.split(key, 4)
    counts = CallCounts()
    if isinstance(target, MinibatchTarget):
        check_scale(target, key_start)
    q, calls = find_start(target, q, key_start)
    counts = counts.plus(log_density=calls)
    clock.compiled()

    limit = method.default_num_steps if num_steps is None else num_steps
    with open_progress(progress, limit, tolerance) as display:
        run = _Run(method, target, q, key_run, key_certify, counts, clock, display)
        outcome = run.until(limit, tolerance)
    ratios = log_ratios(target, run.q, key_final, _FINAL_DRAWS)
    elbo, elbo_se = mean_and_error(ratios)
    counts = run.counts.plus(log_density=_FINAL_DRAWS)
    return Fit(
        q=run.q,
        outcome=outcome,
        elbo=elbo,
        elbo_se=elbo_se,
        remaining_gain=run.gain,
        remaining_gain_se=run.gain_se,
        history=run.history(),
        counts=counts,
        seconds=clock.seconds(),
        target=target,
        method=method,
    )


class _Clock:
    """Splits wall time into compilation and running."""

    def __init__(self):
        self.began = time.perf_counter()
        self.mark = self.began
        self.compile = 0.0

    def compiled(self):
        """What passed since the last mark was compilation."""
        now = time.perf_counter()
        self.compile += now - self.mark
        self.mark = now

    def ran(self) -> float:
        now = time.perf_counter()
        passed, self.mark = now - self.mark, now
        return passed

    def seconds(self) -> Seconds:
        return Seconds(self.compile, time.perf_counter() - self.began - self.compile)


class _Run:
    """The host's side of the loop: chunks, history, certificates, interruption."""

    def __init__(self, method, target, q, key_run, key_certify, counts, clock: _Clock, display: Progress):
        self.method, self.target, self.key, self.key_certify = method, target, key_run, key_certify
        self.counts, self.clock, self.display = counts, clock, display
        self.gain, self.gain_se = float("inf"), float("inf")
        self.state = method.init(target, q, key_run)
        self.smoothed = blank_smoothed(q.params.dtype)
        self.records: list = []
        self.seconds: list[np.ndarray] = []
        self.taken = 0
        self.certificates = 0

    @property
    def q(self) -> MeanField:
        return self.state.q

    def until(self, limit: int, tolerance: float) -> Outcome:
        try:
            threshold = tolerance
            # A call that takes no step compiles the program, apart from the steps that are timed.
            self._chunk(0, threshold)
            self.clock.compiled()
            size = 1
            while self.taken < limit:
                before = time.perf_counter()
                asked = self._chunk(min(size, limit - self.taken), threshold)
                if asked and self.certificates < _MAX_CERTIFICATES:
                    if (outcome := self._certify(tolerance)) is not None:
                        return outcome
                    threshold *= 0.5
                    self.smoothed = blank_smoothed(self.q.params.dtype)
                passed = time.perf_counter() - before
                size = int(np.clip(size * _CHUNK_SECONDS / max(passed, 1e-3), 1, min(2 * size, CHUNK)))
                if self._hopeless():
                    return Outcome.NON_FINITE
            return self._certify(tolerance) or self._unfinished(tolerance)
        except KeyboardInterrupt:
            return Outcome.INTERRUPTED

    def _chunk(self, num_steps: int, threshold: float) -> bool:
        began = time.perf_counter() - self.clock.began
        state, smoothed, records, taken, stop = run_chunk(
            self.method, self.target, self.state, self.smoothed, StopRule(threshold), self.key, self.taken, num_steps
        )
        taken = int(taken)
        self.state, self.smoothed = state, smoothed
        if taken:
            records = jax.tree.map(lambda leaf: np.asarray(leaf[:taken]), records)
            ended = time.perf_counter() - self.clock.began
            self.records.append(records)
            self.seconds.append(began + (ended - began) * np.arange(1, taken + 1) / taken - self.clock.compile)
            calls = records.counts
            self.counts = self.counts.plus(calls.log_density.sum(), calls.gradient.sum(), calls.hvp.sum())
            self.taken += taken
            self.display.show(self.taken, records, self.counts)
        return bool(stop)

    def _certify(self, tolerance: float) -> Outcome | None:
        """CONVERGED where a fresh certificate confirms it, else None; keeps what it found."""
        self.certificates += 1
        key = jax.random.fold_in(self.key_certify, self.certificates)
        certificate = certify(self.target, self.q, key)
        self.counts = self.counts.plus(
            certificate.counts.log_density, certificate.counts.gradient, certificate.counts.hvp
        )
        self.gain, self.gain_se = as_finite_or_inf(certificate.gain), as_finite_or_inf(certificate.gain_se)
        return Outcome.CONVERGED if self.gain + 2 * self.gain_se <= tolerance else None

    def _unfinished(self, tolerance: float) -> Outcome:
        if not np.isfinite(self.gain):
            return Outcome.NOT_A_MAXIMUM
        return Outcome.NOISE_LIMIT if self.gain <= max(tolerance, 2 * self.gain_se) else Outcome.MAX_STEPS

    def _hopeless(self, patience: int = 50) -> bool:
        """Whether the last `patience` steps were all rejected: nothing finite is left to step to."""
        recent = np.concatenate([r.accepted for r in self.records[-patience:]])[-patience:] if self.records else []
        return len(recent) == patience and not np.any(recent)

    def history(self) -> History:
        if not self.records:
            empty = np.zeros(0)
            return History(*([empty] * len(History.__dataclass_fields__)))
        records = jax.tree.map(lambda *parts: np.concatenate(parts), *self.records)
        return History(
            elbo=records.elbo,
            elbo_se=records.elbo_se,
            remaining_gain=records.remaining_gain,
            remaining_gain_se=records.remaining_gain_se,
            log_density=np.cumsum(records.counts.log_density.astype(np.int64)),
            seconds=np.concatenate(self.seconds),
            num_draws=records.num_draws,
            radius=records.radius,
            accepted=records.accepted,
            curvature_weight=records.curvature_weight,
        )


def _default_method(target: AbstractTarget, q: MeanField) -> Method:
    return HessianFree() if target.order >= 2 and q.reparameterised else SchemeI()


def _check_input(target, key, family, method, num_steps, tolerance) -> None:
    if not isinstance(target, AbstractTarget):
        raise ValueError(
            f"target must be a curvi Target, MinibatchTarget or from_numpyro(model, ...); got {type(target).__name__}"
        )
    check_key(key)
    if family is not None and not isinstance(family, MeanField):
        raise ValueError(f"family must be a curvi.MeanField of the target; got {type(family).__name__}")
    if family is not None and tuple(slot.latent for slot in family.layout.slots) != target.latents:
        raise ValueError("family was made for another target; make it with curvi.MeanField(target, factors)")
    if method is not None and not isinstance(method, Method):
        raise ValueError(f"method must be one of curvi.methods, as an instance; got {method!r}")
    if num_steps is not None and (not isinstance(num_steps, int) or num_steps < 1):
        raise ValueError(f"num_steps must be a positive integer or None; got {num_steps!r}")
    if not (isinstance(tolerance, int | float) and tolerance > 0):
        raise ValueError(f"tolerance must be a positive number of nats; got {tolerance!r}")


def check_key(key) -> None:
    """Raise ValueError unless `key` is one typed random key."""
    if key is None:
        raise ValueError("fit needs a random key: pass key=jax.random.key(0)")
    if not eqx.is_array(key) or not jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise ValueError("key must be a typed key from jax.random.key(seed); old-style jax.random.PRNGKey arrays and integers are not taken")
    if key.shape != ():
        raise ValueError(f"key must be a single key; got an array of keys of shape {key.shape}")
