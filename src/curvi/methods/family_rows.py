"""What is said of the choice of a family: one row for each, with what it should gain and why it was chosen or not."""

import dataclasses
import math

import jax
import numpy as np

from curvi.certify.predicted import PredictedGain
from curvi.family import Family
from curvi.family.shapes import has_skew, skewed_name
from curvi.methods.base import FamilyRow, Problem
from curvi.methods.choice import GAIN, WITHIN, asked_for, open_rungs
from curvi.methods.rung import Rung
from curvi.methods.rungs import MEAN_FIELD, RUNGS, name_of


def family_rows(
    problem: Problem, q: Family, prediction: np.ndarray, skew: np.ndarray | None = None
) -> tuple[FamilyRow, ...]:
    """One row per family of the table for a fit that ended with q: parameters, predicted gain, chosen or not, why; and
    one for that of q with skewed marginals, where these were looked at.

    `prediction` has gain, error and largest factor of an sd by family, or is empty; `skew` what skewed marginals add to
    the chosen family, with its error, and the effective number of importance weights where these correct as much.
    """
    rows = _normal_rows(problem, q, prediction)
    if not problem.may_skew or (skew is None and not has_skew(q)):
        return rows
    at = next(i for i, row in enumerate(rows) if row.chosen)
    draw = jax.eval_shape(q.sample, jax.random.key(0))
    own, size = rows[at], 2 * sum(leaf.size for leaf in jax.tree.leaves(draw) if leaf.dtype.kind == "f")
    nats, error, effective = (math.nan,) * 3 if skew is None else map(float, skew)
    why = f"it adds {nats:.3g} nats by prediction, {'more' if nats > GAIN else 'no more'} than {GAIN}"
    if has_skew(q):
        why = "asked for" if problem.must_skew else why
        rows = (*rows[:at], dataclasses.replace(own, num_params=q.num_params - size, chosen=False), *rows[at + 1 :])
    elif math.isnan(nats):
        why = "what it adds is not known"
    elif effective > 0:
        corrected = f"importance weights correct as much ({effective:,.0f} draws effective)"
        why = f"it adds {nats:.3g} nats by prediction; {corrected}"
    elif nats > GAIN:
        why = f"it adds {nats:.3g} nats by prediction, with an error of {error:.2g}, and was not looked at yet"
    added = nats if own.name == MEAN_FIELD else own.predicted_gain + nats
    num_params = q.num_params + (0 if has_skew(q) else size)
    return (*rows, FamilyRow(skewed_name(own.name), num_params, added, has_skew(q), why, error))


def _normal_rows(problem: Problem, q: Family, prediction: np.ndarray) -> tuple[FamilyRow, ...]:
    """The rows of the table, whatever the marginals of q."""
    name, target, start = name_of(q), problem.target, problem.q
    own = {one.name for one in RUNGS}
    if not problem.families or name not in own:
        why = "asked for" if problem.families else "the instance that was given"
        name = skewed_name(name) if has_skew(q) and not problem.families else name
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
    if not of_chosen.known:
        return said
    more = gain.nats - of_chosen.nats
    if more <= 0.005:
        return f"{said}, {'less than' if more < -0.005 else 'as'} the family that was chosen"
    return f"{said}, {more:.2g} more than the family that was chosen: within {WITHIN} of it" if more <= WITHIN else said
