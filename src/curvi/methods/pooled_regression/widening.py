"""From a mean field to full rank where only values are known: when it pays, and what is said of it.

Products of scores of means are e_i e_j: their coefficients B are the expected Hessian of ln p off its diagonal, in sds
of q. A mean field at its optimum has the unit diagonal of I - B, so that full rank should gain -ln det(I - B) / 2, and
its sds are those of the mean field times the roots of the diagonal of (I - B)^-1. What the regression leaves of
ln p - ln q bounds what any family gains, by about half of its variance: where that is more than the rule of families
asks for, and the noise of few draws or of the values hides what it is, full rank is tried.
"""

import math

import numpy as np

from curvi.family import Family
from curvi.methods.base import FamilyRow, Problem
from curvi.methods.choice import GAIN, WIDER, asked_for
from curvi.methods.pooled_regression.estimates import Estimate
from curvi.methods.rungs import ALL, MEAN_FIELD, name_of, rung

MAX_PARAMS_REGRESSION = 512  # least squares on all scores needs more draws than parameters


def why_not_widened(problem: Problem, q: Family) -> str | None:
    """Why q cannot become full rank in this fit, as a sentence; None if it can."""
    if asked_for(problem) is not None or ALL not in problem.families:
        return "another family was asked for"
    full = rung(ALL)
    if (why := full.why_not(problem.target, q)) is not None:
        return why
    if not q.reparameterised:
        return "some latents are discrete"
    wanted = full.num_params(problem.target, q)
    if wanted > MAX_PARAMS_REGRESSION:
        return f"it has {wanted:,} parameters, and a regression takes at most {MAX_PARAMS_REGRESSION}"
    return None


def pays(q: Family, estimate: Estimate) -> bool:
    """Whether the products show that full rank gains more than the rule of families asks for."""
    nats, wider = _predicted(_precision(q, estimate))
    return nats > GAIN or wider > WIDER


def hides_more(estimate: Estimate) -> bool:
    """Whether the residual leaves room for more than the rule of families asks for."""
    return not estimate.residual_variance / 2 <= GAIN


def widened(problem: Problem, q: Family) -> Family:
    """The q of full rank that equals a mean field."""
    return rung(ALL).of(problem.target, q)


def rows(problem: Problem, q: Family, estimate: Estimate | None) -> tuple[FamilyRow, ...]:
    """What is known of both families."""
    full = rung(ALL)
    size = full.num_params(problem.target, q)
    if name_of(q) == ALL:
        gain = _gained(q)
        why = f"it gains {gain:.3g} nats, as its own correlations say"
        means = FamilyRow(MEAN_FIELD, 2 * q.noise_size, 0.0, False, "another family gains more", 0.0)
        return means, FamilyRow(ALL, size, gain, True, why)
    if (why := why_not_widened(problem, q)) is None:
        why = "not known yet"
        if estimate is not None and not hides_more(estimate):
            why = f"the regression leaves {estimate.residual_variance / 2:.2g} nats to any family, no more than {GAIN}"
    gain = math.nan if estimate is None or hides_more(estimate) else _predicted(_precision(q, estimate))[0]
    kept = "no family gains more" if math.isfinite(gain) else "what others gain is not known"
    return FamilyRow(MEAN_FIELD, q.num_params, 0.0, True, kept, 0.0), FamilyRow(ALL, size, gain, False, why)


def _precision(q: Family, estimate: Estimate) -> np.ndarray:
    """I - B of the means."""
    bent, means = estimate.model.curvature, np.flatnonzero(q.location_params())
    along = bent.vectors[means]
    return (along * bent.values) @ along.T


def _predicted(precision: np.ndarray) -> tuple[float, float]:
    """The gain of full rank and the largest factor of an sd; infinite where the precision is not definite."""
    values, vectors = np.linalg.eigh(precision)
    if values[0] <= 0:
        return math.inf, math.inf
    return -float(np.log(values).sum()) / 2, float(np.sqrt(((vectors / values) * vectors).sum(1).max()))


def _gained(q: Family) -> float:
    """What q of full rank gains over independent factors with its conditional sds, for a Gaussian posterior."""
    covariance = np.asarray(q.moments()[1], np.float64)
    _, log_det = np.linalg.slogdet(covariance)
    return float(np.log(np.diag(np.linalg.inv(covariance))).sum() + log_det) / 2
