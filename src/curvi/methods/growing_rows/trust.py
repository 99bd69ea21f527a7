"""Corrections on all rows stay inside a trust region that their own gains have earned.

The Hessian of a sample is wrong where few of its rows tell of a latent, such as the effect of a rare group, so that
Newton's step may gain little of what it promises, or lose. The curvature of each latent that the draws of the passes
find beyond that of the sample is added to it. A climb on the sample, which mends such a step where all rows are in
memory, would lead back to the optimum of the sample.
"""

import dataclasses

import numpy as np

from curvi.estimate.fixed_draws.local import Difference
from curvi.estimate.fixed_draws.objective import Objective
from curvi.family.path import ExpandablePath
from curvi.methods.base import News
from curvi.methods.growing_draws.corrections import fresh_model
from curvi.methods.growing_draws.rounds import under_way
from curvi.methods.growing_draws.state import GrowingState
from curvi.methods.growing_rows.state import RowsState
from curvi.methods.problem import Problem
from curvi.outcome import Outcome
from curvi.record.history import Row

_POOR = 0.25  # of the predicted gain: a step that gains less was too long
_SHORTER, _MUCH_SHORTER = 1 / 4, 1 / 16  # where it gained too little, and where it lost
_SHORTEST = 0.05  # nats: below that a step that does not gain as predicted is a matter of draws, not of length
_NUM_ERRORS = 4
_MOST_HERE = 8  # passes at one q whose noise hides what is left to gain


def difference(objective: Objective, state: RowsState) -> Difference:
    """What all rows add to the sample at the current q, with what is known of its Hessian."""
    found, path = state.difference(), objective.path
    if not isinstance(path, ExpandablePath) or not state.moves.size:
        return found
    moves, bends = state.moves, state.bends
    diagonal = np.sum(moves * bends, 0) / np.maximum(np.sum(moves**2, 0), np.finfo(float).tiny)
    # Curvature is added and never taken away: the sum stays definite.
    return dataclasses.replace(found, hessian=np.diag(np.minimum(diagonal, 0.0)))


def tempered(inner: Problem, objective: Objective, state: RowsState, tolerance: float) -> RowsState:
    """The state with a radius that fits what the last correction gained on all rows."""
    if not state.last.size:
        return state
    growing, few = under_way(inner, objective, state.growing, tolerance)
    local = fresh_model(inner, objective, growing, few)
    before, error, predicted = state.last
    noise = _NUM_ERRORS * float(np.hypot(error, _value_error(local, state)))
    gained, none = local.value - before, np.zeros(0)
    state = state.but(last=none, growing=growing.but(last_value=none))
    if not np.isfinite(gained) or gained + noise >= _POOR * predicted:
        return state
    factor = _MUCH_SHORTER if gained + noise < 0 else _SHORTER
    radius = max(factor * min(growing.radius, predicted), _SHORTEST)
    return state.but(growing=state.growing.but(radius=min(radius, growing.radius)))


def corrected(state: RowsState, growing: GrowingState, news: News, offset: float) -> tuple[RowsState, News]:
    """The state after a correction that ended with this state on the sample, and what is new."""
    if state.known and news.outcome is Outcome.NOISE_LIMIT and state.num_here < _MOST_HERE:
        # Another pass at this q has other draws, and both are averaged.
        again = state.growing.but(index=state.growing.index + 1)
        return state.but(growing=again), dataclasses.replace(news, gain=None, outcome=None)
    return _corrected(state, growing, news.rows[-1] if news.rows else None, offset), news


def _corrected(state: RowsState, growing: GrowingState, row: Row | None, offset: float) -> RowsState:
    before = state.growing
    if not state.known or before.params.shape != growing.params.shape or before.kicked != growing.kicked:
        return state.but(growing=growing)
    if growing.stage == "climb":
        if before.radius <= _SHORTEST:
            return state.but(growing=growing)
        # No step was as predicted, or the curvature needs more draws: the same passes, and another step from here.
        predicted = before.radius if row is None else min(float(row["predicted_gain"]), before.radius)
        none, radius = np.zeros(0), max(_SHORTER * predicted, _SHORTEST)
        kept = growing if row is None else before.but(taken=growing.taken)
        kept = kept.but(stage="correct", climb=None, radius=radius, index=growing.index, newton=before.newton)
        kept = kept.but(last_step=none, last_grad=none, last_value=none)
        return state.but(growing=kept, index=kept.index)
    if row is not None and row["accepted"]:
        last = np.array([row["elbo"] - offset, row["elbo_se"], row["predicted_gain"]])
        state = state.but(last=last)
    return state.but(growing=growing)


def _value_error(local, state: RowsState) -> float:
    own = np.std(local.part_means(local.fixed.num_parts)) / local.fixed.num_parts**0.5
    return float(np.hypot(own, state.difference().value_se))
