"""The plan of the next batch of pooled regression: how many draws of q, and whether to look for rare values."""

from typing import NamedTuple

import numpy as np

from curvi.certify.gain import NUM_ERRORS
from curvi.family import Family
from curvi.methods.pooled_regression.estimates import Estimate
from curvi.methods.pooled_regression.state import PooledState
from curvi.methods.pooled_regression.steps import steps_naturally

NEARBY = 0.5  # nats: how far q may move before rare values are drawn again
_NEAR_END = 4  # the end is near if the gain is below this many tolerances
_MOST_OPEN = 1.0  # nats
_NOISE_SHARE = 0.5  # of the tolerance: what noise may hold of it after the next batch
GROWTH = 1.5


class Plan(NamedTuple):
    """The number of draws of the next batch, and whether to look for rare values of discrete factors."""

    size: int
    rare: bool = False


def looked_for_rare(state: PooledState) -> bool:
    """Whether the values that q finds rare have been drawn at a q close by."""
    return state.q.num_rare_draws == 0 or state.moved_since_rare <= NEARBY


def is_near(q: Family, estimate: Estimate, tolerance: float) -> bool:
    """Whether the end is near, by what the draws show; where they may be those of other q, what they show is held
    against what they leave open.
    """
    near = estimate.gain().nats <= _NEAR_END * tolerance
    return near and (not steps_naturally(q) or estimate.verdict().nats <= _MOST_OPEN)


def plan_batch(state: PooledState, estimate: Estimate, tolerance: float, least: int, most: int) -> tuple[int, Plan]:
    """The usual size of a batch, and the plan of the next.

    Far from the end batches grow where noise dominates: what is left of the gain without it, or, for a normal q of all
    latents, whose steps may lean on the draws of earlier ones, the gain with it. Near it rare values are drawn once,
    and the number of draws is what the verdict will need, by the noise of the draws so far, and so many that `least`
    are effective.
    """
    gain, noise, size = estimate.gain().nats, estimate.model.noise_gain(), state.size
    if not np.isfinite(gain):
        return size, Plan(size)
    if not is_near(state.q, estimate, tolerance):
        slope = estimate.model.grad
        if noise > (float(slope @ slope) / 2 if steps_naturally(state.q) else 0.5 * gain):
            size = min(int(GROWTH * size), most)
        return size, Plan(size)
    num_rare = state.q.num_rare_draws
    unknown = num_rare > 0 and (
        not looked_for_rare(state) or NUM_ERRORS * estimate.beyond_se > _NOISE_SHARE * tolerance
    )
    held = noise + NUM_ERRORS * estimate.model.posterior_gain()[1]
    have = estimate.effective_size
    wanted = have * held / (_NOISE_SHARE * tolerance)
    # An estimate of the noise from few draws is poor itself: it may double their number, and no more.
    drawn = max(size, min(wanted - have, have), least - have)
    return size, Plan(int(min(drawn, most)), unknown)
