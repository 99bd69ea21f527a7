"""The verdict on a fit: the remaining gain, its consistency checks, and the ELBO on fresh draws."""

import dataclasses

import numpy as np

from curvi.certify import consistency
from curvi.certify.fixed_draws import remaining_gain
from curvi.certify.gain import UNKNOWN, Gain, unfinished
from curvi.certify.look_ahead import gained_between, look_ahead
from curvi.control.climb import End
from curvi.estimate.fixed_draws.groups import CHUNK
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.objective import Objective
from curvi.estimate.fixed_draws.sweep import MOST_PARTS
from curvi.family.path import HostPath
from curvi.methods.base import Problem
from curvi.methods.growing_draws.state import ENDLESS, GrowingState
from curvi.methods.growing_draws.streams import FOR_AHEAD, FOR_CHECKING, FOR_CONSISTENCY
from curvi.outcome import Outcome
from curvi.record.history import mean_and_error

_LARGEST_ERROR = 1.0  # nats, plus 0.01 per dimension: largest useful standard error of the ELBO
_VAGUE = 0.5  # nats: largest standard error of a remaining gain after hundreds of steps
# Draws of the final check; fewer in high dimensions, where draws are expensive.
_MOST_CHECK_DRAWS, _LEAST_CHECK_DRAWS, _LARGE = 1024, 256, 64
_NO_ERROR = 2e-3  # nats: standard error of a mean over the fewest draws below which they are enough
_FEWEST_AHEAD = 10  # steps
_AHEAD_PARTS = 8  # independent parts of the draws that evaluate a look ahead


def certificate(
    problem: Problem, objective: Objective, state: GrowingState, local: FixedDrawsModel, gain: Gain
) -> Gain:
    """A small remaining gain after the consistency checks, with a doubt where one fails."""
    unknown = dataclasses.replace(gain, nats=np.inf, error=np.inf)
    if not _value_is_known(problem, objective, state):
        return unknown
    doubt = _smoothness(problem, objective, state, consistency.LARGEST_DISCREPANCY, local)
    if doubt is not None:
        gain = unknown if doubt.outcome is Outcome.NON_FINITE else gain
        return dataclasses.replace(gain, doubt=doubt.outcome, weights=doubt.weights)
    if _no_unseen_direction(objective, state, local):
        return gain
    found = consistency.unseen_direction(objective, local, FOR_CONSISTENCY)
    if found is None:
        return gain
    doubt = _smoothness(problem, objective, state, consistency.SUSPECT_DISCREPANCY) or found
    return dataclasses.replace(unknown, doubt=doubt.outcome, weights=doubt.weights)


def _no_unseen_direction(objective: Objective, state: GrowingState, local: FixedDrawsModel) -> bool:
    """Whether as few draws as bound the ELBO show no flat direction: a symmetry is flat on any draws, and curvature
    that is negative on few is asked about on all.
    """
    fewest = CHUNK * -(-2 * objective.moment_size // CHUNK)
    if objective.num_score_params or 2 * fewest > local.curvature.fixed.num_draws:
        return False
    few = objective(state.params, objective.noise(state.params, (FOR_CONSISTENCY, 4), fewest, 1))
    return few.finite() and consistency.unseen_direction(objective, few, FOR_CONSISTENCY) is None


def outcome_of_last_round(
    problem: Problem, objective: Objective, state: GrowingState, local: FixedDrawsModel, gain: Gain, tolerance: float
) -> Gain:
    """The gain of a fit at the largest number of draws, with the reason why it did not converge as its doubt."""
    end = None if state.climb is None else state.climb.how
    if gain.doubt is not None:
        return gain
    weights = gain.weights if gain.weights is not None else suspects(local)
    gain = dataclasses.replace(gain, weights=weights)
    if gain.known and state.taken >= ENDLESS and gain.error > _VAGUE:
        gain = dataclasses.replace(gain, nats=np.inf, error=np.inf)
        return dataclasses.replace(gain, doubt=Outcome.NOT_A_MAXIMUM)
    if not gain.known and objective.num_score_params:
        # The negative curvature may be noise of the score curvature.
        return dataclasses.replace(gain, doubt=Outcome.NOISE_LIMIT)
    if not gain.known or end is End.STUCK:
        # On a smooth density a short enough step gains as predicted, unless rounding hides the gain.
        doubt = _smoothness(problem, objective, state, consistency.SUSPECT_DISCREPANCY)
        if doubt is not None:
            return dataclasses.replace(gain, doubt=doubt.outcome, weights=doubt.weights)
        return dataclasses.replace(gain, doubt=Outcome.PRECISION if gain.known else Outcome.NOT_A_MAXIMUM)
    if end is End.PRECISION:
        return dataclasses.replace(gain, doubt=Outcome.PRECISION)
    return dataclasses.replace(gain, doubt=unfinished(gain, tolerance))


def certify_end(
    problem: Problem,
    objective: Objective,
    state: GrowingState,
    local: FixedDrawsModel,
    few: FixedDrawsModel,
    tolerance: float,
    gain_tolerance: float,
) -> Gain:
    """The gain of a fit that was stopped at any point, with a doubt if it has not converged.

    `local` has fresh draws and the curvature of `few`.
    """
    if not (few.finite() and local.finite()):
        return dataclasses.replace(UNKNOWN, doubt=Outcome.MAX_STEPS, weights=suspects(local))
    gain = remaining_gain(local)
    if gain.within(tolerance):
        gain = certificate(problem, objective, state, local, gain)
        if gain.within(tolerance):
            return gain
    out_of_steps = state.stage != "correct" or state.num_fresh < objective.capacity
    if gain.doubt is None and out_of_steps and (gain.known or state.taken < ENDLESS):
        gain = dataclasses.replace(gain, doubt=Outcome.MAX_STEPS)
    gain = outcome_of_last_round(problem, objective, state, local, gain, tolerance)
    if gain.weights is None:
        gain = dataclasses.replace(gain, weights=suspects(local))
    if gain.doubt in (Outcome.MAX_STEPS, Outcome.NOISE_LIMIT):
        gain = _ahead(objective, state, few, gain, gain_tolerance)
    return gain


def _ahead(
    objective: Objective, state: GrowingState, local: FixedDrawsModel, gain: Gain, gain_tolerance: float
) -> Gain:
    """The remaining gain at a q before the end of the climb, improved by a look ahead where that succeeds."""
    stream = (FOR_AHEAD, state.taken)
    # At most as many steps as the fit itself took, or a few.
    steps = max(state.taken, _FEWEST_AHEAD)
    ahead = look_ahead(objective, local, state.radius, gain_tolerance, steps, (*stream, 0), state.num_fresh)
    # Matched draws: their fourth moments bias a value, but hardly a difference of two values.
    fresh = objective.noise(state.params, (*stream, 1), _check_draws(objective, state), _AHEAD_PARTS)
    found = gained_between(objective, state.params, ahead.params, fresh)
    if found is None or not np.all(np.isfinite([*found, ahead.left, ahead.error])):
        return gain
    gained, error = found
    # A truncated look ahead is better than the certificate only if it covered most of the gain.
    if not (ahead.done or ahead.left <= gained):
        return gain
    nats, error = max(gained + ahead.left, 0.0), float(np.hypot(error, ahead.error))
    return dataclasses.replace(gain, nats=nats, error=error)


def suspects(local: FixedDrawsModel) -> np.ndarray:
    """Default weights of suspects: parameters related to non-finite draws, or else the size of the gradient."""
    return np.abs(local.grad * local.spreads) if local.finite() else consistency.where_not_finite(local)


# -- fresh plain draws ------------------------------------------------------------------------------------------------


def plain_elbo(problem: Problem, objective: Objective, state: GrowingState) -> tuple[float, float]:
    """ELBO and its standard error on fresh draws."""
    return _plain_mean(objective, _plain_model(problem, objective, state))


def _plain_mean(objective: Objective, local: FixedDrawsModel) -> tuple[float, float]:
    num_pairs = local.fixed.num_draws // 2  # mirrored pairs are independent of each other
    values = local.part_means(num_pairs)
    if (excess := local.part_excess(num_pairs)) is not None:
        # The mean may be far from typical draws, so H0 is scaled by the regression of the values on the excess.
        values = values - _share(values, excess) * excess
    elif isinstance(objective.path, HostPath):
        # ln q of the draws, whose mean is known: where q is the posterior, ln p - ln q does not vary.
        log_q = objective.path.log_q(local.params, local.fixed.parts(num_pairs)).mean(-1)
        values = values - _share(values, log_q) * log_q
    mean, error = mean_and_error(values)
    return float(mean + local.exact), error


def _hardly_varies(local: FixedDrawsModel) -> bool:
    """Whether ln p differs from ln q, or from the control variate, by a constant alone: draw by draw, since mirrored
    pairs hide what is odd, and with no multiple fitted, which would hide a q whose scale is wrong.
    """
    excess = local.part_excess(local.fixed.num_draws)
    path = local.curvature.objective.path
    assert isinstance(path, HostPath)
    known = path.log_q(local.params, local.fixed.values) if excess is None else excess
    return bool(np.std(local.draw_values - known) < _NO_ERROR * local.fixed.num_draws**0.5)


def _plain_model(problem: Problem, objective: Objective, state: GrowingState) -> FixedDrawsModel:
    """The local model on fresh unmatched draws at the current q, for consistency checks and the final ELBO.

    Matched noise is suitable for gradients, but its fourth moments would bias the value. Few draws do where the value
    hardly varies among them: q then is the posterior, or differs from it by a quadratic.
    """

    def make() -> FixedDrawsModel:
        num_draws = _check_draws(objective, state)
        fewest = _fewest_check_draws(objective)
        if not problem.target.minibatched and num_draws > fewest and isinstance(objective.path, HostPath):
            few = _plain(objective, state, fewest, fewest // CHUNK, 0)
            if _hardly_varies(few):
                return few
        # Several parts: a standard error from two parts is sometimes almost zero.
        most = num_draws // (4 * CHUNK) if problem.target.minibatched else MOST_PARTS
        return _plain(objective, state, num_draws, max(min(num_draws // CHUNK, most), 2), 1)

    return problem.once("plain", make, state.params)


def _plain(objective: Objective, state: GrowingState, num_draws: int, num_parts: int, index: int) -> FixedDrawsModel:
    fixed = objective.noise(state.params, (FOR_CHECKING, state.taken, index), num_draws, num_parts, match=False)
    return objective(state.params, fixed)


def _fewest_check_draws(objective: Objective) -> int:
    return 2 * CHUNK if objective.dimension <= CHUNK // 2 else MOST_PARTS * CHUNK


def _check_draws(objective: Objective, state: GrowingState) -> int:
    num_draws = _MOST_CHECK_DRAWS
    if objective.dimension > _LARGE:
        num_draws = int(np.clip(state.num_fresh, _LEAST_CHECK_DRAWS, _MOST_CHECK_DRAWS))
    return min(num_draws, objective.capacity)


def _value_is_known(problem: Problem, objective: Objective, state: GrowingState) -> bool:
    """Whether the ELBO is known well enough: few draws may miss a tail in which ln p is unbounded below."""
    if problem.target.minibatched:
        return True
    return plain_elbo(problem, objective, state)[1] < _LARGEST_ERROR + 0.01 * objective.dimension


def _smoothness(
    problem: Problem, objective: Objective, state: GrowingState, largest: float, local: FixedDrawsModel | None = None
):
    """A doubt from fresh plain draws; where the value hardly varies among them, the curvature of `local` will do."""
    plain = _plain_model(problem, objective, state)
    few = local if local is not None and plain.fixed.num_draws == _fewest_check_draws(objective) else None
    return consistency.smoothness(objective, plain, FOR_CONSISTENCY, largest, few)


def _share(values: np.ndarray, excess: np.ndarray) -> float:
    """The multiple of `excess` that, once subtracted, minimises the variance of the values."""
    spread = np.var(excess)
    return float(np.mean((values - values.mean()) * (excess - excess.mean())) / spread) if spread > 0 else 0.0
