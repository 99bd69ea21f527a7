"""The host's side of growing draws: rounds of climbing, the draws that the next one needs, the final certificate."""

import math
import time

import jax
import numpy as np

from curvi.clock import Clock
from curvi.estimate.design import matched_noise
from curvi.family import MeanField
from curvi.family.continuous import Normal
from curvi.methods import growing_draws as program
from curvi.methods.growing_draws import CHUNK, GrowingDraws, Noise, Reply, Request
from curvi.outcome import Outcome
from curvi.progress import Progress
from curvi.results import FINAL_DRAWS, CallCounts, History, as_finite_or_inf, log_ratios, mean_and_error
from curvi.start import find_start
from curvi.target import AbstractTarget

# A round climbs until a step promises less than this share of the tolerance: below, the draws' own error rules.
_CLIMB_SHARE = 0.05
# The optimum of the draws may lie this share of the tolerance from the true one before the fit asks for a certificate.
_BIAS_SHARE = 0.5
_RESIDUAL = 1e-3
_MAX_PRODUCTS = 200
_MATCHED_DIMENSIONS = 16  # as many pairs as the halves of the first round have
_LARGEST_HESSIAN = 2048
_ELBO_DRAWS = 1024
_ELBO_SCRAMBLES = 16
# Streams of random numbers.
_FOR_CLIMBING, _FOR_CERTIFYING, _FOR_THE_ELBO, _FOR_SECOND_THOUGHTS, _FOR_STARTS = 0, 1, 2, 3, 4
_START_SPREAD = 2.0  # in unconstrained units, as NumPyro's init_to_uniform and Stan's random inits
_CHECK_DRAWS = 1024
_ENDLESS = 200
_MATERIAL = 0.02  # a whitened gradient of this size is worth 0.0002 nats: rounding is not held against the model
_LARGEST_Z = 6.0  # over hundreds of parameters a z of 4 is no surprise, one of 6 is
_SECANT_DRAWS = 256
_SECANT = 0.1  # in sds of q: wide enough to cross kinks, narrow enough for smooth densities to look quadratic
# Relative discrepancy of Hessian products and secants. Up to 1 products may be too small (they miss the curvature of
# kinks), and then the remaining gain is overstated; beyond, they are too large, and it is understated.
_LARGEST_DISCREPANCY, _SUSPECT_DISCREPANCY = 1.0, 0.5
_PROBE_PRODUCTS = 50
_KICK = 0.1  # in sds of q


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
    ):
        self.num_starts = num_starts
        self.start_elbos: np.ndarray | None = None
        self.method, self.target, self.clock, self.display = method, target, clock, display
        self.key = key
        # Words of the key seed the host's generators: every operation of JAX outside the program would cost a
        # compilation.
        self.words = np.asarray(jax.random.key_data(key)).astype(np.uint32)
        self.q = q
        self.counts = CallCounts()
        self.gain, self.gain_se = float("inf"), float("inf")
        self.radius = 1.0
        self.taken = 0
        self.rows: list[dict] = []
        self.capacity = method.buffer_draws(q.num_factors)
        self.found_start = False
        self.kicked = False
        self.last_draws = 0
        # With few dimensions the noise itself is matched and needs no correction; with very many the Hessian is too
        # large to store.
        normal = all(isinstance(factor, Normal) for factor in q.layout.factors)
        self.corrects = normal and _MATCHED_DIMENSIONS < q.num_factors <= _LARGEST_HESSIAN
        self.hessian = None
        self.errors: list[np.ndarray] = []  # copies of the error of the parameters that the finite draws leave

    # -- the plan -----------------------------------------------------------------------------------------------------

    def until(self, limit: int, tolerance: float) -> Outcome:
        try:
            return self._rounds(limit, tolerance)
        except KeyboardInterrupt:
            return Outcome.INTERRUPTED

    def _rounds(self, limit: int, tolerance: float) -> Outcome:
        self._compile()
        num_draws, index = min(self.method.first_draws, self.capacity), 0
        if self.num_starts > 1:
            self._best_start(num_draws, tolerance, limit)
        while True:
            noise = self._noise(_FOR_CLIMBING, index, num_draws)
            reply = self._climb(noise, tolerance, limit)
            self.gain = self.gain_se = float("inf")  # what was known is of another q
            status = int(reply.status)
            if status == program.BAD_START and not self.found_start:
                self._search_start()
                continue
            if status == program.BAD_START:
                # Overflow at the end of a long climb is a flat or unbounded density.
                return Outcome.NON_FINITE if self.taken < _ENDLESS else Outcome.NOT_A_MAXIMUM
            if self.corrects:
                first = self.hessian is None
                self._expand()
                if first:
                    continue
            bias, definite = self._bias(noise, reply)
            last = num_draws >= self.capacity or self.taken >= limit
            if definite and (bias <= _BIAS_SHARE * tolerance or last):
                self._certify(index, num_draws)
                if self.gain + 2 * self.gain_se <= tolerance:
                    outcome = self._second_thoughts(index, num_draws)
                    if outcome is not Outcome.NOT_A_MAXIMUM or self.kicked or self.taken >= limit:
                        return outcome
                    self._kick()
                    index += 1
                    continue
            if last:
                return self._unfinished(status, tolerance)
            num_draws, index = self._more(num_draws, bias if definite else np.inf, tolerance), index + 1

    def _best_start(self, num_draws: int, tolerance: float, limit: int) -> None:
        """Climb from several starts on the first round's draws, and go on from the best."""
        given, best, elbos = self.q.params, None, []
        noise = self._noise(_FOR_CLIMBING, 0, num_draws)
        for start in range(self.num_starts):
            rng = np.random.default_rng([*self.words, _FOR_STARTS, start])
            shift = np.zeros(given.shape) if start == 0 else _START_SPREAD * rng.standard_normal(given.shape)
            # The spread of q stays: only means move, the even entries of each factor's pair.
            shift[1::2] = 0.0
            self.q = self.q.replace(given + shift.astype(given.dtype))
            self.radius = 1.0
            reply = self._climb(noise, tolerance, limit)
            found = int(reply.status) != program.BAD_START
            elbos.append(float(reply.evaluation.value) if found else -np.inf)
            if found and (best is None or elbos[-1] > best[0]):
                best = (elbos[-1], self.q.params, self.radius)
        self.start_elbos = np.asarray(elbos)
        self.taken = 0
        self.q = self.q.replace(given if best is None else best[1])
        self.radius = 1.0 if best is None else best[2]

    def _more(self, num_draws: int, bias: float, tolerance: float) -> int:
        """Draws of the next round: the bias falls at least like 1 / draws, and by much more where moments begin to
        match.
        """
        matched = 4 * self.q.num_factors  # two halves, two signs, as many pairs as dimensions
        if not self.corrects and num_draws < matched <= self.capacity:
            return min(2 ** math.ceil(math.log2(matched)), 16 * num_draws)
        wanted = np.ceil(np.log2(max(bias / (0.6 * _BIAS_SHARE * tolerance), 1e-9)))
        return min(num_draws * 2 ** int(np.clip(wanted, 1, 4)), self.capacity)

    def _unfinished(self, status: int, tolerance: float) -> Outcome:
        # A maximum is tens of steps away; hundreds without one in sight are a climb that does not end.
        if status == program.OUT_OF_STEPS and (np.isfinite(self.gain) or self.taken < _ENDLESS):
            return Outcome.MAX_STEPS
        if not np.isfinite(self.gain):
            return self._doubt(_SUSPECT_DISCREPANCY) or Outcome.NOT_A_MAXIMUM
        if status in (program.PRECISION, program.STUCK):
            return Outcome.PRECISION
        return Outcome.NOISE_LIMIT if self.gain <= max(tolerance, 3 * self.gain_se) else Outcome.MAX_STEPS

    # -- calls of the program -----------------------------------------------------------------------------------------

    def _call(
        self,
        purpose: int,
        noise: Noise,
        rhs=None,
        radius=1.0,
        gain_tolerance=0.0,
        max_steps=1,
        max_products=_MAX_PRODUCTS,
        shift=0.0,
    ) -> Reply:
        # numpy scalars and arrays enter the program as they are: no operation of JAX, no compilation, and no constant.
        real = np.dtype(self.q.params.dtype).type
        request = Request(
            purpose=np.int32(purpose),
            params=np.asarray(self.q.params + shift, real) if np.any(shift) else self.q.params,
            rhs=np.zeros(self.q.params.shape, real) if rhs is None else np.asarray(rhs, real),
            radius=real(radius),
            gain_tolerance=real(gain_tolerance),
            residual_tolerance=real(_RESIDUAL),
            max_steps=np.int32(max_steps),
            max_products=np.int32(max_products),
        )
        reply = jax.tree.map(np.asarray, program.run_program(self.target, self.q, noise, request))
        # Every turn of the program computes value, gradient and product alike.
        turns = (int(reply.num_evaluations) + int(reply.num_products)) * int(noise.num_chunks) * CHUNK
        self.counts = self.counts.plus(turns, turns, turns)
        return reply

    def _noise(self, use: int, index: int, num_draws: int, num_scrambles: int = 2, match: bool = True) -> Noise:
        rng = np.random.default_rng([*self.words, use, index])
        dimension, size = self.q.num_factors, self.capacity // CHUNK
        buffer = np.zeros((size * CHUNK, dimension), dtype=self.q.params.dtype)
        if num_draws:
            buffer[:num_draws] = matched_noise(rng, num_draws, dimension, num_scrambles, match)
        chunks = num_draws // CHUNK
        half = np.zeros(size, np.int32)
        half[chunks // 2 : chunks] = 1
        words = rng.integers(0, 2**32, (size, self.words.size), dtype=np.uint32)
        keys = jax.random.wrap_key_data(words, impl=jax.random.key_impl(self.key))
        corrected = dimension if self.corrects else 0
        excess = np.zeros((2, corrected, corrected), self.q.params.dtype)
        if corrected and num_draws and self.hessian is not None:
            excess[:] = self._excess(buffer[:num_draws], 2)
        metric, usable = self._mean_metric(corrected)
        return Noise(buffer.reshape(size, CHUNK, dimension), half, excess, metric, usable, np.int32(chunks), keys)

    def _mean_metric(self, corrected: int) -> tuple[np.ndarray, np.bool_]:
        """The Cholesky factor of -H0, and whether there is one."""
        try:
            if corrected and self.hessian is not None:
                return np.linalg.cholesky(-self.hessian).astype(self.q.params.dtype), np.bool_(True)
        except np.linalg.LinAlgError:
            pass
        return np.eye(corrected, dtype=self.q.params.dtype), np.bool_(False)

    def _excess(self, noise: np.ndarray, num_parts: int) -> np.ndarray:
        """H0 * (second moments - I) of each of `num_parts` equal parts of the noise."""
        parts = noise.reshape(num_parts, -1, noise.shape[-1])
        moments = np.einsum("psi,psj->pij", parts, parts, optimize=True) / parts.shape[1]
        return self.hessian * (moments - np.eye(noise.shape[-1]))

    def _expand(self) -> None:
        """The Hessian at the mean of q, for the control variate; taken after a round, where q is about right."""
        hessian = np.asarray(program.mean_hessian(self.target, self.q), dtype=np.float64)
        # Any matrix makes a valid control variate: none at all where the mean of q is a singular point.
        self.hessian = hessian if np.all(np.isfinite(hessian)) else np.zeros_like(hessian)
        self.counts = self.counts.plus(hvp=self.q.num_factors)

    def _compile(self) -> None:
        """A call on no draws at all: compiles the program and does nothing else."""
        self._call(program.EVALUATE, self._noise(_FOR_CLIMBING, 0, 0))
        self.clock.compiled()

    def _climb(self, noise: Noise, tolerance: float, limit: int) -> Reply:
        began = time.perf_counter() - self.clock.began
        before = self.counts.log_density
        steps = min(program.MAX_STEPS - 1, limit - self.taken)
        reply = self._call(
            program.CLIMB, noise, radius=self.radius, gain_tolerance=self._climb_tolerance(tolerance), max_steps=steps
        )
        if int(reply.status) == program.BAD_START:
            return reply
        self.q = self.q.replace(reply.params)
        self.radius = max(float(reply.radius), 0.1)
        self.last_draws = int(noise.num_chunks) * CHUNK
        taken = int(reply.num_steps)
        ended = time.perf_counter() - self.clock.began
        share = np.arange(1, taken + 1) / max(taken, 1)
        self.rows.append(
            {
                "elbo": reply.trace[1 : taken + 1, 0],
                "remaining_gain": reply.trace[1 : taken + 1, 1],
                "radius": reply.trace[1 : taken + 1, 2],
                "seconds": began + (ended - began) * share - self.clock.compile,
                "log_density": before + (self.counts.log_density - before) * share,
                "num_draws": np.full(taken, int(noise.num_chunks) * CHUNK),
                "elbo_se": np.full(taken, self._value_error(noise, reply)),
            }
        )
        self.taken += taken
        self.display.note(
            self.taken, float(reply.evaluation.value), self.rows[-1]["elbo_se"][-1:].sum(), self.gain, self.counts
        )
        return reply

    def _climb_tolerance(self, tolerance: float) -> float:
        """Nats that a step must promise; a round whose draws are still to be corrected need not be exact."""
        return max(0.5, tolerance) if self.corrects and self.hessian is None else _CLIMB_SHARE * tolerance

    def _value_error(self, noise: Noise, reply: Reply) -> float:
        """Half the difference of the two halves' values: one independent look at the error of their mean."""
        chunks = int(noise.num_chunks)
        with np.errstate(invalid="ignore", over="ignore"):
            values = reply.evaluation.draw_values[:chunks].mean(1)
            return float(abs(values[: chunks // 2].mean() - values[chunks // 2 :].mean()) / 2)

    def _bias(self, noise: Noise, reply: Reply) -> tuple[float, bool]:
        """tr((-H)^-1 Cov g) / 2 nats, by one solve with a copy of the gradient's noise, and whether -H is definite."""
        halves = reply.evaluation.halves
        solve = self._call(program.SOLVE, noise, rhs=(halves[0] - halves[1]) / 2)
        bias = as_finite_or_inf(solve.decrement)
        self.errors = [solve.solution]
        return bias, bool(solve.definite) and np.isfinite(bias)

    def _certify(self, index: int, num_draws: int) -> None:
        """Remaining gain on fresh draws: the Newton decrement, less what the noise of the fresh gradient adds to it."""
        dimension = self.q.num_factors
        # Many scrambles tell the error best, as long as each has draws enough for its moments to match.
        least = CHUNK if self.corrects else max(CHUNK, 2 * dimension)
        num_scrambles = next((parts for parts in (8, 4) if num_draws >= parts * least), 2)
        noise = self._noise(_FOR_CERTIFYING, index, num_draws, num_scrambles)
        look = self._call(program.EVALUATE, noise).evaluation
        error = (look.halves[0] - look.halves[1]) / 2
        signal = self._call(program.SOLVE, noise, rhs=look.grad)
        spread = self._call(program.SOLVE, noise, rhs=error)
        if not (bool(signal.definite) and bool(spread.definite)):
            self.gain = self.gain_se = float("inf")
            return
        variance = np.float64(0.0)
        for direction in (signal.solution, spread.solution):
            slopes = self._call(program.EVALUATE, noise, rhs=direction).evaluation.chunk_slopes
            parts = slopes[: int(noise.num_chunks)].reshape(num_scrambles, -1).mean(1)
            if self.corrects:
                excess = self._excess(noise.values.reshape(-1, dimension)[:num_draws], num_scrambles)
                sigma, along = np.exp(self._normal_params()[:, 1]), direction.reshape(-1, 2)[:, 1]
                parts = parts - (excess @ sigma) @ (sigma * along)
            with np.errstate(invalid="ignore", over="ignore"):
                variance += parts.var(ddof=1) / num_scrambles
        self.gain = as_finite_or_inf(max(float(signal.decrement - spread.decrement), 0.0))
        self.gain_se = as_finite_or_inf(np.sqrt(variance))
        self.errors.append(spread.solution)

    def _second_thoughts(self, index: int, num_draws: int) -> Outcome:
        """CONVERGED, unless derivatives contradict values or each other, or an unseen direction is flat or leads
        upwards.
        """
        if (doubt := self._doubt(_LARGEST_DISCREPANCY)) is not None:
            if doubt is Outcome.NON_FINITE:
                self.gain = self.gain_se = float("inf")
            return doubt
        # The gradient of mirrored draws has no part along a symmetry, so that a saddle, or a direction that nothing
        # determines, may not have shown: conjugate gradients from a random vector see every direction.
        noise = self._noise(_FOR_CERTIFYING, index, num_draws)
        rhs = self._random_vector() / self._spreads()
        probe = self._call(program.SOLVE, noise, rhs=rhs, max_products=_PROBE_PRODUCTS)
        flat = float(probe.decrement) / rhs.size > 0.01 / np.finfo(self.q.params.dtype).eps
        if flat or not (bool(probe.definite) and np.isfinite(probe.decrement)):
            self.gain = self.gain_se = float("inf")
            return self._doubt(_SUSPECT_DISCREPANCY) or Outcome.NOT_A_MAXIMUM
        return Outcome.CONVERGED

    def _doubt(self, largest_discrepancy: float) -> Outcome | None:
        """What is wrong where ln p, its gradient and its Hessian are not those of one smooth function, else None."""
        z = self._score_disagreement(0)
        if z is None:
            return Outcome.NON_FINITE
        if np.max(np.abs(z)) > _LARGEST_Z:
            # Among hundreds of heavy-tailed terms one may stand out by chance, but not twice in the same place.
            again = self._score_disagreement(2)
            if again is None or np.any((np.abs(z) > _LARGEST_Z) & (np.sign(z) * again > _LARGEST_Z / 2)):
                return Outcome.DISAGREEMENT
        return Outcome.DISAGREEMENT if self._discrepancy() > largest_discrepancy else None

    def _score_disagreement(self, index: int) -> np.ndarray | None:
        """z-scores of score against pathwise gradient on fresh draws; None where ln p is not finite at one of them."""
        draws = min(self.capacity, _CHECK_DRAWS)
        noise = self._noise(_FOR_SECOND_THOUGHTS, index, draws, match=False)
        look = self._call(program.EVALUATE, noise).evaluation
        if not np.all(np.isfinite(look.draw_values[: draws // CHUNK])):
            return None
        if self.target.minibatched or not all(isinstance(f, Normal) for f in self.q.layout.factors):
            return np.zeros(1)
        return score_disagreement(
            noise.values.reshape(-1, self.q.num_factors)[:draws],
            look.draw_values.reshape(-1)[:draws],
            look.grad.reshape(-1, 2),
            self._normal_params(),
        )

    def _random_vector(self) -> np.ndarray:
        """A direction that no symmetry of the model is likely to share."""
        rng = np.random.default_rng([*self.words, _FOR_SECOND_THOUGHTS, 2])
        return rng.standard_normal(self.q.params.shape)

    def _discrepancy(self) -> float:
        """How far the change of the gradient over steps of `_SECANT` sds is from the Hessian product, relatively."""
        noise = self._noise(_FOR_SECOND_THOUGHTS, 1, min(self.capacity, _SECANT_DRAWS), match=False)
        along = np.sign(self._random_vector()) * self._spreads()  # every parameter by as much
        product = self._call(program.EVALUATE, noise, rhs=along).evaluation.product
        ahead, behind = (
            self._call(program.EVALUATE, noise, shift=side * _SECANT * along).evaluation.grad for side in (1, -1)
        )
        with np.errstate(invalid="ignore", over="ignore"):
            secant = (ahead - behind) / (2 * _SECANT) * self._spreads()
            apart, size = np.linalg.norm(secant - product * self._spreads()), np.linalg.norm(secant)
        # Steps to where ln p is not finite say nothing.
        return float(apart / size) if np.isfinite(size) and size > 0 else 0.0

    def _kick(self) -> None:
        """A small random step off a saddle."""
        rng = np.random.default_rng([*self.words, _FOR_SECOND_THOUGHTS, 3])
        step = _KICK * self._spreads() * rng.standard_normal(self.q.params.shape)
        self.q = self.q.replace(np.asarray(self.q.params + step, self.q.params.dtype))
        self.radius, self.kicked = 1.0, True

    def _spreads(self) -> np.ndarray:
        """F^-1/2, which is diagonal for normal and log-normal factors: steps of one sd of q."""
        log_sigma = self._normal_params()[:, 1]
        with np.errstate(over="ignore"):
            return np.stack([np.exp(log_sigma), np.full(log_sigma.shape, np.sqrt(0.5))], -1).reshape(-1)

    def _normal_params(self) -> np.ndarray:
        return np.asarray(self.q.params).reshape(-1, 2)

    def final_elbo(self) -> tuple[float, float]:
        """ELBO and its standard error on fresh draws and the full data."""
        if self.target.minibatched:
            self.counts = self.counts.plus(log_density=FINAL_DRAWS)
            return mean_and_error(log_ratios(self.target, self.q, self.key, FINAL_DRAWS))
        # Unmatched noise: whitened draws are fine for a gradient, but bias the value itself by their fourth moments.
        draws = min(self.capacity, max(_ELBO_DRAWS, self.last_draws))
        noise = self._noise(_FOR_THE_ELBO, 0, draws, _ELBO_SCRAMBLES, match=False)
        values = self._call(program.EVALUATE, noise).evaluation.draw_values[: draws // CHUNK]
        values = values.reshape(_ELBO_SCRAMBLES, -1).mean(1)
        if self.corrects and self.hessian is not None:
            excess = self._excess(noise.values.reshape(-1, self.q.num_factors)[:draws], _ELBO_SCRAMBLES)
            sigma = np.exp(self._normal_params()[:, 1])
            values = values - (excess @ sigma) @ sigma / 2
        mean, error = mean_and_error(values)
        return mean + float(self.q.entropy()), error

    def _search_start(self) -> None:
        self.q, calls = find_start(self.target, self.q, self.key)
        self.counts = self.counts.plus(log_density=calls)
        self.found_start = True

    # -- what is left behind ------------------------------------------------------------------------------------------

    def error_copies(self) -> np.ndarray | None:
        """Copies of the error that the finite draws leave in the parameters, None before the first round is over."""
        return np.stack(self.errors) if self.errors else None

    def history(self) -> History:
        def column(name, default=None):
            parts = [row.get(name, np.full(len(row["elbo"]), default)) for row in self.rows]
            return np.concatenate(parts) if parts else np.zeros(0)

        return History(
            elbo=column("elbo"),
            elbo_se=column("elbo_se"),
            remaining_gain=column("remaining_gain"),
            remaining_gain_se=column("remaining_gain_se", 0.0),
            log_density=column("log_density").astype(np.int64),
            seconds=column("seconds"),
            num_draws=column("num_draws"),
            radius=column("radius"),
            accepted=column("accepted", True),
            curvature_weight=column("curvature_weight", 1.0),
        )


def score_disagreement(noise, log_p, gradient, params) -> np.ndarray:
    """z-scores between the pathwise gradient and the score gradient of normal factors, on the same draws.

    The score gradient needs values of ln p alone, and is right for any ln p; both estimate the same gradient where ln p
    is smooth. In whitened coordinates the scores are e and (e^2 - 1) / sqrt 2.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        sigma = np.exp(params[:, 1])
        log_ratio = log_p + 0.5 * (noise**2).sum(1)  # ln q up to a constant
        centred = log_ratio - log_ratio.mean()
        scores = np.stack([noise, (noise**2 - 1) / np.sqrt(2)], -1)
        path = np.stack([gradient[:, 0] * sigma, gradient[:, 1] / np.sqrt(2)], -1)
        terms = centred[:, None, None] * scores - path
        error = terms.std(0, ddof=1) / np.sqrt(len(terms))
        return (terms.mean(0) / np.hypot(error, _MATERIAL)).reshape(-1)
