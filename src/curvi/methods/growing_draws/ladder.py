"""The step up from a mean field to a family with a covariance: what each should gain, and the one that is taken."""

import math

import numpy as np

from curvi.certify.predicted import UNKNOWN_GAIN, PredictedGain, expected_hessian, precision_of
from curvi.control.climb import ON_FIXED_DRAWS
from curvi.estimate.fixed_draws.expansion import Expansion
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.objective import Objective
from curvi.estimate.fixed_draws.sweep import CHUNK
from curvi.family import FAMILIES
from curvi.methods.base import FamilyRow, Problem
from curvi.methods.growing_draws.state import GrowingState
from curvi.methods.rungs import MEAN_FIELD, RUNGS, Candidate, Rung, asked_for, choose, family_rows, open_rungs, rung

LARGEST_DENSE = 500  # latents up to which the whole expected precision is estimated
LARGEST_UNKNOWN = 64  # latents up to which full rank is tried where its gain cannot be predicted


def looked_up(
    problem: Problem, objective: Objective, state: GrowingState, local: FixedDrawsModel
) -> tuple[GrowingState, GrowingState | None]:
    """The state with the predicted gains of the families, and that of a fit that goes on with another one where it
    pays; `local` has many fresh draws.
    """
    if not _can_widen(problem, state):
        return state, None
    asked = asked_for(problem)
    known = _is_known(state) or objective.dimension > LARGEST_DENSE
    if known and asked in (None, MEAN_FIELD):
        return state, None
    expected = expected_hessian(local)
    precision = precision_of(expected)
    state = state.but(prediction=_predictions(problem, precision))
    wanted = asked if asked is not None else choose(candidates(problem, state))
    hessian = None if precision is None or expected is None else expected.matrix
    if wanted != MEAN_FIELD and problem.families:
        return state, widened(problem, objective, state, rung(wanted), hessian)
    if hessian is not None and not state.hessian.size:
        # Smoother than the Hessian at the mean, and for nothing: a metric, and the control variate of the final ELBO.
        sigma = objective.path.sds(state.params)  # pyright: ignore[reportAttributeAccessIssue]
        made = Expansion(hessian, sigma)
        objective.expansion = problem.once("expansion", lambda: made, made.hessian)
        state = state.but(hessian=made.hessian, sigma=sigma)
    return state, None


def looked_at_products(
    problem: Problem, objective: Objective, state: GrowingState, local: FixedDrawsModel
) -> tuple[GrowingState, GrowingState | None]:
    """The same where there are too many latents for the whole expected precision, from products at the end of a rough
    climb; what a mean field would take to converge is then spent on the family that pays, or is tried.
    """
    if not looks_at_products(problem, objective, state):
        return state, None
    asked = asked_for(problem)
    if asked is not None:
        return state, widened(problem, objective, state, rung(asked), None)
    target, q = problem.target, problem.q
    sds, gains = objective.path.sds(local.params), [UNKNOWN_GAIN for _ in RUNGS]
    product = lambda v: objective.expected_hessian_times(local, v)  # noqa: E731
    for index, one in enumerate(RUNGS):
        if one in _open(problem):
            gains[index] = one.predict_by_products(product, sds, target, q)
    wider = max((gain.wider for gain in gains if gain.known), default=np.nan)
    gains[0] = PredictedGain(0.0, 0.0, wider)
    state = state.but(prediction=np.array([(gain.nats, gain.error, gain.wider) for gain in gains]))
    tried = _to_be_tried(problem, state)
    wanted = choose(candidates(problem, state)) if tried is None else tried.name
    return state, None if wanted == MEAN_FIELD else widened(problem, objective, state, rung(wanted), None)


def looks_at_products(problem: Problem, objective: Objective, state: GrowingState) -> bool:
    """Whether families are looked up by products at the end of the first climb."""
    if state.prediction.size or objective.dimension <= LARGEST_DENSE or not _can_widen(problem, state):
        return False
    asked = asked_for(problem)
    if asked is not None:
        # A full covariance begins with the expected Hessian, which corrections estimate.
        return asked not in (MEAN_FIELD, "full_rank")
    return bool(_open(problem))


def tried(problem: Problem, objective: Objective, state: GrowingState) -> GrowingState | None:
    """The state of a climb with a covariance from a mean field that has converged, where what that gains cannot be
    predicted: an indefinite expected precision often means that independent factors cannot follow the posterior.
    """
    found = _to_be_tried(problem, state)
    return None if found is None or not state.prediction.size else widened(problem, objective, state, found, None)


def undecided(problem: Problem, state: GrowingState) -> bool:
    """Whether another family may still be chosen."""
    if not problem.families or not _can_widen(problem, state):
        return False
    asked = asked_for(problem)
    if asked is not None:
        return asked != MEAN_FIELD
    if _is_known(state):
        return False
    return _to_be_tried(problem, state) is not None if state.prediction.size else bool(_open(problem))


def candidates(problem: Problem, state: GrowingState) -> list[Candidate]:
    """The families that are open to the problem, with what is known of them."""
    found = []
    for one, row in zip(RUNGS, state.prediction if state.prediction.size else np.full((len(RUNGS), 3), np.nan)):
        if one.name == MEAN_FIELD or one in _open(problem):
            found.append(
                Candidate(one.name, one.num_params(problem.target, problem.q), PredictedGain(*map(float, row)))
            )
    return found


def _open(problem: Problem) -> list[Rung]:
    """The families besides the mean field that it may become within the budget."""

    return problem.once("open", lambda: open_rungs(problem))


def _can_widen(problem: Problem, state: GrowingState) -> bool:
    """Whether q is a mean field that some family with a covariance could take over."""
    same = type(state.family) is FAMILIES[MEAN_FIELD] and state.family.reparameterised

    def make() -> bool:
        return any(one.why_not(problem.target, problem.q) is None for one in RUNGS if one.name != MEAN_FIELD)

    return same and problem.once("can_widen", make)


def _is_known(state: GrowingState) -> bool:
    return state.prediction.size > 0 and bool(np.all(np.isfinite(state.prediction[0])))


def _predictions(problem: Problem, precision) -> np.ndarray:
    """One row per family of the table: predicted gain, its error and the largest factor of an sd."""
    target, q = problem.target, problem.q
    gains = [one.predict(precision, target, q) if one.why_not(target, q) is None else UNKNOWN_GAIN for one in RUNGS]
    return np.array([(gain.nats, gain.error, gain.wider) for gain in gains])


def _to_be_tried(problem: Problem, state: GrowingState) -> Rung | None:
    """The family to try where gains cannot be predicted: the largest for few latents, else what is cheap."""
    if _is_known(state) or asked_for(problem) is not None or not _can_widen(problem, state):
        return None
    size = state.family.noise_size
    cheap = [one for one in _open(problem) if size <= LARGEST_UNKNOWN or one.num_tied(problem.target, problem.q) < size]
    return cheap[-1] if cheap else None


def widened(
    problem: Problem, objective: Objective, state: GrowingState, to: Rung, hessian: np.ndarray | None
) -> GrowingState:
    """The state of a climb with another family, from the same q; `hessian` is the expected one where it is known."""
    q = to.of(problem.target, state.q)
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


def ladder(problem: Problem, state: GrowingState) -> tuple[FamilyRow, ...]:
    """One row per family: parameters, predicted gain, whether it was chosen, and why."""
    return family_rows(problem, state.family, state.prediction)
