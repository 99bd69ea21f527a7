"""Second-order regression on pooled draws: the default where only values of the log density are available.

Each step draws a batch from q, pools it with earlier batches by importance weights, and regresses ln p - ln q on scores
and products of scores (`curvi.estimate.pairs`): natural gradient and Hessian from one least-squares problem, without
derivatives of the model. The small linear algebra runs on the host between compiled batches of draws, so that a new
number of draws needs no compilation, and the model may be a Python function.
"""

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import numpy as np

from curvi.certify.gain import UNKNOWN, Gain, unfinished
from curvi.control.trust import Trust
from curvi.estimate.pool import Pool
from curvi.estimate.regression import pair_layout
from curvi.estimate.start import find_start
from curvi.family import Family
from curvi.methods.base import Budget, FamilyRow, Method, Needs, News, Problem
from curvi.methods.choice import asked_for
from curvi.methods.pooled_regression.estimates import KERNEL_ROWS, MAX_PRODUCTS, MAX_ROWS, Estimate, Regression
from curvi.methods.pooled_regression.plan import GROWTH, is_near, looked_for_rare, plan_batch
from curvi.methods.pooled_regression.polish import at, polished
from curvi.methods.pooled_regression.programs import move, scores_at
from curvi.methods.pooled_regression.sampler import Sampler
from curvi.methods.pooled_regression.state import PooledState
from curvi.methods.pooled_regression.steps import next_step, steps_naturally
from curvi.methods.pooled_regression.widening import hides_more, pays, rows, why_not_widened, widened
from curvi.outcome import Outcome
from curvi.record.counts import CallCounts
from curvi.record.plain import register

_MOST_BATCHES = 16
# Small batches make steps cheap; the pool is filled up if least squares needs more draws.
_FIRST_BATCHES = 2
_LEAST_ROWS, _FEW_ROWS = 1.0, 4  # least effective sample size: per parameter, and additional
_TEMPERED_ROWS = 1.5  # times the least: draws that are effective where weights are tempered
_UNIT = 8  # draws a call, of a normal q
_FIRST_RADIUS = 4.0  # nats
_IMMATERIAL = 0.1  # of the tolerance: a predicted gain that cannot be told from none
_LEAST_MULTIPLE, _LEAST_SPARE = 3.0, 50  # least effective number of draws for a verdict: per parameter, and spare
_PATIENCE = 25  # consecutive rejections after which the fit ends


@register
class PooledRegression(Method[PooledState]):
    """Newton's method on regressed curvature, inside a ball of given divergence, on pooled draws.

    Attributes
    ----------
    correction
        Whether products of scores are regressed on. Without them the step is the natural gradient, by regression.
    first_draws
        Initial number of draws of a batch; None takes half the number of variational parameters plus four. The first
        step uses two batches.
    max_draws
        Largest number of draws of one batch.
    """

    correction: bool = eqx.field(static=True, default=True)
    first_draws: int | None = eqx.field(static=True, default=None)
    max_draws: int = eqx.field(static=True, default=16_384)
    needs: ClassVar[Needs] = Needs(compiled=False)
    default_num_steps: ClassVar[int] = 300

    def __check_init__(self):
        for name in ("first_draws", "max_draws"):
            number = getattr(self, name)
            if number is not None and (not isinstance(number, int) or number < 8):
                raise ValueError(f"{name} must be an integer of at least 8; got {number!r}")

    def batch_draws(self, num_params: int) -> int:
        """The initial number of draws of a batch."""
        wanted = num_params // 2 + 4 if self.first_draws is None else self.first_draws
        return min(max(wanted, 8), self.max_draws)

    def init(self, problem: Problem, key) -> PooledState:
        q, size = problem.q, self.batch_draws(problem.q.num_params)
        unknown, infinite = float("nan"), float("inf")
        trust = Trust(_FIRST_RADIUS)
        return PooledState(q, Pool(), None, trust, size, 0, infinite, 0, 0, unknown, infinite, infinite, infinite)

    def advance(self, problem: Problem, state: PooledState, key, budget: Budget) -> tuple[PooledState, News]:
        unit = _UNIT if steps_naturally(state.q) else self.batch_draws(state.q.num_params)
        sampler = Sampler(problem.target, key, unit, state.calls)
        if state.estimate is None:
            return self._first_batch(problem, state, sampler, key)
        return self._step(problem, state, sampler, budget.tolerance)

    def families(self, problem: Problem, state: PooledState) -> tuple[FamilyRow, ...]:
        if asked_for(problem) is not None or not problem.families or not state.q.reparameterised:
            return Method.families(self, problem, state)
        return rows(problem, state.q, state.estimate)

    def certify(self, problem: Problem, state: PooledState, key, tolerance: float) -> Gain:
        """The gain that the pool shows, of unknown error where it may give no verdict yet."""
        known = state.estimate is not None and self._seen_enough(state, state.estimate, tolerance)
        known = known and not self._wants_more(problem, state, tolerance)
        return Gain(state.gain, state.gain_se if known else np.inf)

    def elbo(self, problem: Problem, state: PooledState, key) -> tuple[float, float, CallCounts]:
        return state.elbo, state.elbo_se, CallCounts()

    # -- steps --------------------------------------------------------------------------------------------------------

    def _first_batch(self, problem: Problem, state: PooledState, sampler: Sampler, key):
        target, q = problem.target, state.q
        batch = sampler.draw(q, _FIRST_BATCHES * state.size)
        if target.black_box and 2 * batch.finite().sum() < len(batch):
            raise ValueError(
                "the black-box log density is -inf at most draws around init; give an init inside its support"
            )
        if not np.all(batch.finite()) and not target.black_box:
            q, calls = find_start(target, q, key)
            sampler.counts = sampler.counts.plus(log_density=calls)
            batch = sampler.draw(q, 2 * state.size)
        # Draws without a finite density are left out of the first estimate; later, a candidate with any is rejected.
        pool = Pool().add(batch.only(batch.finite()), scores_at, MAX_ROWS, _MOST_BATCHES)
        pool, estimate = self._estimate(problem, pool, q, sampler)
        return at(state.but(pool=pool, calls=sampler.calls), q, estimate), News(counts=sampler.counts)

    def _step(self, problem: Problem, state: PooledState, sampler: Sampler, tolerance: float):
        state = self._widened(problem, state, sampler, tolerance)
        estimate = state.estimate
        assert estimate is not None
        least = max(state.least_verdict, self._least_verdict(state.q, tolerance))
        size, plan = plan_batch(state, estimate, tolerance, least, self.max_draws)
        state = state.but(size=size)
        step, predicted, divergence = next_step(state, estimate)
        candidate = move(state.q, np.asarray(step, state.q.params.dtype))
        batch = sampler.draw(candidate, plan.size)
        if not np.all(batch.finite()):
            refused, trust = state.refused + 1, state.trust.refused(divergence)
            state = state.but(trust=trust, refused=refused, calls=sampler.calls)
            outcome = Outcome.NON_FINITE if refused >= _PATIENCE else None
            row = _row(estimate, UNKNOWN, predicted, len(batch), trust, False)
            return state, News([row], sampler.counts, outcome=outcome)
        rare = sampler.draw_rare(candidate) if plan.rare else None
        pool = state.pool.add(batch, scores_at, MAX_ROWS, _MOST_BATCHES)
        if rare is not None:
            pool = pool.add(rare, scores_at, MAX_ROWS, _MOST_BATCHES)
        # Both estimates use the same pool, so that new information about the old q does not count as gain or loss.
        pool, here = self._estimate(problem, pool, state.q, sampler)
        pool, there = self._estimate(problem, pool, candidate, sampler)
        error = float(np.hypot(here.model.value_se, there.model.value_se)) + _rounding(state.q, here.model.value)
        accept, trust = state.trust.judge(there.model.value - here.model.value, error, predicted, divergence)
        if predicted < _IMMATERIAL * tolerance:
            trust = state.trust  # whether next to nothing was gained says nothing of the radius
        # Rare values were drawn at the candidate, accepted or not.
        moved = (0.0 if plan.rare else state.moved_since_rare) + divergence * (accept != plan.rare)
        state = state.but(pool=pool, trust=trust, calls=sampler.calls, moved_since_rare=moved)
        # The draws of the batch stay in the pool, accepted or not.
        taken = at(state, candidate, there) if accept else at(state, state.q, here, state.refused + 1)
        state = polished(self._regression(problem, pool, taken.q), taken)
        return self._judged(problem, state, predicted, len(batch), accept, sampler, tolerance)

    def _wants_more(self, problem: Problem, state: PooledState, tolerance: float) -> bool:
        """Whether a mean field should become full rank."""
        estimate = state.estimate
        if estimate is None or steps_naturally(state.q) or why_not_widened(problem, state.q) is not None:
            return False
        at_end = estimate.gain().nats <= tolerance / 2 and self._seen_enough(state, estimate, tolerance)
        return pays(state.q, estimate) or (at_end and hides_more(estimate))

    def _widened(self, problem: Problem, state: PooledState, sampler: Sampler, tolerance: float) -> PooledState:
        if not self._wants_more(problem, state, tolerance):
            return state
        q = widened(problem, state.q)
        pool, estimate = self._estimate(problem, state.pool, q, sampler)
        return at(state.but(pool=pool, size=self.batch_draws(q.num_params), least_verdict=0), q, estimate)

    def _judged(self, problem, state: PooledState, predicted: float, drawn: int, accepted: bool, sampler, tolerance):
        """The state after a step and its news, with a verdict where the draws allow one."""
        estimate = state.estimate
        assert estimate is not None
        if is_near(state.q, estimate, tolerance):
            _, view = state.pool.view(state.q, scores_at)
            estimate = self._regression(problem, state.pool, state.q).estimate(view, state.q, unseen=True)
            state = at(state, state.q, estimate, state.refused)
        # What the draws show to be gained is worth another step before a verdict.
        over = estimate.gain().nats <= tolerance / 2
        gain = estimate.verdict() if over and self._seen_enough(state, estimate, tolerance) else None
        if self._wants_more(problem, state, tolerance):
            gain = None  # not the q that it would end with
        if gain is not None and not gain.within(tolerance):
            # Only noise prevents convergence.
            least = max(state.least_verdict, self._least_verdict(state.q, tolerance))
            if estimate.effective_size >= min(least, self.max_draws // 4):
                state = state.but(least_verdict=int(GROWTH * least))
        row = _row(estimate, gain or UNKNOWN, predicted, drawn, state.trust, accepted)
        return state, self._ended(state, News([row], sampler.counts, gain), tolerance)

    def _seen_enough(self, state: PooledState, estimate: Estimate, tolerance: float) -> bool:
        """Whether the pool may give a verdict."""
        return looked_for_rare(state) and estimate.effective_size >= self._least_verdict(state.q, tolerance)

    def _least_verdict(self, q: Family, tolerance: float) -> int:
        """The least effective number of draws for a verdict: what no draw has shown may hold one part in so many."""
        least = max(q.num_params + _LEAST_SPARE, int(_LEAST_MULTIPLE * q.num_params))
        return max(least, int(min(1 / tolerance, self.max_draws / 4)))

    def _ended(self, state: PooledState, news: News, tolerance: float) -> News:
        """The news, with an outcome if too many steps were rejected or a verdict would take too many draws."""
        if news.gain is not None and news.gain.within(tolerance):
            return news
        if state.refused < _PATIENCE and state.least_verdict <= GROWTH**3 * self.max_draws:
            return news
        known = Gain(state.gain, state.gain_se)
        return dataclasses.replace(news, gain=known, outcome=unfinished(known, tolerance))

    # -- estimates ----------------------------------------------------------------------------------------------------

    def _regression(self, problem: Problem, pool: Pool, q: Family) -> Regression:
        def make() -> Regression:
            layout = pair_layout(q)
            products = self.correction and layout.num_pairs > 0
            kernel = products and layout.num_pairs > MAX_PRODUCTS
            most_rows = max(KERNEL_ROWS, 2 * self.batch_draws(q.num_params)) if kernel else MAX_ROWS
            first = jax.tree.map(lambda part: part[0], pool.batches[0].x)
            return Regression(products, most_rows, q.every_value(first))

        return problem.once("regression", make, (q.num_params,))

    def _estimate(self, problem: Problem, pool: Pool, q: Family, sampler: Sampler) -> tuple[Pool, Estimate]:
        """The estimate around q, on a pool that is filled up if its effective sample size at q is too small."""
        pool, view = pool.view(q, scores_at)
        wanted = _LEAST_ROWS * q.num_params + _FEW_ROWS
        for _ in range(_PATIENCE):
            if view.effective_size >= wanted:
                break
            if steps_naturally(q) and len(pool) >= _TEMPERED_ROWS * wanted:
                # Draws of earlier q, far as they are, show how ln p is bent.
                view = pool.view(q, scores_at, 0.0)[1].tempered(_TEMPERED_ROWS * wanted)
                break
            pool = pool.add(sampler.draw(q, sampler.unit), scores_at, MAX_ROWS, _MOST_BATCHES)
            pool, view = pool.view(q, scores_at)
        return pool, self._regression(problem, pool, q).estimate(view, q)


def _rounding(q: Family, value: float) -> float:
    """A bound on the rounding error of an ELBO, the only noise if the posterior lies in the family."""
    return 100 * float(np.finfo(q.params.dtype).eps) * max(abs(value), 1.0)


def _row(estimate: Estimate, gain: Gain, predicted: float, num_draws: int, trust: Trust, accepted: bool) -> dict:
    return {
        "elbo": estimate.model.value,
        "elbo_se": estimate.model.value_se,
        "remaining_gain": gain.nats,
        "remaining_gain_se": gain.error,
        "predicted_gain": predicted,
        "num_draws": num_draws,
        "radius": trust.radius,
        "accepted": accepted,
        "shrinkage": estimate.shrinkage,
    }
