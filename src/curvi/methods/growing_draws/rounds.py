"""Climbs on few fixed draws: far from the optimum few draws suffice, and later their Hessian does."""

import dataclasses
import math

import numpy as np

from curvi.certify.gain import UNKNOWN
from curvi.control.climb import Climbed, End, climb_step, end_at_start, fixed_point_step, scale_step
from curvi.estimate.fixed_draws.groups import CHUNK
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.noise import FixedNoise
from curvi.estimate.fixed_draws.objective import Objective
from curvi.estimate.start import find_start
from curvi.family.path import ExpandablePath, HostPath
from curvi.methods.base import Budget, News, Problem
from curvi.methods.growing_draws.centering import search_centering
from curvi.methods.growing_draws.corrections import correct
from curvi.methods.growing_draws.ladder import looked_at_products, looks_at_products
from curvi.methods.growing_draws.starts import try_start
from curvi.methods.growing_draws.state import Climb, GrowingState
from curvi.methods.growing_draws.streams import FOR_CLIMBING
from curvi.methods.growing_draws.verdict import suspects
from curvi.outcome import Outcome

_ROUGH, _CLIMBED = 0.5, 0.1  # nats: gain tolerance of climbs without and with control variate
_START = 0.01  # and of those from several starts, which are compared
_LONG = 2  # cost of a step's products, relative to that of a metric, from which the metric pays
_LESS_EXCESS = 4  # factor for the draws after a round with a misleading control variate: halves the excess
_MOVED = 1.0  # gain in nats since the last expansion that justifies another
_HELPED = 0.25  # share of the predicted gain below which Newton's step replaces the fixed point


def next_step(problem: Problem, objective: Objective, state: GrowingState, budget: Budget) -> tuple[GrowingState, News]:
    """The next state, after the start of a climb, one of its steps, its end, or a correction; and the news."""
    if len(state.start_elbos) < problem.num_starts != 1:
        return try_start(problem, objective, state, _START)
    if state.search is not None and not state.search.done:
        return search_centering(problem, objective, state)
    state, local = under_way(problem, objective, state, budget.tolerance)
    assert state.climb is not None
    if state.stage == "correct":
        return correct(problem, objective, state, local, budget.tolerance)
    if state.climb.how is None:
        return _climb(problem, objective, state, local)
    if state.climb.how is End.BAD_START:
        return _mend_start(problem, objective, state, local)
    return _after_climb(problem, objective, state, local), News()


def under_way(
    problem: Problem, objective: Objective, state: GrowingState, tolerance: float
) -> tuple[GrowingState, FixedDrawsModel]:
    """The state with a climb for this tolerance, and its current local model on few draws."""
    climb = state.climb
    before = state.params if climb is None else climb.before
    round_ = (state.num_draws, state.round, state.rough)
    fixed = problem.once("noise", lambda: _noise_of_round(objective, state, before), before, round_)
    local = problem.once("local", lambda: objective(state.params, fixed), state.params, fixed)
    gain_tolerance = max(_ROUGH if state.rough else _CLIMBED, tolerance)
    if climb is None:
        end = end_at_start(objective, local)
        climb = Climb(before, local.value, gain_tolerance, "" if end is None else end.name)
        if state.taken == 0 and state.rough:
            local = scale_step(objective, local)
            problem.once("local", lambda: local, local.params, fixed)
        return state.but(climb=climb, params=local.params), local
    if climb.gain_tolerance != gain_tolerance and climb.how is End.DONE and state.stage != "correct":
        # A climb that ended did so for its own tolerance: continue for the new one.
        return state.but(climb=Climb(before, climb.value, gain_tolerance)), local
    return state, local


def _noise_of_round(objective: Objective, state: GrowingState, before: np.ndarray) -> FixedNoise:
    return objective.noise(before, (FOR_CLIMBING, state.round), state.num_draws, 1, correct=not state.rough)


def stand_still(
    problem: Problem, objective: Objective, state: GrowingState, tolerance: float
) -> tuple[GrowingState, FixedDrawsModel]:
    """The state for a certificate without further steps, and its model on few draws, with the control variate."""
    state, local = under_way(problem, objective, state, tolerance)
    if not local.finite() or state.stage != "rough" or _matched(objective, state) or not objective.expandable:
        return state, local
    state = state.but(stage="climb", climb=None, **expand(problem, objective, state.params))
    return under_way(problem, objective, state, tolerance)


def _climb(problem: Problem, objective: Objective, state: GrowingState, local: FixedDrawsModel):
    assert state.climb is not None
    changes = expand(problem, objective, state.params) if state.wants_metric else {}
    path, tolerance, newton = objective.path, state.climb.gain_tolerance, state.newton
    if isinstance(path, HostPath) and path.has_fixed_point and not newton:
        climbed = fixed_point_step(objective, local, state.radius, tolerance)
        newton = climbed.end is None and not climbed.local.value - local.value > _HELPED * climbed.predicted
    else:
        climbed = climb_step(objective, local, state.radius, tolerance)
        # The fixed point of a sparse covariance costs next to nothing: it is tried again from elsewhere.
        newton = newton and (objective.expandable or not climbed.accepted)
    params = climbed.local.params
    problem.once("local", lambda: climbed.local, params, local.fixed)
    climb, end = state.climb, climbed.end
    pays = state.rough and climbed.accepted and _metric_pays(objective, climbed, local.fixed)
    if pays and end is None and looks_at_products(problem, objective, state):
        pays, end = False, End.DONE  # near enough to look up what other families gain
    if end is not None:
        climb = Climb(climb.before, climb.value, climb.gain_tolerance, end.name)
    changes.update(params=params, radius=climbed.radius, climb=climb, taken=state.taken + 1, newton=newton)
    return state.but(**changes, wants_metric=pays), News([_row(climbed)])


def _row(climbed: Climbed) -> dict:
    """The row of the history for a step."""
    local = climbed.local
    halves = local.part_means(2)
    return {
        "elbo": local.value,
        "elbo_se": abs(halves[0] - halves[1]) / 2,
        "predicted_gain": climbed.predicted,
        "radius": climbed.radius,
        "num_draws": local.fixed.num_draws,
        "accepted": climbed.accepted,
        "shrinkage": 1.0,
    }


def _metric_pays(objective: Objective, climbed: Climbed, fixed: FixedNoise) -> bool:
    """Whether conjugate gradients took so many products that the Hessian at the mean, as metric, saves time."""
    path = objective.path
    if not isinstance(path, HostPath) or path.has_fixed_point:
        return False
    cost = 2 * -(-objective.dimension // CHUNK)  # in chunks, for differences of gradients in each coordinate
    return climbed.num_products * fixed.num_chunks > _LONG * cost


def expand(problem: Problem, objective: Objective, params: np.ndarray) -> dict:
    """The Hessian at the mean of q, as fields of the state."""
    objective.expand(params)
    expansion = objective.expansion
    assert expansion is not None
    problem.once("expansion", lambda: expansion, expansion.hessian)
    return {"hessian": expansion.hessian, "sigma": expansion.sigma}


def _expanded(problem: Problem, objective: Objective, state: GrowingState, local: FixedDrawsModel) -> dict:
    """The expected Hessian where the model on few draws knows it, else that at the mean."""
    path = objective.path
    if isinstance(path, ExpandablePath) and (known := path.expected_hessian(state.params, local.slope)) is not None:
        return {"hessian": known, "sigma": path.sds(state.params)}
    return expand(problem, objective, state.params)


def _mend_start(problem: Problem, objective: Objective, state: GrowingState, local: FixedDrawsModel):
    """Search for another start if the log density is not finite at this one."""
    unknown = dataclasses.replace(UNKNOWN, weights=suspects(local))
    if state.ran_away:
        return state, News(gain=unknown, outcome=Outcome.NOT_A_MAXIMUM)
    if state.searched:
        return state, News(gain=unknown, outcome=Outcome.NON_FINITE)
    q, calls = find_start(problem.target, state.q, objective.key)
    objective.counts = objective.counts.plus(log_density=calls)
    return state.but(params=np.asarray(q.params, np.float64), searched=True, climb=None), News()


def _after_climb(problem, objective: Objective, state: GrowingState, local: FixedDrawsModel) -> GrowingState:
    """The state after a climb: with the control variate, with new draws, or ready for corrections."""
    assert state.climb is not None
    end, gained = state.climb.how, local.value - state.climb.value
    # A radius that shrank at the end of a climb may be too small for the next noise.
    state = state.but(radius=max(state.radius, 0.1), wants_metric=False)
    if end is End.MISLED:
        return _less_misled(problem, objective, state, local, gained)
    if end is End.MOVED:
        return state.but(round=state.round + 1, climb=None)
    state, wider = looked_at_products(problem, objective, state, local)
    if wider is not None:
        return wider
    if objective.expandable and not _matched(objective, state) and (state.rough or gained > _MOVED):
        state = state.but(**_expanded(problem, objective, state, local))
        if state.rough:
            return state.but(stage="climb", climb=None)  # the same draws, with control variate
    return state.but(stage="correct", promised=np.inf)


def _matched(objective: Objective, state: GrowingState) -> bool:
    """Whether there are as many pairs as dimensions, so that quadratics are averaged exactly."""
    return state.num_draws >= 2 * objective.moment_size


def _less_misled(problem, objective: Objective, state: GrowingState, local: FixedDrawsModel, gained: float):
    """The state of a round with a new control variate at the last q where the old one was valid.

    The number of draws stays the same while rounds make progress, measured by their initial values on fresh draws.
    Otherwise it grows, which makes the correction smaller; at the largest number the control variate is dropped.
    """
    start = local.value - gained
    on_the_way = gained > _MOVED and start > state.misled_from + _MOVED
    state = state.but(misled_from=start, round=state.round + 1, climb=None, **expand(problem, objective, state.params))
    if on_the_way:
        return state
    num_draws = min(_LESS_EXCESS * state.num_draws, objective.capacity)
    return state.but(num_draws=num_draws, corrects=state.num_draws < objective.capacity)


def first_draws(objective: Objective, least: int) -> int:
    """The number of draws of the first climb: as many pairs as dimensions, where that is one chunk."""
    fewest = CHUNK if objective.expandable and objective.dimension <= CHUNK // 2 else least
    return min(2 ** math.ceil(math.log2(fewest)), objective.capacity)
