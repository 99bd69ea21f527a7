"""Newton's method wholly on the device, on stratified draws that are made where they are used: for many latents."""

from typing import ClassVar

import equinox as eqx
import jax
import numpy as np

from curvi.certify.gain import UNKNOWN, Gain, unfinished
from curvi.certify.streamed import checked, weigh
from curvi.estimate.streamed.objective import StreamedObjective
from curvi.estimate.streamed.programs import MAX_DRAWS, NUM_PARTS
from curvi.family.on_device import normal_on_device
from curvi.methods.base import Budget, FamilyRow, Method, Needs, News, Problem
from curvi.methods.family_rows import family_rows
from curvi.methods.planning import chunk_plan
from curvi.methods.streamed_newton.climb import climb, few_look, few_of, start
from curvi.methods.streamed_newton.corrections import correct, fresh_look
from curvi.methods.streamed_newton.state import StreamedState
from curvi.model.over_draws import widest_array
from curvi.model.placement import AXES
from curvi.outcome import Outcome
from curvi.record.counts import CallCounts
from curvi.record.plain import register
from curvi.record.plan import Plan

_RADIUS = 6.0  # nats, and as much per latent, at the start
_CHUNK_NUMBERS = {"cpu": 2**18, "gpu": 2**22}  # of the widest array of a chunk: fits a cache, or fills a device
_LEAST_AT_ONCE = {"cpu": 1, "gpu": 4}  # which share one read of the parameters; more wait for their own sums
_REMEDY = "give start and data in float32, or fewer latents"
_MOST_AT_ONCE = 32


@register
class StreamedNewton(Method[StreamedState]):
    """Trust-region Newton for a mean field of normal factors, with parameters, solves and sums on the device.

    Draws are stratified and computed from counters (`curvi.estimate.strata`): their number costs time but no memory.
    A climb on few draws is corrected by gradients on many fresh ones, in independent designs, each of which certifies
    the q that it meets.

    Attributes
    ----------
    first_draws
        Draws of the climb.
    fresh_draws
        Draws of the first correction.
    max_draws
        Largest number of draws of a correction.
    """

    first_draws: int = eqx.field(static=True, default=32)
    fresh_draws: int = eqx.field(static=True, default=256)
    max_draws: int = eqx.field(static=True, default=MAX_DRAWS)
    needs: ClassVar[Needs] = Needs(order=2, path=True)
    default_num_steps: ClassVar[int] = 500
    mesh_axes: ClassVar[tuple[str, ...]] = AXES

    def __check_init__(self):
        for name, least in {"first_draws": 4, "fresh_draws": 4 * NUM_PARTS, "max_draws": 4 * NUM_PARTS}.items():
            number = getattr(self, name)
            if not isinstance(number, int) or number & (number - 1) or not least <= number <= MAX_DRAWS:
                raise ValueError(f"{name} must be a power of two from {least} to {MAX_DRAWS:,}; got {number!r}")

    def why_not(self, problem: Problem) -> str | None:
        if (why := Method.why_not(self, problem)) is not None:
            return why
        if not normal_on_device(problem.q):
            return "StreamedNewton takes a MeanField of Normal factors; leave method out for the default of others"
        if problem.target.minibatched:
            return "StreamedNewton takes all rows at every draw; leave method out for the default for minibatches"
        return None

    def plan(self, problem: Problem) -> Plan:
        return chunk_plan(problem.target, problem.q, problem.memory, _cached_draws(problem), _REMEDY)

    def families(self, problem: Problem, state: StreamedState) -> tuple[FamilyRow, ...]:
        return family_rows(problem, state.q, np.zeros(0))

    def init(self, problem: Problem, key) -> StreamedState:
        radius = _RADIUS * max(1.0, problem.q.num_params / 2)
        return StreamedState(problem.q, radius, self.first_draws, min(self.fresh_draws, self.max_draws))

    def advance(self, problem: Problem, state: StreamedState, key, budget: Budget) -> tuple[StreamedState, News]:
        objective = _objective(self, problem, key)
        spent = objective.counts
        with np.errstate(all="ignore"):
            if state.stage == "start":
                state, news = start(problem, objective, state)
            elif state.stage == "climb":
                state, news = climb(problem, objective, state, budget.tolerance)
            else:
                state, news = correct(problem, objective, state, budget.tolerance)
        return state, News(news.rows, objective.counts.less(spent), news.gain, news.outcome)

    def certify(self, problem: Problem, state: StreamedState, key, tolerance: float) -> Gain:
        objective = _objective(self, problem, key)
        spent = objective.counts
        look = fresh_look(problem, objective, state)
        gain = UNKNOWN
        if look.finite():
            gain = weigh(objective, look, few_of(state)).gain
            if gain.within(tolerance):
                gain = checked(objective, few_look(problem, objective, state), look, gain)
        doubt = gain.doubt if gain.doubt is not None else Outcome.MAX_STEPS if state.stage != "correct" else None
        if gain.within(tolerance):
            doubt = None
        elif doubt is None:
            doubt = unfinished(gain, tolerance)
        return Gain(
            gain.nats, gain.error, doubt, weights=gain.weights, counts=objective.counts.less(spent),
            sds=gain.sds, sds_error=gain.sds_error, sds_noise=gain.sds_noise,
        )  # fmt: skip

    def elbo(self, problem: Problem, state: StreamedState, key) -> tuple[float, float, CallCounts]:
        objective = _objective(self, problem, key)
        spent = objective.counts
        # Draws of a correction have not moved the q that they meet.
        look = fresh_look(problem, objective, state)
        return look.value, look.value_se, objective.counts.less(spent)


def _cached_draws(problem: Problem) -> int:
    """Draws of a chunk, from shapes and the kind of device alone."""
    widest, kind = max(widest_array(problem.target), problem.q.noise_size), "cpu"
    kind = kind if jax.default_backend() == kind else "gpu"
    return int(2 ** np.log2(np.clip(_CHUNK_NUMBERS[kind] / widest, _LEAST_AT_ONCE[kind], _MOST_AT_ONCE)).astype(int))


def draws_at_once(problem: Problem) -> int:
    """Draws of a chunk, within the memory of a fit."""
    return StreamedNewton().plan(problem).draws_at_once


def _objective(method: StreamedNewton, problem: Problem, key) -> StreamedObjective:
    """The objective, made once per run."""

    def make() -> StreamedObjective:
        chunk = draws_at_once(problem)
        return StreamedObjective.of(problem.target, problem.q, key, chunk, method.max_draws, problem.placement)

    return problem.once("objective", make)
