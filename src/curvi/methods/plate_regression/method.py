"""Second-order regression on a plate: rows of local latents in closed form, global latents by regression.

For each draw of the global latents g, the factors of all rows are computed at every value k of their local latent,
f_nk(g) (`factored`). The optimal q(z_n) given q(g) is then softmax_k E[f_nk], and with all rows optimal the ELBO is a
function of the global parameters alone,

    L(G) = E[rest(g) - ln q(g)] + sum_n ln sum_k exp E[f_nk(g)],

whose gradient is that of E[rest + sum_n sum_k q_n(k) f_nk - ln q(g)] at fixed q_n, estimated by regression on the
scores of q(g), and whose Hessian has an additional term, sum_n C_n' F_n C_n, with C_n the slopes of f_n on the scores
and F_n the Fisher information of q_n: the Schur complement of the rows in the Hessian of all latents.
"""

import dataclasses
from typing import ClassVar

import equinox as eqx
import numpy as np

from curvi.certify.gain import UNKNOWN, Gain, unfinished
from curvi.control.trust import Trust
from curvi.descent.dense import DenseModel
from curvi.estimate.main_effects import slope_map
from curvi.estimate.pairs import fit_pairs
from curvi.estimate.regression import pair_layout
from curvi.estimate.shrunk_pairs import shrunk_curvature
from curvi.family import Family
from curvi.methods.base import Budget, Method, Needs, News, Problem
from curvi.methods.plate_regression.table import Table, tabulate
from curvi.methods.pooled_regression.programs import move
from curvi.model.factored import FactoredTarget, check_rows, num_values
from curvi.outcome import Outcome
from curvi.record.counts import CallCounts
from curvi.record.plain import register
from curvi.record.pytree import pytree

_UNIT = 16  # draws per compiled call
_NOISE_SHARE = 0.2
_PATIENCE = 15
_LEAST_VERDICT = 128
_STUCK = 1e-2  # nats


@register
@pytree
class PlateEstimate:
    """The ELBO around one global q with optimal rows; `log_rows` is ln q of each value of each local latent."""

    model: DenseModel
    shrinkage: float
    log_rows: dict[str, np.ndarray]


@register
@pytree
class PlateState:
    """The state of `PlateRegression`.

    Attributes
    ----------
    whole
        A q of all latents, apart from its parameters.
    globals
        The q of the global latents.
    estimate
        The local estimate from the last draws; None before the first.
    trust
        The trust radius.
    size, calls
        Draws of a batch, and compiled calls so far, which index the random numbers.
    refused
        Consecutive rejected steps.
    elbo, elbo_se, gain, gain_se
        Values at the last accepted q.
    """

    whole: Family
    globals: Family
    estimate: PlateEstimate | None
    trust: Trust
    size: int
    calls: int
    refused: int
    elbo: float
    elbo_se: float
    gain: float
    gain_se: float

    def but(self, **changes) -> "PlateState":
        """This state with some fields changed."""
        return dataclasses.replace(self, **changes)

    @property
    def q(self) -> Family:
        """The q of all latents."""
        params = {latent.name: self.globals.params_of(latent.name) for latent in self.globals.latents}
        rows = {} if self.estimate is None else self.estimate.log_rows
        params |= {name: (log_q[:, 1:] - log_q[:, :1]).reshape(-1) for name, log_q in rows.items()}
        return self.whole.with_parts(params)


@register
class PlateRegression(Method[PlateState]):
    """Newton's method on the global latents of a `FactoredTarget`, with its local latents optimal throughout.

    Attributes
    ----------
    first_draws, max_draws
        Draws of the global latents in the first batch (None: twice the number of their parameters plus 12) and in the
        largest; both are rounded up to a multiple of 16.
    """

    first_draws: int | None = eqx.field(static=True, default=None)
    max_draws: int = eqx.field(static=True, default=1024)
    needs: ClassVar[Needs] = Needs(separable=True)
    default_num_steps: ClassVar[int] = 100

    def __check_init__(self):
        for name in ("first_draws", "max_draws"):
            number = getattr(self, name)
            if number is not None and (not isinstance(number, int) or number < 1):
                raise ValueError(f"{name} must be a positive integer; got {number!r}")

    def why_not(self, problem: Problem) -> str | None:
        target = problem.target
        if not isinstance(target, FactoredTarget):
            return (
                f"PlateRegression needs a FactoredTarget, whose factors tell the rows of a plate apart; got a "
                f"{type(target).__name__}. Leave method out, or make the target with curvi.FactoredTarget"
            )
        if len(target.local) == len(target.latents):
            return "every latent is local, so that the rows are independent: fit them apart, or use Target"
        return Method.why_not(self, problem)

    def init(self, problem: Problem, key) -> PlateState:
        assert isinstance(problem.target, FactoredTarget)
        local = dict(problem.target.local)
        part = problem.q.part([latent.name for latent in problem.q.latents if latent.name not in local])
        wanted = 2 * part.num_params + 12 if self.first_draws is None else self.first_draws
        unknown, infinite = float("nan"), float("inf")
        size = min(_rounded(wanted), _rounded(self.max_draws))
        return PlateState(problem.q, part, None, Trust(), size, 0, 0, unknown, infinite, infinite, infinite)

    def advance(self, problem: Problem, state: PlateState, key, budget: Budget) -> tuple[PlateState, News]:
        target = problem.target
        assert isinstance(target, FactoredTarget)
        draws = _Tables(target, key, state.calls)
        if state.estimate is None:
            return self._first_batch(state, draws)
        model = state.estimate.model
        step = model.step(state.trust.radius)
        predicted, divergence = model.predicted(step), float(step @ step) / 2
        candidate = move(state.globals, np.asarray(step, state.globals.params.dtype))
        state = state.but(size=self._plan(state, model, budget.tolerance))
        table = draws.make(candidate, state.size)
        there = _estimate(table, candidate) if table.finite() else None
        if there is None:
            accept, trust = False, state.trust.refused(divergence)
        else:
            error = float(np.hypot(model.value_se, there.model.value_se))
            accept, trust = state.trust.judge(there.model.value - model.value, error, predicted, divergence)
        gain = UNKNOWN
        if there is not None and accept:
            elbo, elbo_se, gain = _verdict(table, there, candidate)
            state = state.but(globals=candidate, estimate=there, refused=0, elbo=elbo, elbo_se=elbo_se)
            state = state.but(gain=gain.nats, gain_se=gain.error)
        else:
            again = _estimate(draws.make(state.globals, state.size), state.globals)
            state = state.but(estimate=again, refused=state.refused + 1)
        state = state.but(trust=trust, calls=draws.calls)
        news = News([_row(state, gain, predicted, accept)], draws.counts)
        enough = state.size >= min(_LEAST_VERDICT, _rounded(self.max_draws))
        if accept and enough:
            news = dataclasses.replace(news, gain=gain)
        if state.refused >= _PATIENCE:
            known = Gain(state.gain, state.gain_se)
            outcome = Outcome.NON_FINITE if not table.finite() else unfinished(known, budget.tolerance)
            news = dataclasses.replace(news, gain=known, outcome=outcome)
        return state, news

    def certify(self, problem: Problem, state: PlateState, key, tolerance: float) -> Gain:
        """The gain from the last batch: every step ends with fresh draws."""
        return Gain(state.gain, state.gain_se)

    def elbo(self, problem: Problem, state: PlateState, key) -> tuple[float, float, CallCounts]:
        return state.elbo, state.elbo_se, CallCounts()

    def _first_batch(self, state: PlateState, draws: "_Tables") -> tuple[PlateState, News]:
        checks = check_rows(draws.target)
        table = draws.make(state.globals, state.size)
        if not table.finite():
            raise ValueError(
                "a factor is not finite at init, or at draws around it, for some value of the local latents; give "
                "another init, and log probabilities that are finite, or -inf at all draws where a row cannot have the "
                "value"
            )
        estimate = _estimate(table, state.globals)
        elbo, elbo_se, gain = _verdict(table, estimate, state.globals)
        state = state.but(estimate=estimate, calls=draws.calls, elbo=elbo, elbo_se=elbo_se)
        state = state.but(gain=gain.nats, gain_se=gain.error)
        return state, News(counts=draws.counts.plus(log_density=checks))

    def _plan(self, state: PlateState, model: DenseModel, tolerance: float) -> int:
        """The next number of draws: more if noise dominates, and enough for a verdict near the end or if steps fail."""
        gain, _ = model.remaining_gain()
        noise, size = model.noise_gain(), state.size
        if np.isfinite(gain) and noise > max(_NOISE_SHARE * tolerance, 0.5 * gain):
            size = 1.5 * size
        if gain <= 10 * tolerance or state.trust.radius < _STUCK:
            size = max(size, _LEAST_VERDICT, 1 / tolerance)
        return min(_rounded(size), _rounded(self.max_draws))


class _Tables:
    """Makes tables of draws, and counts evaluations."""

    def __init__(self, target: FactoredTarget, key, calls: int):
        self.target, self.key, self.calls, self.counts = target, key, calls, CallCounts()
        local = dict(target.local)
        self.num_values = sum(num_values(latent)[1] for latent in target.latents if latent.name in local)

    def make(self, q: Family, size: int) -> Table:
        table = tabulate(self.target, q, self.key, self.calls, size, _UNIT)
        self.calls += size // _UNIT
        self.counts = self.counts.plus(log_density=size * self.num_values)
        return table


def _estimate(table: Table, q: Family) -> PlateEstimate:
    log_rows, layout = table.best_rows(), pair_layout(q)
    response = table.response(log_rows)
    ones = np.ones(len(response))
    found = fit_pairs(table.scores, response, ones, layout)
    curvature = shrunk_curvature(found, table.scores, response, ones, layout)
    schur = _rows_curvature(table, log_rows)
    pairs = schur if curvature.pairs is None else schur + curvature.pairs
    optimism = table.optimism(log_rows)
    value, value_se = float(found.value) - optimism, float(np.hypot(found.value_se, optimism))
    model = DenseModel.make(value, value_se, found.linear, found.covariance(), pairs)
    return PlateEstimate(model, curvature.shrinkage, log_rows)


def _rows_curvature(table: Table, log_rows) -> np.ndarray:
    """sum_n C_n' F_n C_n, with C_n from two half samples: the product of independent errors has no bias, while
    squared errors, summed over thousands of rows, would dominate the signal.
    """
    size = table.scores.shape[1]
    total = np.zeros((size, size))
    maps = [slope_map(half.scores) for half in table.halves()]
    for name in table.rows:
        p = np.exp(log_rows[name])
        parts = [half.rows[name] for half in table.halves()]
        first, second = (np.einsum("gs,snk->gnk", to, part, optimize=True) for to, part in zip(maps, parts))
        centred = second - np.einsum("gnk,nk->gn", second, p)[..., None]
        total += np.einsum("gnk,hnk->gh", first * p, centred, optimize=True)
    return (total + total.T) / 2


def _verdict(table: Table, there: PlateEstimate, q: Family) -> tuple[float, float, Gain]:
    """ELBO with its standard error, and remaining gain, from fresh draws; each half of them uses rows fitted to the
    other half, so that overfitting of the rows is not counted as gain.
    """
    halves = table.halves()
    response = table.joined([halves[i].response(halves[1 - i].best_rows()) for i in (0, 1)])
    found = fit_pairs(table.scores, response, np.ones(len(response)), pair_layout(q), products=False)
    curvature = there.model.curvature
    model = DenseModel.with_curvature(found.value, found.value_se, found.linear, found.covariance(), curvature)
    nats, error = model.remaining_gain()
    return float(found.value), float(found.value_se), Gain(max(nats, 0.0), error)


def _row(state: PlateState, gain: Gain, predicted: float, accepted: bool) -> dict:
    estimate = state.estimate
    assert estimate is not None
    return {
        "elbo": estimate.model.value,
        "elbo_se": estimate.model.value_se,
        "remaining_gain": gain.nats,
        "remaining_gain_se": gain.error,
        "predicted_gain": predicted,
        "num_draws": state.size,
        "radius": state.trust.radius,
        "accepted": accepted,
        "shrinkage": estimate.shrinkage,
    }


def _rounded(size: float) -> int:
    return int(-(-size // _UNIT) * _UNIT)
