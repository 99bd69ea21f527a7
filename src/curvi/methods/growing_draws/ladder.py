"""The ladder of families: what a full covariance would gain over independent factors, and the step up where it pays."""

import dataclasses
import math

import numpy as np

from curvi.certify.predicted import UNKNOWN_GAIN, ExpectedHessian, PredictedGain, expected_hessian, predict_full_rank
from curvi.control.climb import ON_FIXED_DRAWS
from curvi.estimate.fixed_draws.expansion import Expansion
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.objective import Objective
from curvi.estimate.fixed_draws.sweep import CHUNK
from curvi.family import FAMILIES, Family
from curvi.methods.base import FamilyRow, Problem
from curvi.methods.growing_draws.state import GrowingState

LARGEST = 500  # latents up to which full rank is chosen by default
LARGEST_UNKNOWN = 64  # latents up to which it is tried where its gain cannot be predicted
_GAIN, _WIDER = 0.05, 1.1  # nats, and a factor of an sd, from which it is
_MEAN_FIELD, _FULL_RANK = "mean_field", "full_rank"


def first_family(problem: Problem) -> str:
    return _FULL_RANK if isinstance(problem.q, FAMILIES[_FULL_RANK]) else _MEAN_FIELD


def looked_up(
    problem: Problem, objective: Objective, state: GrowingState, local: FixedDrawsModel
) -> tuple[GrowingState, GrowingState | None]:
    """The state with the predicted gain of a full covariance, and that of a fit that goes on with one where it pays."""
    q = state.family
    known = _is_known(state) or objective.dimension > LARGEST
    if q.why_not_full_rank() is not None or (known and not _only_full_rank(problem)):
        return state, None
    expected = expected_hessian(local)
    found = predict_full_rank(expected)
    state = state.but(prediction=np.array(dataclasses.astuple(found)))
    if _only_full_rank(problem) or (_FULL_RANK in problem.families and pays(found)):
        return state, _widened(objective, state, expected if found.known else None)
    if expected is not None and found.known and not state.hessian.size:
        # Smoother than the Hessian at the mean, and for nothing: a metric, and the control variate of the final ELBO.
        sigma = objective.path.sds(state.params)  # pyright: ignore[reportAttributeAccessIssue]
        made = Expansion(expected.matrix, sigma)
        objective.expansion = problem.once("expansion", lambda: made, made.hessian)
        state = state.but(hessian=made.hessian, sigma=sigma)
    return state, None


def tried(problem: Problem, objective: Objective, state: GrowingState) -> GrowingState | None:
    """The state of a climb with a full covariance from a mean field that has converged, where what that gains cannot be
    predicted: an indefinite expected precision often means that independent factors cannot follow the posterior.
    """
    if not undecided(problem, state) or state.family.noise_size > LARGEST_UNKNOWN:
        return None
    return _widened(objective, state, None)


def undecided(problem: Problem, state: GrowingState) -> bool:
    """Whether a full covariance may still be chosen."""
    q = state.family
    may = _FULL_RANK in problem.families and q.why_not_full_rank() is None and q.reparameterised
    if not may or _only_full_rank(problem):
        return may
    largest = LARGEST_UNKNOWN if state.prediction.size else LARGEST
    return not _is_known(state) and q.noise_size <= largest


def _is_known(state: GrowingState) -> bool:
    return state.prediction.size > 0 and bool(np.all(np.isfinite(state.prediction)))


def _only_full_rank(problem: Problem) -> bool:
    return problem.families == (_FULL_RANK,)


def pays(found: PredictedGain) -> bool:
    """Whether a full covariance is worth its cost."""
    return found.known and (found.nats > _GAIN or found.wider > _WIDER)


def _widened(objective: Objective, state: GrowingState, expected: ExpectedHessian | None) -> GrowingState:
    """The state of a climb with a full covariance, from the same q."""
    q = FAMILIES[_FULL_RANK].of(state.q)  # pyright: ignore[reportAttributeAccessIssue]
    hessian = state.hessian if expected is None else expected.matrix
    # As many pairs as dimensions: on fewer, a climb of so many parameters follows the draws, control variate or not.
    num_draws = min(max(state.num_draws, CHUNK * math.ceil(q.min_draws / CHUNK)), objective.capacity)
    none = np.zeros(0)
    return state.but(
        family=q,
        params=np.asarray(q.params, np.float64),
        hessian=hessian,
        sigma=state.sigma if expected is None else np.diag(-expected.matrix) ** -0.5,
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


def ladder(problem: Problem, state: GrowingState) -> tuple[FamilyRow, ...]:
    """One row per family: parameters, predicted gain, whether it was chosen, and why."""
    q, start = state.family, problem.q
    found = PredictedGain(*state.prediction) if state.prediction.size else UNKNOWN_GAIN
    if not problem.families or not isinstance(q, (FAMILIES[_MEAN_FIELD], FAMILIES[_FULL_RANK])):
        why = "asked for" if problem.families else "the instance that was given"
        return (FamilyRow(_name(q), q.num_params, float("nan"), True, why),)
    wide = isinstance(q, FAMILIES[_FULL_RANK])
    why_not = start.why_not_full_rank() if isinstance(start, FAMILIES[_MEAN_FIELD]) else None
    asked = len(problem.families) == 1
    size = start.noise_size
    reason = _reason(found, why_not, size, wide)
    num_wide = q.num_params if wide else size * (size + 3) // 2
    why_narrow = "asked for" if asked and not wide else ("full rank is chosen" if wide else f"full rank: {reason}")
    why_wide = "asked for" if asked and wide else reason
    return (
        FamilyRow(_MEAN_FIELD, start.num_params, 0.0, not wide, why_narrow),
        FamilyRow(_FULL_RANK, num_wide, found.nats, wide, why_wide),
    )


def _name(q: Family) -> str:
    return next((name for name, kind in FAMILIES.items() if type(q) is kind), type(q).__name__)


def _reason(found: PredictedGain, why_not: str | None, size: int, wide: bool) -> str:
    """What is known of a full covariance, in words."""
    if why_not is not None:
        return why_not
    if size > LARGEST:
        return f"{size:,} latents are more than {LARGEST}"
    if wide and not found.known:
        return "its gain is unknown: the expected precision of a mean field is not positive definite"
    if not found.known:
        return "unknown: the expected precision is not positive definite, or not known yet"
    if found.nats > _GAIN:
        return f"it gains {found.nats:.3g} nats by prediction, more than {_GAIN}"
    if found.wider > _WIDER:
        return f"linear response widens an sd by a factor of {found.wider:.2f}, more than {_WIDER}"
    return f"it gains {found.nats:.2g} nats by prediction, and sds are within {found.wider:.2f} of linear response"
