"""The run: advances the state of a method until convergence is certified, a limit is reached, or it is interrupted.

Only this module handles the clock, interrupts, progress, history and limits, and the outcome of a fit that did not
converge; so every method is interrupted, resumed and reported in the same way.
"""

import dataclasses
import time
from typing import Generic

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PRNGKeyArray

from curvi.certify.gain import UNKNOWN, Gain, unfinished
from curvi.family import Family
from curvi.methods.base import Budget, Method, News, Problem, StateT
from curvi.model.black_box import BlackBoxError
from curvi.model.rows.source import RowsError
from curvi.outcome import Outcome
from curvi.record.checkpoint import Checkpoint, Leaves
from curvi.record.clock import Clock
from curvi.record.counts import CallCounts
from curvi.record.history import History, Row
from curvi.record.keeper import CheckpointError, Keeper
from curvi.record.progress import Progress

_ADVANCE_SECONDS = 0.25  # target duration of an advance: limits and progress are updated in between
_MOST_STEPS = 64


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a fit: steps, seconds of wall time, evaluations of the model (`CallCounts.evaluations`)."""

    num_steps: int
    max_seconds: float | None = None
    max_evaluations: int | None = None


@dataclasses.dataclass
class Run(Generic[StateT]):
    """A run of a method and its results so far."""

    method: Method[StateT]
    problem: Problem
    key: PRNGKeyArray
    clock: Clock
    display: Progress
    state: StateT
    rows: list[Row]
    counts: CallCounts
    gain: Gain = UNKNOWN
    elbo: float = float("nan")
    elbo_se: float = float("inf")
    failure: BlackBoxError | CheckpointError | RowsError | None = None
    keeper: Keeper | None = None

    @classmethod
    def begin(
        cls, method: Method[StateT], problem: Problem, key: PRNGKeyArray, clock: Clock, display: Progress
    ) -> "Run[StateT]":
        return cls(method, problem, key, clock, display, method.init(problem, key), [], CallCounts())

    @classmethod
    def resume(
        cls, method: Method[StateT], problem: Problem, at: Checkpoint, clock: Clock, display: Progress
    ) -> "Run[StateT]":
        state = at.state.into(method.init(problem, at.key)) if isinstance(at.state, Leaves) else at.state
        return cls(method, problem, at.key, clock, display, state, at.history.rows(), at.counts)

    def until(self, limits: Limits, tolerance: float) -> Outcome:
        """The outcome, after running until something ends it; state, gain and ELBO always belong to the last q."""
        try:
            outcome = self._advance(limits, tolerance)
            if outcome in _OUT_OF:
                # Estimate the remaining gain at a limit; the state is unchanged, so that the fit can be resumed.
                self._keep(self.method.certify(self.problem, self.state, self.key, tolerance))
                self.counts = _plus(self.counts, self.gain.counts)
                if self.gain.within(tolerance):
                    outcome = Outcome.CONVERGED
                elif outcome is Outcome.MAX_STEPS:
                    outcome = unfinished(self.gain, tolerance)
            self.elbo, self.elbo_se, calls = self.method.elbo(self.problem, self.state, self.key)
            self.counts = _plus(self.counts, calls)
        except KeyboardInterrupt:
            outcome = Outcome.INTERRUPTED
        except BlackBoxError as error:
            self.failure, outcome = error, Outcome.MODEL_FAILED
        except (CheckpointError, RowsError) as error:
            self.failure, outcome = error, Outcome.INTERRUPTED
        finally:
            self.problem.target.close()
        return outcome

    def known_elbo(self) -> tuple[float, float]:
        """The ELBO and its standard error; before that on fresh draws, the estimate of the last step."""
        if np.isnan(self.elbo) and self.rows:
            return float(self.rows[-1]["elbo"]), float(self.rows[-1]["elbo_se"])
        return self.elbo, self.elbo_se

    def _advance(self, limits: Limits, tolerance: float) -> Outcome:
        taken, size = 0, 1
        advance = type(self.method).advance  # from the class: Equinox wraps a bound method in a module
        spent = self.counts.evaluations
        while True:
            if taken >= limits.num_steps:
                return Outcome.MAX_STEPS
            if limits.max_seconds is not None and self._agreed(self.clock.elapsed() >= limits.max_seconds):
                return Outcome.MAX_SECONDS
            if limits.max_evaluations is not None and self.counts.evaluations - spent >= limits.max_evaluations:
                return Outcome.MAX_EVALUATIONS
            before, running = time.perf_counter(), self.clock.running()
            budget = Budget(min(size, limits.num_steps - taken), tolerance)
            self.state, news = advance(self.method, self.problem, self.state, self.key, budget)
            self._note(news, running)
            taken += len(news.rows)
            if news.gain is not None:
                self._keep(news.gain)
                if news.gain.within(tolerance):
                    return Outcome.CONVERGED
            elif news.rows:
                self.gain = dataclasses.replace(UNKNOWN, copies=self.gain.copies)  # the old gain is of another q
            if news.outcome is not None:
                return news.outcome
            if self.keeper is not None:
                self.keeper.keep_if_due()
            passed = time.perf_counter() - before
            if jax.process_count() > 1:
                continue  # one step at a time: clocks differ, and what processes do must not
            size = int(np.clip(size * _ADVANCE_SECONDS / max(passed, 1e-3), 1, min(2 * size, _MOST_STEPS)))

    def _agreed(self, late: bool) -> bool:
        """What the first process says of the time, on every process of a mesh."""
        if self.problem.placement is None or jax.process_count() == 1:
            return late
        return bool(multihost_utils.broadcast_one_to_all(np.asarray(late)))

    def _keep(self, gain: Gain) -> None:
        self.gain = gain if gain.copies else dataclasses.replace(gain, copies=self.gain.copies)

    def _note(self, news: News, began: float) -> None:
        passed = (self.clock.running() - began) / max(len(news.rows), 1)  # per step: those of a program end together
        for i, row in enumerate(news.rows):
            # Methods count evaluations from the start of each advance.
            calls = self.counts.log_density + int(row.get("log_density", news.counts.log_density))
            self.rows.append({**row, "log_density": calls, "seconds": began + (i + 1) * passed})
        self.counts = _plus(self.counts, news.counts)
        if self.rows and (news.rows or news.counts.passes):
            self.display.show(len(self.rows), self.rows[-1], self.counts)

    # -- results ------------------------------------------------------------------------------------------------------

    @property
    def q(self) -> Family:
        return self.state.q

    def history(self) -> History:
        return History.of_rows(self.rows)

    def suspects(self) -> tuple[str, ...]:
        """The elements of latents most related to a problem."""
        return name_suspects(self.q, self.gain.weights)

    def checkpoint(self, tolerance: float) -> Checkpoint:
        problem = self.problem
        mesh = () if problem.placement is None else problem.placement.shape
        settings = (float(tolerance), problem.num_starts, problem.names, mesh)
        return Checkpoint(self.key, self.state, self.history(), self.counts, *settings)


_OUT_OF = (Outcome.MAX_STEPS, Outcome.MAX_SECONDS, Outcome.MAX_EVALUATIONS)


def _plus(counts: CallCounts, more: CallCounts) -> CallCounts:
    return counts.with_all(more)


_MOST_SUSPECTS = 3
_SHARE = 0.3  # elements with less than this share of the largest weight are not named


def name_suspects(q: Family, weights: np.ndarray | None) -> tuple[str, ...]:
    """Elements of latents such as x[2] whose parameters have the largest weights, at most three."""
    if weights is None or not len(weights):
        return ()
    weights = np.nan_to_num(np.asarray(weights, float), nan=np.inf, posinf=np.finfo(float).max)
    order = np.argsort(-weights, kind="stable")
    elements, largest = q.elements(), weights[order[0]]
    named: dict[str, None] = {}
    for index in order:
        if len(named) == _MOST_SUSPECTS or not weights[index] > 0 or weights[index] < _SHARE * largest:
            break
        named[elements[index]] = None
    return tuple(named)
