"""The climb that goes on from a mean field with another family: its q, its draws and its buffers."""

import math

import jax
import numpy as np

from curvi.control.climb import ON_FIXED_DRAWS
from curvi.estimate.fixed_draws.groups import CHUNK
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.objective import Objective
from curvi.family import FAMILIES, Family
from curvi.family.centering import centering_of, with_centering
from curvi.family.normal_path import independent_params
from curvi.methods.base import Problem
from curvi.methods.growing_draws.centering import conditional_sds
from curvi.methods.growing_draws.state import GrowingState
from curvi.methods.rung import Rung
from curvi.methods.rungs import MEAN_FIELD


def widened(
    problem: Problem,
    objective: Objective,
    state: GrowingState,
    to: Rung,
    hessian: np.ndarray | None,
    local: FixedDrawsModel | None = None,
) -> GrowingState:
    """The state of a climb with another family, from the same q, or from the independent latents next to it; `hessian`
    is the expected one where it is known, else `local` has products with it.
    """
    product = None if local is None else lambda v: objective.expected_hessian_times(local, v)
    sds = conditional_sds(objective.path, state.params)
    q = to.of_curved(problem.target, _independent(problem, objective, state), hessian, product, sds)
    # As many pairs as tied latents: on fewer, a climb of so many parameters follows the draws, control variate or not.
    num_draws = min(max(state.num_draws, CHUNK * math.ceil(q.min_draws / CHUNK)), objective.capacity)
    none = np.zeros(0)
    return state.but(
        family=q,
        params=np.asarray(q.params, np.float64),
        hessian=state.hessian if hessian is None else hessian,
        sigma=state.sigma if hessian is None else np.diag(-hessian) ** -0.5,
        num_draws=num_draws,
        corrects=True,
        radius=ON_FIXED_DRAWS.initial,
        round=state.round + 1,
        index=state.index + 1,
        climb=None,
        stage="climb",
        newton=False,
        error=none,
        last_step=none,
        last_grad=none,
        last_value=none,
    )


def _independent(problem: Problem, objective: Objective, state: GrowingState) -> Family:
    """The mean field of a state: q, or one with its means and conditional sds."""
    q = state.q
    if type(q) is FAMILIES[MEAN_FIELD]:
        return q
    params = independent_params(state.params[: q.noise_size], conditional_sds(objective.path, state.params))
    # A family that goes on from a mean field has its layout and centring.
    start = with_centering(problem.q, centering_of(q))
    return start.replace(jax.device_put(params.astype(q.params.dtype)))
