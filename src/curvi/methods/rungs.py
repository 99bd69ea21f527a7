"""The families among which a fit may choose: a table in order of cost, and the rule of the choice.

The rule: of the families that a budget of memory and evaluations affords, the cheapest whose predicted gain is within
0.2 nats of the best. A mean field is kept where nothing gains more than 0.05 nats and no sd of linear response differs
by 10 %. Cost is the number of parameters, to which memory and the time of a product are proportional; families of up to
2,144 parameters (full rank in 64 dimensions) cost the same, most of which is compiling, and the largest of them is
taken. Budgets depend on shapes and on the total memory of the device alone.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from curvi.certify.predicted import UNKNOWN_GAIN, PredictedGain, predict_arrow, predict_full_rank
from curvi.certify.predicted_band import predict_band, predict_regressed
from curvi.certify.predicted_blocks import predict_by_products
from curvi.certify.predicted_low_rank import Start, from_hessian, from_products, most_factors
from curvi.certify.predicted_shapes import predict_regressions
from curvi.family import FAMILIES, Family
from curvi.family.banded import known_chain
from curvi.family.bordered import known_arrow
from curvi.family.low_rank import why_not_low_rank
from curvi.methods.base import FamilyRow, Problem
from curvi.methods.rung import Rung, most_products

GAIN, WIDER = 0.05, 1.1  # nats, and a factor of an sd, from which a mean field is left
WITHIN = 0.2  # nats of the best
SMALL = 2_144  # parameters up to which families cost the same
_FEW = 64  # latents up to which the best gain of a band is computed, in place of a lower bound


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

    def predict_by_products(self, product, sds, target, q, most):
        return predict_by_products(product, sds, known_arrow(target, q), min(most, most_products(q)))

    def of(self, target, q):
        return FAMILIES[self.name].from_plates(target, q)


class _Banded(Rung):
    name = "banded"

    def why_not(self, target, q):
        chain = known_chain(q)
        return chain if isinstance(chain, str) else None

    def num_params(self, target, q):
        chain = known_chain(q)
        return q.num_params if isinstance(chain, str) else 2 * chain.size + chain.num_below

    def num_tied(self, target, q):
        chain = known_chain(q)
        return 1 if isinstance(chain, str) else chain.reach

    def predict(self, precision, target, q):
        if precision is None:
            return UNKNOWN_GAIN
        chain = known_chain(q)
        order = chain.order()
        predict = predict_regressions if len(order) <= _FEW else predict_regressed
        nats = predict(precision.matrix[np.ix_(order, order)], chain.pattern())
        return PredictedGain(nats, predict_full_rank(precision).error, precision.wider)

    def predict_by_products(self, product, sds, target, q, most):
        return predict_band(product, sds, known_chain(q), min(most, most_products(q)))

    def of(self, target, q):
        return FAMILIES[self.name].of(q)


class _LowRank(Rung):
    name = "low_rank"

    def why_not(self, target, q):
        return why_not_low_rank(q)

    def num_params(self, target, q):
        rank = most_factors(q.noise_size)
        return q.noise_size * (2 + rank) - rank * (rank - 1) // 2

    def num_tied(self, target, q):
        return most_factors(q.noise_size) + 2

    def predict(self, precision, target, q):
        if precision is None or (found := from_hessian(-precision.matrix)) is None:
            return UNKNOWN_GAIN
        return PredictedGain(found.nats, predict_full_rank(precision).error, precision.wider)

    def predict_by_products(self, product, sds, target, q, most):
        found = self._from_products(product, sds, q, most)
        return UNKNOWN_GAIN if found is None else PredictedGain(found.nats, math.nan, found.wider)

    def _from_products(self, product, sds, q, most) -> Start | None:
        return from_products(product, sds, min(most, most_products(q) // 4))

    def of(self, target, q):
        return FAMILIES[self.name].begun_from(q)

    def of_curved(self, target, q, hessian, product, sds):
        found = None if hessian is None else from_hessian(hessian)
        found = (
            self._from_products(product, sds, q, most_products(q)) if found is None and product is not None else found
        )
        return self.of(target, q) if found is None else FAMILIES[self.name].of(q, found.factors, found.scale)


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


RUNGS: tuple[Rung, ...] = (_MeanField(), _Bordered(), _Banded(), _LowRank(), _FullRank())
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
    # Of those that cost the same the largest, which contains the others: the last of those that are as large.
    return min(reversed(near), key=lambda one: (max(one.num_params, SMALL), -one.num_params)).name


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
