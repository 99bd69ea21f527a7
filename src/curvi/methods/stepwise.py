"""Methods that take steps on fresh draws, many steps in one compiled program.

A step's random key depends on its index alone, so results do not depend on how the steps are split into chunks. The
loop carries only a tree of arrays, so that it may be mapped over data sets and keys (`jax.vmap`).
"""

import dataclasses
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.certify.decrement import certify
from curvi.estimate import AnchoredScore
from curvi.estimate.local import Counts
from curvi.estimate.start import find_start
from curvi.family import Family
from curvi.methods.base import Budget, Method, News, Problem
from curvi.methods.planning import step_plan
from curvi.model.target import AbstractTarget
from curvi.outcome import Outcome
from curvi.record.counts import CallCounts
from curvi.record.plain import register
from curvi.record.plan import Plan
from curvi.record.pytree import pytree

CHUNK = 64  # largest number of steps per call of the program
_WINDOW = 20  # window of the smoothed gain in steps, for methods whose single steps are too noisy
_MAX_CERTIFICATES = 6
_PATIENCE = 50  # consecutive rejected steps after which the fit ends as not finite
_FOR_START, _FOR_STEPS, _FOR_CERTIFYING = range(3)


@pytree
class Record:
    """The record of one step: columns of the history (`curvi.record.history`), and its evaluations."""

    elbo: Any
    elbo_se: Any
    remaining_gain: Any
    remaining_gain_se: Any
    predicted_gain: Any
    gradient_gain: Any
    gradient_gain_se: Any
    num_draws: Any
    radius: Any
    accepted: Any
    shrinkage: Any
    counts: Counts


def as_counts(counts: Counts) -> Counts:
    """Counts as arrays of one dtype, so that records of all steps stack."""
    return jax.tree.map(lambda c: jnp.asarray(c, jnp.int32), counts)


@register
@pytree
class Smoothed:
    """Exponentially smoothed gain and the variance of that mean."""

    gain: Any
    variance: Any
    steps: Any

    def update(self, gain, error) -> "Smoothed":
        # A step without a finite gain resets the mean.
        usable = jnp.isfinite(gain) & jnp.isfinite(error)
        share = jnp.maximum(1.0 / (1 + self.steps), 1.0 / _WINDOW).astype(self.gain.dtype)
        mean = (1 - share) * self.gain + share * gain
        variance = (1 - share) ** 2 * self.variance + share**2 * error**2
        steps = jnp.where(usable, self.steps + 1, 0)
        return Smoothed(jnp.where(usable, mean, 0), jnp.where(usable, variance, 0), steps)

    @classmethod
    def blank(cls, dtype) -> "Smoothed":
        return cls(jnp.zeros((), dtype), jnp.zeros((), dtype), jnp.zeros((), jnp.int32))


@register
@pytree
class Stepped:
    """The state of a stepwise method and of its loop.

    Attributes
    ----------
    inner
        The method's own state.
    smoothed
        The gain over the last steps.
    taken, refused, certificates
        Steps so far, consecutive rejected steps, and certificates that did not confirm convergence.
    started
        Whether a finite start has been searched for.
    """

    inner: Any
    smoothed: Smoothed
    taken: Any
    refused: Any
    certificates: Any
    started: Any

    @property
    def q(self) -> Family:
        return self.inner.q


class StepMethod(Method[Stepped]):
    """A method defined by a step: `start` makes a state with a q, `step` advances it on fresh draws."""

    @abstractmethod
    def start(self, target: AbstractTarget, q: Family, key) -> Any:
        """The state before the first step, without evaluating the model."""

    @abstractmethod
    def step(self, target: AbstractTarget, state: Any, key) -> tuple[Any, Record]:
        """The next state, and what happened."""

    def plan(self, problem: Problem) -> Plan:
        return step_plan(self, problem.target, problem.q, problem.memory)

    def within(self, problem: Problem) -> "StepMethod":
        """This method with as many draws at a time as the memory of the problem has room for."""
        estimator = getattr(self, "estimator", None)
        if not isinstance(estimator, AnchoredScore):
            return self
        fewer = min(estimator.at_once, self.plan(problem).draws_at_once)
        return dataclasses.replace(self, estimator=dataclasses.replace(estimator, at_once=fewer))

    def init(self, problem: Problem, key) -> Stepped:
        return self._begin(problem, problem.q, key, started=False)

    def _begin(self, problem: Problem, q: Family, key, started: bool) -> Stepped:
        inner = self.within(problem).start(problem.target, q, jax.random.fold_in(key, _FOR_STEPS))
        # Device arrays, so that a state is the same before and after saving.
        taken, refused, certificates = (jnp.zeros((), jnp.int32) for _ in range(3))
        return Stepped(inner, Smoothed.blank(q.params.dtype), taken, refused, certificates, jnp.asarray(started))

    def advance(self, problem: Problem, state: Stepped, key, budget: Budget) -> tuple[Stepped, News]:
        counts = CallCounts()
        if not bool(state.started):
            q, calls = find_start(problem.target, state.q, jax.random.fold_in(key, _FOR_START))
            state, counts = self._begin(problem, q, key, started=True), counts.plus(log_density=calls)
        # Halve the threshold after each certificate that did not confirm convergence.
        threshold = budget.tolerance * 0.5 ** int(state.certificates)
        # As arrays: a Python number would be a constant of the program and cause recompilation.
        limits = jnp.asarray(threshold, state.q.params.dtype), jnp.asarray(min(budget.num_steps, CHUNK), jnp.int32)
        key_steps = jax.random.fold_in(key, _FOR_STEPS)
        state, records, taken, asks = run_chunk(self.within(problem), problem.target, state, key_steps, *limits)
        rows, spent = _rows(jax.tree.map(np.asarray, records), int(taken), counts.log_density)
        counts = counts.plus(*spent)
        if int(state.refused) >= _PATIENCE:
            return state, News(rows, counts, outcome=Outcome.NON_FINITE)
        gain = None
        if bool(asks) and int(state.certificates) < _MAX_CERTIFICATES:
            gain = self.certify(problem, state, key, budget.tolerance)
            counts = counts.plus(gain.counts.log_density, gain.counts.gradient, gain.counts.hvp)
            if not gain.within(budget.tolerance):
                blank = Smoothed.blank(state.q.params.dtype)
                state = Stepped(state.inner, blank, state.taken, state.refused, state.certificates + 1, state.started)
        return state, News(rows, counts, gain)

    def certify(self, problem: Problem, state: Stepped, key, tolerance: float):
        key = jax.random.fold_in(jax.random.fold_in(key, _FOR_CERTIFYING), state.certificates + 1)
        return certify(problem.target, state.q, key, problem.memory)


def _rows(records: Record, taken: int, before: int) -> tuple[list[dict], tuple[int, int, int]]:
    """Rows of the history, with evaluations of the log density counted from `before`; and all evaluations."""
    names = ("elbo", "elbo_se", "remaining_gain", "remaining_gain_se", "predicted_gain", "gradient_gain")
    names += ("num_draws", "radius", "accepted", "shrinkage")
    columns = {name: getattr(records, name)[:taken] for name in names}
    calls = [np.asarray(part)[:taken].astype(np.int64) for part in jax.tree.leaves(records.counts)]
    columns["log_density"] = before + np.cumsum(calls[0])
    rows = [{name: column[i] for name, column in columns.items()} for i in range(taken)]
    log_density, gradient, hvp = (int(part.sum()) for part in calls)
    return rows, (log_density, gradient, hvp)


@eqx.filter_jit
def run_chunk(method: StepMethod, target: AbstractTarget, state: Stepped, key, threshold, num_steps):
    """Up to `num_steps` (at most CHUNK) steps; ends early if a certificate is likely to succeed: the gain plus two
    standard errors, of a step or of the smoothed mean, is below the threshold.

    Returns the state, the records of the steps (padded to CHUNK), the number of steps, and whether to certify.
    """

    def advance(carry):
        i, state, records, _ = carry
        inner, record = method.step(target, state.inner, jax.random.fold_in(key, state.taken))
        # A method without an estimate of the remaining gain uses its gradient; the certificate then uses curvature.
        known = ~jnp.isnan(record.remaining_gain)
        gain = jnp.where(known, record.remaining_gain, record.gradient_gain)
        error = jnp.where(known, record.remaining_gain_se, record.gradient_gain_se)
        smoothed = state.smoothed.update(gain, error)
        now = gain + 2 * error <= threshold
        mean = smoothed.gain + 2 * jnp.sqrt(smoothed.variance)
        asks = now | ((mean <= threshold) & (smoothed.steps >= _WINDOW))
        refused = jnp.where(record.accepted, 0, state.refused + 1)
        records = jax.tree.map(lambda rows, row: rows.at[i].set(row), records, record)
        taken = state.taken + 1
        return i + 1, Stepped(inner, smoothed, taken, refused, state.certificates, state.started), records, asks

    record = eqx.filter_eval_shape(lambda: method.step(target, state.inner, key)[1])
    records = jax.tree.map(lambda leaf: jnp.zeros((CHUNK, *leaf.shape), leaf.dtype), record)
    # Static leaves cannot be carried in a while loop: carry the arrays, close over the rest.
    dynamic, static = eqx.partition(state, eqx.is_array)

    def body(carry):
        i, dynamic, records, asks = carry
        i, state, records, asks = advance((i, eqx.combine(dynamic, static), records, asks))
        return i, eqx.filter(state, eqx.is_array), records, asks

    def going(carry):
        i, dynamic, _, asks = carry
        return (i < num_steps) & ~asks & (eqx.combine(dynamic, static).refused < _PATIENCE)

    start = (jnp.zeros((), jnp.int32), dynamic, records, jnp.zeros((), bool))
    taken, dynamic, records, asks = jax.lax.while_loop(going, body, start)
    return eqx.combine(dynamic, static), records, taken, asks
