"""Corrections: the gradient on many fresh draws, the Hessian on the few draws of the climb.

The error of the answer is that of the gradient; a Hessian that is a tenth off costs one more step. Each correction
certifies the q that it meets, since its draws have not moved that q, and then moves it: what certifies a fit has never
moved it. The number of draws grows as far as their noise hides what is left to gain.
"""

import dataclasses

import numpy as np

from curvi.certify.fixed_draws import Weighed, remaining_gain, weigh
from curvi.certify.gain import Gain
from curvi.estimate.fixed_draws.groups import CHUNK
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.noise import correction_draws
from curvi.estimate.fixed_draws.objective import Objective
from curvi.estimate.fixed_draws.sweep import LEAST_PARTS, MOST_PARTS
from curvi.methods.base import News, Problem
from curvi.methods.growing_draws.enough_draws import (
    FEW,
    fell_short,
    has_lost,
    is_noise,
    is_vague,
    still_moves,
    wanted_draws,
)
from curvi.methods.growing_draws.ladder import looked_up, tried
from curvi.methods.growing_draws.skew import skewed_up
from curvi.methods.growing_draws.state import GrowingState
from curvi.methods.growing_draws.streams import FOR_CORRECTING, FOR_KICKS
from curvi.methods.growing_draws.verdict import certificate, outcome_of_last_round
from curvi.outcome import Outcome

_SHARES = (1.0, 0.5, 0.25, 0.125)  # of a step, tried until its gain on few draws is as predicted
_VALID = 0.5  # relative error of that prediction
_SLOW = 0.25  # a correction that leaves more of the predicted gain wants a better Hessian
_BETTER = 4  # factor for its draws
_MOST_CORRECTIONS = 60
_SEEN_WELL = 32  # latents up to which few draws see the curvature well enough
_TOO_FLAT, _LEAST_SHRINKAGE = 1.3, 0.5  # ratio of measured to promised curvature from which the latter is believed less
_NEAR = 4  # tolerances: predicted gains from which it pays to measure the noise precisely


def correct(problem: Problem, objective: Objective, state: GrowingState, few: FixedDrawsModel, tolerance: float):
    """The state after a look at fresh draws and the step that they suggest, or the end of the fit."""
    local = fresh_model(problem, objective, state, few)
    if state.ran_away:
        gain = outcome_of_last_round(problem, objective, state, local, Gain(np.inf, np.inf), tolerance)
        # That far out, values overflow whatever the model.
        found = Outcome.NOT_A_MAXIMUM if gain.doubt is Outcome.NON_FINITE else gain.doubt
        return state, News(gain=dataclasses.replace(gain, doubt=found), outcome=found)
    if not local.finite():
        return _more_draws(objective, state, local, Gain(np.inf, np.inf), tolerance, problem)
    value = np.array([local.value, np.std(local.part_means(local.fixed.num_parts)) / local.fixed.num_parts**0.5])
    if has_lost(state, value):
        return _climb_again(objective, state.but(index=state.index + 1)), News()
    state, wider = looked_up(problem, objective, state, local)
    if wider is not None:
        return wider, News()
    if objective.dimension > _SEEN_WELL and fell_short(state, value):
        better = _better_curvature(objective, state, _most_for_curvature(objective))
        if better is not state:
            return better.but(last_value=np.zeros(0), last_step=np.zeros(0), last_grad=np.zeros(0)), News()
        state = state.but(shrinkage=max(state.shrinkage / 2, _LEAST_SHRINKAGE))
    state = _with_measured_curvature(objective, state, local)
    found = weigh(dataclasses.replace(local, shrinkage=state.shrinkage), state.radius, _NEAR * tolerance)
    if state.shrinkage < 1 and found.gain.within(tolerance):
        # Shrinkage hides flat directions: a certificate believes the curvature as it is.
        found = weigh(local, state.radius)
        most = _most_for_curvature(objective)
        if not found.gain.within(tolerance) and state.num_draws < most:
            return _better_curvature(objective, state, most), News()
    if found.gain.within(tolerance) and local.curvature.more is not None:
        # What is added to the curvature may hide flat directions, too.
        local = local.without_more()
        found = weigh(local, state.radius)
    if not found.step.definite:
        return _more_draws(objective, state, local, found.gain, tolerance, problem)
    gain = found.gain
    converged = gain.within(tolerance) and not (is_vague(found, tolerance) or still_moves(state, found))
    state, wider = skewed_up(problem, objective, state, local, found, converged)
    if wider is not None:
        return wider, News()
    if converged:
        if (wider := tried(problem, objective, state)) is not None:
            return wider, News()
        gain = certificate(problem, objective, state, local, gain)
        if gain.doubt is Outcome.NOT_A_MAXIMUM and not state.kicked:
            return state.kicked_off(local.spreads, objective.source.generator(FOR_KICKS)), News()
        if gain.within(tolerance) or gain.doubt is not None:
            return state, News(gain=_with_error(gain, state), outcome=gain.doubt)
    num_fresh = wanted_draws(objective, state, found, tolerance)
    if is_noise(found) and not found.step.at_edge:
        if num_fresh <= state.num_fresh or state.index >= _MOST_CORRECTIONS:
            return _end(problem, objective, state, local, gain, tolerance)
        return state.but(num_fresh=num_fresh, index=state.index + 1), News(gain=_reported(gain, tolerance))
    return _step(problem, objective, state, few, found, num_fresh, tolerance)


def _with_measured_curvature(objective: Objective, state: GrowingState, local: FixedDrawsModel) -> GrowingState:
    """The state after the curvature along the last step, from the gradients on independent draws at both ends, was held
    against what the few draws said of it. Spurious flat directions make steps too long: the curvature is shrunk halfway
    towards the metric, no further, since where it is truly stiff the metric alone overshoots; and more draws see it.
    """
    if not state.last_step.size:
        return state
    measured = state.last_step @ (state.last_grad - local.grad)
    said = state.last_step @ state.last_grad  # of a whole Newton step
    noise = local.noise.variance_along(state.last_step) ** 0.5
    shrinkage = state.shrinkage
    worse = measured - 2 * noise > _TOO_FLAT * said
    if worse:
        shrinkage = max(shrinkage / 2, _LEAST_SHRINKAGE)
    elif measured + 2 * noise < said / _TOO_FLAT:
        shrinkage = min(2 * shrinkage, 1.0)
    none = np.zeros(0)
    state = state.but(shrinkage=shrinkage, last_step=none, last_grad=none)
    # The better Hessian is there from the next look on.
    return _better_curvature(objective, state, _most_for_curvature(objective)) if worse else state


def _step(problem, objective: Objective, state: GrowingState, few, found: Weighed, num_fresh: int, tolerance: float):
    """The state after the largest share of the step whose gain on few draws is as predicted."""
    step, local = found.step, found.local
    on = local if objective.num_score_params else few
    bend = 2 * (step.predicted - local.grad @ step.direction)
    bend_on = bend - local.curvature.bend_of_more(step.direction)
    slope = on.grad @ step.direction
    rounding = 20 * objective.resolution * (abs(on.value) + 1)
    taken, trial = None, on
    for share in _SHARES:
        trial = objective(objective.admit(state.params + share * step.direction), on.fixed)
        expected = share * slope + share**2 * bend_on / 2
        allowed = _VALID * (share * local.grad @ step.direction + share**2 * bend / 2) + rounding
        if trial.finite() and abs(trial.value - on.value - expected) <= allowed and not objective.misled(trial):
            taken = share
            break
    row = {
        "elbo": local.value,
        "elbo_se": float(np.std(local.part_means(local.fixed.num_parts)) / local.fixed.num_parts**0.5),
        "predicted_gain": float(step.predicted),
        "radius": state.radius,
        "num_draws": local.fixed.num_draws,
        "accepted": taken is not None,
        "shrinkage": 1.0,
    }
    share = taken or 0.0
    promised = share * local.grad @ step.direction + share**2 * bend / 2
    last_value = np.array([row["elbo"], row["elbo_se"], promised])
    state = state.but(taken=state.taken + 1, index=state.index + 1, last_value=last_value)
    if taken is None:
        again = _seen_better(objective, state, step.predicted <= tolerance)
        return again, News([row], gain=_reported(found.gain, tolerance))
    if objective.num_score_params == 0:
        problem.once("local", lambda: trial, trial.params, on.fixed)
    divergence = taken**2 * float(step.divergence)
    radius = max(4 * divergence, 0.1) if taken == 1.0 else max(divergence, 1e-3)
    slow = taken == 1.0 and not step.at_edge and step.predicted > _SLOW * state.promised
    state = state.but(
        params=trial.params,
        radius=max(radius, state.radius) if taken == 1.0 else radius,
        num_fresh=num_fresh,
        promised=np.inf if step.at_edge else float(step.predicted),
        error=found.copy,
        last_step=step.direction if taken == 1.0 and not step.at_edge else np.zeros(0),
        last_grad=local.grad if taken == 1.0 and not step.at_edge else np.zeros(0),
    )
    if slow and found.bias < _SLOW * step.predicted:
        state = _better_curvature(objective, state, _most_for_curvature(objective))
    return state, News([row], gain=_reported(found.gain, tolerance))


def _reported(gain: Gain, tolerance: float) -> Gain | None:
    """The gain as news of a fit that goes on."""
    return gain if gain.known and not gain.within(tolerance) else None


def _with_error(gain: Gain, state: GrowingState) -> Gain:
    """The gain with the copy of the error that the last correction left in the parameters."""
    return dataclasses.replace(gain, copies=(state.error, *gain.copies)) if state.error.size else gain


def _more_draws(objective: Objective, state: GrowingState, local, gain: Gain, tolerance: float, problem: Problem):
    """The state where the curvature is not definite or the fresh draws are not finite: more draws, or the end."""
    if objective.num_score_params and state.num_fresh < objective.capacity:
        return state.but(num_fresh=min(_BETTER * state.num_fresh, objective.capacity), index=state.index + 1), News()
    if not objective.num_score_params and state.num_draws < objective.capacity:
        return _climb_again(objective, state.but(index=state.index + 1)), News()
    if not state.kicked and local.finite():
        return state.kicked_off(local.spreads, objective.source.generator(FOR_KICKS)), News()
    return _end(problem, objective, state, local, gain, tolerance)


def _climb_again(objective: Objective, state: GrowingState) -> GrowingState:
    """A new climb on more draws, from where q is."""
    num_draws = min(_BETTER * state.num_draws, objective.capacity)
    none = np.zeros(0)
    again = state.but(num_draws=num_draws, round=state.round + 1, climb=None, stage="climb", radius=1.0, newton=True)
    return again.but(last_step=none, last_grad=none, last_value=none)


def _seen_better(objective: Objective, state: GrowingState, near: bool) -> GrowingState:
    """The state after the few draws were wrong about the ELBO around q: a new climb, or, where it is `near` the optimum
    and they are wrong about the bend rather than the place, the curvature of more draws, without their climb.
    """
    more = _better_curvature(objective, state, objective.capacity) if near and not objective.num_score_params else state
    return _climb_again(objective, state) if more is state else more


def _most_for_curvature(objective: Objective) -> int:
    """The number of draws up to which a better Hessian is worth its cost."""
    return max(FEW, correction_draws(objective.moment_size))


def _better_curvature(objective: Objective, state: GrowingState, most: int) -> GrowingState:
    """The state with the curvature of more draws, `most` of them."""
    num_draws = min(2 * state.num_draws, objective.capacity, most)
    if num_draws <= state.num_draws:
        return state
    return state.but(num_draws=num_draws, round=state.round + 1)


def _end(problem, objective: Objective, state: GrowingState, local: FixedDrawsModel, gain: Gain, tolerance: float):
    gain = gain if gain.known else remaining_gain(local)
    gain = outcome_of_last_round(problem, objective, state, local, gain, tolerance)
    return state, News(gain=_with_error(gain, state), outcome=gain.doubt)


def fresh_model(problem: Problem, objective: Objective, state: GrowingState, few: FixedDrawsModel) -> FixedDrawsModel:
    """The local model on the fresh draws of the next correction, with the curvature of the few.

    Draws of latents without reparameterisation keep their values, so that their curvature is that of the same draws.
    """

    def make() -> FixedDrawsModel:
        # Parts with as many pairs as dimensions have far less noise, where there can be enough of them.
        least = max(CHUNK, objective.source.epoch)
        matched = max(least, 2 * objective.moment_size)
        least = matched if state.num_fresh >= LEAST_PARTS * matched or objective.expansion is None else least
        num_parts = next((parts for parts in (MOST_PARTS, LEAST_PARTS) if state.num_fresh >= parts * least), 2)
        stream = (FOR_CORRECTING, state.index)
        fixed = objective.noise(state.params, stream, state.num_fresh, num_parts)
        return objective(state.params, fixed)

    fresh = problem.once("fresh", make, state.params, (state.num_fresh, state.index))
    fresh = fresh if objective.difference is None else fresh.plus(objective.difference)
    return fresh if objective.num_score_params else fresh.symmetrised().bent(few)
