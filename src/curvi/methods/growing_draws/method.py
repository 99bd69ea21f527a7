"""The default method: Newton on the ELBO on fixed draws, whose number grows as the noise of the result requires."""

import dataclasses
import math
from typing import ClassVar

import equinox as eqx
import numpy as np

from curvi.certify.gain import Gain
from curvi.estimate.fixed_draws.expansion import Expansion
from curvi.estimate.fixed_draws.groups import CHUNK, Groups
from curvi.estimate.fixed_draws.noise import correction_draws, epoch_draws
from curvi.estimate.fixed_draws.objective import Objective
from curvi.family import Family
from curvi.family.centering import centering_of
from curvi.family.centering_table import CenteringTable, centering_table
from curvi.family.shapes import has_skew
from curvi.methods.base import Budget, FamilyRow, Method, Needs, News, Problem
from curvi.methods.choice import open_rungs
from curvi.methods.growing_draws.corrections import fresh_model
from curvi.methods.growing_draws.ladder import first_family, ladder, undecided
from curvi.methods.growing_draws.rounds import first_draws, next_step, stand_still
from curvi.methods.growing_draws.skew import skew_undecided
from curvi.methods.growing_draws.state import CenteringSearch, GrowingState
from curvi.methods.growing_draws.verdict import certify_end, plain_elbo
from curvi.methods.planning import stored_plan
from curvi.model.placement import DRAWS, ROWS
from curvi.outcome import Outcome
from curvi.record.counts import CallCounts
from curvi.record.plain import register
from curvi.record.plan import Plan

_LEAST_DRAWS = 64
CLIMB_SHARE = 0.05  # of the tolerance: where a look ahead ends
_BUFFER_NUMBERS = 2**23
_DRAWS_A_VALUE = 16  # per value of a discrete latent, so that each value is drawn


@register
class GrowingDraws(Method[GrowingState]):
    """Trust-region Newton with pathwise curvature on fixed draws, whose number grows as the noise requires.

    Hessian-vector products are forward over reverse; for targets of order 1, differences of gradients on the same
    draws. Factors that are not reparameterised, those of discrete latents, keep their draws and use importance weights,
    which give score gradients (`curvi.estimate.hybrid`).

    Attributes
    ----------
    first_draws
        Draws of the first round.
    max_draws
        Largest number of draws of a round; None takes what a noise buffer of about 64 MB holds, from 256 to 8,192.
    """

    first_draws: int = eqx.field(static=True, default=64)
    max_draws: int | None = eqx.field(static=True, default=None)
    needs: ClassVar[Needs] = Needs(order=1, kl=True)
    default_num_steps: ClassVar[int] = 1000
    several_starts: ClassVar[bool] = True
    widens: ClassVar[bool] = True
    skews: ClassVar[bool] = True
    learns_centering: ClassVar[bool] = True
    mesh_axes: ClassVar[tuple[str, ...]] = (ROWS, DRAWS)

    def __check_init__(self):
        for name in ("first_draws", "max_draws"):
            number = getattr(self, name)
            if number is not None and (number < _LEAST_DRAWS or number & (number - 1)):
                raise ValueError(f"{name} must be a power of two, at least {_LEAST_DRAWS}; got {number}")

    def buffer_draws(self, dimension: int, wanted: int = 0) -> int:
        """Number of draws in the noise buffer: `wanted`, if that is more than usual and not too large."""
        if self.max_draws is not None:
            return self.max_draws
        usual = max(256, min(8192, 2 ** int(math.log2(_BUFFER_NUMBERS / dimension))))
        return wanted if usual < wanted <= _BUFFER_NUMBERS / dimension else usual

    def fixed_draws(self, q) -> int:
        return self.buffer_draws(q.noise_size)

    def why_not(self, problem: Problem) -> str | None:
        if (why := Method.why_not(self, problem)) is not None:
            return why
        if problem.placement is not None and problem.placement.size(DRAWS) > CHUNK:
            return (
                f"GrowingDraws computes {CHUNK} draws at a time, and an axis draws of {problem.placement.size(DRAWS)} "
                f"devices would leave some idle; give it {CHUNK} at most, and the others an axis rows"
            )
        return None

    def plan(self, problem: Problem) -> Plan:
        target, q = problem.target, problem.q
        most = self.buffer_draws(q.noise_size, 4 * epoch_draws(target))
        fewest = most if self.max_draws is not None else min(most, max(self.first_draws, q.min_draws))
        wider = max((one.num_bytes(target, q) for one in open_rungs(problem)), default=0)
        return stored_plan(target, q, problem.memory, fewest, most, ("a wider family", wider))

    def init(self, problem: Problem, key) -> GrowingState:
        q = first_family(problem)
        objective = objective_of(self, problem, q, key)
        few = max(self.first_draws, objective.num_score_params * _DRAWS_A_VALUE, q.min_draws)
        num_draws = first_draws(objective, few)
        num_fresh = min(
            max(correction_draws(objective.moment_size), num_draws, 2 * objective.source.epoch), objective.capacity
        )
        stage = "rough" if objective.expandable else "climb"
        search = None
        if problem.learns_centering and (centering := centering_of(q)) is not None:
            search = CenteringSearch.empty(len(centering.vector()), q.num_params)
        state = GrowingState.at(q, num_draws, num_fresh, stage, objective.always_exact, search)
        # A rough climb finds its radius; the first step of one without may be a nat long in each dimension.
        return state if objective.expandable else state.but(radius=max(state.radius, float(objective.dimension)))

    def advance(self, problem: Problem, state: GrowingState, key, budget: Budget) -> tuple[GrowingState, News]:
        objective = objective_at(self, problem, state, key)
        spent = objective.counts
        # Overflow is handled later, as values that are not finite.
        with np.errstate(all="ignore"):
            state, news = next_step(problem, objective, state, budget)
        return state, News(news.rows, objective.counts.less(spent), news.gain, news.outcome)

    def certify(self, problem: Problem, state: GrowingState, key, tolerance: float) -> Gain:
        objective = objective_at(self, problem, state, key)
        spent = objective.counts
        with np.errstate(all="ignore"):
            state, few = stand_still(problem, objective, state, tolerance)
            local = fresh_model(problem, objective, state, few)
            gain = certify_end(problem, objective, state, local, few, tolerance, CLIMB_SHARE * tolerance)
        if gain.doubt is None and (undecided(problem, state) or skew_undecided(problem, state, local)):
            gain = dataclasses.replace(gain, doubt=Outcome.MAX_STEPS)  # not the q that it would end with
        return dataclasses.replace(gain, counts=objective.counts.less(spent))

    def families(self, problem: Problem, state: GrowingState) -> tuple[FamilyRow, ...]:
        return ladder(problem, state)

    def centering(self, state: GrowingState) -> CenteringTable:
        search = state.search
        if search is None:
            return Method.centering(self, state)
        number = len(search.values)
        return centering_table(state.q, f"the best of {number} climbs" if search.done else "not found yet")

    def elbo(self, problem: Problem, state: GrowingState, key) -> tuple[float, float, CallCounts]:
        if problem.target.minibatched:
            return Method.elbo(self, problem, state, key)
        objective = objective_at(self, problem, state, key)
        spent = objective.counts
        with np.errstate(all="ignore"):
            mean, error = plain_elbo(problem, objective, state)
        return mean, error, objective.counts.less(spent)


# Functions instead of methods: Equinox wraps a method in a module at each lookup, which takes a tenth of a sweep.


def objective_of(method: GrowingDraws, problem: Problem, q: Family, key) -> Objective:
    """The programs and buffers, made once per run and family."""

    def make() -> Objective:
        # Four parts that each use all rows, so that only the noise of the draws is left.
        plan = problem.once("plan", lambda: method.plan(problem))
        most = method.buffer_draws(q.noise_size, 4 * epoch_draws(problem.target))
        capacity = most if plan.num_draws is None else min(most, plan.num_draws)
        groups = Groups(None if problem.placement is None else problem.placement.mesh)
        objective = Objective(problem.target, q, key, capacity, groups, plan.draws_at_once)
        objective.compile(np.asarray(q.params, np.float64))
        return objective

    return problem.once("objective", make, type(q), (has_skew(q),))


def objective_at(method: GrowingDraws, problem: Problem, state: GrowingState, key) -> Objective:
    """The objective with the expansion of a state."""
    objective = objective_of(method, problem, state.family, key)
    objective.follow(state.family)
    objective.expansion = None
    if state.hessian.size:
        make = lambda: Expansion(state.hessian, state.sigma)  # noqa: E731
        objective.expansion = problem.once("expansion", make, state.hessian)
    objective.exact_products, objective.corrects = state.exact, state.corrects
    return objective
