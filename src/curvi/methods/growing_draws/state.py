"""The state of a fit on growing draws: all that its next step needs besides the problem and the key."""

import dataclasses

import jax
import numpy as np

from curvi.control.climb import ON_FIXED_DRAWS, End
from curvi.family import Family
from curvi.record.plain import register
from curvi.record.pytree import pytree, static

ENDLESS = 200  # steps after which a climb counts as divergent; tens usually suffice
_KICK = 0.1  # in sds of q
_LARGEST_EXPONENT = 0.25  # exponent from which q counts as divergent, as a share of the log of the largest number


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
class CenteringSearch:
    """Climbs at several lambdas (`curvi.methods.growing_draws.centering`), one row each.

    Attributes
    ----------
    tried
        The lambdas of all elements.
    values, slopes, params
        The ELBO at the end of the climb, its derivative in each lambda, and the parameters there.
    information
        What the rows tell of each element in units of what the prior tells; empty before the first climb.
    done
        Whether the search has ended.
    again, repeats
        The rows whose climb was repeated from where a better one had ended, and whether the last of them is under way.
    """

    tried: np.ndarray
    values: np.ndarray
    slopes: np.ndarray
    params: np.ndarray
    information: np.ndarray
    done: bool = static(default=False)
    again: tuple[int, ...] = static(default=())
    repeats: bool = static(default=False)

    @classmethod
    def empty(cls, num_elements: int, num_params: int) -> "CenteringSearch":
        none = np.zeros((0, num_elements))
        return cls(none, np.zeros(0), none, np.zeros((0, num_params)), np.zeros(0))

    def after(self, tried, value: float, slopes, params) -> "CenteringSearch":
        """The search after another climb; of a climb that was repeated the better one counts."""
        row = {"tried": tried, "values": value, "slopes": slopes, "params": params}
        if not self.repeats:
            grown = {k: np.concatenate([getattr(self, k), np.asarray(v)[None]]) for k, v in row.items()}
            return dataclasses.replace(self, **grown)
        changed = {k: getattr(self, k).copy() for k in row}
        if value > self.values[self.again[-1]]:
            for name, array in changed.items():
                array[self.again[-1]] = row[name]
        return dataclasses.replace(self, **changed, repeats=False)


@register
@pytree
class GrowingState:
    """The state of `GrowingDraws`.

    A fit climbs on few draws without control variate ("rough"), then with it ("climb"), and is corrected by gradients
    on many fresh draws ("correct"), each of which certifies the q that it meets before it moves it.

    Attributes
    ----------
    family
        q, apart from its parameters.
    params
        Its parameters in double precision.
    radius
        The trust radius in nats.
    num_draws, num_fresh
        The number of draws of a climb, which also give the curvature, and of a correction.
    round, index
        The index of the random stream of the climb, and that of the next correction.
    promised
        The gain that the last correction predicted; infinite before it.
    taken
        Steps so far.
    hessian, sigma
        An estimate of the Hessian of ln p near q, and the sds of the q where it was taken; empty where there is none.
    misled_from
        The initial ELBO of the last climb whose control variate was misleading.
    start_elbos
        The ELBO reached from each of several starts; empty for a single one.
    shrinkage
        The share of -H less the metric that steps of corrections believe, since its draws are few.
    last_step, last_grad
        The step of the last correction and the gradient before it; empty before the first.
    last_value
        The ELBO on the draws of the last correction, its standard error, and what the step that was taken promised;
        empty before the first.
    error
        A copy of the error that the draws of the last correction left in the parameters; empty before it.
    prediction
        Predicted gain, its error and the largest factor by which sds would widen (`PredictedGain`), one row per family
        of `curvi.methods.rungs`; empty before they were looked up.
    climb
        The current climb, or the one that has just ended; None before a new one.
    search
        The search for the lambdas of a centring; None where they are not learned.
    skew
        The predicted gain of skewed marginals, its error, and, where importance weights correct as much, their
        effective number; None before it was predicted.
    stage
        "rough", "climb" or "correct".
    exact
        Whether Hessian-vector products are exact.
    corrects
        Whether the Hessian is used as control variate.
    wants_metric
        Whether to compute the Hessian at the mean before the next step, because the last one took many products.
    newton
        Whether full-rank steps are Newton's, since the fixed point did not help.
    searched, kicked
        Whether a finite start was searched for, and whether q was moved off a saddle.
    """

    family: Family
    params: np.ndarray
    radius: float
    num_draws: int
    num_fresh: int
    round: int
    index: int
    promised: float
    taken: int
    hessian: np.ndarray
    sigma: np.ndarray
    misled_from: float
    start_elbos: np.ndarray
    shrinkage: float
    last_step: np.ndarray
    last_grad: np.ndarray
    last_value: np.ndarray
    error: np.ndarray
    prediction: np.ndarray
    climb: Climb | None
    search: CenteringSearch | None
    skew: np.ndarray | None = None
    stage: str = static(default="rough")
    exact: bool = static(default=False)
    corrects: bool = static(default=True)
    wants_metric: bool = static(default=False)
    newton: bool = static(default=False)
    searched: bool = static(default=False)
    kicked: bool = static(default=False)

    @property
    def q(self) -> Family:
        return self.family.replace(jax.device_put(self.params.astype(self.family.params.dtype)))

    @property
    def rough(self) -> bool:
        return self.stage == "rough"

    @property
    def ran_away(self) -> bool:
        """Whether the climb has diverged, by the number of steps or the scales of q: a flat or unbounded density."""
        largest = _LARGEST_EXPONENT * np.log(np.finfo(self.family.params.dtype).max)
        return self.taken >= ENDLESS or self.family.replace(self.params).largest_exponent() > largest

    def kicked_off(self, spreads: np.ndarray, rng: np.random.Generator) -> "GrowingState":
        """The state after a small random step off a saddle, before a new climb."""
        params = self.params + _KICK * spreads * rng.standard_normal(self.params.shape)
        fresh = self.but(round=self.round + 1, index=self.index + 1, climb=None, stage="climb")
        return fresh.but(params=params, radius=1.0, kicked=True, newton=True)

    def but(self, **changes) -> "GrowingState":
        """This state with some fields changed."""
        # A copy past the initialiser, at a tenth of the time of `dataclasses.replace`: there is one at every step.
        copy = object.__new__(GrowingState)
        copy.__dict__.update(self.__dict__, **changes)
        return copy

    @classmethod
    def at(
        cls, q: Family, num_draws: int, num_fresh: int, stage: str, exact: bool, search: CenteringSearch | None = None
    ) -> "GrowingState":
        none = np.zeros(0)
        return cls(
            family=q,
            params=np.asarray(q.params, np.float64),
            radius=ON_FIXED_DRAWS.initial,
            num_draws=num_draws,
            num_fresh=num_fresh,
            round=0,
            index=0,
            promised=np.inf,
            taken=0,
            hessian=none,
            sigma=none,
            misled_from=-np.inf,
            start_elbos=none,
            shrinkage=1.0,
            last_step=none,
            last_grad=none,
            last_value=none,
            error=none,
            prediction=none,
            climb=None,
            search=search,
            stage=stage,
            exact=exact,
        )
