"""The ELBO on fixed noise, as a function of numpy vectors, with what a Newton step needs besides."""

import dataclasses
import functools
import threading
from typing import TypeGuard

import jax
import numpy as np

from curvi.estimate.design import matched_noise
from curvi.estimate.draws import sobol_net
from curvi.estimate.fixed_draws.expansion import Excess, Expansion
from curvi.estimate.fixed_draws.family_sweep import FamilySweeps
from curvi.estimate.fixed_draws.normal_sweep import NormalSweeps, all_normal
from curvi.estimate.fixed_draws.sweep import CHUNK, MOST_PARTS, Buffer, Slopes
from curvi.estimate.hybrid import farthest, noise_columns, num_staying_params
from curvi.family import MeanField
from curvi.model.minibatch import MinibatchTarget
from curvi.model.target import AbstractTarget
from curvi.record.counts import CallCounts

# For targets of order 1: half the length of the steps over which gradients are compared, in sds of q. The error of
# central differences is its square; a kink needs some width to show.
_DIFFERENCE = 0.02
_STEP = 1e-5  # in sds of q, of differences to one side
_LARGEST_HESSIAN = 10_240  # dimensions: two matrices of 840 MB
_COMPILED: set[int] = set()  # what has been compiled: to do nothing twice costs a millisecond


@dataclasses.dataclass(frozen=True)
class FixedNoise:
    """Noise on the host and in the program's buffer, in independent parts of equal size."""

    values: np.ndarray  # (draws, dimension)
    num_parts: int
    buffer: Buffer
    excess: Excess | None  # of the control variate, None without one

    @property
    def num_draws(self) -> int:
        return len(self.values)

    @property
    def num_chunks(self) -> int:
        return -(-len(self.values) // CHUNK)


@dataclasses.dataclass(frozen=True)
class Weighted:
    """A self-normalised mean N / D of weighted draws: what its second derivatives need."""

    mean: float  # N / D
    total: float  # D
    slope: np.ndarray  # gradient of D
    grad: np.ndarray  # gradient of N / D
    weights: np.ndarray

    @property
    def effective(self) -> float:
        """Effective share of the draws."""
        return float(self.total**2 / np.mean(self.weights**2))

    def product(self, bent: np.ndarray, turned: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """The Hessian of N / D times `direction`, of those of N and D."""
        across = self.slope * (self.grad @ direction) + self.grad * (self.slope @ direction)
        return (bent - self.mean * turned - across) / self.total


@dataclasses.dataclass(frozen=True)
class Look:
    """The ELBO on fixed noise at one point: value and gradient."""

    value: float
    grad: np.ndarray
    part_grads: np.ndarray  # the gradient on each part of the noise
    log_p: np.ndarray  # of each draw
    entropy: float
    fisher: list[np.ndarray]  # blocks (n, k, k) a group of factors; empty for normal ones
    scales: np.ndarray | None  # of normal factors
    excess_grad: np.ndarray | float = 0.0  # in ln sigma, of what the control variate took off
    weighted: Weighted | None = None  # for a hybrid q

    @property
    def effective(self) -> float:
        """Effective share of the draws: 1 unless they are weighted."""
        return 1.0 if self.weighted is None else self.weighted.effective

    def part_means(self, num_parts: int) -> np.ndarray:
        """Means of ln p over parts of the draws; to first order where they are weighted, so that parts may be small."""
        if self.weighted is None:
            return self.log_p.reshape(num_parts, -1).mean(1)
        w = self.weighted
        terms = w.mean + w.weights * (self.log_p - w.mean) / w.total
        return terms.reshape(num_parts, -1).mean(1)

    @property
    def normal(self) -> bool:
        """Whether all factors are normal, given by mean and log scale."""
        return self.scales is not None

    @functools.cached_property
    def spreads(self) -> np.ndarray:
        """Steps of one sd of q in each parameter: the inverse root of the Fisher information's diagonal."""
        if self.scales is not None:
            out = np.full(2 * len(self.scales), 2**-0.5)
            out[0::2] = self.scales
            return out
        diagonals = [np.diagonal(block, axis1=-2, axis2=-1).ravel() for block in self.fisher]
        return np.concatenate(diagonals) ** -0.5

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.value) and np.all(np.isfinite(self.grad)))


class Objective:
    """ELBO, gradient and products at any parameters on any noise, by two compiled programs; counts its calls.

    Until `settle`, Hessian products are differences of gradients to one side: good enough for the first climb, as cheap
    as one gradient, and nothing has to be compiled for them. From then on they are exact; for targets of order 1,
    which have no such program, central differences.
    """

    def __init__(self, target: AbstractTarget, q: MeanField, key, capacity: int):
        self.target, self.capacity = target, capacity
        self.matched = noise_columns(q)
        self.num_rare = num_staying_params(q)
        self.follows = np.repeat(*_following(q))  # by parameter: whether its factor is reparameterised
        self._farthest = farthest(q)
        self.dimension, self.num_params = len(self.matched), q.num_params
        self.dtype = np.dtype(q.params.dtype)
        # Words of the key seed the host's generators: every operation of JAX outside the program would cost a
        # compilation.
        self.words = np.asarray(jax.random.key_data(key)).astype(np.uint32)
        self.normal = all_normal(q)
        self.expandable = self.normal and self.dimension <= _LARGEST_HESSIAN
        self.expansion: Expansion | None = None
        self._units: FixedNoise | None = None
        self.counts = CallCounts()
        self.epoch = epoch_draws(target)
        self._size = capacity // CHUNK  # of the buffer, in chunks
        num_kept = min(-(-self.dimension // CHUNK), self._size) if self.expandable else 0
        self._sweeps = (
            NormalSweeps(target, q, self._size, num_kept) if self.normal else FamilySweeps(target, q, self._size)
        )
        # Differences of gradients to one side need the digits of double precision.
        self.settled = target.order == 1 or self.dtype != np.float64

    # -- noise --------------------------------------------------------------------------------------------------------

    def generator(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng([*self.words, *stream])

    def noise(
        self,
        before: np.ndarray,
        stream: tuple[int, ...],
        num_draws: int,
        num_parts: int = 2,
        match: bool = True,
        correct: bool = True,
    ) -> FixedNoise:
        """Fresh noise of `num_draws` draws; the same stream gives the same noise.

        Factors that are not reparameterised are drawn at the parameters `before`. Where the Hessian at the mean is
        known, it serves as control variate, unless `correct` is false.

        Where chunks see batches of their own, each chunk has noise of its own, so that the moments of a batch's draws
        match, too, and no noise is left of a model whose rows are quadratic.
        """
        rng = self.generator(*stream)
        independent = num_draws // CHUNK if self.epoch else num_parts
        values = matched_noise(rng, num_draws, self.dimension, independent, match & self.matched)
        return self._fixed(before, values, min(num_parts, MOST_PARTS), rng, correct)

    def _fixed(self, before: np.ndarray, values: np.ndarray, num_parts: int, rng, correct=False) -> FixedNoise:
        size, num_chunks = self._size, -(-len(values) // CHUNK)
        buffer = np.zeros((size * CHUNK, self.dimension), self.dtype)
        buffer[: len(values)] = values
        part, count = _plan(size, num_chunks, num_parts)
        rows, before = _nothing(size) if self.normal else (_nothing(size)[0], before.astype(self.dtype))
        if _in_batches(self.target):
            rows = self._rows_of_chunks(self.target, np.asarray(part)[:num_chunks], rng)
        # On the device ahead of its use: what a program has to fetch from the host costs it some microseconds.
        noise = jax.device_put(buffer.reshape(size, CHUNK, -1))
        if not self.normal or _in_batches(self.target):
            rows, before = jax.device_put((rows, before))
        device = Buffer(noise, part, count, rows, before)
        excess = self.expansion.excess(values) if self.expansion is not None and correct else None
        return FixedNoise(values, num_parts, device, excess)

    def _rows_of_chunks(self, target: MinibatchTarget, part: np.ndarray, rng) -> np.ndarray:
        """Rows of the batch of each chunk.

        Within a part of the noise, batches follow a random order of all rows, and another where that is at its end:
        a part of one epoch or more has seen all rows about equally often, and the noise of batches is all but gone.
        """
        num_rows, batch_size = target.num_rows, target.batch_size
        rows = np.zeros((self._size, batch_size), np.int32)
        for index in np.unique(part):
            chunks = np.flatnonzero(part == index)
            orders = -(-len(chunks) * batch_size // num_rows)
            stream = np.concatenate([rng.permutation(num_rows) for _ in range(orders)])
            rows[chunks] = stream[: len(chunks) * batch_size].reshape(len(chunks), batch_size)
        return rows

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def __call__(self, params: np.ndarray, noise: FixedNoise) -> Look:
        """Value and gradient at `params`."""
        self._count(noise)
        found = self._sweeps.slopes(params, noise.buffer)
        log_p = found.values.reshape(-1)[: noise.num_draws]
        part_grads = found.part_grads[: noise.num_parts] * (noise.num_parts / noise.num_chunks)
        weighted, excess_grad = None, 0.0
        if found.weights is None:
            # numpy's `mean` takes as long as all else here where dimension and draws are few.
            value, grad = log_p.sum() / len(log_p), part_grads.sum(0) / noise.num_parts
        else:
            part_grads, weighted = _self_normalised(noise, log_p, part_grads, found)
            value, grad = weighted.mean, weighted.grad
        value, grad, part_grads = value + found.exact, grad + found.exact_grad, part_grads + found.exact_grad
        if noise.excess is not None:
            sigma = np.exp(params[1::2])
            excess_grad = sigma * (noise.excess @ sigma)
            value -= excess_grad.sum() / 2
            grad[1::2] -= excess_grad
        exact, fisher = float(found.exact), list(found.fisher)
        return Look(float(value), grad, part_grads, log_p, exact, fisher, found.scales, excess_grad, weighted)

    def product(self, params: np.ndarray, noise: FixedNoise, look: Look, direction: np.ndarray) -> np.ndarray:
        """The Hessian times `direction`, where `look` was taken."""
        if not self.settled:
            share = _STEP / np.max(np.abs(direction / look.spreads))
            return (self._gradient(params + share * direction, noise) - look.grad) / share
        if not self._has_products:
            share = _DIFFERENCE / np.max(np.abs(direction / look.spreads))
            ahead, behind = (self._gradient(params + side * share * direction, noise) for side in (1, -1))
            return (ahead - behind) / (2 * share)
        self._count(noise, products=True)
        found = self._sweeps.bends(params, noise.buffer, direction)
        product = found.product / noise.num_chunks
        if look.weighted is not None and found.weight_product is not None:
            product = look.weighted.product(product, found.weight_product / noise.num_chunks, direction)
        if found.exact_product is not None:
            product = product + found.exact_product
        if noise.excess is not None:
            sigma, along = np.exp(params[1::2]), direction[1::2]
            product[1::2] -= sigma * (noise.excess @ (sigma * along)) + along * look.excess_grad
        return product

    def _gradient(self, params: np.ndarray, noise: FixedNoise) -> np.ndarray:
        """The gradient alone."""
        if not isinstance(self._sweeps, NormalSweeps):
            return self(params, noise).grad
        self._count(noise)
        grad = self._sweeps.gradient(params, noise.buffer) / noise.num_chunks + self._sweeps.entropy_grad
        if noise.excess is not None:
            sigma = np.exp(params[1::2])
            grad[1::2] -= sigma * (noise.excess @ sigma)
        return grad

    def admit(self, params: np.ndarray) -> np.ndarray:
        """The nearest parameters within bounds: logits may not run away where a value is all but certain."""
        return np.clip(params, -self._farthest, self._farthest)

    def corrected_part_grads(self, params: np.ndarray, noise: FixedNoise, look: Look) -> np.ndarray:
        """Gradients of the parts, each less its own excess."""
        if noise.excess is None or self.expansion is None:
            return look.part_grads
        corrected = look.part_grads.copy()
        parts = noise.values.reshape(noise.num_parts, -1, self.dimension)
        corrected[:, 1::2] -= self.expansion.part_excess(parts, np.exp(params[1::2]))[1]
        return corrected

    def expand(self, params: np.ndarray) -> None:
        """Take the Hessian of ln p at the mean of q: it serves as control variate and as metric."""
        assert isinstance(self._sweeps, NormalSweeps)
        mean, sigma = params[0::2], np.exp(params[1::2])
        slab = self._sweeps.num_kept * CHUNK
        slabs = [np.arange(at, min(at + slab, self.dimension)) for at in range(0, self.dimension, slab)]
        hessian = np.concatenate([self._hessian_rows(self._sweeps, mean, sigma, rows) for rows in slabs])
        self.expansion = Expansion(hessian, sigma)

    def _hessian_rows(self, sweeps: NormalSweeps, mean, sigma, rows: np.ndarray) -> np.ndarray:
        """Rows of the Hessian at the mean: one draw a row, its noise the unit vector along its coordinate."""
        noise = self._unit_vectors(rows)
        if self._has_products:
            self._count(noise, products=True)
            return sweeps.products_at(mean, noise.buffer)[: len(rows)]
        # The change of the gradient over a step along the coordinate, a share of its sd.
        self._count(noise)
        self._count(noise)
        ahead, behind = (sweeps.slopes_at(mean, side * _DIFFERENCE * sigma, noise.buffer) for side in (1, -1))
        return (ahead - behind)[: len(rows)] / (2 * _DIFFERENCE * sigma[rows, None])

    def _unit_vectors(self, rows: np.ndarray) -> FixedNoise:
        """Noise that is one unit vector after the other; kept where there is one such buffer only, and it is small."""
        if self._units is not None:
            return self._units
        along = np.zeros((len(rows), self.dimension))
        along[np.arange(len(rows)), rows] = 1.0
        noise = self._fixed(np.zeros(self.num_params), along, 1, self.generator())
        if self.dimension <= CHUNK:
            self._units = noise
        return noise

    # -- programs -----------------------------------------------------------------------------------------------------

    def compile(self, params: np.ndarray) -> None:
        """Compile what is used from the start, unless that was done before.

        A sweep over no draws at all compiles a program and does nothing else.
        """
        sweeps = self._sweeps
        arrays = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(sweeps.arrays))
        known = hash((sweeps.structure, arrays, self._size, self.expandable, self._has_products))
        if known in _COMPILED:
            return
        # SciPy reads its table of Sobol numbers while XLA compiles.
        reading = threading.Thread(target=sobol_net, args=(1, 1))
        reading.start()
        nothing = self._fixed(params, np.zeros((0, self.dimension)), 2, self.generator())
        sweeps.slopes(params, nothing.buffer)
        if self._has_products:
            sweeps.bends(params, nothing.buffer, np.zeros(self.num_params))
        reading.join()
        _COMPILED.add(known)

    def settle(self) -> None:
        """From now on Hessian products are exact."""
        self.settled = True

    @property
    def _has_products(self) -> bool:
        return self.settled and self.target.order > 1

    def _count(self, noise: FixedNoise, products: bool = False) -> None:
        num_draws = noise.num_chunks * CHUNK
        self.counts = self.counts.plus(num_draws, num_draws, num_draws if products else 0)


@functools.lru_cache(maxsize=64)
def _plan(size: int, num_chunks: int, num_parts: int) -> tuple[jax.Array, jax.Array]:
    """To which part of the noise each chunk of a buffer belongs, and how many are in use; on the device, for reuse."""
    part = np.minimum(np.arange(size) * num_parts // max(num_chunks, 1), num_parts - 1).astype(np.int32)
    return jax.device_put((part, np.int32(num_chunks)))


@functools.lru_cache(maxsize=8)
def _nothing(size: int) -> tuple[jax.Array, jax.Array]:
    """In the place of rows where there are no batches, and of earlier parameters where all factors follow them."""
    return jax.device_put((np.zeros((size, 0), np.int32), np.zeros(0)))


def _following(q: MeanField) -> tuple[list[bool], list[int]]:
    factors, counts = q.layout.factors, q.layout.counts
    return [f.reparameterised for f in factors], [f.num_params * n for f, n in zip(factors, counts)]


def _self_normalised(noise: FixedNoise, log_p, part_grads, found: Slopes) -> tuple[np.ndarray, Weighted]:
    """Gradients of the weighted mean of `log_p` on each part of the noise, and that mean on all of it."""
    assert found.weights is not None and found.weight_grads is not None
    w = found.weights.reshape(-1)[: noise.num_draws]
    part_slopes = found.weight_grads[: noise.num_parts] * (noise.num_parts / noise.num_chunks)
    share, total = w.reshape(noise.num_parts, -1), w.mean()
    means = (share * log_p.reshape(noise.num_parts, -1)).mean(1)[:, None] / share.mean(1)[:, None]
    mean, slope = w @ log_p / w.sum(), part_slopes.mean(0)
    grad = (part_grads.mean(0) - mean * slope) / total
    of_parts = (part_grads - means * part_slopes) / share.mean(1)[:, None]
    return of_parts, Weighted(float(mean), float(total), slope, grad, w)


def epoch_draws(target: AbstractTarget) -> int:
    """Draws of as many chunks as it takes batches to see all rows once; 0 where every draw sees them all."""
    return CHUNK * -(-target.num_rows // target.batch_size) if _in_batches(target) else 0


def _in_batches(target: AbstractTarget) -> TypeGuard[MinibatchTarget]:
    return isinstance(target, MinibatchTarget)
