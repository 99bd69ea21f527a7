"""The host's side of pooled regression: batches of draws, the step that they suggest, the verdict of the next batch."""

import dataclasses
import time

import jax
import numpy as np

from curvi.clock import Clock
from curvi.descent.trust import DenseModel
from curvi.estimate.pairs import believed_share, fit_pairs, pair_part
from curvi.estimate.pool import Batch, Pool
from curvi.estimate.regression import pair_layout
from curvi.family import MeanField
from curvi.methods import pooled_regression as program
from curvi.methods.pooled_regression import PooledRegression
from curvi.outcome import Outcome
from curvi.progress import Progress
from curvi.results import CallCounts, History
from curvi.start import find_start
from curvi.target import AbstractTarget

_ROWS = 256  # rows that are looked at in one compiled call
_LARGEST_UNIT = 256  # draws that are made in one compiled call
_MOST_BATCHES = 12
_KERNEL_ROWS = 1400  # an eigendecomposition of this size takes a second
_PRODUCT_ROWS = 16_384
_NUM_ERRORS = 2.0
_NOISE_SHARE = 0.2  # of the tolerance: what the noise of the last step may cost
_PATIENCE = 25  # rejections in a row, after which nothing is left to step to


@dataclasses.dataclass(frozen=True)
class Local:
    """What the pool says of the ELBO around one q."""

    value: float
    value_se: float
    model: DenseModel
    pairs: np.ndarray | None  # B, shrunk by what two half samples disagree on
    believed: float
    residual_variance: float
    effective_size: float


class PooledRun:
    """Runs `PooledRegression` until a fresh batch says that little is left to gain."""

    def __init__(
        self, method: PooledRegression, target: AbstractTarget, q: MeanField, key, clock: Clock, display: Progress
    ):
        self.method, self.target, self.clock, self.display, self.key = method, target, clock, display, key
        self.q = q
        self.layout = pair_layout(q)
        self.unit = min(method.batch_draws(q.num_params), _LARGEST_UNIT)
        self.size = method.batch_draws(q.num_params)
        products = method.correction and self.layout.num_pairs > 0
        rows = _KERNEL_ROWS if products and self.layout.num_pairs > _KERNEL_ROWS else _PRODUCT_ROWS
        self.products = products
        self.pool = Pool(self._look, max(rows, 2 * self.size), _MOST_BATCHES)
        self.radius = 1.0
        self.counts = CallCounts()
        self.gain, self.gain_se = float("inf"), float("inf")
        self.elbo, self.elbo_se = float("nan"), float("inf")
        self.start_elbos = None
        self.calls = 0
        self.rows: list[dict] = []
        self.path: list[tuple[int, np.ndarray]] = []  # calls spent before each q was known, and that q

    # -- the plan -----------------------------------------------------------------------------------------------------

    def until(self, limit: int, tolerance: float) -> Outcome:
        try:
            return self._climb(limit, tolerance)
        except KeyboardInterrupt:
            return Outcome.INTERRUPTED

    def _climb(self, limit: int, tolerance: float) -> Outcome:
        self._start()
        local = self._estimate(self.q)
        rejected = 0
        while len(self.rows) < limit:
            size = self._draws_for(local, tolerance)
            step = self._step(local)
            predicted, divergence = local.model.predicted(step), float(step @ step) / 2
            candidate = program.move(self.q, np.asarray(step, self.q.params.dtype))
            self.path.append((self.counts.log_density, np.asarray(candidate.params)))
            batch = self._draw(candidate, size)
            if not (np.all(np.isfinite(candidate.params)) and np.all(np.isfinite(batch.log_p))):
                rejected += 1
                self._record(local, size, False)
                self.radius = 0.1 * min(self.radius, divergence)
                if rejected >= _PATIENCE:
                    return Outcome.NON_FINITE
                continue
            certificate = self._certify(candidate, batch, local.pairs)
            self.pool.add(batch)
            there = self._estimate(candidate)
            accept = self._judge(local, there, predicted, divergence)
            if accept:
                self.q, local, rejected = candidate, there, 0
                self.elbo, self.elbo_se, self.gain, self.gain_se = certificate
            else:
                # What the batch taught stays: its draws are in the pool.
                local, rejected = self._estimate(self.q), rejected + 1
            self._record(local, size, accept)
            if accept and local.model.definite and self.gain + _NUM_ERRORS * self.gain_se <= tolerance:
                return Outcome.CONVERGED
            if rejected >= _PATIENCE:
                break
        return self._unfinished(tolerance)

    def _start(self) -> None:
        batch = self._draw(self.q, self.size)
        self.clock.compiled()
        if not np.all(np.isfinite(batch.log_p)):
            self.q, calls = find_start(self.target, self.q, self.key)
            self.counts = self.counts.plus(log_density=calls)
            for _ in range(_PATIENCE):
                batch = self._draw(self.q, self.size)
                good = np.isfinite(batch.log_p)
                if good.mean() > 0.5:
                    break
            # The few draws without a density are left out of the first estimate; a later q that has any is refused.
            batch = Batch(batch.q, tuple(part[good] for part in batch.x), batch.log_p[good])
        self.pool.add(batch)

    def _draws_for(self, local: Local, tolerance: float) -> int:
        """Draws of the next batch: more where noise rules, as many as a verdict needs where the end is near."""
        gain, gain_se = local.model.remaining_gain()
        noise = local.model.noise_gain()
        if not np.isfinite(gain):
            return self.size
        if gain < _NUM_ERRORS * gain_se and noise > _NOISE_SHARE * tolerance:
            wanted = local.effective_size * noise / (_NOISE_SHARE * tolerance)
            self.size = int(min(2 * self.size, max(wanted - len(self.pool), self.size)))
        elif noise <= _NOISE_SHARE * tolerance and gain <= 10 * tolerance:
            # 2 standard errors of a fresh batch's verdict, sqrt(tr(A^-2) / 2) variance / draws, within half the tolerance.
            spread = np.sqrt(np.sum(local.model.values**-2) / 2)
            wanted = 4 * local.residual_variance * spread / tolerance
            return int(min(max(wanted, self.size), self.method.max_draws))
        self.size = min(self.size, self.method.max_draws)
        return self.size

    def _step(self, local: Local) -> np.ndarray:
        """The step inside the ball, or inside the larger one in which the regression is known to hold.

        Away from q the mean of the residual e changes by at most sd(e) (exp(2 KL) - 1)^(1/2) to leading order
        (Cauchy-Schwarz with the chi-square divergence). As long as that is half the predicted gain at most, the
        prediction stands whatever the radius: where the residual is zero, in conjugate models, everywhere.
        """
        whole = local.model.step(np.inf) if local.model.definite else local.model.step(1e3)
        promise, spread = local.model.predicted(whole), np.sqrt(local.residual_variance)
        scale = max(abs(local.value), 1.0)
        if spread < 1e-9 * scale:
            return whole
        sure = 0.5 * np.log1p((0.5 * promise / spread) ** 2)
        return local.model.step(max(self.radius, sure))

    def _judge(self, here: Local, there: Local, predicted: float, divergence: float) -> bool:
        """Whether to move; the radius follows (Nocedal and Wright 2006, algorithm 4.1, with standard errors)."""
        actual, error = there.value - here.value, np.hypot(here.value_se, there.value_se)
        if actual < -_NUM_ERRORS * error:
            self.radius = 0.25 * min(self.radius, divergence)
            return False
        if actual + _NUM_ERRORS * error < 0.25 * predicted:
            self.radius = max(0.5 * min(self.radius, divergence), 1e-6)
        elif actual + error > 0.75 * predicted and divergence > 0.5 * self.radius:
            self.radius = min(2 * max(self.radius, divergence), 1e4)
        return True

    # -- estimates ----------------------------------------------------------------------------------------------------

    def _estimate(self, q: MeanField) -> Local:
        view = self.pool.view(q)
        found = fit_pairs(view.scores, view.ratios, view.weights, self.layout, products=self.products)
        pairs, believed = found.pairs, 0.0
        if pairs is not None and np.isfinite(found.ridge):
            halves = [
                fit_pairs(view.scores[i::2], view.ratios[i::2], view.weights[i::2], self.layout, ridge=found.ridge).pairs
                for i in (0, 1)
            ]
            believed = believed_share(*halves)
            pairs = believed * pairs
        model = DenseModel.make(found.linear, found.covariance, pairs)
        return Local(
            float(found.value),
            float(found.value_se),
            model,
            pairs,
            believed,
            float(found.residual_variance),
            view.effective_size,
        )

    def _certify(self, q: MeanField, batch: Batch, pairs) -> tuple[float, float, float, float]:
        """ELBO and remaining gain of q, each with its standard error, from a batch that no estimate has seen.

        Products of scores have mean zero and no covariance with the scores, so that any fixed multiple of them may be
        taken from the response: `pairs` from the draws before, as a control variate.
        """
        log_q, scores = self._look(q, batch.x)
        response = batch.log_p - log_q - (0.0 if pairs is None else pair_part(scores, pairs))
        found = fit_pairs(scores, response, np.ones(len(batch)), self.layout, products=False)
        gain, gain_se = DenseModel.make(found.linear, found.covariance, pairs).remaining_gain()
        return float(found.value), float(found.value_se), gain, gain_se

    def _draw(self, q: MeanField, size: int) -> Batch:
        parts = []
        for _ in range(-(-size // self.unit)):
            parts.append(program.draw(self.target, q, self.key, np.asarray(self.calls, np.uint32), self.unit))
            self.calls += 1
        x = tuple(np.concatenate([np.asarray(part[0][g]) for part in parts]) for g in range(len(parts[0][0])))
        log_p = np.concatenate([np.asarray(part[1], np.float64) for part in parts])
        self.counts = self.counts.plus(log_density=len(log_p))
        return Batch(q, x, log_p)

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

    def _record(self, local: Local, size: int, accepted: bool) -> None:
        gain, gain_se = (self.gain, self.gain_se) if accepted else (np.inf, np.inf)
        self.rows.append(
            {
                "elbo": local.value,
                "elbo_se": local.value_se,
                "remaining_gain": gain,
                "remaining_gain_se": gain_se,
                "log_density": self.counts.log_density,
                "seconds": time.perf_counter() - self.clock.began - self.clock.compile,
                "num_draws": size,
                "radius": self.radius,
                "accepted": accepted,
                "curvature_weight": local.believed,
            }
        )
        self.display.note(len(self.rows), local.value, local.value_se, gain, self.counts, self.radius)

    def _unfinished(self, tolerance: float) -> Outcome:
        if not np.isfinite(self.gain):
            return Outcome.NOT_A_MAXIMUM
        return Outcome.NOISE_LIMIT if self.gain <= max(tolerance, 2 * self.gain_se) else Outcome.MAX_STEPS

    def final_elbo(self) -> tuple[float, float]:
        """ELBO and its standard error from the last batch that was drawn for a verdict: no further calls."""
        return self.elbo, self.elbo_se

    def error_copies(self) -> None:
        return None

    def history(self) -> History:
        names = History.__dataclass_fields__
        return History(**{name: np.array([row[name] for row in self.rows]) for name in names})
