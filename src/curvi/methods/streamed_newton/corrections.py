"""Corrections of a climb on few draws by gradients on many fresh ones, which certify the q that they meet.

As in `curvi.methods.growing_draws.corrections`: the error of the answer is that of the gradient, and draws never
certify what they have moved.
"""

import dataclasses
import math

import numpy as np

from curvi.certify.gain import LARGEST_STEP, LARGEST_STEP_ERROR, NUM_ERRORS, Gain, as_finite_or_inf, unfinished
from curvi.estimate.streamed.objective import Look, StreamedObjective
from curvi.estimate.streamed.programs import Solved
from curvi.methods.base import News, Problem
from curvi.methods.streamed_newton.climb import FOR_CHECKING, FOR_CORRECTING, few_look, few_of, keep_look, row_of
from curvi.methods.streamed_newton.state import StreamedState
from curvi.outcome import Outcome

_RESIDUAL, _NOISE_RESIDUAL = 0.05, 0.1  # a decrement is off by the square of the relative residual
_BIAS_SHARE = 0.4  # of the tolerance: what the noise of the last correction may leave
_SIGNAL_SHARE = 0.3  # of the predicted gain: far from the optimum, noise need not be smaller
_SDS_ERROR = 0.8 * LARGEST_STEP_ERROR
_SHARES = (1.0, 0.5, 0.25, 0.125)  # of a step, tried until its gain on few draws is as predicted
_VALID = 0.5  # relative error of that prediction
_SLOW = 0.25  # a correction that leaves more of the predicted gain wants a better Hessian
_MOST_CORRECTIONS = 40
_SECANT = 0.1  # sds: step of the check of values against gradients
_APART = 0.2  # of the nats that such a step is worth: largest discrepancy


@dataclasses.dataclass(frozen=True)
class Weighed:
    """A look at fresh draws, the step that it suggests, the remaining gain at its q, and the nats of its noise."""

    look: Look
    step: Solved
    gain: Gain
    bias: float


def fresh_look(problem: Problem, objective: StreamedObjective, state: StreamedState) -> Look:
    """The look at the current q on the draws of the next correction; made once."""
    stream = (FOR_CORRECTING, state.index)
    make = lambda: objective.look(state.q, stream, state.num_fresh, parts=True)  # noqa: E731
    return problem.once("fresh", make, state.q.params, (*stream, state.num_fresh))


def weigh(objective: StreamedObjective, state: StreamedState, look: Look, radius: float) -> Weighed:
    """The step and the remaining gain of a look at fresh draws, with the curvature of the draws of the climb."""
    step = objective.solve(look, few_of(state), look.gradient, radius, _RESIDUAL)
    unknown = Gain(np.inf, np.inf)
    if not step.definite or step.at_edge:
        return Weighed(look, step, unknown, look.noise_gain)
    copied = objective.solve(look, few_of(state), look.noise, np.inf, _NOISE_RESIDUAL)
    if not copied.definite:
        return Weighed(look, step._replace(definite=np.bool_(False)), unknown, np.inf)
    found = objective.judge(look, step.x, copied.x)
    nats, error = as_finite_or_inf(max((found.slope - found.added) / 2, 0.0)), as_finite_or_inf(found.variance**0.5)
    sds = [as_finite_or_inf(number) for number in (found.sds, found.sds_error, found.sds_noise)]
    gain = Gain(nats, error, sds=sds[0], sds_error=sds[1], sds_noise=sds[2])
    return Weighed(look, step, gain, as_finite_or_inf(found.added / 2))


def correct(problem: Problem, objective: StreamedObjective, state: StreamedState, tolerance: float):
    """The state after a look at fresh draws and the step that they suggest, or the end of the fit."""
    look = fresh_look(problem, objective, state)
    if not look.finite():
        return climb_again(state, Outcome.NON_FINITE)
    found = weigh(objective, state, look, state.radius)
    if not found.step.definite:
        return climb_again(state, Outcome.NOT_A_MAXIMUM)
    gain = found.gain
    if gain.within(tolerance):
        gain = certificate(problem, objective, state, gain)
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
    return state.but(**more, stage="climb", radius=1.0 * state.q.num_params, promised=math.inf), News()


def certificate(problem: Problem, objective: StreamedObjective, state: StreamedState, gain: Gain) -> Gain:
    """A small remaining gain after the check that values and gradients are those of one smooth function.

    Along random signs of a tenth of an sd for every parameter, the values at both ends and in the middle, on the draws
    of the climb, must differ as the gradients there say, to first and to second order.
    """
    middle = few_look(problem, objective, state)
    rng = np.random.default_rng([*objective.words, FOR_CHECKING])
    signs = rng.integers(0, 2, state.q.num_params, dtype=np.int8)
    x = (_SECANT * (2 * signs - 1)).astype(state.q.params.dtype)
    ends = [objective.look(objective.moved(state.q, x, side), *few_of(state), parts=False) for side in (1.0, -1.0)]
    if not all(end.finite() for end in ends):
        return gain
    (up, down), worth = ends, float(_SECANT**2 * len(x) / 2)
    forward, into = objective.slopes(middle, up, x)
    _, back = objective.slopes(middle, down, x)
    first = (into + 4 * forward + back) / 3
    second = (into - back) / 2
    gained = [objective.difference(middle, end) for end in ends]
    apart = max(abs(gained[0] - gained[1] - first), abs(gained[0] + gained[1] - second))
    if apart > _APART * worth + 4 * objective.rounding(middle):
        return dataclasses.replace(gain, doubt=Outcome.DISAGREEMENT)
    return gain


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
        factor = max(factor, (found.gain.sds_noise / _SDS_ERROR) ** 2, found.gain.error / (0.4 * tolerance))
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
