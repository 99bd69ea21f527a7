"""One step up the ELBO on fixed noise, accepted or rejected on the same noise.

A trust-region Newton step serves every family. A full-rank normal q also has the step of a fixed point, precision <-
E_q[-Hessian], mean <- mean + covariance E_q[gradient]. In the coordinates x = m + L u both conditions of the optimum
are read off one gradient, by Stein's identity: slope = L'E[grad] = 0, bend = -L'E[Hessian]L = I. The step ends a
Gaussian target at once, and elsewhere is shortened until the ELBO rises.
"""

import dataclasses
import enum

import numpy as np

from curvi.control.radius import RadiusControl
from curvi.descent.newton import trust_region_step
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.objective import Objective
from curvi.family.normal_path import NormalPath
from curvi.family.path import HostPath
from curvi.solve.truncated_cg import HOST

_RESIDUAL, _LEAST_RESIDUAL = 0.2, 1e-3
MAX_PRODUCTS = 200
_NOTHING = 0.05  # share of the gain tolerance below which a step is not taken
# Effective sample size of weighted draws, as a share: steps to less than the first are rejected, and below the second
# new draws are made.
LEAST_EFFECTIVE, _ENOUGH_EFFECTIVE = 0.25, 0.5
# Differences on common draws are exact: a step that gains a twentieth of the prediction is accepted.
ON_FIXED_DRAWS = RadiusControl(
    initial=6.0,
    largest=np.inf,
    smallest=0.0,
    num_errors=0.0,
    least_ratio=0.05,
    shrink_taken=0.2,
    shrink_refused=0.2,
    growth=2.5,
    fast_growth=4.0,
)

_LEAST_BEND = 0.02  # where some direction curves upwards, none is widened by more than a factor of seven
_SHARES = (1.0, 0.4, 0.16, 0.064)


class End(enum.Enum):
    """The reason why a climb ended."""

    DONE = "a step promised less than was asked for"
    STUCK = "no step was short enough to be predicted"
    BAD_START = "not finite at the start"
    PRECISION = "steps promise less than the value is rounded to"
    MOVED = "the draws are those of another q by now"
    MISLED = "the control variate is that of another q by now"


@dataclasses.dataclass(frozen=True)
class Climbed:
    """The result of one step."""

    local: FixedDrawsModel
    radius: float
    predicted: float  # predicted gain in nats, infinite for negative curvature
    accepted: bool
    num_products: int
    end: End | None


def end_at_start(objective: Objective, local: FixedDrawsModel) -> End | None:
    """The reason why a climb cannot begin, None where it can."""
    if not local.finite():
        return End.BAD_START
    return End.MISLED if objective.misled(local) else None


def _residual(square: float) -> float:
    """Inexact Newton (Eisenstat and Walker 1996): residual shrinks with the gradient, for superlinear convergence."""
    return min(_RESIDUAL, max(square**0.25, _LEAST_RESIDUAL))


def climb_step(objective: Objective, local: FixedDrawsModel, radius: float, gain_tolerance: float) -> Climbed:
    """One step up the ELBO on fixed noise; the climb ends where its predicted gain is below `gain_tolerance` nats."""
    resolution = objective.resolution
    step = trust_region_step(local, radius, _residual, MAX_PRODUCTS, HOST)
    if not step.at_edge and step.definite and step.predicted <= _NOTHING * gain_tolerance:
        # Not worth the evaluation of a candidate.
        return Climbed(local, radius, float(step.predicted), False, int(step.num_products), End.DONE)
    trial = objective(objective.admit(local.params + step.direction), local.fixed)
    # Below the rounding error of the value a ratio is meaningless: such a step counts as predicted.
    rounding = 20 * resolution * (abs(trial.value) + 1)
    lost = step.predicted <= rounding
    actual = trial.value - local.value
    if lost and abs(actual) <= 2 * rounding:
        actual = step.predicted
    if not trial.finite() or trial.effective < LEAST_EFFECTIVE:
        actual = -np.inf
    accepted, next_radius = ON_FIXED_DRAWS(radius, step.predicted, step.divergence, step.at_edge, actual, 0.0, HOST)
    # The gain may be an artefact of the control variate: keep the q before this step.
    misled = accepted and objective.misled(trial)
    accepted, radius = (False, radius) if misled else (accepted, next_radius)
    local = trial if accepted else local
    end = None
    if misled:
        end = End.MISLED
    elif accepted and not step.at_edge and step.predicted <= gain_tolerance:
        end = End.PRECISION if lost and step.predicted > gain_tolerance / 10 else End.DONE
    elif not radius >= resolution:
        end = End.STUCK
    elif local.effective < _ENOUGH_EFFECTIVE:
        end = End.MOVED
    predicted = float(step.predicted) if step.definite else np.inf
    return Climbed(local, float(radius), predicted, bool(accepted), int(step.num_products), end)


def fixed_point_step(objective: Objective, local: FixedDrawsModel, radius: float, gain_tolerance: float) -> Climbed:
    """The step, not accepted where no share of it raises the ELBO; the climb ends where a whole step promises less than
    `gain_tolerance` nats.
    """
    path = objective.path
    assert isinstance(path, HostPath)
    found = path.fixed_point(local.params, local.slope, _LEAST_BEND, objective.resolution)
    if found is None:
        return Climbed(local, radius, np.inf, False, 0, None)
    predicted, definite, at = found
    for share in _SHARES:
        trial = objective(at(share), local.fixed)
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
