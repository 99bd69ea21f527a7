"""Rounds of climbing on fixed draws, the draws that the next round needs, and the verdict."""

import dataclasses
import math
import time

import jax
import numpy as np

from curvi.certify import consistency as doubts
from curvi.certify.fixed_draws import Bias, Gain, draws_bias, remaining_gain
from curvi.certify.look_ahead import gained_between, look_ahead
from curvi.certify.suspects import name_suspects
from curvi.descent.trust_region import End, Step, climb
from curvi.estimate.fixed_draws.expansion import Expansion
from curvi.estimate.fixed_draws.objective import FixedNoise, Look, Objective, epoch_draws
from curvi.estimate.fixed_draws.sweep import CHUNK
from curvi.estimate.sampling import FINAL_DRAWS, log_ratios
from curvi.estimate.start import find_start
from curvi.family import MeanField
from curvi.methods.growing_draws.method import GrowingDraws
from curvi.model.target import AbstractTarget
from curvi.outcome import Outcome
from curvi.record.checkpoint import Paused
from curvi.record.clock import Clock
from curvi.record.counts import CallCounts
from curvi.record.history import History, mean_and_error
from curvi.record.progress import Progress

# A round climbs until a step promises less than this share of the tolerance: below, the draws' own error rules.
_CLIMB_SHARE = 0.05
# The optimum of the draws may lie this share of the tolerance from the true one before the fit asks for a certificate.
_BIAS_SHARE = 0.5
_ROUGH = 0.5  # nats: how far to climb on draws that are still to be corrected
_LONG = 2  # products of a step in terms of the cost of a metric that would make them fewer
_MOVED = 1.0  # nats gained since the last expansion that make another worth its cost
_ENDLESS = 200  # a maximum is tens of steps away; hundreds without one in sight are a climb that does not end
_FARTHEST = 0.25  # exponents of a q that ran away, as a share of the largest number's logarithm
_LARGEST_ERROR = 1.0  # nats: an ELBO less certain than this, and a hundredth a dimension, is of no use
_FIRST_RADIUS = 6.0  # nats
_DRAWS_A_VALUE = 16  # of a discrete latent, so that each value shows
_LARGEST_REPEATED = 256  # dimensions
_KICK = 0.1  # in sds of q
_START_SPREAD = 2.0  # in unconstrained units, as NumPyro's init_to_uniform and Stan's random inits
# Draws of the final check; fewer where dimension and with it the cost of a draw is likely to be large.
_MOST_CHECK_DRAWS, _LEAST_CHECK_DRAWS, _LARGE = 1024, 256, 64
_AHEAD_PARTS = 8  # independent parts of the draws that judge a look ahead
# Streams of random numbers.
_FOR_CLIMBING, _FOR_CERTIFYING, _FOR_CHECKING, _FOR_SECOND_THOUGHTS, _FOR_STARTS, _FOR_KICKS, _FOR_AHEAD = range(7)


@dataclasses.dataclass(frozen=True)
class _Cut:
    """How far the last climb came: the value it set out from, and how it ended, if it did, for which tolerance."""

    value: float
    end: End | None
    gain_tolerance: float

    def numbers(self) -> tuple[float, int, float]:
        return self.value, -1 if self.end is None else list(End).index(self.end), self.gain_tolerance

    @classmethod
    def of(cls, numbers) -> "_Cut":
        value, end, gain_tolerance = numbers
        return cls(float(value), None if end < 0 else list(End)[int(end)], float(gain_tolerance))


class GrowingRun:
    """Runs `GrowingDraws` until a certificate on fresh draws says that little is left to gain."""

    def __init__(
        self,
        method: GrowingDraws,
        target: AbstractTarget,
        q: MeanField,
        key,
        clock: Clock,
        display: Progress,
        num_starts: int = 1,
        paused: Paused | None = None,
    ):
        self.target, self.key, self.clock, self.display, self.num_starts = target, key, clock, display, num_starts
        # Four parts that each see all rows: then only the noise of the draws is left.
        self.all_rows = 4 * epoch_draws(target)
        self.objective = Objective(target, q, key, method.buffer_draws(q.num_factors, self.all_rows))
        self.family = q
        self.params = np.asarray(q.params, np.float64)
        self.before = self.params  # of the draws of the round
        self.radius = _FIRST_RADIUS
        self.taken = 0
        self.gain, self.gain_se = float("inf"), float("inf")
        self.start_elbos: np.ndarray | None = None
        self.suspects: tuple[str, ...] = ()
        self.rows: list[dict] = []
        self.errors: list[np.ndarray] = []  # copies of the error of the parameters that the finite draws leave
        self.last_draws = 0
        self.look: Look  # at the current q, on the noise of the last climb
        self.last_noise: FixedNoise
        self.check: tuple[np.ndarray, FixedNoise, Look] | None = None
        self.found_start = self.kicked = False
        self.rough = self.objective.expandable  # until the first climb is over, on draws that are not corrected
        first = max(method.first_draws, self.objective.num_rare * _DRAWS_A_VALUE)
        self.round = (min(2 ** math.ceil(math.log2(first)), self.objective.capacity), 0)  # draws and index
        self.cut: _Cut | None = None
        self.paused_at = self._position(self.radius, None)
        if paused is not None:
            self.unpack(paused)

    @property
    def q(self) -> MeanField:
        return self.family.replace(jax.device_put(self.params.astype(self.objective.dtype)))

    @property
    def counts(self) -> CallCounts:
        return self.objective.counts

    # -- the plan -----------------------------------------------------------------------------------------------------

    # Overflow is met where it matters, as values that are not finite.
    @np.errstate(all="ignore")
    def until(self, limit: int, tolerance: float) -> Outcome:
        try:
            self.objective.compile(self.params)
            self.clock.compiled()
            outcome = self._rounds(limit + self.taken, tolerance)
        except KeyboardInterrupt:
            return Outcome.INTERRUPTED
        if outcome is Outcome.CONVERGED:
            self.suspects = ()
        elif not self.suspects:
            # Nothing more telling: where draws are not finite, or what the gradient still pulls at.
            pulls = np.abs(self.look.grad * self.look.spreads)
            self._suspect(pulls if self.look.finite else doubts.where_not_finite(self.last_noise, self.look))
        return outcome

    def _rounds(self, limit: int, tolerance: float) -> Outcome:
        objective, capacity = self.objective, self.objective.capacity
        num_draws, index = self.round
        if self.num_starts > 1:
            self._best_start(num_draws, tolerance, limit)
        while True:
            self.round = (num_draws, index)
            if self.cut is None:
                self.before = self.params
            rough, stream = self.rough, (_FOR_CLIMBING, index)
            if rough and objective.dimension <= CHUNK // 2:
                # Far from the optimum as few draws as match the moments will do.
                noise = objective.noise(self.before, stream, CHUNK, num_parts=1, correct=False)
            else:
                noise = objective.noise(self.before, stream, num_draws, correct=not rough)
            climb_to = max(_ROUGH, tolerance) if rough else _CLIMB_SHARE * tolerance
            end, gained = self._climb(noise, climb_to, limit, resumable=True)
            self.gain = self.gain_se = float("inf")  # what was known is of another q
            if end is End.BAD_START:
                if self._ran_away():
                    return Outcome.NOT_A_MAXIMUM
                if self.found_start:
                    return Outcome.NON_FINITE
                self._search_start()
                continue
            if objective.expandable and (rough or gained > _MOVED):
                objective.expand(self.params)
            if rough:
                self.rough = False
                continue  # on draws that are corrected
            if end is End.MOVED:
                index += 1
                continue
            self._settle()
            bias = self._bias(noise)
            last = num_draws >= capacity or self.taken >= limit
            if bias.definite and (bias.nats <= _BIAS_SHARE * tolerance or last):
                gain = self._certify(index, num_draws)
                if self.gain + 2 * self.gain_se <= tolerance and self._value_is_known():
                    outcome = self._second_thoughts(gain)
                    if outcome is not Outcome.NOT_A_MAXIMUM or self.kicked or self.taken >= limit:
                        return outcome
                    self._kick(gain.look)
                    index += 1
                    continue
            if last:
                outcome = self._unfinished(end, tolerance)
                if self.taken >= limit and outcome in (Outcome.MAX_STEPS, Outcome.NOISE_LIMIT):
                    self._look_ahead(noise, _CLIMB_SHARE * tolerance)
                return outcome
            num_draws, index = self._more(num_draws, bias.nats, tolerance), index + 1

    def _climb(
        self, noise: FixedNoise, gain_tolerance: float, limit: int, resumable: bool = False
    ) -> tuple[End | None, float]:
        """Climb on this noise; how it ended (None: out of steps), and the nats gained."""
        cut, self.cut = self.cut, None
        steps = climb(self.objective, noise, self.params, self.radius, gain_tolerance)
        step = first = next(steps)
        self.look, self.last_noise, self.last_draws = first.look, noise, noise.num_draws
        before = first.look.value if cut is None else cut.value
        # A climb that was over is so for the tolerance that it had.
        over = cut is not None and cut.end is not None and cut.gain_tolerance == gain_tolerance
        end = cut.end if cut is not None and over else first.end
        while end is None and self.taken < limit:
            step = next(steps)
            end = step.end
            self.taken += 1
            self.params, self.look = step.params, step.look
            self._note(step, noise)
            if self.rough and resumable and step.accepted and self._metric_pays(step, noise):
                self.objective.expand(self.params)
            if resumable:
                self.paused_at = self._position(step.radius, _Cut(before, end, gain_tolerance))
        # A radius that shrank at the end of a climb says little of the next noise.
        self.radius = max(step.radius, 0.1) if over or step is not first else self.radius
        return end, step.look.value - before

    def _metric_pays(self, step: Step, noise: FixedNoise) -> bool:
        """Whether conjugate gradients took so long that the Hessian at the mean, as their metric, is soon paid for."""
        cost = 2 * -(-self.objective.dimension // CHUNK)  # chunks: differences of gradients in each coordinate
        return step.num_products * noise.num_chunks > _LONG * cost

    def _settle(self) -> None:
        """Exact Hessian products from now on, and an exact expansion where that costs little."""
        if self.objective.settled:
            return
        self.objective.settle()
        if self.objective.expansion is not None and self.objective.dimension <= _LARGEST_REPEATED:
            # At a kink the differences were wide of the mark.
            self.objective.expand(self.params)

    def _note(self, step: Step, noise: FixedNoise) -> None:
        error = abs(np.diff(step.look.part_means(2))[0]) / 2
        self.rows.append(
            {
                "elbo": step.look.value,
                "elbo_se": error,
                "remaining_gain": step.gain,
                "radius": step.radius,
                "seconds": time.perf_counter() - self.clock.began - self.clock.compile,
                "log_density": self.counts.log_density,
                "num_draws": noise.num_draws,
                "accepted": step.accepted,
            }
        )
        self.display.note(self.taken, step.look.value, error, step.gain, self.counts, step.radius, noise.num_draws)

    def _more(self, num_draws: int, bias: float, tolerance: float) -> int:
        """Draws of the next round: the bias falls at least like 1 / draws, and by much more where moments begin to
        match.
        """
        capacity = self.objective.capacity
        matched = 4 * self.objective.dimension  # two halves, two signs, as many pairs as dimensions
        if not self.objective.expandable and num_draws < matched <= capacity:
            return min(2 ** math.ceil(math.log2(matched)), 16 * num_draws)
        wanted = np.ceil(np.log2(max(bias / (0.6 * _BIAS_SHARE * tolerance), 1e-9)))
        more = num_draws * 2 ** int(np.clip(wanted, 1, 4))
        if num_draws < self.all_rows <= capacity:
            return self.all_rows
        return min(more, capacity)

    # -- the verdict --------------------------------------------------------------------------------------------------

    def _bias(self, noise: FixedNoise) -> Bias:
        look = self.look
        bias = draws_bias(self.objective, self.params, noise, look)
        self.errors = [bias.error]
        if not bias.definite:
            self._suspect(np.abs(bias.error / look.spreads))
        return bias

    def _certify(self, index: int, num_draws: int) -> Gain:
        gain = remaining_gain(self.objective, self.params, (_FOR_CERTIFYING, index), num_draws)
        self.gain, self.gain_se = gain.nats, gain.error
        if gain.copy is not None:
            self.errors.append(gain.copy)
        else:
            self._suspect(np.abs(gain.upwards / gain.look.spreads))
        return gain

    def _value_is_known(self) -> bool:
        """Whether fresh draws agree on the value: a few may have missed a tail in which ln p falls without bound."""
        known = self.target.minibatched or (self.final_elbo()[1] < _LARGEST_ERROR + 0.01 * self.objective.dimension)
        if not known:
            self.gain = self.gain_se = float("inf")
        return known

    def _second_thoughts(self, gain: Gain) -> Outcome:
        """CONVERGED, unless derivatives contradict values or each other, or an unseen direction is flat or leads
        upwards.
        """
        doubt = self._smoothness(doubts.LARGEST_DISCREPANCY)
        if doubt is not None:
            if doubt is Outcome.NON_FINITE:
                self.gain = self.gain_se = float("inf")
            return doubt
        found = doubts.unseen_direction(self.objective, self.params, gain, _FOR_SECOND_THOUGHTS)
        if found is None:
            return Outcome.CONVERGED
        self.gain = self.gain_se = float("inf")
        self._suspect(found.weights)
        return self._smoothness(doubts.SUSPECT_DISCREPANCY) or found.outcome

    def _smoothness(self, largest: float) -> Outcome | None:
        noise, look = self._check_look()
        found = doubts.smoothness(self.objective, self.params, _FOR_SECOND_THOUGHTS, noise, look, largest)
        if found is None:
            return None
        self._suspect(found.weights)
        return found.outcome

    def _check_look(self) -> tuple[FixedNoise, Look]:
        """Fresh plain draws at the current q: for second thoughts, and for the final ELBO.

        Matched noise is fine for a gradient, but would bias the value itself by its fourth moments.
        """
        if self.check is None or self.check[0] is not self.params:
            num_draws = self._check_draws()
            parts = max(num_draws // (4 * CHUNK), 2)
            noise = self.objective.noise(self.params, (_FOR_CHECKING, self.taken), num_draws, parts, match=False)
            self.check = (self.params, noise, self.objective(self.params, noise))
        return self.check[1:]

    def _check_draws(self) -> int:
        num_draws = _MOST_CHECK_DRAWS
        if self.objective.dimension > _LARGE:
            num_draws = int(np.clip(4 * self.last_draws, _LEAST_CHECK_DRAWS, _MOST_CHECK_DRAWS))
        return min(num_draws, self.objective.capacity)

    def _unfinished(self, end: End | None, tolerance: float) -> Outcome:
        if end is None and (np.isfinite(self.gain) or self.taken < _ENDLESS):
            return Outcome.MAX_STEPS
        if not np.isfinite(self.gain):
            if self.objective.num_rare:
                return Outcome.NOISE_LIMIT  # what curves upwards may be the noise of the score's curvature
            return self._smoothness(doubts.SUSPECT_DISCREPANCY) or Outcome.NOT_A_MAXIMUM
        if self.taken >= _ENDLESS and self.gain_se > _ROUGH:
            self.gain = self.gain_se = float("inf")
            return Outcome.NOT_A_MAXIMUM
        if end is End.STUCK:
            # On a smooth density some step is short enough to be predicted, unless rounding hides what it gains.
            return self._smoothness(doubts.SUSPECT_DISCREPANCY) or Outcome.PRECISION
        if end is End.PRECISION:
            return Outcome.PRECISION
        return Outcome.NOISE_LIMIT if self.gain <= max(tolerance, 3 * self.gain_se) else Outcome.MAX_STEPS

    def _look_ahead(self, noise: FixedNoise, gain_tolerance: float) -> None:
        """A better word on what is left to gain at a q that is not the end of the climb, where one is found.

        Nothing of the run moves, so that it may go on from here later.
        """
        objective, stream = self.objective, (_FOR_AHEAD, self.taken)
        # An answer is not worth more steps than the fit itself took.
        ahead = look_ahead(objective, self.params, noise, self.radius, gain_tolerance, self.taken, (*stream, 0))
        # Matched draws: their fourth moments bias a value, but hardly the difference of two.
        fresh = objective.noise(self.params, (*stream, 1), self._check_draws(), _AHEAD_PARTS)
        found = gained_between(objective, self.params, ahead.params, fresh)
        if found is None or not np.all(np.isfinite([*found, ahead.left, ahead.error])):
            return
        gained, error = found
        # A climb that was cut short says more than the certificate only where most of the way was seen.
        if ahead.done or ahead.left <= gained:
            self.gain, self.gain_se = max(gained + ahead.left, 0.0), float(np.hypot(error, ahead.error))

    def _suspect(self, weights: np.ndarray | None) -> None:
        self.suspects = name_suspects(self.family, weights)

    @np.errstate(all="ignore")
    def final_elbo(self) -> tuple[float, float]:
        """ELBO and its standard error on fresh draws and the full data."""
        if self.target.minibatched:
            self.objective.counts = self.counts.plus(log_density=FINAL_DRAWS)
            return mean_and_error(log_ratios(self.target, self.q, self.key, FINAL_DRAWS))
        noise, look = self._check_look()
        num_pairs = noise.num_draws // 2  # independent of each other, on this noise
        parts = noise.values.reshape(num_pairs, 2, self.objective.dimension)
        values = look.part_means(num_pairs)
        if self.objective.expansion is not None:
            excess = self.objective.expansion.part_excess(parts, np.exp(self.params[1::2]))[0]
            # H0 is that of the mean, which may be far from typical: as much of it as explains the values.
            values = values - _share(values, excess) * excess
        mean, error = mean_and_error(values)
        return mean + look.entropy, error

    def _ran_away(self) -> bool:
        """Whether the climb has no end in sight, or took q beyond all scales: a flat or unbounded density."""
        if self.taken >= _ENDLESS or not self.objective.normal:
            return self.taken >= _ENDLESS
        # What is exponentiated: ln sigma, and draws of the latents that a bijection takes to their supports.
        mean, log_sigma = self.params.reshape(-1, 2).T
        farthest = np.abs(mean) + 3 * np.exp(log_sigma)
        pushed = [slot for slot in self.family.layout.slots if slot.pushed]  # there is one group of factors
        exponents = [log_sigma.max(), *(farthest[slot.start : slot.start + slot.count].max() for slot in pushed)]
        return max(exponents) > _FARTHEST * np.log(np.finfo(self.objective.dtype).max)

    # -- starts -------------------------------------------------------------------------------------------------------

    def _search_start(self) -> None:
        q, calls = find_start(self.target, self.q, self.key)
        self.params = np.asarray(q.params, np.float64)
        self.objective.counts = self.counts.plus(log_density=calls)
        self.found_start = True

    def _best_start(self, num_draws: int, tolerance: float, limit: int) -> None:
        """Climb from several starts on the first round's draws, and go on from the best."""
        given, best, elbos = self.params, None, []
        for start in range(self.num_starts):
            rng = self.objective.generator(_FOR_STARTS, start)
            shift = np.zeros(given.shape) if start == 0 else _START_SPREAD * rng.standard_normal(given.shape)
            self.params, self.radius, self.taken = given + shift * self._locations(), _FIRST_RADIUS, 0
            noise = self.objective.noise(self.params, (_FOR_CLIMBING, 0), num_draws)
            end, _ = self._climb(noise, _CLIMB_SHARE * tolerance, limit)
            elbos.append(-np.inf if end is End.BAD_START else self.look.value)
            if end is not End.BAD_START and (best is None or elbos[-1] > best[0]):
                best = (elbos[-1], self.params, self.radius)
        self.start_elbos, self.taken = np.asarray(elbos), 0
        _, self.params, self.radius = best or (None, given, _FIRST_RADIUS)

    def _locations(self) -> np.ndarray:
        """1 for parameters that random starts move: all but the spreads of factors that have one."""
        factors = zip(self.family.layout.factors, self.family.layout.counts)
        spread = [(f.real_line or f.reparameterised, f.num_params, n) for f, n in factors]
        moves = [np.tile(np.arange(k) < (1 if has_spread else k), n) for has_spread, k, n in spread]
        return np.concatenate(moves).astype(float)

    def _kick(self, look: Look) -> None:
        """A small random step off a saddle."""
        rng = self.objective.generator(_FOR_KICKS)
        self.params = self.params + _KICK * look.spreads * rng.standard_normal(self.params.shape)
        self.radius, self.kicked = 1.0, True

    # -- going on later -----------------------------------------------------------------------------------------------

    def _position(self, radius: float, cut: "_Cut | None") -> dict:
        """Where the run stands, before anything is computed that a longer climb would not have computed."""
        expansion = self.objective.expansion
        none = np.zeros(0)
        return {
            "params": self.params,
            "before": self.before,
            "hessian": none if expansion is None else expansion.hessian,
            "sigma": none if expansion is None else expansion.sigma,
            "radius": radius,
            "round": self.round,
            "cut": none if cut is None else cut.numbers(),
            "counters": (self.taken, self.last_draws),
            "flags": (self.found_start, self.kicked, self.rough, self.objective.settled),
            "num_starts": self.num_starts if cut is None else 1,
        }

    def pack(self) -> dict[str, np.ndarray]:
        """All that the rounds to come need beside the method, the target and the key."""
        return {name: np.asarray(value) for name, value in self.paused_at.items()}

    def unpack(self, paused: Paused) -> None:
        """Stand where a run stood when it was packed."""
        state = paused.state
        self.params, self.before, self.radius = state["params"], state["before"], float(state["radius"])
        if state["hessian"].size:
            self.objective.expansion = Expansion(state["hessian"], state["sigma"])
        self.round = tuple(int(number) for number in state["round"])
        self.cut = _Cut.of(state["cut"]) if state["cut"].size else None
        self.taken, self.last_draws = (int(number) for number in state["counters"])
        flags = (bool(flag) for flag in state["flags"])
        self.found_start, self.kicked, self.rough, self.objective.settled = flags
        self.num_starts, self.paused_at = int(state["num_starts"]), dict(state)
        self.objective.counts = paused.counts
        columns = {field.name: getattr(paused.history, field.name) for field in dataclasses.fields(History)}
        self.rows = [{name: column[i] for name, column in columns.items()} for i in range(len(paused.history))]

    # -- what is left behind ------------------------------------------------------------------------------------------

    def error_copies(self) -> np.ndarray | None:
        """Copies of the error that the finite draws leave in the parameters, None before the first round is over."""
        return np.stack(self.errors).astype(self.objective.dtype) if self.errors else None

    def history(self) -> History:
        def column(name, default=np.nan, dtype=float):
            return np.asarray([row.get(name, default) for row in self.rows], dtype)

        return History(
            elbo=column("elbo"),
            elbo_se=column("elbo_se"),
            remaining_gain=column("remaining_gain"),
            remaining_gain_se=column("remaining_gain_se", 0.0),
            log_density=column("log_density", dtype=np.int64),
            seconds=column("seconds"),
            num_draws=column("num_draws", dtype=np.int64),
            radius=column("radius"),
            accepted=column("accepted", dtype=bool),
            curvature_weight=column("curvature_weight", 1.0),
        )


def _share(values: np.ndarray, excess: np.ndarray) -> float:
    """The multiple of `excess` that leaves the least of the values' variance."""
    spread = np.var(excess)
    return float(np.mean((values - values.mean()) * (excess - excess.mean())) / spread) if spread > 0 else 0.0
