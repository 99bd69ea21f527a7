"""The local model on fresh draws: gradient of many, curvature of the few of the climb."""

from curvi.estimate.fixed_draws.groups import CHUNK
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.objective import Objective
from curvi.estimate.fixed_draws.sweep import LEAST_PARTS, MOST_PARTS
from curvi.methods.base import Problem
from curvi.methods.growing_draws.state import GrowingState
from curvi.methods.growing_draws.streams import FOR_CORRECTING


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
