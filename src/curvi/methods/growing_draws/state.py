"""Where a climb on growing draws stands: all that its next step needs besides the problem and the key."""

import dataclasses

import jax
import numpy as np

from curvi.control.climb import ON_FIXED_DRAWS, End
from curvi.family import Family
from curvi.record.plain import register
from curvi.record.pytree import pytree, static


@register
@pytree
class Climb:
    """A climb on the noise of one round.

    Attributes
    ----------
    before
        The parameters at which it began, and at which draws that do not follow the parameters were drawn.
    value
        The ELBO there, on the noise of the round.
    gain_tolerance
        Nats: the climb is over where a step promises less.
    end
        The name of how it ended, empty as long as it goes on.
    """

    before: np.ndarray
    value: float
    gain_tolerance: float
    end: str = static(default="")

    @property
    def how(self) -> End | None:
        return End[self.end] if self.end else None


@register
@pytree
class GrowingState:
    """The state of `GrowingDraws`.

    Attributes
    ----------
    family
        q, but for its parameters.
    params
        Its parameters in double precision.
    radius
        The trust radius in nats.
    num_draws, index
        Of the round: how many draws, and the index of their stream of random numbers.
    taken, last_draws
        Steps so far, and draws of the last of them.
    hessian, sigma
        The Hessian of ln p at the mean of an earlier q, and the scales of that q; empty where there is none.
    misled_from
        The ELBO from which the last climb set out whose control variate went astray.
    climb
        The climb that is under way, or has just ended; None before a new one.
    rough
        Whether this is the first climb, on few draws that are not corrected.
    exact
        Whether Hessian products are exact by now.
    corrects
        Whether the Hessian at the mean serves as control variate.
    wants_metric
        Whether the Hessian at the mean is to be taken before the next step: the last one took so many products.
    searched, kicked
        Whether a finite start was searched for, and whether q was kicked off a saddle.
    start_elbos
        What each of several starts led to; empty for a single one.
    """

    family: Family
    params: np.ndarray
    radius: float
    num_draws: int
    index: int
    taken: int
    last_draws: int
    hessian: np.ndarray
    sigma: np.ndarray
    start_elbos: np.ndarray
    misled_from: float
    climb: Climb | None
    rough: bool = static(default=True)
    exact: bool = static(default=False)
    corrects: bool = static(default=True)
    wants_metric: bool = static(default=False)
    searched: bool = static(default=False)
    kicked: bool = static(default=False)

    @property
    def q(self) -> Family:
        return self.family.replace(jax.device_put(self.params.astype(self.family.params.dtype)))

    def but(self, **changes) -> "GrowingState":
        """This state with some fields changed."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def at(cls, q: Family, num_draws: int, rough: bool, exact: bool) -> "GrowingState":
        none, params = np.zeros(0), np.asarray(q.params, np.float64)
        first = (num_draws, 0, 0, 0, none, none, none, -np.inf, None)
        return cls(q, params, ON_FIXED_DRAWS.initial, *first, rough=rough, exact=exact)
