"""Steps to the fixed point of a normal q: precision <- E_q[-Hessian], mean <- mean + covariance E_q[gradient].

In the coordinates x = m + L u both conditions of the optimum are read off one gradient on fixed draws, by Stein's
identity: slope = L'E[grad] = 0 and bend = -L'E[Hessian]L = I. The step ends a Gaussian target at once. Elsewhere it is
guarded: shortened until the ELBO on the same draws rises.
"""

import numpy as np

from curvi.control.climb import Climbed, End
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.objective import Objective
from curvi.family.normal_path import NormalPath

_LEAST_BEND = 0.02  # where some direction curves upwards, none is widened by more than a factor of seven
_SHARES = (1.0, 0.4, 0.16, 0.064)


def fixed_point_step(objective: Objective, local: FixedDrawsModel, radius: float, gain_tolerance: float) -> Climbed:
    """The step, not accepted where no share of it raises the ELBO; the climb ends where a whole step promises less than
    `gain_tolerance` nats.
    """
    path = objective.path
    slope, bend = path.whitened(local.params, local.slope)  # pyright: ignore[reportAttributeAccessIssue]
    values, vectors = np.linalg.eigh(bend)
    along = vectors.T @ slope
    definite = bool(values[0] > objective.resolution**0.5 * values[-1])
    values = values if definite else np.maximum(values, _LEAST_BEND)
    # The gain of the quadratic ln p with this slope and bend.
    predicted = float(along @ (along / values) + np.sum(values - 1 - np.log(values))) / 2
    for share in _SHARES:
        precision = (1 - share) + share * values
        trial_params = path.rescaled(  # pyright: ignore[reportAttributeAccessIssue]
            local.params, vectors @ (share * along / precision), (vectors / precision) @ vectors.T
        )
        trial = objective(trial_params, local.fixed)
        gained = trial.value - local.value
        rounding = 20 * objective.resolution * (abs(trial.value) + 1)
        if trial.finite() and gained > -rounding * (predicted < rounding) and not objective.misled(trial):
            small = predicted <= gain_tolerance and share == 1.0
            end = End.DONE if small and definite else None
            return Climbed(trial, radius, predicted if definite else np.inf, True, 0, end)
    return Climbed(local, radius, predicted, False, 0, None)


def scale_step(objective: Objective, local: FixedDrawsModel) -> FixedDrawsModel:
    """The model after the scales of independent factors are set by the expected Hessian, if the ELBO rises.

    It costs one gradient. The scales of a start are guesses, and Newton's method in their logarithms takes several.
    """
    path = objective.path
    if not isinstance(path, NormalPath) or not local.finite():
        return local
    trial = objective(path.with_best_scales(local.params, local.slope), local.fixed)
    return trial if trial.finite() and trial.value > local.value else local
