"""The default method for many rows: climbs on a sample of them, corrections and certificate by whole passes."""

import dataclasses
from typing import ClassVar

import equinox as eqx
import numpy as np

from curvi.certify.fixed_draws import remaining_gain
from curvi.certify.gain import UNKNOWN, Gain, unfinished
from curvi.estimate.fixed_draws.objective import Objective
from curvi.family.centering_table import CenteringTable
from curvi.methods.base import Budget, FamilyRow, Method, Needs, News, Problem
from curvi.methods.growing_draws.corrections import fresh_model
from curvi.methods.growing_draws.ladder import ladder
from curvi.methods.growing_draws.method import GrowingDraws
from curvi.methods.growing_draws.rounds import next_step, stand_still
from curvi.methods.growing_draws.state import GrowingState
from curvi.methods.growing_draws.verdict import certificate, plain_elbo
from curvi.methods.growing_rows.state import RowsState
from curvi.methods.growing_rows.trust import corrected, difference, tempered
from curvi.methods.growing_rows.work import Work, sample_size
from curvi.model.minibatch import MinibatchTarget
from curvi.outcome import Outcome
from curvi.record.counts import CallCounts
from curvi.record.plain import register
from curvi.record.plan import Plan

_ROW_COPIES, _CHUNKS = 3, 3  # of rows in memory; chunks that are read ahead and computed on
_ON_SAMPLE = 4  # tolerances: the gain that a fit on the sample may leave, which passes will find
# Ends of a fit on a sample that say nothing of all rows.
_NO_MATTER = (None, Outcome.NOISE_LIMIT, Outcome.PRECISION, Outcome.MAX_STEPS)


@register
class GrowingRows(Method[RowsState]):
    """`GrowingDraws` on a random sample of the rows, then its corrections with the gradient on all rows.

    A pass reads every row once and computes 64 draws of q. It estimates how the gradient on all rows differs from that
    on the sample, on the same draws; the Hessian remains that of the sample. Each pass certifies the q that it meets
    before that is moved. Where all rows are few, the sample holds them all, and there is nothing to correct.

    Attributes
    ----------
    draws
        The method on the sample.
    sample_rows
        Rows of the sample; None takes a sixteenth of all, from 16,384 to 131,072, and at least 64 per latent.
    """

    draws: GrowingDraws = GrowingDraws()
    sample_rows: int | None = eqx.field(static=True, default=None)
    needs: ClassVar[Needs] = Needs(order=1, path=True)
    default_num_steps: ClassVar[int] = 1000
    several_starts: ClassVar[bool] = True
    widens: ClassVar[bool] = True
    learns_centering: ClassVar[bool] = True
    streams: ClassVar[bool] = True

    def __check_init__(self):
        number = self.sample_rows
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
            raise ValueError(f"sample_rows must be a positive integer or None; got {number!r}")

    def why_not(self, problem: Problem) -> str | None:
        if not isinstance(problem.target, MinibatchTarget):
            return "GrowingRows takes a MinibatchTarget, whose rows are visible; leave method out for other targets"
        return Method.why_not(self, problem)

    def fixed_draws(self, q) -> int | None:
        return self.draws.fixed_draws(q)

    def plan(self, problem: Problem) -> Plan:
        plan, target = self.draws.plan(problem), problem.target
        if not (isinstance(target, MinibatchTarget) and target.streamed):
            return plan
        rows = problem.once("rows", target.rows)
        held = sample_size(rows, problem.q.noise_size, self.sample_rows) + _CHUNKS * rows.chunk_rows
        return dataclasses.replace(plan, parts=(*plan.parts, ("rows in memory", _ROW_COPIES * held * rows.row_bytes)))

    def init(self, problem: Problem, key) -> RowsState:
        work = self._work(problem, key)
        settings = problem.num_starts, problem.families, problem.learns_centering
        inner = Problem(work.sample.target, problem.q, *settings, memory=problem.memory)
        return RowsState.at(self.draws.init(inner, key), work.rows.num_rows, work.kept)

    def advance(self, problem: Problem, state: RowsState, key, budget: Budget) -> tuple[RowsState, News]:
        work = self._work(problem, key, state)
        work.check(state)
        passes = 0 if state.counted else work.sample.num_passes
        if not state.counted:
            state = state.but(counted=True, fingerprint=work.sample.fingerprint)
        objective = work.objective(state)
        if state.stage == "climb":
            state, news = _climb(work, objective, state, budget)
        elif state.growing.stage == "correct" and not state.known:
            state, counts = work.read_on(state, objective)
            news = News(counts=counts)
        else:
            state, news = _correct(work, objective, state, budget)
        return state, dataclasses.replace(news, counts=news.counts.plus(passes=passes))

    def certify(self, problem: Problem, state: RowsState, key, tolerance: float) -> Gain:
        work, state, objective, counts = self._looked(problem, state, key)
        inner, _ = work.inner(state)
        spent = objective.counts
        with np.errstate(all="ignore"):
            growing, few = stand_still(inner, objective, state.growing, tolerance)
            local = fresh_model(inner, objective, growing, few)
            gain = remaining_gain(local) if few.finite() and local.finite() else UNKNOWN
            if gain.within(tolerance):
                gain = certificate(inner, objective, growing, local, gain)
        if not gain.within(tolerance) and gain.doubt is None:
            gain = dataclasses.replace(gain, doubt=Outcome.MAX_STEPS if gain.known else unfinished(gain, tolerance))
        return dataclasses.replace(gain, counts=counts.with_all(objective.counts.less(spent)))

    def elbo(self, problem: Problem, state: RowsState, key) -> tuple[float, float, CallCounts]:
        work, state, objective, counts = self._looked(problem, state, key)
        inner, offset = work.inner(state)
        spent = objective.counts
        with np.errstate(all="ignore"):
            mean, error = plain_elbo(inner, objective, state.growing)
        if objective.difference is not None:
            mean, error = mean + objective.difference.value, float(np.hypot(error, objective.difference.value_se))
        return mean + offset, error, counts.with_all(objective.counts.less(spent))

    def families(self, problem: Problem, state: RowsState) -> tuple[FamilyRow, ...]:
        return ladder(problem, state.growing)

    def centering(self, state: RowsState) -> CenteringTable:
        return self.draws.centering(state.growing)

    def _work(self, problem: Problem, key, state: RowsState | None = None) -> Work:
        return problem.once("work", lambda: Work(self.draws, self.sample_rows, problem, key, state))

    def _looked(self, problem: Problem, state: RowsState, key) -> tuple[Work, RowsState, Objective, CallCounts]:
        """The state after a pass at its q, unless that was made, and the objective with what it found."""
        work, counts = self._work(problem, key, state), CallCounts()

        def look() -> RowsState:
            nonlocal counts
            passing = state if state.reference.size else state.but(reference=work.centre(state.q))
            while passing.sums is not None or not (passing.num_here and passing.stays):
                passing, more = work.read_on(passing, work.objective(passing))
                counts = counts.with_all(more)
            return passing

        if not work.whole:
            state = problem.once("looked", look, state.growing)
        objective = work.objective(state)
        objective.difference = None if work.whole else state.difference()
        return work, state, objective, counts


def _climb(work: Work, objective: Objective, state: RowsState, budget: Budget) -> tuple[RowsState, News]:
    """The state after a step on the sample; from its end on, passes."""
    inner, offset = work.inner(state)
    tolerance = budget.tolerance if work.whole else _ON_SAMPLE * budget.tolerance
    growing, news = _step(inner, objective, state.growing, Budget(budget.num_steps, tolerance), offset)
    state = state.but(growing=growing)
    if growing.stage == "correct" and not state.reference.size:
        # Near the optimum now: from here on rows are relative to what they are there.
        reference = work.centre(growing.q)
        return state.but(reference=reference, growing=growing.but(stage="climb", climb=None)), news
    if work.whole:
        return state, news
    converged = news.gain is not None and news.gain.within(tolerance)
    if news.outcome in _NO_MATTER and not converged and news.outcome is None:
        return state, dataclasses.replace(news, gain=None)
    if news.outcome not in _NO_MATTER:
        return state, news
    none = np.zeros(0)
    fresh = {"last_step": none, "last_grad": none, "last_value": none, "error": none, "promised": np.inf}
    # The optimum on all rows is so many nats away, about: with N / n times less data every sd is that much wider.
    fresh["radius"] = max(growing.radius, objective.dimension * float(work.sample.target.scale))
    growing = growing.but(index=growing.index + 1, stage="correct", **fresh)
    return state.but(growing=growing, stage="passes"), News(news.rows, news.counts)


def _correct(work: Work, objective: Objective, state: RowsState, budget: Budget) -> tuple[RowsState, News]:
    """The state after a correction by what the passes found, or a climb that it asked for."""
    inner, offset = work.inner(state)
    objective.difference = difference(objective, state) if state.known else None
    try:
        state = tempered(inner, objective, state, budget.tolerance) if state.known else state
        growing, news = _step(inner, objective, state.growing, budget, offset)
    finally:
        objective.difference = None
    return corrected(state, growing, news, offset)


def _step(inner: Problem, objective: Objective, growing: GrowingState, budget: Budget, offset: float):
    """A step of the method on the sample, with the ELBO of its rows on all constants."""
    spent = objective.counts
    # Overflow is handled later, as values that are not finite.
    with np.errstate(all="ignore"):
        growing, news = next_step(inner, objective, growing, budget)
    rows = [{**row, "elbo": row["elbo"] + offset} for row in news.rows]
    return growing, News(rows, objective.counts.less(spent), news.gain, news.outcome)
