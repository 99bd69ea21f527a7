"""The families among which a fit may choose: a table in order of cost, and the rule of the choice.

The rule: of the families that a budget of memory and evaluations affords, the cheapest whose predicted gain is within
0.2 nats of the best. A mean field is kept where nothing gains more than 0.05 nats and no sd of linear response differs
by 10 %. Cost is the number of parameters, to which memory and the time of a product are proportional; families of up to
2,144 parameters (full rank in 64 dimensions) cost the same, most of which is compiling, and the largest of them is
taken. Budgets depend on shapes and on the total memory of the device alone.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from curvi.certify.predicted import UNKNOWN_GAIN, Precision, PredictedGain, predict_arrow, predict_full_rank
from curvi.certify.predicted_blocks import predict_by_products
from curvi.family import FAMILIES, Family
from curvi.family.bordered import known_arrow
from curvi.methods.base import FamilyRow, Problem
from curvi.model.memory import device_bytes, words
from curvi.model.target import AbstractTarget

GAIN, WIDER = 0.05, 1.1  # nats, and a factor of an sd, from which a mean field is left
WITHIN = 0.2  # nats of the best
SMALL = 2_144  # parameters up to which families cost the same
# Evaluations that a fit may be expected to take: 16 for each latent that is tied to others and 6,000, as measured on
# regressions; so full rank goes up to 500 latents.
MOST_EVALUATIONS = 14_000
_EACH, _ANYWAY = 16, 6_000
# Products of a prediction without the whole expected precision, and the same from so many latents.
MOST_PRODUCTS, MOST_PRODUCTS_OF_MANY, MANY = 200, 64, 20_000
_MEMORY = 1 / 8  # of the total of the device
_COPIES = 24  # vectors of parameters that a fit holds at a time


class Rung(ABC):
    """A family that a mean field of normal factors may become; `q` is that mean field."""

    name: ClassVar[str]

    @abstractmethod
    def why_not(self, target: AbstractTarget, q: Family) -> str | None:
        """Why q cannot become one, as a sentence; None if it can."""

    @abstractmethod
    def num_params(self, target: AbstractTarget, q: Family) -> int:
        """The number of parameters."""

    @abstractmethod
    def num_tied(self, target: AbstractTarget, q: Family) -> int:
        """The largest number of latents that are tied to each other: a climb needs as many pairs of draws."""

    @abstractmethod
    def predict(self, precision: Precision | None, target: AbstractTarget, q: Family) -> PredictedGain:
        """The gain predicted by the whole expected precision."""

    def predict_by_products(self, product, sds: np.ndarray, target: AbstractTarget, q: Family) -> PredictedGain:
        """The gain predicted by products with the expected Hessian, within the budget; unknown where that is not
        enough.
        """
        return UNKNOWN_GAIN

    @abstractmethod
    def of(self, target: AbstractTarget, q: Family) -> Family:
        """The member of the family that equals q."""

    def evaluations(self, target: AbstractTarget, q: Family) -> int:
        """Evaluations that a fit is expected to take."""
        return _EACH * self.num_tied(target, q) + _ANYWAY

    def num_bytes(self, target: AbstractTarget, q: Family) -> int:
        """Memory that a fit is expected to take."""
        return 8 * _COPIES * self.num_params(target, q)

    def why_not_afforded(self, target: AbstractTarget, q: Family) -> str | None:
        """What a fit would take more than the budget has, in words; None if it is within it."""
        wanted, most = self.evaluations(target, q), int(_MEMORY * device_bytes())
        if wanted > MOST_EVALUATIONS:
            tied = (MOST_EVALUATIONS - _ANYWAY) // _EACH
            return (
                f"about {wanted:,} evaluations; {self.num_tied(target, q):,} latents tied together are more than {tied}"
            )
        if (size := self.num_bytes(target, q)) > most:
            return f"about {words(size)} of memory, more than {words(most)}, an eighth of all"
        return None


class _MeanField(Rung):
    name = "mean_field"

    def why_not(self, target, q):
        return None

    def num_params(self, target, q):
        return q.num_params

    def num_tied(self, target, q):
        return 1

    def predict(self, precision, target, q):
        return PredictedGain(0.0, 0.0, math.nan if precision is None else precision.wider)

    def of(self, target, q):
        return q


class _Bordered(Rung):
    name = "bordered"

    def why_not(self, target, q):
        arrow = known_arrow(target, q)
        return arrow if isinstance(arrow, str) else None

    def num_params(self, target, q):
        arrow = known_arrow(target, q)
        return q.num_params if isinstance(arrow, str) else 2 * arrow.size + arrow.num_below

    def num_tied(self, target, q):
        arrow = known_arrow(target, q)
        return 1 if isinstance(arrow, str) else arrow.reach

    def predict(self, precision, target, q):
        return predict_arrow(precision, known_arrow(target, q))

    def predict_by_products(self, product, sds, target, q):
        most = MOST_PRODUCTS if q.noise_size <= MANY else MOST_PRODUCTS_OF_MANY
        return predict_by_products(product, sds, known_arrow(target, q), most)

    def of(self, target, q):
        return FAMILIES[self.name].from_plates(target, q)


class _FullRank(Rung):
    name = "full_rank"

    def why_not(self, target, q):
        return q.why_not_full_rank()

    def num_params(self, target, q):
        size = q.noise_size
        return size * (size + 3) // 2

    def num_tied(self, target, q):
        return q.noise_size

    def predict(self, precision, target, q):
        return predict_full_rank(precision)

    def of(self, target, q):
        return FAMILIES[self.name].of(q)


RUNGS: tuple[Rung, ...] = (_MeanField(), _Bordered(), _FullRank())
MEAN_FIELD = RUNGS[0].name


class Candidate(NamedTuple):
    """A family with its number of parameters and what it should gain."""

    name: str
    num_params: int
    gain: PredictedGain


def rung(name: str) -> Rung:
    return next(one for one in RUNGS if one.name == name)


def open_rungs(problem: Problem) -> list[Rung]:
    """The families besides the mean field that it may become within the budget."""
    target, q = problem.target, problem.q
    wider = [one for one in RUNGS if one.name in problem.families and one.name != MEAN_FIELD]
    return [one for one in wider if (one.why_not(target, q) or one.why_not_afforded(target, q)) is None]


def choose(candidates: Sequence[Candidate]) -> str:
    """The name of the family that the rule takes; a mean field where the gain of no other is known."""
    known = [one for one in candidates if one.gain.known and one.name != MEAN_FIELD]
    if not known:
        return MEAN_FIELD
    best = max(one.gain.nats for one in known)
    if not (best > GAIN or any(one.gain.wider > WIDER for one in known)):
        return MEAN_FIELD
    near = [one for one in known if one.gain.nats >= best - WITHIN and one.gain.nats >= min(GAIN, best)]
    # Of those that cost the same the largest, which contains the others.
    return min(near, key=lambda one: (max(one.num_params, SMALL), -one.num_params)).name


def asked_for(problem: Problem) -> str | None:
    """The only family that a fit was asked for by name; None where it chooses, or has an instance."""
    return problem.families[0] if len(problem.families) == 1 else None


# -- what is said of it -----------------------------------------------------------------------------------------------


def family_rows(problem: Problem, q: Family, prediction: np.ndarray) -> tuple[FamilyRow, ...]:
    """One row per family of the table for a fit that ended with q: parameters, predicted gain, chosen or not, why.

    `prediction` has gain, error and largest factor of an sd by family, or is empty.
    """
    name, target, start = name_of(q), problem.target, problem.q
    own = {one.name for one in RUNGS}
    if not problem.families or name not in own:
        why = "asked for" if problem.families else "the instance that was given"
        return (FamilyRow(name, q.num_params, math.nan, True, why),)
    rows = []
    every = np.full((len(RUNGS), 3), math.nan) if not prediction.size else prediction
    gains = {one.name: PredictedGain(*map(float, row)) for one, row in zip(RUNGS, every)}
    for one in RUNGS:
        chosen, gain = one.name == name, gains[one.name]
        why_not = one.why_not(target, start)
        size = q.num_params if chosen else one.num_params(target, start)
        why = _why(problem, one, gain, gains[name], chosen, why_not)
        nats, error = (0.0, 0.0) if one.name == MEAN_FIELD else (gain.nats, gain.error)
        rows.append(FamilyRow(one.name, size, nats, chosen, why, error))
    return tuple(rows)


def name_of(q: Family) -> str:
    """The name of the family of q."""
    return next((name for name, kind in FAMILIES.items() if type(q) is kind), type(q).__name__)


def _why(problem: Problem, one: Rung, gain: PredictedGain, of_chosen: PredictedGain, chosen: bool, why_not) -> str:
    """Why a family was chosen or not."""
    if chosen and asked_for(problem) is not None:
        return "asked for"
    if why_not is not None:
        return why_not
    if not chosen and (dear := one.why_not_afforded(problem.target, problem.q)) is not None:
        return f"not afforded: it would take {dear}"
    if one.name == MEAN_FIELD:
        if not chosen:
            return "another family gains more"
        if not open_rungs(problem):
            return "no other family is open to it"
        return "no family gains more" if gain.known else "what others gain is unknown, or not known yet"
    if not gain.known:
        tail = "the expected precision of a mean field is not positive definite"
        return f"its gain is unknown: {tail}" + (", so it was tried" if chosen else ", or not known yet")
    said = f"it gains {gain.nats:.3g} nats by prediction"
    if chosen:
        return (
            f"{said}, more than {GAIN}" if gain.nats > GAIN else f"{said}; sds differ by a factor of {gain.wider:.2f}"
        )
    if gain.nats <= GAIN:
        return f"{said}, and sds are within {gain.wider:.2f} of linear response"
    if of_chosen.known and gain.nats <= of_chosen.nats + WITHIN:
        return f"{said}, within {WITHIN} of the family that was chosen"
    return said
