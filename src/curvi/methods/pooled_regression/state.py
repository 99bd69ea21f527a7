"""Where a regression on pooled draws stands, and what it plans."""

import dataclasses
from typing import NamedTuple

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
        What the pool says around q; None before the first batch.
    trust
        The trust radius.
    size, least_verdict
        Draws of the next batch, and at least of one that gives a verdict.
    moved_since_rare
        Nats that q has moved since rare values were looked for.
    refused, calls
        Steps refused in a row, and compiled calls so far: the index of the next random numbers.
    elbo, elbo_se, gain, gain_se
        Of the last q that was taken.
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


class Plan(NamedTuple):
    """Draws of the next batch, those among rare values of discrete factors, and whether a verdict is to be given."""

    size: int
    rare: int = 0
    verdict: bool = False
