"""The host's side of pooled regression: batches of draws, the step that they suggest, the verdict of the next batch."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from curvi.control.trust import TrustRadius
from curvi.descent.dense import DenseModel
from curvi.estimate.draws import latin_hypercube
from curvi.estimate.pairs import NO_CURVATURE, Curvature, PairFit, believed_curvature, fit_pairs, pair_part
from curvi.estimate.pool import Batch, Pool
from curvi.estimate.regression import pair_layout
from curvi.estimate.single_values import every_value, gain_beyond
from curvi.estimate.start import find_start
from curvi.family import MeanField
from curvi.methods.pooled_regression import method as program
from curvi.methods.pooled_regression.method import PooledRegression
from curvi.model.black_box import BlackBoxError
from curvi.model.target import AbstractTarget
from curvi.outcome import Outcome
from curvi.record.clock import Clock
from curvi.record.counts import CallCounts
from curvi.record.progress import Progress
from curvi.record.recorded import RecordedRun

_ROWS = 256  # rows that are looked at in one compiled call
_LARGEST_UNIT = 256  # draws that are made in one compiled call
_MOST_BATCHES = 16
_KERNEL_ROWS = 768  # eigendecompositions take time like the cube
_MOST_PRODUCTS = 512  # beyond, products are fitted on a part of the draws, by their kernel
_PRODUCT_ROWS = 8192
# Small batches, so that steps are cheap; the pool holds what least squares needs, or is filled up.
_FIRST_BATCHES = 2
_LEAST_ROWS, _FEW_ROWS = 1.0, 4  # effective draws: per parameter, and beyond
_FIRST_RADIUS = 4.0  # nats
_NUM_ERRORS = 2.0
_NOISE_SHARE = 0.2  # of the tolerance: what the noise of the last step may cost
_LEAST_VERDICT = 128
_NEAR_END = 4  # tolerances: the gain from which on the end is near
_NEARBY = 0.5  # nats: how far q may move until rare values are looked for once more
_GROWTH = 1.5
_PATIENCE = 25  # rejections in a row, after which nothing is left to step to


@dataclasses.dataclass(frozen=True)
class Local:
    """What the pool says of the ELBO around one q."""

    value: float
    value_se: float
    model: DenseModel
    curvature: Curvature
    residual_variance: float
    complete: bool
    effective_size: float
    beyond: tuple[float, float]  # nats that single values of discrete factors are worth beyond the model

    def remaining_gain(self) -> tuple[float, float]:
        return _sum_gains(self.model.remaining_gain(), self.beyond)


class Plan(NamedTuple):
    """Draws of the next batch, those among rare values of discrete factors, and whether a verdict is to be given."""

    size: int
    rare: int = 0
    verdict: bool = False


class PooledRun(RecordedRun):
    """Runs `PooledRegression` until a fresh batch says that little is left to gain."""

    def __init__(
        self, method: PooledRegression, target: AbstractTarget, q: MeanField, key, clock: Clock, display: Progress
    ):
        super().__init__()
        self.method, self.target, self.clock, self.display, self.key = method, target, clock, display, key
        self.q = q
        self.seed = [int(word) for word in np.ravel(jax.random.key_data(key))]
        self.layout = pair_layout(q)
        self.size = method.batch_draws(q.num_params)
        self.unit = min(self.size, _LARGEST_UNIT)
        products = method.correction and self.layout.num_pairs > 0
        self.products = products
        kernel = products and self.layout.num_pairs > _MOST_PRODUCTS
        self.most_rows = max(_KERNEL_ROWS, 2 * self.size) if kernel else _PRODUCT_ROWS
        self.pool = Pool(self._look, _PRODUCT_ROWS, _MOST_BATCHES)
        self.trust = TrustRadius(_FIRST_RADIUS)
        self.rare_size = program.rare_draws(q)
        self.least_verdict = max(_LEAST_VERDICT, 8 * q.num_params)
        self.since_rare = np.inf  # nats moved since rare values were looked for
        self.every_value: tuple[tuple[np.ndarray, ...], np.ndarray] | None = None
        self.counts = CallCounts()
        self.failure: BlackBoxError | None = None
        self.calls = 0
        self.path: list[tuple[int, np.ndarray]] = []  # calls spent before each q was known, and that q

    # -- the plan -----------------------------------------------------------------------------------------------------

    def until(self, limit: int, tolerance: float) -> Outcome:
        try:
            return self._climb(limit, tolerance)
        except KeyboardInterrupt:
            return Outcome.INTERRUPTED
        except BlackBoxError as error:
            self.failure = error
            return Outcome.MODEL_FAILED
        finally:
            if self.target.black_box:
                self.target.caller.close()

    def _climb(self, limit: int, tolerance: float) -> Outcome:
        self._start()
        local = self._estimate(self.q)
        rejected = 0
        while len(self.rows) < limit:
            plan = self._plan(local, tolerance)
            step = self.trust.step(local.model, local.residual_variance, local.value, local.complete)
            predicted, divergence = local.model.predicted(step), float(step @ step) / 2
            candidate = program.move(self.q, np.asarray(step, self.q.params.dtype))
            self.path.append((self.counts.log_density, np.asarray(candidate.params)))
            batch = self._draw(candidate, plan.size)
            if not np.all(batch.finite()):
                rejected += 1
                self.record(local.value, local.value_se, len(batch), local.curvature.believed, False)
                self.trust.retreat(divergence)
                if rejected >= _PATIENCE:
                    return Outcome.NON_FINITE
                continue
            rare = self._draw_rare(candidate, plan.rare)
            certificate = self._certify(batch, rare, local.curvature) if plan.verdict else None
            self.pool.add(batch)
            if rare is not None:
                self.pool.add(rare)
            # Both from the same pool: what the new draws teach of the old q must not count as a gain or a loss.
            here, there = self._estimate(self.q), self._estimate(candidate)
            error = float(np.hypot(here.value_se, there.value_se)) + self._rounding(here.value)
            accept = self.trust.judge(there.value - here.value, error, predicted, divergence)
            if accept:
                self.q, local, rejected = candidate, there, 0
                self.elbo, self.elbo_se, self.gain, self.gain_se = certificate or (
                    there.value,
                    there.value_se,
                    *there.remaining_gain(),
                )
            else:
                # What the batch taught stays: its draws are in the pool.
                local, rejected = here, rejected + 1
            # Rare values were drawn at the candidate, whether that is q now or not.
            self.since_rare = (self.since_rare if rare is None else 0.0) + divergence * (accept == (rare is None))
            self.record(local.value, local.value_se, len(batch), local.curvature.believed, accept)
            if accept and plan.verdict:
                if local.model.definite and self.gain + _NUM_ERRORS * self.gain_se <= tolerance:
                    return Outcome.CONVERGED
                if self.gain <= tolerance / 2:  # its noise is what stands in the way
                    self.least_verdict = int(_GROWTH * max(plan.size, self.least_verdict))
            if rejected >= _PATIENCE or self.least_verdict > _GROWTH**3 * self.method.max_draws:
                break
        return self._unfinished(tolerance)

    def _start(self) -> None:
        batch = self._draw(self.q, _FIRST_BATCHES * self.size)
        self.clock.compiled()
        if self.target.black_box and 2 * batch.finite().sum() < len(batch):
            raise ValueError(
                "the black-box log density is -inf at most draws around init; give an init inside its support"
            )
        if not np.all(batch.finite()) and not self.target.black_box:
            self.q, calls = find_start(self.target, self.q, self.key)
            self.counts = self.counts.plus(log_density=calls)
            batch = self._draw(self.q, 2 * self.size)
        # Draws without a density are left out of the first estimate; a later q that has any is refused.
        self.pool.add(batch.only(batch.finite()))
        self.every_value = every_value(self.q, tuple(part[0] for part in self.pool.batches[0].x))

    def _plan(self, local: Local, tolerance: float) -> Plan:
        """The next batch: more draws where noise rules, rare values where the end is near, then draws for a verdict."""
        gain, _ = local.remaining_gain()
        noise = local.model.noise_gain()
        if not np.isfinite(gain):
            return Plan(self.size)
        near = gain <= _NEAR_END * tolerance
        if near and self.rare_size > 0 and self.since_rare > _NEARBY:
            # A verdict is dear, and in vain where a value that hardly showed is worth much. And where such a value
            # makes the noise, more draws that hardly show it are no remedy.
            return Plan(self.size, self.rare_size)
        if noise > max(_NOISE_SHARE * tolerance, 0.5 * gain):
            self.size = min(int(_GROWTH * self.size), self.method.max_draws)
            return Plan(self.size, self._rare_share(self.size) if near else 0)
        if not near or noise > _NOISE_SHARE * tolerance:
            return Plan(self.size)
        # Two standard errors of a verdict, sqrt(tr(A^-2) / 2) variance / draws, within half the tolerance.
        spread = np.sqrt(np.sum(local.model.values**-2) / 2)
        wanted = 4 * local.residual_variance * spread / tolerance
        wanted = max(wanted, 1 / tolerance, self.least_verdict, self.size)
        size = int(min(wanted, self.method.max_draws))
        return Plan(size, self._rare_share(size), verdict=True)

    def _rare_share(self, size: int) -> int:
        return max(size // 3, self.rare_size) if self.rare_size > 0 else 0

    def _rounding(self, value: float) -> float:
        """What rounding may do to an ELBO: where the posterior lies in the family there is no other noise."""
        return 100 * float(np.finfo(self.q.params.dtype).eps) * max(abs(value), 1.0)

    # -- estimates ----------------------------------------------------------------------------------------------------

    def _estimate(self, q: MeanField) -> Local:
        view = self.pool.view(q)
        for _ in range(_PATIENCE):
            if view.effective_size >= _LEAST_ROWS * self.q.num_params + _FEW_ROWS:
                break
            self.pool.add(self._draw(q, self.unit))
            view = self.pool.view(q)
        rows, curvature = slice(None), NO_CURVATURE
        if len(view.weights) > self.most_rows:
            # More draws than the products can be fitted on: fit these on a part, and the scores on all, with the
            # products' part taken from the response.
            rows = np.linspace(0, len(view.weights) - 1, self.most_rows).astype(int)
        part = view.scores[rows], view.ratios[rows], view.weights[rows]
        found = fit_pairs(*part, self.layout, products=self.products)
        if self.products:
            curvature = believed_curvature(found, *part, self.layout)
        if len(view.weights) > self.most_rows:
            response = view.ratios - _pair_part(view.scores, curvature)
            found = fit_pairs(view.scores, response, view.weights, self.layout, products=False)
        return Local(
            float(found.value),
            float(found.value_se),
            DenseModel.make(found.linear, found.covariance(), curvature.pairs),
            curvature,
            float(found.residual_variance),
            bool(found.complete),
            view.effective_size,
            self._beyond(q, found),
        )

    def _certify(self, batch: Batch, rare: Batch | None, curvature: Curvature) -> tuple[float, float, float, float]:
        """ELBO and remaining gain of q, each with its standard error, from draws that no estimate has seen.

        Products of scores have mean zero and no covariance with the scores, so that any fixed multiple of them may be
        taken from the response: what the draws before say of them, as a control variate.
        """
        fresh = Pool(self._look, 2 * _PRODUCT_ROWS, 2)
        fresh.add(batch)
        if rare is not None:
            fresh.add(rare)
        view = fresh.view(batch.q, 0.0)
        response = view.ratios - _pair_part(view.scores, curvature)
        found = fit_pairs(view.scores, response, view.weights, self.layout, products=False)
        gain, gain_se = DenseModel.make(found.linear, found.covariance(), curvature.pairs).remaining_gain()
        gain, gain_se = _sum_gains((max(gain, 0.0), gain_se), self._beyond(batch.q, found))
        return float(found.value), float(found.value_se), gain, gain_se

    def _beyond(self, q: MeanField, found: PairFit) -> tuple[float, float]:
        if self.every_value is None:
            return 0.0, 0.0
        x, owner = self.every_value
        return gain_beyond(self._look(q, x)[1], owner, self.layout.owner, found.linear, found.covariance())

    def _draw_rare(self, q: MeanField, size: int) -> Batch | None:
        """Draws of q with its discrete factors flattened: a value that q finds rare may cost many nats a draw."""
        if size == 0:
            return None
        batch = self._draw(program.widen(q), size)
        return batch.only(batch.finite()) if np.any(batch.finite()) else None

    def _draw(self, q: MeanField, size: int) -> Batch:
        """Draws of q at the points of a Latin hypercube: values of discrete factors show as often as they should."""
        bits = latin_hypercube([*self.seed, self.calls], -(-size // self.unit) * self.unit, q.num_uniforms)
        parts = []
        for first in range(0, len(bits), self.unit):
            index = np.asarray(self.calls, np.uint32)
            parts.append(program.evaluate(self.target, q, bits[first : first + self.unit], self.key, index))
            self.calls += 1
        x = tuple(np.concatenate([np.asarray(part[0][g]) for part in parts]) for g in range(len(parts[0][0])))
        log_p = np.concatenate([np.asarray(part[1], np.float64) for part in parts])
        self.counts = self.counts.plus(log_density=len(log_p))
        return Batch(q, x, log_p, *self._look(q, x))

    def _look(self, q: MeanField, x) -> tuple[np.ndarray, np.ndarray]:
        size = len(x[0])
        log_q, scores = [], []
        for first in range(0, size, _ROWS):
            rows = [part[first : first + _ROWS] for part in x]
            short = _ROWS - len(rows[0])
            padded = tuple(np.concatenate([part, np.repeat(part[-1:], short, 0)]) for part in rows)
            found = program.look(q, padded)
            log_q.append(np.asarray(found[0], np.float64)[: _ROWS - short])
            scores.append(np.asarray(found[1], np.float64)[: _ROWS - short])
        return np.concatenate(log_q), np.concatenate(scores)

    # -- what is left behind ------------------------------------------------------------------------------------------

    def _unfinished(self, tolerance: float) -> Outcome:
        if not np.isfinite(self.gain):
            return Outcome.NOT_A_MAXIMUM
        return Outcome.NOISE_LIMIT if self.gain <= max(tolerance, 2 * self.gain_se) else Outcome.MAX_STEPS


def _pair_part(scores, curvature: Curvature):
    """What the products explain of the response."""
    return 0.0 if curvature.control is None else pair_part(scores, curvature.control)


def _sum_gains(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] + other[0], float(np.hypot(one[1], other[1]))
