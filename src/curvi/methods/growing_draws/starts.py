"""Several starts."""

import numpy as np

from curvi.control.climb import ON_FIXED_DRAWS, End, climb_step
from curvi.estimate.fixed_draws.objective import Objective
from curvi.methods.base import News, Problem
from curvi.methods.growing_draws.state import ENDLESS, GrowingState
from curvi.methods.growing_draws.streams import FOR_CLIMBING, FOR_STARTS

_LEAST_DRAWS = 64  # on which starts are compared
_START_SPREAD = 2.0  # in unconstrained units, as NumPyro's init_to_uniform and Stan's random inits


def try_start(problem: Problem, objective: Objective, state: GrowingState, gain_tolerance: float):
    """The state after a climb from the next of several starts on the first round's draws; keeps the best.

    A climb is as long as it takes, however many steps the run asks for at a time: that depends on the clock.
    """
    tried = len(state.start_elbos)
    given = np.asarray(problem.q.params, np.float64)
    rng = objective.source.generator(FOR_STARTS, tried)
    shift = np.zeros(given.shape) if tried == 0 else _START_SPREAD * rng.standard_normal(given.shape)
    start = given + shift * state.family.location_params()
    fixed = objective.noise(start, (FOR_CLIMBING, 0), max(state.num_draws, _LEAST_DRAWS))
    local, radius = objective(start, fixed), ON_FIXED_DRAWS.initial
    end, num_steps = None if local.finite() else End.BAD_START, ENDLESS
    while end is None and num_steps > 0:
        climbed = climb_step(objective, local, radius, gain_tolerance)
        local, radius, end, num_steps = climbed.local, climbed.radius, climbed.end, num_steps - 1
    elbo = -np.inf if end is End.BAD_START else local.value
    if np.isfinite(elbo) and elbo > np.max(state.start_elbos, initial=-np.inf):
        state = state.but(params=local.params, radius=max(radius, 0.1))
    return state.but(start_elbos=np.append(state.start_elbos, elbo)), News()
