"""Whether the fresh draws of a correction are enough: what their noise hides, and how many the next one takes."""

import math

import numpy as np

from curvi.certify.fixed_draws import Weighed
from curvi.certify.gain import LARGEST_STEP, LARGEST_STEP_ERROR, NUM_ERRORS
from curvi.estimate.fixed_draws.objective import Objective
from curvi.estimate.fixed_draws.sweep import LEAST_PARTS
from curvi.methods.growing_draws.state import GrowingState

_BIAS_SHARE = 0.4  # of the tolerance: what the noise of the last correction may leave
_SIGNAL_SHARE = 0.3  # of the predicted gain: far from the optimum, noise need not be smaller
_SDS_ERROR = 0.8 * LARGEST_STEP_ERROR
_RISEN = 0.25  # of the gain that was promised: what a correction with good curvature gains at least
_LOSS = 0.1  # nats
FEW = 256  # draws that are cheap whatever the dimension
_FINE = 0.05  # sds: a step certainly longer is taken where draws are few, though the tolerance does not ask for it
_SHRINKING = 0.8  # of the last predicted gain: what is left after a correction that was worth its cost
_VAGUE = 1e-3  # of the tolerance: noise of fewer parts than `LEAST_PARTS` must be smaller, or is not known well enough


def has_lost(state: GrowingState, value: np.ndarray) -> bool:
    """Whether the last correction lowered the ELBO, beyond what its noise explains."""
    if not state.last_value.size:
        return False
    before, after = state.last_value, value
    return bool(after[0] < before[0] - _LOSS - 4 * np.hypot(before[1], after[1]))


def fell_short(state: GrowingState, value: np.ndarray) -> bool:
    """Whether the last correction gained far less than it promised, beyond what noise explains: curvature on few draws
    is too flat along some of many parameters, and steps along these lead to and fro.
    """
    if not state.last_value.size:
        return False
    before, after = state.last_value, value
    return bool(after[0] - before[0] < _RISEN * before[2] - 3 * np.hypot(before[1], after[1]))


def wanted_draws(objective: Objective, state: GrowingState, found: Weighed, tolerance: float) -> int:
    """The number of draws of the next correction: its noise may leave a share of the tolerance, or of what is left."""
    predicted = float(found.step.predicted)
    allowed = max(_BIAS_SHARE * tolerance, _SIGNAL_SHARE * (predicted - found.bias))
    factor = found.bias / allowed
    if is_vague(found, tolerance):
        factor = max(factor, 2 * FEW / state.num_fresh)
    if found.gain.known:
        factor = max(factor, (found.gain.sds_noise / _SDS_ERROR) ** 2, found.gain.error / (0.4 * tolerance))
    if not factor > 1:
        return state.num_fresh
    more = 2 ** min(math.ceil(math.log2(min(factor, 1e6))), 3)
    return int(min(state.num_fresh * more, objective.capacity))


def is_noise(found: Weighed) -> bool:
    """Whether a step would follow the noise of the gradient more than the gradient."""
    gain = found.gain
    far = gain.known and gain.sds > LARGEST_STEP + NUM_ERRORS * gain.sds_error  # one latent, for certain
    return float(found.step.predicted) < 2 * found.bias and not far


def is_vague(found: Weighed, tolerance: float) -> bool:
    """Whether the noise is known from too few independent parts."""
    return found.local.fixed.num_parts < LEAST_PARTS and found.bias > _VAGUE * tolerance


def still_moves(state: GrowingState, found: Weighed) -> bool:
    """Whether a correction on few draws, hence a cheap one, certainly moves a latent, and corrections get shorter."""
    sure = found.gain.sds - NUM_ERRORS * found.gain.sds_error > _FINE and not is_noise(found)
    return sure and state.num_fresh <= 2 * FEW and found.step.predicted < _SHRINKING * state.promised
