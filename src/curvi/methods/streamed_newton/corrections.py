"""Corrections of a climb on few draws by gradients on many fresh ones, which certify the q that they meet.

As in `curvi.methods.growing_draws.corrections`: the error of the answer is that of the gradient, and draws never
certify what they have moved.
"""

import dataclasses
import math

from curvi.certify.gain import LARGEST_STEP, LARGEST_STEP_ERROR, NUM_ERRORS, Gain, unfinished
from curvi.certify.streamed import Weighed, checked, weigh
from curvi.estimate.streamed.objective import Look, StreamedObjective
from curvi.methods.base import News, Problem
from curvi.methods.streamed_newton.climb import FOR_CORRECTING, few_look, few_of, keep_look, row_of
from curvi.methods.streamed_newton.state import StreamedState
from curvi.outcome import Outcome

_BIAS_SHARE = 0.4  # of the tolerance: what the noise of the last correction may leave
_SIGNAL_SHARE = 0.3  # of the predicted gain, or of the largest step: far from the optimum, noise need not be smaller
_SDS_ERROR = 0.8 * LARGEST_STEP_ERROR
_SHARES = (1.0, 0.5, 0.25, 0.125)  # of a step, tried until its gain on few draws is as predicted
_VALID = 0.5  # relative error of that prediction
_SLOW = 0.25  # a correction that leaves more of the predicted gain wants a better Hessian
_MOST_CORRECTIONS = 40


def fresh_look(problem: Problem, objective: StreamedObjective, state: StreamedState) -> Look:
    """The look at the current q on the draws of the next correction; made once."""
    stream = (FOR_CORRECTING, state.index)
    make = lambda: objective.look(state.q, stream, state.num_fresh, parts=True)  # noqa: E731
    return problem.once("fresh", make, state.q.params, (*stream, state.num_fresh))


def correct(problem: Problem, objective: StreamedObjective, state: StreamedState, tolerance: float):
    """The state after a look at fresh draws and the step that they suggest, or the end of the fit."""
    look = fresh_look(problem, objective, state)
    if not look.finite():
        return climb_again(state, Outcome.NON_FINITE)
    found = weigh(objective, look, few_of(state), state.radius)
    if not found.step.definite:
        return climb_again(state, Outcome.NOT_A_MAXIMUM)
    gain = found.gain
    if gain.within(tolerance):
        gain = checked(objective, few_look(problem, objective, state), look, gain)
        return state, News(gain=gain, outcome=gain.doubt)
    wanted = _wanted_draws(objective, state, found, tolerance)
    if _is_noise(found):
        if wanted <= state.num_fresh or state.index >= _MOST_CORRECTIONS:
            return state, News(gain=gain, outcome=unfinished(gain, tolerance))
        return state.but(num_fresh=wanted, index=state.index + 1), News(gain=_reported(gain))
    return _step(problem, objective, state, found, wanted, tolerance)


def climb_again(state: StreamedState, outcome: Outcome) -> tuple[StreamedState, News]:
    """A new climb on more draws, from where q is; or the end, where there are no more."""
    num_draws = min(4 * state.num_draws, state.num_fresh)
    if num_draws <= state.num_draws:
        return state, News(outcome=outcome)
    more = {"num_draws": num_draws, "round": state.round + 1, "index": state.index + 1}
    # Not far from where it is: each refusal of too long a step costs a solve.
    radius = min(4 * state.radius, 1.0 * state.q.num_params)
    return state.but(**more, stage="climb", radius=radius, promised=math.inf), News()


def _step(problem, objective: StreamedObjective, state: StreamedState, found: Weighed, wanted: int, tolerance: float):
    """The state after the largest share of the step whose gain on few draws is as predicted."""
    step, look = found.step, found.look
    few = few_look(problem, objective, state)
    predicted, slope = float(step.predicted), objective.slope(look, step.x)
    bend, own = 2 * (predicted - slope), objective.slope(few, step.x)
    taken, trial = None, few
    for share in _SHARES:
        trial = objective.look(objective.moved(state.q, step.x, share), *few_of(state), parts=False)
        expected = share * own + share**2 * bend / 2
        allowed = _VALID * (share * slope + share**2 * bend / 2) + objective.rounding(few)
        if trial.finite() and abs(objective.gained(few, trial, step.x, share, tolerance) - expected) <= allowed:
            taken = share
            break
    row = row_of(look, state, predicted, taken is not None)
    state = state.but(taken=state.taken + 1, index=state.index + 1)
    if taken is None:
        state, news = climb_again(state, Outcome.NOT_A_MAXIMUM)
        return state, dataclasses.replace(news, rows=[row], gain=_reported(found.gain))
    keep_look(problem, trial)
    slow = taken == 1.0 and not step.at_edge and predicted > _SLOW * state.promised
    divergence = taken**2 * float(step.divergence)
    state = state.but(
        q=trial.q,
        radius=max(4 * divergence, state.radius) if taken == 1.0 else divergence,
        num_fresh=wanted,
        promised=math.inf if step.at_edge else predicted,
    )
    if slow and found.bias < _SLOW * predicted and 2 * state.num_draws <= state.num_fresh:
        state = state.but(num_draws=2 * state.num_draws, round=state.round + 1)
    return state, News([row], gain=_reported(found.gain))


def _wanted_draws(objective: StreamedObjective, state: StreamedState, found: Weighed, tolerance: float) -> int:
    """The number of draws of the next correction: its noise may leave a share of the tolerance, or of what is left."""
    predicted = float(found.step.predicted)
    allowed = max(_BIAS_SHARE * tolerance, _SIGNAL_SHARE * (predicted - found.bias))
    factor = found.bias / allowed
    if found.gain.known:
        # A latent that is far away is seen on few draws; to certify that none is takes more.
        sds_allowed = max(_SDS_ERROR, _SIGNAL_SHARE * found.gain.sds)
        factor = max(factor, (found.gain.sds_noise / sds_allowed) ** 2, found.gain.error / (0.4 * tolerance))
    if not factor > 1:
        return state.num_fresh
    more = 2 ** min(math.ceil(math.log2(min(factor, 1e6))), 3)
    return int(min(state.num_fresh * more, objective.max_draws))


def _is_noise(found: Weighed) -> bool:
    """Whether a step would follow the noise of the gradient more than the gradient."""
    gain = found.gain
    far = gain.known and gain.sds > LARGEST_STEP + NUM_ERRORS * gain.sds_error  # one latent, for certain
    return gain.known and float(found.step.predicted) < 2 * found.bias and not far


def _reported(gain: Gain) -> Gain | None:
    """The gain as news of a fit that goes on."""
    return gain if gain.known else None
