"""Newton steps on the pool alone: close to its last batches, a step needs no new draws."""

import numpy as np

from curvi.family import Family
from curvi.methods.pooled_regression.estimates import Estimate, Regression
from curvi.methods.pooled_regression.programs import move, scores_at
from curvi.methods.pooled_regression.state import PooledState

_MOST_STEPS = 4
_CLOSE = 0.25  # nats: the longest step
_LEAST_KEPT = 0.7  # of the effective number of draws
_LEAST_GAIN = 0.1  # of what noise holds: what a step must promise


def at(state: PooledState, q: Family, estimate: Estimate, refused: int = 0) -> PooledState:
    """The state at q with its estimate."""
    gain, (elbo, elbo_se) = estimate.verdict(), estimate.elbo()
    numbers = {"elbo": elbo, "elbo_se": elbo_se, "gain": gain.nats, "gain_se": gain.error}
    return state.but(q=q, estimate=estimate, refused=refused, **numbers)


def polished(regression: Regression, state: PooledState) -> PooledState:
    """The state after as many short steps as the draws of the pool bear."""
    for _ in range(_MOST_STEPS):
        estimate = state.estimate
        assert estimate is not None
        model, noise = estimate.model, estimate.model.noise_gain()
        if not np.isfinite(noise):
            break
        step = model.step(np.inf)
        divergence = float(step @ step) / 2
        if model.predicted(step) < _LEAST_GAIN * noise or divergence > min(_CLOSE, state.trust.radius):
            break
        q = move(state.q, np.asarray(step, state.q.params.dtype))
        pool, view = state.pool.view(q, scores_at)
        if view.effective_size < _LEAST_KEPT * estimate.effective_size:
            break
        there = regression.estimate(view, q)
        if not there.verdict().nats < estimate.verdict().nats:
            break
        state = at(state.but(pool=pool, moved_since_rare=state.moved_since_rare + divergence), q, there, state.refused)
    return state
