"""The ELBO on fixed noise as a function of numpy vectors, with the derivatives for a Newton step."""

import math
import threading

import numpy as np

from curvi.estimate.draws import sobol_net
from curvi.estimate.fixed_draws.expansion import Excess, Expansion
from curvi.estimate.fixed_draws.groups import CHUNK, ONE_GROUP, Groups
from curvi.estimate.fixed_draws.local import Difference, FixedDrawsHessian, FixedDrawsModel, PartNoise
from curvi.estimate.fixed_draws.noise import FixedNoise, NoiseSource, correction_draws
from curvi.estimate.fixed_draws.sweep import Plan, Sweeps
from curvi.estimate.hybrid import Weighted
from curvi.estimate.local import Counts
from curvi.family import Family
from curvi.family.centering import centering_of
from curvi.family.normal_path import NormalPath
from curvi.family.path import ExpandablePath, HostPath
from curvi.model.target import AbstractTarget
from curvi.record.counts import CallCounts

# Step of central differences of gradients for targets of order 1, in sds of q. The error grows like its square, but the
# step must be wide enough to detect kinks.
_DIFFERENCE = 0.02
_STEP = 1e-5  # step of one-sided differences, in sds of q
LARGEST_HESSIAN = 10_240  # largest dimension: two matrices of 840 MB
# The control variate is rejected if it multiplies the variance of the value by more than the first number and the
# standard error is at least the second, in nats. A useless one, or one hidden by batch noise, is harmless.
_MISLED, _MISLED_ERROR = 2.0, 1.0
_LARGEST_WIDENED = 500  # dimensions up to which the expected Hessian may be asked for
_MOST_KEPT, _KEPT_NUMBERS = 1024, 2**16  # draws, and numbers in all, that a prediction is made of
_FOR_CENTERING = 64  # draws whose gradients tell how centred latents are to be, where nothing else needs them
_NO_COUNTS = Counts()


class Objective:
    """ELBO, gradient and Hessian-vector products on fixed noise, by two compiled programs; counts its evaluations.

    Until `exact_products` is set, products are one-sided differences of gradients: accurate enough for the first climb,
    as cheap as one gradient, and without compilation. Afterwards they are exact, or central differences for targets of
    order 1.
    """

    def __init__(
        self, target: AbstractTarget, q: Family, key, capacity: int, groups: Groups = ONE_GROUP, at_once: int = CHUNK
    ):
        self.target, self.q, self.key, self.capacity = target, q, key, capacity
        self.path = q.path
        self.dimension, self.num_params, self.dtype = q.noise_size, q.num_params, np.dtype(q.params.dtype)
        self.resolution = float(np.finfo(self.dtype).eps)
        self.num_score_params = q.num_score_params
        self.pathwise_params = q.pathwise_params
        self._max_abs_params = q.max_abs_params
        host = self.path if isinstance(self.path, HostPath) else None
        match = None if host is None else host.match
        before = not q.reparameterised
        self.source = NoiseSource(target, key, capacity, q.pathwise_columns, self.dtype, before, match, groups)
        self.moment_size = self.dimension if host is None else host.moment_size
        self.expandable = isinstance(self.path, ExpandablePath) and self.dimension <= LARGEST_HESSIAN
        self.expansion: Expansion | None = None
        self.corrects = True  # whether the expansion is used as control variate; it is always used as metric
        self._units: FixedNoise | None = None
        self.counts = CallCounts()
        self.difference: Difference | None = None  # what fresh draws add, where the target is a sample of rows
        # For rows of the Hessian at the mean, and for the expected Hessian.
        wanted = self.dimension
        if self.dimension <= _LARGEST_WIDENED:
            wanted = max(correction_draws(self.dimension), min(_MOST_KEPT, _KEPT_NUMBERS // self.dimension))
        known = host is not None and host.gaussian and self.dimension <= _LARGEST_WIDENED
        wanted = wanted if self.expandable or known else _kept_for_centering(q)
        num_kept = min(-(-wanted // CHUNK), self.source.size) if isinstance(self.path, HostPath) else 0
        self._num_kept = num_kept
        self.sweeps = Sweeps(target, q, self.source.size, Plan(num_kept, groups, at_once))
        # One-sided differences of gradients need double precision.
        self.always_exact = target.order == 1 or self.dtype != np.float64
        self.exact_products = self.always_exact

    def noise(self, before, stream, num_draws: int, num_parts: int = 2, match=True, correct=True) -> FixedNoise:
        """Fresh noise (`NoiseSource.draw`), with the expansion as control variate if `correct`."""
        excess, path, expansion = None, self.path, self.expansion
        # With as many pairs as dimensions in each part the excess is rounding, which a resumed run would not repeat.
        matched = match is True and not self.source.target.minibatched
        exact = matched and num_draws >= 2 * self.moment_size * num_parts
        if correct and not exact and self.corrects and expansion is not None and isinstance(path, ExpandablePath):
            excess = lambda values: Excess(path, expansion.hessian, values)  # noqa: E731
        return self.source.draw(before, stream, num_draws, num_parts, match, excess)

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def __call__(self, params: np.ndarray, fixed: FixedNoise) -> FixedDrawsModel:
        """The local model at `params`."""
        self._count(fixed)
        path = self.path
        c = path.coordinates(params)
        found, kept = self.sweeps.gradients_and_kept(c, fixed.buffer)
        log_p = found.values.reshape(-1)[: fixed.num_draws]
        part_slopes = found.part_grads[: fixed.num_parts] * (fixed.num_parts / fixed.num_chunks)
        weighted = None
        if found.weights is None:
            # Faster than numpy's `mean`, whose overhead matters for small problems.
            value, slope = log_p.sum() / len(log_p), part_slopes.sum(0) / fixed.num_parts
        else:
            weights = found.weights.reshape(-1)[: fixed.num_draws]
            part_weights = found.weight_grads[: fixed.num_parts] * (fixed.num_parts / fixed.num_chunks)
            part_slopes, weighted = Weighted.make(log_p, weights, part_slopes, part_weights)
            value, slope = weighted.mean, weighted.grad
        if isinstance(path, HostPath):
            exact, exact_grad, spreads = path.entropy(params), path.entropy_gradient(params), path.spreads(params)
        else:
            exact, exact_grad = float(found.exact), found.exact_grad
            diagonals = [np.diagonal(block, axis1=-2, axis2=-1).ravel() for block in found.fisher.blocks]
            spreads = np.concatenate(diagonals) ** -0.5
        less = slope
        if fixed.excess is not None:
            excess = fixed.excess.gradient(c)
            value, less = value - c @ excess / 2, slope - excess
        raw_grad = path.gradient(params, less)
        grad = raw_grad + exact_grad
        hessian = FixedDrawsHessian(self, params, fixed, slope, grad, raw_grad, spreads, weighted)
        # On fixed noise the value is deterministic; its error as an estimate of the true ELBO is in `PartNoise`.
        return FixedDrawsModel(
            float(value + exact),
            0.0,
            grad,
            hessian,
            found.fisher,
            PartNoise(hessian, part_slopes),
            log_p,
            _NO_COUNTS,
            fixed=fixed,
            slope=less,
            exact=exact,
            kept_slopes=kept if self._num_kept else None,
        )

    def product(self, at: FixedDrawsHessian, direction: np.ndarray) -> np.ndarray:
        """The Hessian times `direction`."""
        params, fixed, path = at.params, at.fixed, self.path
        if not isinstance(path, HostPath) and not self._has_products:
            return self._difference_of_gradients(at, direction)
        tangent = path.tangent(params, direction)
        if not self.exact_products:
            share = _STEP / np.max(np.abs(direction / at.spreads))
            bent = (self._slope(path.coordinates(params) + share * tangent, fixed) - at.slope) / share
        elif not self._has_products:
            share = _DIFFERENCE / np.max(np.abs(direction / at.spreads))
            ahead, behind = (self._slope(path.coordinates(params) + s * share * tangent, fixed) for s in (1, -1))
            bent = (ahead - behind) / (2 * share)
        else:
            self._count(fixed, products=True)
            found = self.sweeps.products(path.coordinates(params), tangent, fixed.buffer)
            bent = found.product / fixed.num_chunks
            if at.weighted is not None:
                bent = at.weighted.product(bent, found.weight_product / fixed.num_chunks, direction)
            if found.exact_product is not None:
                return path.product(params, direction, at.raw_grad, bent) + found.exact_product
        if fixed.excess is not None:
            bent = bent - fixed.excess.gradient(tangent)
        return path.product(params, direction, at.raw_grad, bent + at.of_more(tangent))

    def expected_hessian_times(self, local: FixedDrawsModel, v: np.ndarray) -> np.ndarray:
        """The expected Hessian of ln p at the q of a local model times a vector of coordinates."""
        path = self.path
        # Other normal distributions have their means first.
        location = path.location if isinstance(path, NormalPath) else lambda w: w[: self.dimension]
        direction = np.zeros(self.num_params)
        location(direction)[:] = v
        return location(self.product(local.curvature, direction))

    def _slope(self, c: np.ndarray, fixed: FixedNoise) -> np.ndarray:
        """The gradient of the mean of ln p in the coordinates."""
        self._count(fixed)
        return self.sweeps.gradients(c, fixed.buffer).part_grads.sum(0) / fixed.num_chunks

    def _difference_of_gradients(self, at: FixedDrawsHessian, direction: np.ndarray) -> np.ndarray:
        """A product where programs compute the whole gradient: by differences of it."""
        largest = np.max(np.abs(direction / at.spreads))
        if not self.exact_products:
            share = _STEP / largest
            return (self(at.params + share * direction, at.fixed).grad - at.grad) / share
        share = _DIFFERENCE / largest
        ahead, behind = (self(at.params + side * share * direction, at.fixed).grad for side in (1, -1))
        return (ahead - behind) / (2 * share)

    def admit(self, params: np.ndarray) -> np.ndarray:
        """The nearest parameters within bounds, which keep logits finite where a value is almost certain."""
        return np.clip(params, -self._max_abs_params, self._max_abs_params)

    def misled(self, local: FixedDrawsModel) -> bool:
        """Whether the control variate adds noise to the value instead of removing it, since q has moved away from H0.

        K is indefinite. For a quadratic ln p it removes the error of the draws; otherwise it adds a quadratic to the
        ELBO, and where ln p falls more slowly than H0 predicts, the sum grows without bound with the scales. Noise with
        at least as many pairs as dimensions has K = 0.
        """
        fixed, num_pairs = local.fixed, local.fixed.num_draws // 2
        if fixed.excess is None or num_pairs >= fixed.num_parts * self.dimension:
            return False
        excess = local.part_excess(num_pairs, mirrored=True)
        assert excess is not None
        means = local.part_means(num_pairs)
        plain, corrected = np.var(means, ddof=1), np.var(means - excess, ddof=1)
        return not corrected <= max(_MISLED * plain, _MISLED_ERROR**2 * num_pairs)

    # -- the Hessian at the mean --------------------------------------------------------------------------------------

    def expand(self, params: np.ndarray) -> None:
        """Compute the Hessian of ln p at the mean of q, for use as control variate and metric."""
        assert isinstance(self.path, ExpandablePath)
        slab = self._num_kept * CHUNK
        slabs = [np.arange(at, min(at + slab, self.dimension)) for at in range(0, self.dimension, slab)]
        hessian = np.concatenate([self._hessian_rows(self.path, params, rows) for rows in slabs])
        self.expansion = Expansion(hessian, self.path.sds(params))

    def _hessian_rows(self, path: ExpandablePath, params: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Rows of the Hessian at the mean: one draw per row, whose noise is a unit vector."""
        fixed = self._unit_vectors(rows)
        if self._has_products:
            self._count(fixed, products=True)
            return self.sweeps.products_at(path.at_mean(params), path.along_noise(), fixed.buffer)[: len(rows)]
        # Central differences of the gradient along each coordinate.
        self._count(fixed)
        self._count(fixed)
        sigma = path.sds(params)
        points = (path.at_mean(params, side * _DIFFERENCE * sigma) for side in (1, -1))
        ahead, behind = (self.sweeps.gradients_at(point, fixed.buffer) for point in points)
        return (ahead - behind)[: len(rows)] / (2 * _DIFFERENCE * sigma[rows, None])

    def _unit_vectors(self, rows: np.ndarray) -> FixedNoise:
        """Noise whose rows are unit vectors; cached where a single chunk holds them all."""
        if self._units is not None:
            return self._units
        along = np.zeros((len(rows), self.dimension))
        along[np.arange(len(rows)), rows] = 1.0
        fixed = self.source.fixed(np.zeros(self.num_params), along, 1)
        if self.dimension <= CHUNK:
            self._units = fixed
        return fixed

    # -- programs -----------------------------------------------------------------------------------------------------

    def follow(self, q: Family) -> None:
        """Evaluate with the centring of q, a value of the programs, not part of their structure."""
        if centering_of(q) is not centering_of(self.q):
            self.q = q
            self.sweeps.arrays = self.sweeps.inputs(self.target, q)[1]

    def compile(self, params: np.ndarray) -> None:
        """Compile the gradient program while SciPy reads its table of Sobol numbers, once per process.

        A sweep over zero draws compiles the program without other work.
        """
        if sobol_net.cache_info().currsize:
            return
        reading = threading.Thread(target=sobol_net, args=(1, 1))
        reading.start()
        nothing = self.source.fixed(params, np.zeros((0, self.dimension)), 2)
        self.sweeps.gradients(self.path.coordinates(params), nothing.buffer)
        reading.join()

    @property
    def _has_products(self) -> bool:
        return self.exact_products and self.target.order > 1

    def _count(self, fixed: FixedNoise, products: bool = False) -> None:
        num_draws = fixed.num_chunks * CHUNK
        self.counts = self.counts.plus(hvp=num_draws) if products else self.counts.plus(num_draws, num_draws)


def _kept_for_centering(q: Family) -> int:
    """Draws of which each is kept where lambdas are learned: only all of a climb together have matched moments."""
    return 0 if centering_of(q) is None else max(_FOR_CENTERING, 2 ** math.ceil(math.log2(q.min_draws + 1)))
