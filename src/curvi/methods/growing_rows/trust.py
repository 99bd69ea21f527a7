"""Corrections on all rows stay inside a trust region that their own gains have earned.

The Hessian of a sample is wrong where few of its rows tell of a latent, such as the effect of a rare group, so that
Newton's step may gain little of what it promises, or lose. What the draws of the passes tell of the Hessian of the
difference is added to it: its diagonal, and the rest as far as the span of their moves. A climb on the sample, which
mends such a step where all rows are in memory, would lead back to the optimum of the sample.
"""

import dataclasses

import numpy as np

from curvi.estimate.fixed_draws.local import Difference
from curvi.estimate.fixed_draws.objective import Objective
from curvi.estimate.rows.passes import found_hessian
from curvi.family.path import ExpandablePath
from curvi.methods.base import News
from curvi.methods.growing_draws.corrections import fresh_model
from curvi.methods.growing_draws.rounds import under_way
from curvi.methods.growing_draws.state import GrowingState
from curvi.methods.growing_rows.state import RowsState
from curvi.methods.problem import Problem

_POOR = 0.25  # of the predicted gain: a step that gains less was too long
_SHORTER, _MUCH_SHORTER = 1 / 4, 1 / 16  # where it gained too little, and where it lost
_SHORTEST = 0.05  # nats: below that a step that does not gain as predicted is a matter of draws, not of length
_NUM_ERRORS = 4


def difference(objective: Objective, state: RowsState) -> Difference:
    """What all rows add to the sample at the current q, with what is known of its Hessian."""
    found, path = state.difference(), objective.path
    if not isinstance(path, ExpandablePath) or not state.moves.size:
        return found
    moves, bends = state.moves, state.bends
    diagonal = np.sum(moves * bends, 0) / np.maximum(np.sum(moves**2, 0), np.finfo(float).tiny)
    factor = path.scale_matrix(state.growing.params)
    rest = found_hessian(moves, bends - moves * diagonal, factor)
    return dataclasses.replace(found, hessian=np.diag(diagonal) + rest)


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


def corrected(state: RowsState, growing: GrowingState, news: News, offset: float) -> RowsState:
    """The state after a correction that ended with this state on the sample, and its news."""
    before, row = state.growing, news.rows[-1] if news.rows else None
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
