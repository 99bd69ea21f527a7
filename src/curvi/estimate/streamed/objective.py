"""The ELBO on streamed draws as the host sees it: scalars, and names of what stays on the device."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from curvi.estimate.streamed import programs
from curvi.estimate.streamed.programs import MAX_DRAWS, NUM_PARTS, Judged, Solved
from curvi.estimate.streamed.scores import Scores, scores
from curvi.family import Family
from curvi.model.placement import DRAWS, LATENTS, Placement, on_host
from curvi.model.target import AbstractTarget
from curvi.record.counts import CallCounts

Design = tuple[tuple[int, ...], int]  # the numbers that name a design, and how many draws it has
MAX_PRODUCTS = 200
_ROUNDED = 20  # rounding errors of a sum of many terms, in units of its last digit
_EXACT = 1e-14  # relative rounding of values in double precision, or of compensated sums


@dataclasses.dataclass(frozen=True)
class Look:
    """Value and gradient at one q on one design.

    Attributes
    ----------
    q
        Where.
    stream
        The numbers that name the design.
    values
        (parts, draws): ln p of each draw, in double precision.
    entropy
        H(q).
    grads
        (parts, P): whitened gradients, on the device.
    gradient, noise, noise_gain
        Their mean, a copy of its noise, and half the square of that copy in nats.
    """

    q: Family
    stream: tuple[int, ...]
    values: np.ndarray
    entropy: float
    grads: jax.Array
    gradient: jax.Array
    noise: jax.Array
    noise_gain: float

    @property
    def num_draws(self) -> int:
        return self.values.size

    @property
    def value(self) -> float:
        """The ELBO on this design."""
        return float(self.values.mean()) + self.entropy

    @property
    def value_se(self) -> float:
        """Its standard error, from the independent parts."""
        parts = self.values.mean(1)
        return float(parts.std(ddof=1) / len(parts) ** 0.5) if len(parts) > 1 else float("inf")

    def finite(self) -> bool:
        return bool(np.isfinite(self.value)) and np.isfinite(self.noise_gain if len(self.values) > 1 else 0.0)


class StreamedObjective:
    """The ELBO on stratified draws that are made where they are used; counts its evaluations."""

    def __init__(
        self,
        target: AbstractTarget,
        key,
        chunk: int,
        max_draws: int,
        exact_values: bool,
        placement: Placement | None = None,
    ):
        self.target, self.chunk, self.max_draws, self.placement = target, chunk, max_draws, placement
        self.mesh = None if placement is None else placement.mesh
        self.words = np.asarray(jax.random.key_data(key)).astype(np.uint32)
        self.exact_values = exact_values
        self.resolution = _EXACT if exact_values else _ROUNDED * float(np.finfo(target.dtype).eps)
        self.counts = CallCounts()

    @classmethod
    def of(
        cls,
        target: AbstractTarget,
        q: Family,
        key,
        chunk: int,
        max_draws: int,
        placement: Placement | None = None,
    ) -> "StreamedObjective":
        """The objective of a target, which knows whether its values are exact."""
        exact = jnp.finfo(q.params.dtype).bits >= 64 or jax.eval_shape(target.terms, target.init) is not None
        if placement is not None:  # a chunk is shared by devices, and stays a power of two
            chunk *= 2 ** int(math.log2(placement.size(DRAWS)))
        return cls(target, key, chunk, max_draws, exact, placement)

    def placed(self, q: Family) -> Family:
        """q on the mesh, with its parameters spread over the axis `latents` where that divides their number."""
        place = self.placement
        if place is None or (place.holds(q.params) and (jax.process_count() == 1 or q.params.is_fully_replicated)):
            return q
        # Every process has the whole q, so that one of them can write it.
        divides = q.params.size % (2 * place.size(LATENTS)) == 0 and jax.process_count() == 1
        spread = (LATENTS,) if divides and place.size(LATENTS) > 1 else ()
        return place.put_all(q.replace(place.put(on_host(q.params) if jax.process_count() > 1 else q.params, *spread)))

    def seed(self, stream: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng([*self.words, *stream]).integers(2**32, size=2, dtype=np.uint32)

    def look(self, q: Family, stream: tuple[int, ...], num_draws: int, parts: bool) -> Look:
        """Value and gradient at q, in independent parts where a standard error is asked for."""
        num_parts = NUM_PARTS if parts else 1
        assert num_draws <= MAX_DRAWS
        self.counts = self.counts.plus(log_density=num_draws, gradient=num_draws)
        chunk, q = min(self.chunk, num_draws // num_parts), self.placed(q)
        found = programs.sweep(
            self.target, q, self.seed(stream), np.int32(num_draws), num_parts=num_parts, chunk=chunk, mesh=self.mesh
        )
        gradient, noise, noise_gain = programs.noise_of(found.grads)
        values = np.asarray(found.values, np.float64)[:, : num_draws // num_parts].sum(-1)
        return Look(q, stream, values, float(found.entropy), found.grads, gradient, noise, float(noise_gain))

    def rounding(self, look: Look) -> float:
        """Nats that the rounding of a value may hide."""
        return self.resolution * (abs(look.value) + 1)

    def solve(self, look: Look, few: Design, b, radius: float, residual: float, most=MAX_PRODUCTS):
        """-H x = b at the q of a look, with the curvature of a design of few draws: its stream and their number."""
        stream, num_draws = few
        dtype = look.gradient.dtype
        limits = np.asarray(min(radius, np.finfo(dtype).max / 8), dtype), np.asarray(residual, dtype), np.int32(most)
        solved = programs.solve(
            self.target, look.q, self.seed(stream), np.int32(num_draws), look.gradient, b, *limits,
            chunk=min(self.chunk, num_draws), mesh=self.mesh,
        )  # fmt: skip
        scalars = Solved(None, *jax.device_get(solved[1:]))._replace(x=solved.x)  # pyright: ignore[reportArgumentType]
        self.counts = self.counts.plus(hvp=int(scalars.num_products) * num_draws)
        return scalars

    def scores(self, look: Look) -> Scores:
        """The score gradient on the draws of a look: their values are known already."""
        num_parts, num_draws = look.values.shape
        values = np.zeros((num_parts, MAX_DRAWS // num_parts), look.gradient.dtype)
        values[:, :num_draws] = look.values - look.values.mean()
        chunk = min(self.chunk, num_draws)
        return scores(self.seed(look.stream), jnp.asarray(values), np.int32(num_draws), look.q.noise_size, chunk)

    def judge(self, look: Look, x, copied) -> Judged:
        return Judged(*(number.item() for number in jax.device_get(programs.judge(look.grads, x, copied))))

    def moved(self, q: Family, x, share: float = 1.0) -> Family:
        return programs.moved(q, x, np.asarray(share, x.dtype))

    def slope(self, look: Look, x) -> float:
        """The slope of the ELBO along a whitened step."""
        return float(programs.slopes(look.gradient, look.gradient, look.q, look.q, x)[0])

    def slopes(self, before: Look, after: Look, x) -> tuple[float, float]:
        """The slopes along a whitened step at its start and at its end."""
        first, last = programs.slopes(before.gradient, after.gradient, before.q, after.q, x)
        return float(first), float(last)

    def difference(self, before: Look, after: Look) -> float:
        """The gain from one look to another on the same design, by their values.

        Draw by draw: what one draw lost and another gained is not rounded away.
        """
        return float((after.values - before.values).mean()) + after.entropy - before.entropy

    def gained(self, before: Look, after: Look, x, share: float, tolerance: float) -> float:
        """The same at the end of a step; where the rounding of values exceeds a tenth of the tolerance, by the mean of
        the slopes at both ends.
        """
        if self.rounding(before) <= tolerance / 10 or not after.finite():
            return self.difference(before, after)
        return share * sum(self.slopes(before, after, x)) / 2
