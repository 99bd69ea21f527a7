"""The state of a fit on streamed draws."""

import dataclasses

from curvi.family import Family
from curvi.record.plain import register
from curvi.record.pytree import pytree, static

ENDLESS = 200  # steps after which a climb counts as divergent; tens usually suffice


@register
@pytree
class StreamedState:
    """The state of `StreamedNewton`.

    Attributes
    ----------
    q
        The current q, on the device.
    radius
        The trust radius in nats.
    num_draws, num_fresh
        The number of draws of the climb, which also give the curvature, and of a correction.
    round, index
        The design of the climb, and that of the next correction.
    promised
        The gain that the last correction predicted; infinite before it.
    taken
        Steps so far.
    refused
        Consecutive steps that were not accepted.
    stage
        "start", "climb" or "correct".
    """

    q: Family
    radius: float
    num_draws: int
    num_fresh: int
    round: int = 0
    index: int = 0
    promised: float = float("inf")
    taken: int = 0
    refused: int = 0
    stage: str = static(default="start")

    def but(self, **changes) -> "StreamedState":
        """This state with some fields changed."""
        return dataclasses.replace(self, **changes)
