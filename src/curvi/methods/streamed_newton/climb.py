"""The climb on few streamed draws: trust-region Newton steps, from a start whose scales are set first."""

import dataclasses

import numpy as np

from curvi.certify.gain import UNKNOWN
from curvi.certify.streamed import contradicted, in_order
from curvi.control.climb import ON_FIXED_DRAWS
from curvi.estimate.streamed import programs
from curvi.estimate.streamed.objective import Design, Look, StreamedObjective
from curvi.methods.base import News, Problem
from curvi.methods.streamed_newton.state import ENDLESS, StreamedState
from curvi.outcome import Outcome
from curvi.solve.truncated_cg import HOST

FOR_CLIMBING, FOR_CORRECTING = range(2)
_RESIDUAL = 0.1  # of a step: what it leaves is a hundredth of its gain
_SHARE = 0.25  # of the tolerance: the climb ends where a step promises less
_SHORTEST = 1e-7  # nats per latent: a radius below it is no step
_LARGEST_EXPONENT = 0.25  # exponent from which q counts as divergent, as a share of the log of the largest number
_NARROWER = 2.0  # of ln sds, where the start is not finite
_MOST_NARROWINGS = 3
_MOST_SHARES = 3  # of a step that are tried before another is sought
_MOST_SCALINGS, _SCALED = 8, 0.05  # times that scales are set, while that gains this many nats per latent
_CHECKED = 256  # draws on which values are held against slopes


def few_of(state: StreamedState) -> Design:
    """The design of the climb and the number of its draws."""
    return (FOR_CLIMBING, state.round), state.num_draws


def few_look(problem: Problem, objective: StreamedObjective, state: StreamedState) -> Look:
    """The look at the current q on the draws of the climb; made once."""
    stream, num_draws = few_of(state)
    make = lambda: objective.look(state.q, stream, num_draws, parts=False)  # noqa: E731
    return problem.once("few", make, state.q.params, (*stream, num_draws))


def keep_look(problem: Problem, look: Look) -> None:
    """Remember a look, for when its q is the state's."""
    problem.once("few", lambda: look, look.q.params, (*look.stream, look.num_draws))


def row_of(look: Look, state: StreamedState, predicted: float, accepted: bool) -> dict:
    """The row of the history of a step."""
    return {
        "elbo": look.value,
        "elbo_se": look.value_se,
        "predicted_gain": predicted,
        "radius": state.radius,
        "num_draws": look.num_draws,
        "accepted": accepted,
        "shrinkage": 1.0,
    }


def start(problem: Problem, objective: StreamedObjective, state: StreamedState) -> tuple[StreamedState, News]:
    """The state at a finite start, with scales as its curvature asks for; or the end of the fit."""
    look = few_look(problem, objective, state)
    for _ in range(_MOST_NARROWINGS):
        if look.finite():
            break
        size = state.q.num_params // 2
        narrower = np.concatenate([np.zeros(size), np.full(size, -_NARROWER * 2**0.5)]).astype(state.q.params.dtype)
        state = state.but(q=objective.moved(state.q, narrower))
        look = few_look(problem, objective, state)
    if not look.finite():
        return state, News(outcome=Outcome.NON_FINITE)
    begun, gained = look, np.inf
    for _ in range(_MOST_SCALINGS):
        if not gained > _SCALED * look.q.noise_size:
            break
        scaled = objective.look(programs.rescaled(look.q, look.gradient), look.stream, look.num_draws, parts=False)
        gained = scaled.value - look.value if scaled.finite() else -np.inf
        look = scaled if gained > 0 else look
    keep_look(problem, look)
    row = row_of(look, state, float("nan"), look is not begun)
    return state.but(stage="climb", taken=1, q=look.q), News([row])


def climb(problem: Problem, objective: StreamedObjective, state: StreamedState, tolerance: float):
    """The state after one step up the ELBO on few draws."""
    look = few_look(problem, objective, state)
    found = objective.solve(look, few_of(state), look.gradient, state.radius, _RESIDUAL)
    predicted = float(found.predicted)
    goal = _SHARE * tolerance
    if found.definite and not found.at_edge and predicted <= goal / 5:
        # Not worth the look at its end.
        return state.but(stage="correct"), News([row_of(look, state, predicted, False)])
    slope, size, radius, share = objective.slope(look, found.x), float(found.divergence), state.radius, 1.0
    lost, accepted, trial = predicted <= objective.rounding(look), False, look
    for _ in range(_MOST_SHARES):
        # A shorter step along a refused one costs one gradient per draw, another solve tens of products.
        promised = share * slope + share**2 * (predicted - slope)
        trial = objective.look(objective.moved(state.q, found.x, share), look.stream, look.num_draws, parts=False)
        actual = objective.gained(look, trial, found.x, share, tolerance) if trial.finite() else -np.inf
        if lost and abs(actual) <= 2 * objective.rounding(look):
            actual = promised
        judged = (promised, share**2 * size, share < 1 or bool(found.at_edge), actual, 0.0)
        accepted, radius = ON_FIXED_DRAWS(radius, *judged, HOST)
        if accepted:
            break
        share = float(np.sqrt(radius / size))
    row = row_of(trial if accepted else look, state, predicted if found.definite else np.inf, bool(accepted))
    state = state.but(radius=float(radius), taken=state.taken + 1, refused=0 if accepted else state.refused + 1)
    if accepted:
        keep_look(problem, trial)
        state = state.but(q=trial.q)
        if found.definite and not found.at_edge and share == 1 and predicted <= goal:
            state = state.but(stage="correct")
    outcome = None
    if radius < _SHORTEST * state.q.num_params:
        ran_away = state.q.largest_exponent() > _LARGEST_EXPONENT * np.log(np.finfo(look.gradient.dtype).max)
        outcome = Outcome.PRECISION if lost else Outcome.NOT_A_MAXIMUM if ran_away else Outcome.DISAGREEMENT
    elif state.taken >= ENDLESS:
        outcome = Outcome.NOT_A_MAXIMUM
    if outcome is None:
        return state, News([row])
    gain = dataclasses.replace(UNKNOWN, weights=_suspects(objective, look, outcome))
    return state, News([row], gain=gain, outcome=outcome)


def _suspects(objective: StreamedObjective, look: Look, outcome: Outcome) -> np.ndarray:
    """Weights of the parameters that a climb broke off on: those whose slopes values contradict, else the steepest."""
    weights = None
    if outcome is Outcome.DISAGREEMENT:
        weights = contradicted(objective, objective.look(look.q, look.stream, _CHECKED, parts=True))
    return in_order(np.abs(np.asarray(look.gradient))) if weights is None else weights
