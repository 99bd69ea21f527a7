"""The step of a regression: inside a ball for factors, along natural parameters for a normal q of all latents."""

from typing import NamedTuple

import numpy as np

from curvi.descent.normal import NormalModel
from curvi.family import Family
from curvi.methods.pooled_regression.estimates import Estimate
from curvi.methods.pooled_regression.programs import unwhitened
from curvi.methods.pooled_regression.state import PooledState


class Step(NamedTuple):
    """A whitened step with its predicted gain and its divergence from q, both in nats."""

    step: np.ndarray
    predicted: float
    divergence: float


def steps_naturally(q: Family) -> bool:
    """Whether q is a normal distribution of all latents with a full covariance: the regression then has no products,
    and all of ln p - ln q up to second order is in its scores.
    """
    return q.path.natural_slope(*(np.asarray(q.params, np.float64),) * 2) is not None


def next_step(state: PooledState, estimate: Estimate) -> Step:
    """The step that the trust of the state allows."""
    model, trust = estimate.model, state.trust
    if not steps_naturally(state.q):
        step = trust.step(model, estimate.residual_variance, model.value, estimate.complete)
        return Step(step, model.predicted(step), float(step @ step) / 2)
    whole = np.asarray(unwhitened(state.q, np.asarray(model.grad, state.q.params.dtype)), np.float64)
    slope = state.q.path.natural_slope(np.asarray(state.q.params, np.float64), whole)
    assert slope is not None
    normal = NormalModel.of(*slope)
    spread = np.sqrt(estimate.residual_variance) if trust.holds and estimate.complete else None
    share = normal.largest_step(trust.radius, spread)
    return Step(share * model.grad, normal.gain(share), normal.divergence(share))
