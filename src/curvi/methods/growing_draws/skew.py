"""The step from normal to skewed marginals, once the family is chosen: where their predicted gain is worth it.

It is predicted at every correction, from the gradients at its draws, and taken as soon as it is certain, larger than
what the normal q itself has left to gain, and this is little: far from the best normal q it is often too large. At the
end of a fit it is taken in doubt, too, since skewed marginals contain the normal ones.

Before the choice is made, values of ln p at draws of q say whether importance weights correct all that skewed marginals
would, and more: these would then cost several times as much, and answer no better (`curvi.diagnostics.kinds`).
"""

import jax
import numpy as np

from curvi.certify.fixed_draws import Weighed
from curvi.certify.predicted import PredictedGain
from curvi.certify.predicted_skew import LARGEST, predict_skew
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.objective import Objective
from curvi.estimate.fixed_draws.sweep import CHUNK
from curvi.estimate.psis import SmoothedWeights, smooth_weights
from curvi.estimate.sampling import FINAL_DRAWS, log_ratios
from curvi.family.path import HostPath
from curvi.family.shapes import has_skew
from curvi.methods.base import Problem
from curvi.methods.choice import GAIN, WITHIN
from curvi.methods.growing_draws.ladder import undecided
from curvi.methods.growing_draws.state import GrowingState
from curvi.methods.growing_draws.streams import FOR_WEIGHTS
from curvi.model.row_sample import RowSample

_NUM_ERRORS = 2


def skewed_up(
    problem: Problem,
    objective: Objective,
    state: GrowingState,
    local: FixedDrawsModel,
    found: Weighed,
    converged: bool,
) -> tuple[GrowingState, GrowingState | None]:
    """The state with the predicted gain of skewed marginals, and that of a fit that goes on with them where they pay;
    `local` has fresh draws, and `found` what the normal q has left to gain on them.
    """
    if not may_skew(problem, state):
        return state, None
    if problem.must_skew:
        return state, skewed(state)
    gain = predict_skew(local)
    state = state.but(skew=np.array([gain.nats, gain.error, np.nan]))
    left = float(found.step.predicted)
    certain = left <= WITHIN and gain.nats - _NUM_ERRORS * gain.error > max(GAIN, left)
    if not (certain or (converged and pays(gain))):
        return state, None
    weights = _weights(problem, objective, state)
    if weights.reliable:
        return state.but(skew=np.array([gain.nats, gain.error, weights.effective_draws])), None
    return state, skewed(state)


def _weights(problem: Problem, objective: Objective, state: GrowingState) -> SmoothedWeights:
    """The importance weights of draws of q, made from values alone."""
    q, number = state.q, objective.source.generator(FOR_WEIGHTS).integers(2**31)
    ratios = log_ratios(problem.target, q, jax.random.key(int(number)), FINAL_DRAWS, problem.memory)
    objective.counts = objective.counts.plus(log_density=FINAL_DRAWS)
    return smooth_weights(ratios)


def left_to_weights(state: GrowingState) -> bool:
    """Whether importance weights were found to correct what skewed marginals would."""
    return state.skew is not None and bool(state.skew[-1] > 0)


def pays(gain: PredictedGain) -> bool:
    """Whether a predicted gain is worth skewed marginals at the end of a fit."""
    return gain.nats > GAIN


def may_skew(problem: Problem, state: GrowingState) -> bool:
    """Whether marginals may still be skewed: q is normal, its family chosen."""
    if not problem.may_skew or has_skew(state.family) or undecided(problem, state) or left_to_weights(state):
        return False
    path, target = state.family.path, problem.target
    if not isinstance(path, HostPath) or target.minibatched or isinstance(target, RowSample):
        return False
    return problem.must_skew or path.size <= LARGEST


def skew_undecided(problem: Problem, state: GrowingState, local: FixedDrawsModel) -> bool:
    """Whether a fit that stops here would have gone on with skewed marginals."""
    return may_skew(problem, state) and (problem.must_skew or pays(predict_skew(local)))


def skewed(state: GrowingState) -> GrowingState:
    """The state of a fit that goes on with skewed marginals from the same q: corrections begin at once, since that is
    near the best normal one.
    """
    q, none = state.q.with_skew(), np.zeros(0)  # pyright: ignore[reportAttributeAccessIssue]
    return state.but(
        family=q,
        params=np.asarray(q.params, np.float64),
        hessian=none,
        sigma=none,
        num_draws=max(state.num_draws, 4 * CHUNK),
        num_fresh=max(state.num_fresh, 8 * CHUNK),
        radius=1.0,
        round=state.round + 1,
        index=state.index + 1,
        climb=None,
        stage="correct",
        newton=True,
        promised=np.inf,
        shrinkage=1.0,
        error=none,
        last_step=none,
        last_grad=none,
        last_value=none,
    )
