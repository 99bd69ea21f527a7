"""Rounds of steps (climbs) on fixed draws, and the number of draws of the next round."""

import dataclasses
import math

import numpy as np

from curvi.certify.fixed_draws import draws_bias
from curvi.certify.gain import UNKNOWN, Gain
from curvi.control.climb import Climbed, End, climb_step, end_at_start
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.noise import FixedNoise
from curvi.estimate.fixed_draws.objective import Objective
from curvi.estimate.fixed_draws.sweep import CHUNK
from curvi.estimate.start import find_start
from curvi.methods.base import Budget, News, Problem
from curvi.methods.growing_draws.starts import ran_away, try_start
from curvi.methods.growing_draws.state import Climb, GrowingState
from curvi.methods.growing_draws.streams import FOR_CLIMBING, FOR_KICKS
from curvi.methods.growing_draws.verdict import certificate, outcome_of_last_round, suspects
from curvi.outcome import Outcome

# A round ends where the predicted gain of a step is below this share of the tolerance; the error of draws dominates.
CLIMB_SHARE = 0.05
# A certificate is attempted once the bias of the draws is below this share of the tolerance.
_BIAS_SHARE = 0.5
_ROUGH = 0.5  # nats: gain tolerance on draws without control variate
_LONG = 2  # cost of a step's products, relative to that of a metric, from which the metric pays
_LESS_EXCESS = 4  # factor for the draws after a round with a misleading control variate: halves the excess
_MOVED = 1.0  # gain in nats since the last expansion that justifies another
_LARGEST_REPEATED = 256  # dimensions
_KICK = 0.1  # in sds of q


def next_step(problem: Problem, objective: Objective, state: GrowingState, budget: Budget) -> tuple[GrowingState, News]:
    """The next state, after the start of a climb, one of its steps or its end; and the news."""
    if len(state.start_elbos) < problem.num_starts != 1:
        return try_start(problem, objective, state, CLIMB_SHARE * budget.tolerance, budget.num_steps)
    state, local = under_way(problem, objective, state, budget.tolerance)
    assert state.climb is not None
    if state.climb.how is None:
        return _climb(problem, objective, state, local)
    if state.climb.how is End.BAD_START:
        return _mend_start(problem, objective, state, local)
    return _after_climb(problem, objective, state, local, budget.tolerance)


def under_way(
    problem: Problem, objective: Objective, state: GrowingState, tolerance: float
) -> tuple[GrowingState, FixedDrawsModel]:
    """The state with a climb for this tolerance, and its current local model."""
    climb = state.climb
    before = state.params if climb is None else climb.before
    round_ = (state.num_draws, state.index, state.rough)
    fixed = problem.once("noise", lambda: _noise_of_round(objective, state, before), before, round_)
    local = problem.once("local", lambda: objective(state.params, fixed), state.params, fixed)
    gain_tolerance = max(_ROUGH, tolerance) if state.rough else CLIMB_SHARE * tolerance
    if climb is None:
        end = end_at_start(objective, local)
        climb = Climb(before, local.value, gain_tolerance, "" if end is None else end.name)
        return state.but(climb=climb, last_draws=fixed.num_draws), local
    if climb.gain_tolerance != gain_tolerance and climb.how not in (End.BAD_START, End.MISLED):
        # A climb that ended did so for its own tolerance: continue for the new one.
        return state.but(climb=Climb(before, climb.value, gain_tolerance)), local
    return state, local


def stand_still(
    problem: Problem, objective: Objective, state: GrowingState, tolerance: float
) -> tuple[GrowingState, FixedDrawsModel]:
    """The state for a certificate without further steps: with control variate and exact Hessian-vector products."""
    state, local = under_way(problem, objective, state, tolerance)
    if not local.finite():
        return state, local
    if state.rough:
        state = state.but(rough=False, climb=None, **expand(problem, objective, state.params))
        state, local = under_way(problem, objective, state, tolerance)
    return make_exact(problem, objective, state), local


def _noise_of_round(objective: Objective, state: GrowingState, before: np.ndarray) -> FixedNoise:
    stream = (FOR_CLIMBING, state.index)
    if state.rough and objective.dimension <= CHUNK // 2:
        # Far from the optimum, the fewest draws with matched moments suffice.
        return objective.noise(before, stream, CHUNK, num_parts=1, correct=False)
    return objective.noise(before, stream, state.num_draws, correct=not state.rough)


def _climb(problem: Problem, objective: Objective, state: GrowingState, local: FixedDrawsModel):
    assert state.climb is not None
    changes = expand(problem, objective, state.params) if state.wants_metric else {}
    climbed = climb_step(objective, local, state.radius, state.climb.gain_tolerance)
    params = climbed.local.params
    problem.once("local", lambda: climbed.local, params, local.fixed)
    climb = state.climb
    if climbed.end is not None:
        climb = Climb(climb.before, climb.value, climb.gain_tolerance, climbed.end.name)
    pays = state.rough and climbed.accepted and _metric_pays(objective, climbed, local.fixed)
    changes.update(params=params, radius=climbed.radius, climb=climb, taken=state.taken + 1, wants_metric=pays)
    return state.but(**changes), News([_row(climbed)])


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
    cost = 2 * -(-objective.dimension // CHUNK)  # in chunks, for differences of gradients in each coordinate
    return climbed.num_products * fixed.num_chunks > _LONG * cost


def expand(problem: Problem, objective: Objective, params: np.ndarray) -> dict:
    """The Hessian at the mean of q, as fields of the state."""
    objective.expand(params)
    expansion = objective.expansion
    assert expansion is not None
    problem.once("expansion", lambda: expansion, expansion.hessian)
    return {"hessian": expansion.hessian, "sigma": expansion.sigma}


def _mend_start(problem: Problem, objective: Objective, state: GrowingState, local: FixedDrawsModel):
    """Search for another start if the log density is not finite at this one."""
    unknown = dataclasses.replace(UNKNOWN, weights=suspects(local))
    if ran_away(objective, state):
        return state, News(gain=unknown, outcome=Outcome.NOT_A_MAXIMUM)
    if state.searched:
        return state, News(gain=unknown, outcome=Outcome.NON_FINITE)
    q, calls = find_start(problem.target, state.q, objective.key)
    objective.counts = objective.counts.plus(log_density=calls)
    return state.but(params=np.asarray(q.params, np.float64), searched=True, climb=None), News()


def _after_climb(problem, objective: Objective, state: GrowingState, local: FixedDrawsModel, tolerance: float):
    """After a climb: add the control variate, renew the draws, increase their number, or certify."""
    assert state.climb is not None
    end, gained = state.climb.how, local.value - state.climb.value
    # A radius that shrank at the end of a climb may be too small for the next noise.
    state = state.but(radius=max(state.radius, 0.1), wants_metric=False)
    if objective.expandable and (state.rough or gained > _MOVED):
        state = state.but(**expand(problem, objective, state.params))
    if state.rough:
        return state.but(rough=False, climb=None), News()  # the same draws, with control variate
    if end is End.MISLED:
        return _less_misled(problem, objective, state, local, gained), News()
    if end is End.MOVED:
        return state.but(index=state.index + 1, climb=None), News()
    state = make_exact(problem, objective, state)
    bias = draws_bias(local)
    last = state.num_draws >= objective.capacity
    weights = None if bias.definite else np.abs(bias.error / local.spreads)
    gain = Gain(np.inf, np.inf, weights=weights, copies=(bias.error,))
    if bias.definite and (bias.nats <= _BIAS_SHARE * tolerance or last):
        gain, fresh = certificate(problem, objective, state, tolerance, (bias.error,))
        if gain.doubt is Outcome.NOT_A_MAXIMUM and not state.kicked:
            return _kick(objective, state, fresh), News()
        if gain.within(tolerance) or gain.doubt is not None:
            return state, News(gain=gain, outcome=gain.doubt)
    if last:
        gain = outcome_of_last_round(problem, objective, state, local, gain, tolerance)
        return state, News(gain=gain, outcome=gain.doubt)
    num_draws = _more(objective, state.num_draws, bias.nats, tolerance)
    return state.but(num_draws=num_draws, index=state.index + 1, climb=None), News(gain=gain)


def _less_misled(problem, objective: Objective, state: GrowingState, local: FixedDrawsModel, gained: float):
    """The state of a round with a new control variate at the last q where the old one was valid.

    The number of draws stays the same while rounds make progress, measured by their initial values on fresh draws.
    Otherwise it grows, which makes the correction smaller; at the largest number the control variate is dropped.
    """
    start = local.value - gained
    on_the_way = gained > _MOVED and start > state.misled_from + _MOVED
    if gained <= _MOVED:  # else `_after_climb` has made a new expansion
        state = state.but(**expand(problem, objective, state.params))
    state = state.but(misled_from=start, index=state.index + 1, climb=None)
    if on_the_way:
        return state
    corrects = state.num_draws < objective.capacity
    return state.but(num_draws=min(_LESS_EXCESS * state.num_draws, objective.capacity), corrects=corrects)


def make_exact(problem: Problem, objective: Objective, state: GrowingState) -> GrowingState:
    """The state with exact Hessian-vector products, and an exact expansion where that is cheap."""
    if state.exact:
        return state
    objective.exact_products = True
    changes = {}
    if objective.expansion is not None and objective.dimension <= _LARGEST_REPEATED:
        # Near kinks the expansion from differences was inaccurate.
        changes = expand(problem, objective, state.params)
    return state.but(exact=True, **changes)


def _more(objective: Objective, num_draws: int, bias: float, tolerance: float) -> int:
    """Number of draws of the next round: the bias falls at least like 1 / draws, and faster once moments match."""
    capacity = objective.capacity
    matched = 4 * objective.dimension  # two halves, two signs, as many pairs as dimensions
    if not objective.expandable and num_draws < matched <= capacity:
        return min(2 ** math.ceil(math.log2(matched)), 16 * num_draws)
    wanted = np.ceil(np.log2(max(bias / (0.6 * _BIAS_SHARE * tolerance), 1e-9)))
    more = num_draws * 2 ** int(np.clip(wanted, 1, 4))
    all_rows = 4 * objective.source.epoch
    if num_draws < all_rows <= capacity:
        return all_rows
    return min(more, capacity)


def _kick(objective: Objective, state: GrowingState, local: FixedDrawsModel) -> GrowingState:
    """The state after a small random step off a saddle."""
    shift = objective.source.generator(FOR_KICKS).standard_normal(state.params.shape)
    params = state.params + _KICK * local.spreads * shift
    return state.but(params=params, radius=1.0, kicked=True, index=state.index + 1, climb=None)
