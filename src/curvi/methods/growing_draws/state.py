"""The state of a fit on growing draws: all that its next step needs besides the problem and the key."""

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
        The initial parameters, at which factors without reparameterisation were drawn.
    value
        The ELBO there, on the noise of the round.
    gain_tolerance
        Nats: the climb ends where the predicted gain of a step is smaller.
    end
        The name of the reason why it ended, empty while it continues.
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
        q, apart from its parameters.
    params
        Its parameters in double precision.
    radius
        The trust radius in nats.
    num_draws, index
        The number of draws of the round, and the index of its random stream.
    taken, last_draws
        Steps so far, and the number of draws of the last round.
    hessian, sigma
        The Hessian of ln p at the mean of an earlier q, and the scales of that q; empty where there is none.
    misled_from
        The initial ELBO of the last climb whose control variate was misleading.
    climb
        The current climb, or the one that has just ended; None before a new one.
    rough
        Whether this is the first climb, on few draws without control variate.
    exact
        Whether Hessian-vector products are exact.
    corrects
        Whether the Hessian at the mean is used as control variate.
    wants_metric
        Whether to compute the Hessian at the mean before the next step, because the last one took many products.
    searched, kicked
        Whether a finite start was searched for, and whether q was moved off a saddle.
    start_elbos
        The ELBO reached from each of several starts; empty for a single one.
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
        # A copy past the initialiser, at a tenth of the time of `dataclasses.replace`: there is one at every step.
        copy = object.__new__(GrowingState)
        copy.__dict__.update(self.__dict__, **changes)
        return copy

    @classmethod
    def at(cls, q: Family, num_draws: int, rough: bool, exact: bool) -> "GrowingState":
        none, params = np.zeros(0), np.asarray(q.params, np.float64)
        first = (num_draws, 0, 0, 0, none, none, none, -np.inf, None)
        return cls(q, params, ON_FIXED_DRAWS.initial, *first, rough=rough, exact=exact)
