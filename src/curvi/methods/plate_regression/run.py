"""The host's side of plate regression: draws of the global latents, rows in closed form, steps and their verdict."""

import dataclasses

import jax
import numpy as np
from scipy.special import log_softmax

from curvi.control.trust import TrustRadius
from curvi.descent.dense import DenseModel
from curvi.estimate.pairs import believed_curvature, fit_pairs, slope_map
from curvi.estimate.regression import pair_layout
from curvi.family import MeanField
from curvi.methods.plate_regression import method as program
from curvi.methods.plate_regression.method import PlateRegression
from curvi.methods.pooled_regression.method import move
from curvi.model.factored import FactoredTarget, check_rows, num_values
from curvi.outcome import Outcome
from curvi.record.clock import Clock
from curvi.record.counts import CallCounts
from curvi.record.progress import Progress
from curvi.record.recorded import RecordedRun

_UNIT = 16  # draws of one compiled call
_NUM_ERRORS = 2.0
_NOISE_SHARE = 0.2
_PATIENCE = 15
_LEAST_VERDICT = 128
_STUCK = 1e-2
_LEAST_LOG_PROBABILITY = -30.0


@dataclasses.dataclass(frozen=True)
class Table:
    """A batch of global draws: scores, ln p - ln q of all but the rows, and the factors of the rows by local latent."""

    scores: np.ndarray
    rest: np.ndarray
    rows: dict[str, np.ndarray]

    def finite(self) -> bool:
        return bool(np.all(np.isfinite(self.rest)) and all(np.all(np.isfinite(part)) for part in self.rows.values()))

    def half(self, index: int) -> "Table":
        rows = {name: part[index::2] for name, part in self.rows.items()}
        return Table(self.scores[index::2], self.rest[index::2], rows)

    def optimism(self, log_rows) -> float:
        """Nats that rows gain on average by being best for these very draws: sum_n Var_q_n(error of E f_n) / 2, the
        error from two half samples.
        """
        total = 0.0
        for name, part in self.rows.items():
            p, error = np.exp(log_rows[name]), (part[0::2].mean(0) - part[1::2].mean(0)) / 2
            total += float(np.sum(p * error**2) - np.sum(np.sum(p * error, 1) ** 2)) / 2
        return total

    def best_rows(self) -> dict[str, np.ndarray]:
        """ln q(z_n = k) of the best rows given the global q of these draws."""
        means = {name: log_softmax(part.mean(0), -1) for name, part in self.rows.items()}
        return {name: log_softmax(np.maximum(part, _LEAST_LOG_PROBABILITY), -1) for name, part in means.items()}

    def response(self, log_rows) -> np.ndarray:
        """ln p - ln q of each draw, summed over the values of the local latents."""
        parts = [
            np.einsum("snk,nk->s", self.rows[name], np.exp(log_q)) - np.sum(np.exp(log_q) * log_q)
            for name, log_q in log_rows.items()
        ]
        return self.rest + sum(parts)


@dataclasses.dataclass(frozen=True)
class Local:
    """The ELBO around one global q, rows at their best."""

    value: float
    value_se: float
    model: DenseModel
    believed: float
    log_rows: dict[str, np.ndarray]


class PlateRun(RecordedRun):
    """Runs `PlateRegression` until a fresh batch says that little is left to gain."""

    def __init__(
        self, method: PlateRegression, target: FactoredTarget, q: MeanField, key, clock: Clock, display: Progress
    ):
        super().__init__()
        self.method, self.target, self.clock, self.display, self.key = method, target, clock, display, key
        self.whole = q
        self.globals = _global_part(target, q)
        self.layout = pair_layout(self.globals)
        size = 2 * self.globals.num_params + 12 if method.first_draws is None else method.first_draws
        self.size = _rounded(size)
        local = dict(target.local)
        self.values = sum(num_values(latent)[1] for latent in target.latents if latent.name in local)
        self.trust = TrustRadius()
        self.counts = CallCounts()
        self.batches = 0
        self.log_rows: dict[str, np.ndarray] | None = None

    def until(self, limit: int, tolerance: float) -> Outcome:
        try:
            self.counts = self.counts.plus(log_density=check_rows(self.target))
            return self._climb(limit, tolerance)
        except KeyboardInterrupt:
            return Outcome.INTERRUPTED

    def _climb(self, limit: int, tolerance: float) -> Outcome:
        table = self._tabulate(self.globals, self.size)
        self.clock.compiled()
        if not table.finite():
            raise ValueError(
                "a factor is not finite at init, or at draws around it, for some value of the local latents; give "
                "another init, and log probabilities that are finite, or -inf at all draws where a row cannot have the "
                "value"
            )
        local, rejected = self._estimate(table), 0
        self.log_rows = local.log_rows
        while len(self.rows) < limit:
            step = local.model.step(self.trust.radius)
            predicted, divergence = local.model.predicted(step), float(step @ step) / 2
            candidate = move(self.globals, np.asarray(step, self.globals.params.dtype))
            self._plan(local, tolerance)
            table = self._tabulate(candidate, self.size)
            if not table.finite():
                self.trust.retreat(divergence)
                accept = False
            else:
                there = self._estimate(table)
                error = float(np.hypot(local.value_se, there.value_se))
                accept = self.trust.judge(there.value - local.value, error, predicted, divergence)
            if accept:
                self.elbo, self.elbo_se, self.gain, self.gain_se = self._verdict(table, there)
                self.globals, local, rejected = candidate, there, 0
                self.log_rows = local.log_rows
            else:
                rejected += 1
                local = self._estimate(self._tabulate(self.globals, self.size))
            self.record(local.value, local.value_se, self.size, local.believed, accept)
            enough = self.size >= min(_LEAST_VERDICT, self.method.max_draws)
            if accept and enough and self.gain + _NUM_ERRORS * self.gain_se <= tolerance:
                return Outcome.CONVERGED
            if rejected >= _PATIENCE:
                return Outcome.NON_FINITE
        if not np.isfinite(self.gain):
            return Outcome.NOT_A_MAXIMUM
        return Outcome.NOISE_LIMIT if self.gain <= max(tolerance, 2 * self.gain_se) else Outcome.MAX_STEPS

    def _plan(self, local: Local, tolerance: float) -> None:
        """More draws where noise rules, and as many as a verdict needs where the end is near or nothing moves."""
        gain, _ = local.model.remaining_gain()
        noise = local.model.noise_gain()
        size = self.size
        if np.isfinite(gain) and noise > max(_NOISE_SHARE * tolerance, 0.5 * gain):
            size = 1.5 * size
        if gain <= 10 * tolerance or self.trust.radius < _STUCK:
            size = max(size, _LEAST_VERDICT, 1 / tolerance)
        self.size = min(_rounded(size), self.method.max_draws)

    def _estimate(self, table: Table) -> Local:
        log_rows = table.best_rows()
        response = table.response(log_rows)
        ones = np.ones(len(response))
        found = fit_pairs(table.scores, response, ones, self.layout)
        curvature = believed_curvature(found, table.scores, response, ones, self.layout)
        schur = self._rows_curvature(table, log_rows)
        pairs = schur if curvature.pairs is None else schur + curvature.pairs
        optimism = table.optimism(log_rows)
        return Local(
            float(found.value) - optimism,
            float(np.hypot(found.value_se, optimism)),
            DenseModel.make(found.linear, found.covariance(), pairs),
            curvature.believed,
            log_rows,
        )

    def _rows_curvature(self, table: Table, log_rows) -> np.ndarray:
        """sum_n C_n' F_n C_n, with C_n from two half samples: the product of independent errors has no bias, while that
        of one with itself, summed over thousands of rows, would drown the signal.
        """
        size = table.scores.shape[1]
        total = np.zeros((size, size))
        maps = [slope_map(table.scores[i::2]) for i in (0, 1)]
        for name, part in table.rows.items():
            p = np.exp(log_rows[name])
            first, second = (np.einsum("gs,snk->gnk", to, part[i::2], optimize=True) for i, to in enumerate(maps))
            centred = second - np.einsum("gnk,nk->gn", second, p)[..., None]
            total += np.einsum("gnk,hnk->gh", first * p, centred, optimize=True)
        return (total + total.T) / 2

    def _verdict(self, table: Table, there: Local) -> tuple[float, float, float, float]:
        """ELBO and remaining gain with standard errors, from fresh draws; each half of them meets rows that were fitted
        to the other, so that what rows gain on their own draws is not counted.
        """
        halves = [table.half(i) for i in (0, 1)]
        response = np.empty(len(table.rest))
        for i in (0, 1):
            response[i::2] = halves[i].response(halves[1 - i].best_rows())
        found = fit_pairs(table.scores, response, np.ones(len(response)), self.layout, products=False)
        model = DenseModel(found.linear, found.covariance(), there.model.values, there.model.vectors)
        gain, gain_se = model.remaining_gain()
        return float(found.value), float(found.value_se), max(gain, 0.0), gain_se

    def _tabulate(self, q: MeanField, size: int) -> Table:
        parts = []
        for _ in range(size // _UNIT):
            found = program.tabulate(self.target, q, self.key, np.asarray(self.batches, np.uint32), _UNIT)
            parts.append(jax.tree.map(np.asarray, found))
            self.batches += 1
        log_q, scores, rest, rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        rows = {name: _without_impossible(part) for name, part in rows.items()}
        self.counts = self.counts.plus(log_density=size * self.values)
        return Table(scores.astype(np.float64), rest.astype(np.float64) - log_q, rows)

    @property
    def q(self) -> MeanField:
        """The q of all latents."""
        params, places = np.array(self.whole.params), self.whole.parameter_slices()
        for name, place in self.globals.parameter_slices().items():
            params[places[name]] = np.asarray(self.globals.params[place])
        for name, log_q in (self.log_rows or {}).items():
            params[places[name]] = (log_q[:, 1:] - log_q[:, :1]).reshape(-1)
        return self.whole.replace(jax.numpy.asarray(params))


def _without_impossible(part: np.ndarray) -> np.ndarray:
    """Row factors (draws, rows, values) with the values that no draw allows so far below the others that q leaves them
    its least probability, and the ELBO nothing.
    """
    impossible = np.all(np.isneginf(part), 0)
    if not np.any(impossible):
        return part
    lowest = np.min(np.where(impossible, np.inf, part), -1, keepdims=True)
    return np.where(impossible, lowest + _LEAST_LOG_PROBABILITY, part)


class _Globals:
    """The global latents of a target, as a `MeanField` asks for them."""

    def __init__(self, target: FactoredTarget):
        names = dict(target.local)
        self.latents = tuple(latent for latent in target.latents if latent.name not in names)
        self.init, self.dtype = target.init, target.dtype
        if not self.latents:
            raise ValueError("every latent is local, so that the rows are independent: fit them apart, or use Target")


def _global_part(target: FactoredTarget, q: MeanField) -> MeanField:
    """The factors of q that belong to global latents, with their parameters."""
    chosen = {slot.latent.name: q.layout.factors[slot.group] for slot in q.layout.slots}
    view = _Globals(target)
    part = MeanField(view, {latent.name: chosen[latent.name] for latent in view.latents})
    places, params = q.parameter_slices(), np.array(part.params)
    for name, place in part.parameter_slices().items():
        params[place] = np.asarray(q.params[places[name]])
    return part.replace(jax.numpy.asarray(params))


def _rounded(size: float) -> int:
    return int(-(-size // _UNIT) * _UNIT)
