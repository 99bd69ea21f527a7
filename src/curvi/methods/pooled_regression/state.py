"""The state of a regression on pooled draws."""

import dataclasses

from curvi.control.trust import Trust
from curvi.estimate.pool import Pool
from curvi.family import Family
from curvi.methods.pooled_regression.estimates import Estimate
from curvi.record.plain import register
from curvi.record.pytree import pytree


@register
@pytree
class PooledState:
    """The state of `PooledRegression`.

    Attributes
    ----------
    q
        The current distribution.
    pool
        Draws of this q and of earlier ones.
    estimate
        The local estimate from the pool at q; None before the first batch.
    trust
        The trust radius.
    size, least_verdict
        Draws of the next batch, and the least effective number of draws for a verdict.
    moved_since_rare
        Divergence in nats that q has moved since rare values were drawn.
    refused, calls
        Consecutive rejected steps, and compiled calls so far, which index the random numbers.
    elbo, elbo_se, gain, gain_se
        Values at the present q.
    """

    q: Family
    pool: Pool
    estimate: Estimate | None
    trust: Trust
    size: int
    least_verdict: int
    moved_since_rare: float
    refused: int
    calls: int
    elbo: float
    elbo_se: float
    gain: float
    gain_se: float

    def but(self, **changes) -> "PooledState":
        """This state with some fields changed."""
        return dataclasses.replace(self, **changes)
