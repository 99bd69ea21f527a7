"""The step up from a mean field to a family with a covariance: what each should gain, and the one that is taken."""

import math

import numpy as np

from curvi.certify.predicted import UNKNOWN_GAIN, PredictedGain, expected_hessian, precision_of
from curvi.estimate.fixed_draws.expansion import Expansion
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.fixed_draws.objective import Objective
from curvi.family import FAMILIES, Family
from curvi.family.path import HostPath
from curvi.methods.base import FamilyRow, Problem
from curvi.methods.choice import Candidate, asked_for, choose, open_rungs
from curvi.methods.family_rows import family_rows
from curvi.methods.growing_draws.centering import conditional_sds
from curvi.methods.growing_draws.state import GrowingState
from curvi.methods.growing_draws.widened import widened
from curvi.methods.rung import FEW_PRODUCTS, MOST_PRODUCTS, Rung
from curvi.methods.rungs import MEAN_FIELD, RUNGS, name_of, rung

LARGEST_DENSE = 500  # latents up to which the whole expected precision is estimated
LARGEST_UNKNOWN = 64  # latents up to which full rank is tried where its gain cannot be predicted
_TIED = "bordered"


def first_family(problem: Problem) -> Family:
    """The q to begin with: that of the problem, or, where there are many latents in blocks, one that is tied by them.

    Steps of a bordered q are as cheap as those of a mean field there, and take fewer products; and the lambdas that are
    best for independent latents are not those that are best once groups are tied to their scales.
    """
    q, wanted = problem.q, asked_for(problem)
    if q.noise_size <= LARGEST_DENSE or not _can_widen(problem, q) or problem.num_starts > 1:
        return q
    tied = wanted == _TIED or (wanted is None and any(one.name == _TIED for one in _open(problem)))
    return rung(_TIED).of(problem.target, q) if tied else q


def looked_up(
    problem: Problem, objective: Objective, state: GrowingState, local: FixedDrawsModel
) -> tuple[GrowingState, GrowingState | None]:
    """The state with the predicted gains of the families, and that of a fit that goes on with another one where it
    pays; `local` has many fresh draws.
    """
    if not _can_widen(problem, state.family):
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
    climb; what that family would take to converge is then spent on the one that pays, or is tried.
    """
    if not looks_at_products(problem, objective, state):
        return state, None
    asked = asked_for(problem)
    if asked is not None:
        return state, widened(problem, objective, state, rung(asked), None, local)
    target, q = problem.target, problem.q
    sds, gains = conditional_sds(objective.path, local.params), [UNKNOWN_GAIN for _ in RUNGS]
    product = lambda v: objective.expected_hessian_times(local, v)  # noqa: E731
    tied = type(state.family) is FAMILIES[_TIED]
    for index, one in enumerate(RUNGS):
        if tied and one.name == _TIED:
            gains[index] = _gained(objective, state, sds)
        elif one in _open(problem):
            gains[index] = one.predict_by_products(product, sds, target, q, FEW_PRODUCTS if tied else MOST_PRODUCTS)
    wider = max((gain.wider for gain in gains if gain.known), default=np.nan)
    gains[0] = PredictedGain(0.0, 0.0, wider)
    state = state.but(prediction=np.array([(gain.nats, gain.error, gain.wider) for gain in gains]))
    tried = _to_be_tried(problem, state)
    wanted = choose(candidates(problem, state)) if tried is None else tried.name
    if wanted == name_of(state.family):
        return state, None
    return state, widened(problem, objective, state, rung(wanted), None, local)


def _gained(objective: Objective, state: GrowingState, sds: np.ndarray) -> PredictedGain:
    """What q gains over the mean field with its means and conditional sds, if the posterior is Gaussian; where q has
    climbed to, its precision is the expected one. The error is what the climb may have left.
    """
    assert state.climb is not None and isinstance(objective.path, HostPath)
    entropy = objective.path.entropy(state.params) - sds.size * (1 + math.log(2 * math.pi)) / 2
    wider = float(np.max(objective.path.sds(state.params) / sds))
    return PredictedGain(max(entropy - float(np.log(sds).sum()), 0.0), state.climb.gain_tolerance, wider)


def looks_at_products(problem: Problem, objective: Objective, state: GrowingState) -> bool:
    """Whether families are looked up by products at the end of the first climb."""
    if state.prediction.size or objective.dimension <= LARGEST_DENSE or not problem.families:
        return False
    asked, tied = asked_for(problem), type(state.family) is FAMILIES[_TIED]
    if tied or not _can_widen(problem, state.family):
        return tied and asked is None
    if asked is not None:
        # A full covariance begins with the expected Hessian, which corrections estimate.
        return asked not in (MEAN_FIELD, "full_rank")
    return bool(_open(problem))


def tried(problem: Problem, objective: Objective, state: GrowingState) -> GrowingState | None:
    """The state of a climb with a covariance from a mean field that has converged, where what that gains cannot be
    predicted: an indefinite expected precision often means that independent factors cannot follow the posterior.
    """
    found = _to_be_tried(problem, state) if _can_widen(problem, state.family) else None
    return None if found is None or not state.prediction.size else widened(problem, objective, state, found, None)


def undecided(problem: Problem, state: GrowingState) -> bool:
    """Whether another family may still be chosen."""
    if not problem.families or not _can_widen(problem, problem.q):
        return False
    if type(state.family) is not FAMILIES[MEAN_FIELD]:
        return type(state.family) is FAMILIES[_TIED] and asked_for(problem) is None and not state.prediction.size
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


def _can_widen(problem: Problem, q: Family) -> bool:
    """Whether q is a mean field that some family with a covariance could take over."""
    same = type(q) is FAMILIES[MEAN_FIELD] and q.reparameterised

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
    if _is_known(state) or asked_for(problem) is not None:
        return None
    found = _open(problem)
    if state.family.noise_size <= LARGEST_UNKNOWN:
        return found[-1] if found else None
    return next((one for one in found if one.name == _TIED), None)


def ladder(problem: Problem, state: GrowingState) -> tuple[FamilyRow, ...]:
    """One row per family: parameters, predicted gain, whether it was chosen, and why."""
    return family_rows(problem, state.family, state.prediction, state.skew)
