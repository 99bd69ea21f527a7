"""The host's side of a method that climbs step by step: chunks of steps, history, certificates, interruption."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.certify.decrement import certify
from curvi.estimate.sampling import FINAL_DRAWS, log_ratios
from curvi.estimate.start import find_start
from curvi.family import MeanField
from curvi.methods.base import Method
from curvi.methods.compiled_loop import CHUNK, StopRule, blank_smoothed, run_chunk
from curvi.model.target import AbstractTarget
from curvi.outcome import Outcome
from curvi.record.checkpoint import Paused, as_numbers, check_leaves, from_numbers, is_any_array
from curvi.record.clock import Clock
from curvi.record.counts import CallCounts
from curvi.record.history import History, as_finite_or_inf, mean_and_error
from curvi.record.progress import Progress

_MAX_CERTIFICATES = 6
_CHUNK_SECONDS = 0.25  # how often the host looks at the loop


class StepwiseRun:
    """Runs a `Method` until a certificate says that little is left to gain."""

    def __init__(
        self,
        method: Method,
        target: AbstractTarget,
        q: MeanField,
        key,
        clock: Clock,
        display: Progress,
        paused: Paused | None = None,
    ):
        key_start, self.key, self.key_certify, self.key_final = jax.random.split(key, 4)
        self.method, self.target, self.clock, self.display = method, target, clock, display
        self.counts = CallCounts() if paused is None else paused.counts
        if paused is None:
            q, calls = find_start(target, q, key_start)
            self.counts = CallCounts(log_density=calls)
        self.gain, self.gain_se = float("inf"), float("inf")
        self.start_elbos = None
        self.suspects: tuple[str, ...] = ()
        self.state = method.init(target, q, self.key)
        self.smoothed = blank_smoothed(q.params.dtype)
        self.records: list = []
        self.seconds: list[np.ndarray] = []
        self.taken = 0
        self.certificates = 0
        self.earlier: History | None = None
        if paused is not None:
            self.unpack(paused)

    @property
    def q(self) -> MeanField:
        return self.state.q

    def until(self, limit: int, tolerance: float) -> Outcome:
        try:
            # Half the tolerance after each certificate that was asked for in vain.
            threshold = tolerance * 0.5**self.certificates
            limit = limit + self.taken
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
                    self.certificates += 1
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
        # Numbers as arrays: a Python number would be a constant of the program, and compile it anew.
        rule = StopRule(jnp.asarray(threshold, self.q.params.dtype))
        first, steps = jnp.asarray(self.taken, jnp.int32), jnp.asarray(num_steps, jnp.int32)
        state, smoothed, records, taken, stop = run_chunk(
            self.method, self.target, self.state, self.smoothed, rule, self.key, first, steps
        )
        taken = int(taken)
        self.state, self.smoothed = state, smoothed
        if taken:
            records = jax.tree.map(lambda leaf: np.asarray(leaf)[:taken], records)
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
        key = jax.random.fold_in(self.key_certify, self.certificates + 1)
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
        parts = [] if self.earlier is None else [self.earlier.accepted]
        recent = np.concatenate([*parts, *(r.accepted for r in self.records[-patience:])] or [[]])[-patience:]
        return len(recent) == patience and not np.any(recent)

    def final_elbo(self) -> tuple[float, float]:
        """ELBO and its standard error on fresh draws and the full data."""
        self.counts = self.counts.plus(log_density=FINAL_DRAWS)
        return mean_and_error(log_ratios(self.target, self.q, self.key_final, FINAL_DRAWS))

    def error_copies(self) -> None:
        """Nothing: every step has its own draws."""
        return None

    # -- going on later -----------------------------------------------------------------------------------------------

    def pack(self) -> dict[str, np.ndarray]:
        """All that the next step needs beside the method, the target and the key."""
        leaves = [*jax.tree.leaves(eqx.filter(self.state, is_any_array)), *jax.tree.leaves(self.smoothed)]
        packed = {f"leaf {i}": as_numbers(leaf) for i, leaf in enumerate(leaves)}
        return {**packed, "taken": np.asarray(self.taken), "certificates": np.asarray(self.certificates)}

    def unpack(self, paused: Paused) -> None:
        """Stand where a run stood when it was packed."""
        self.earlier, packed = paused.history, paused.state
        blank = (eqx.filter(self.state, is_any_array), self.smoothed)
        leaves, tree = jax.tree.flatten(blank)
        check_leaves(packed, leaves)
        filled = [from_numbers(packed[f"leaf {i}"], leaf) for i, leaf in enumerate(leaves)]
        dynamic, self.smoothed = jax.tree.unflatten(tree, filled)
        self.state = eqx.combine(dynamic, self.state)
        self.taken, self.certificates = int(packed["taken"]), int(packed["certificates"])

    def history(self) -> History:
        if not self.records:
            empty = np.zeros(0)
            return self.earlier or History(*([empty] * len(History.__dataclass_fields__)))
        records = jax.tree.map(lambda *parts: np.concatenate(parts), *self.records)
        before = 0 if self.earlier is None or not len(self.earlier) else self.earlier.log_density[-1]
        history = History(
            elbo=records.elbo,
            elbo_se=records.elbo_se,
            remaining_gain=records.remaining_gain,
            remaining_gain_se=records.remaining_gain_se,
            log_density=before + np.cumsum(records.counts.log_density.astype(np.int64)),
            seconds=np.concatenate(self.seconds),
            num_draws=records.num_draws,
            radius=records.radius,
            accepted=records.accepted,
            curvature_weight=records.curvature_weight,
        )
        return history if self.earlier is None else self.earlier.then(history)
