"""The positions of the latents of a target in a draw and in the parameters of a factorised q."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import biject_to

from curvi.family.centering import Centering
from curvi.family.continuous import Normal
from curvi.family.discrete import Bernoulli, Categorical, Poisson
from curvi.family.factor import Factor
from curvi.model import support as supports
from curvi.model.latents import Latent
from curvi.model.target import AbstractTarget
from curvi.record.plain import register
from curvi.solve.truncated_cg import Array as AnyArray

_PARAMS = ("", "spread of ", "skewness of ", "tail of ")  # of a reparameterised factor, in labels


@register
@dataclasses.dataclass(frozen=True)
class Slot:
    """The position of one latent: `count` factors of a group from `start` on; `pushed` through a bijection or not."""

    latent: Latent
    group: int
    start: int
    count: int
    pushed: bool

    @property
    def working_shape(self) -> tuple[int, ...]:
        """The shape of the latent in working coordinates."""
        return biject_to(self.latent.support).inverse_shape(self.latent.shape) if self.pushed else self.latent.shape

    def elements(self) -> list[str]:
        """The names of all elements, "x[2]"; that of the latent where a bijection mixes its elements."""
        name, shape = self.latent.name, self.latent.shape
        if not shape or self.count != math.prod(shape):
            return [name] * self.count
        return [f"{name}[{', '.join(map(str, at))}]" for at in itertools.product(*map(range, shape))]


@register
@dataclasses.dataclass(frozen=True)
class Layout:
    """Static structure of a mean field: a factor and a count per group, a slot per latent."""

    factors: tuple[Factor, ...]
    counts: tuple[int, ...]
    slots: tuple[Slot, ...]

    @property
    def groups(self) -> list[tuple[Factor, int]]:
        return list(zip(self.factors, self.counts, strict=True))

    @property
    def latents(self) -> tuple[Latent, ...]:
        return tuple(slot.latent for slot in self.slots)

    def factor_of(self, slot: Slot) -> Factor:
        return self.factors[slot.group]

    def factors_by_name(self) -> dict[str, Factor]:
        return {slot.latent.name: self.factor_of(slot) for slot in self.slots}

    def parameter_slices(self) -> dict[str, slice]:
        """The positions of each latent's parameters in the flat vector."""
        sizes = [factor.num_params * n for factor, n in self.groups]
        offsets = np.cumsum([0, *sizes])
        out = {}
        for slot in self.slots:
            k = self.factor_of(slot).num_params
            begin = int(offsets[slot.group]) + slot.start * k
            out[slot.latent.name] = slice(begin, begin + slot.count * k)
        return out

    @property
    def num_params(self) -> int:
        return sum(factor.num_params * n for factor, n in self.groups)

    def subset(self, names: set[str]) -> "Layout":
        """The layout of some of the latents."""
        grouped: dict[Factor, int] = {}
        counts: list[int] = []
        slots = []
        for slot in self.slots:
            if slot.latent.name in names:
                group = grouped.setdefault(self.factor_of(slot), len(grouped))
                if group == len(counts):
                    counts.append(0)
                slots.append(dataclasses.replace(slot, group=group, start=counts[group]))
                counts[group] += slot.count
        return Layout(tuple(grouped), tuple(counts), tuple(slots))

    def to_model(
        self, x: tuple[AnyArray, ...], dtype, centering: Centering | None = None
    ) -> tuple[dict[str, Array], Float[Array, ""]]:
        """The dict of latents on the model's supports, and the log Jacobian of the map to them: first the centring,
        then the bijections.
        """
        theta, log_det = {}, jnp.zeros((), dtype)
        slots = self.slots
        if centering is not None:
            slots = sorted(slots, key=lambda slot: centering.place(slot.latent.name))
        for slot in slots:
            latent = slot.latent
            part = x[slot.group][slot.start : slot.start + slot.count]
            if centering is not None and (found := centering.of(latent.name)) is not None:
                site, amount = found
                part, more = site(part.reshape(latent.shape), amount, theta)
                log_det = log_det + more.astype(log_det.dtype)
            if slot.pushed:
                transform = biject_to(latent.support)
                part = part.reshape(transform.inverse_shape(latent.shape))
                value = transform(part)
                # Some of numpyro's bijections return JAX's default floating-point type.
                log_det = log_det + jnp.sum(transform.log_abs_det_jacobian(part, value)).astype(log_det.dtype)
            else:
                value = part.reshape(latent.shape)
            theta[latent.name] = value.astype(latent.dtype)
        return {slot.latent.name: theta[slot.latent.name] for slot in self.slots}, log_det

    # -- names --------------------------------------------------------------------------------------------------------

    def elements(self) -> list[str]:
        """The element of a latent that each parameter belongs to."""
        labels, places = [""] * self.num_params, self.parameter_slices()
        for slot in self.slots:
            k, place, names = self.factor_of(slot).num_params, places[slot.latent.name], slot.elements()
            for number in range(k):
                labels[place.start + number : place.stop : k] = names
        return labels

    def parameter_labels(self) -> list[str]:
        """ "a[0]" for the location of a factor, "spread of a[0]" for its scale, and so on.

        Where a bijection mixes the elements of a latent (a simplex), its unconstrained coordinates are numbered:
        "a~[0]".
        """

        def label(slot: Slot, index: int, number: int) -> str:
            shape = slot.working_shape
            name = slot.latent.name if shape == slot.latent.shape else f"{slot.latent.name}~"
            at = f"{name}[{','.join(map(str, np.unravel_index(index, shape)))}]" if shape else name
            if not self.factor_of(slot).reparameterised:
                return f"parameter {number} of {at}"
            return _PARAMS[number] + at

        return self._named(label)

    def _named(self, label: Callable[[Slot, int, int], str]) -> list[str]:
        """`label(slot, index of the element, number of the parameter in its factor)` of every parameter."""
        labels = [""] * self.num_params
        places = self.parameter_slices()
        for slot in self.slots:
            k, start = self.factor_of(slot).num_params, places[slot.latent.name].start
            for index in range(slot.count):
                for number in range(k):
                    labels[start + index * k + number] = label(slot, index, number)
        return labels

    def by_param(self, kind: Callable[[Factor], object]) -> np.ndarray:
        """One entry per parameter: `kind` of its factor, one for all of its parameters or one each."""
        return np.concatenate([np.tile(np.broadcast_to(kind(f), f.num_params), n) for f, n in self.groups])  # pyright: ignore

    def by_noise_column(self, weights: np.ndarray) -> np.ndarray | None:
        """Weights of the parameters from weights of the columns of the noise; None if a factor has several columns."""
        if len(weights) != sum(self.counts):
            return None
        ends = np.cumsum([0, *self.counts])
        return np.concatenate([np.repeat(weights[a:b], f.num_params) for a, b, f in zip(ends, ends[1:], self.factors)])

    def location_params(self) -> np.ndarray:
        """One entry per parameter: False for the spreads of factors that have one."""
        moves = []
        for factor, n in self.groups:
            has_spread = factor.real_line or factor.reparameterised
            moves.append(np.tile(np.arange(factor.num_params) < (1 if has_spread else factor.num_params), n))
        return np.concatenate(moves)

    def largest_exponent(self, params: np.ndarray) -> float:
        """The largest of the ln scales and of the likely draws that a bijection maps to a support."""
        largest, places = -np.inf, self.parameter_slices()
        for slot in self.slots:
            if not (factor := self.factor_of(slot)).location_scale:
                continue
            mean, log_scale = params[places[slot.latent.name]].reshape(-1, factor.num_params).T[:2]
            reached = np.max(np.abs(mean) + 3 * np.exp(log_scale)) if slot.pushed else -np.inf
            largest = max(largest, float(log_scale.max()), float(reached))
        return largest


def lay_out(target: AbstractTarget, factors: Mapping[str, Factor]) -> tuple[Layout, np.ndarray]:
    """The layout of these factors, with defaults for unnamed latents, and the parameters at the target's start."""
    names = [latent.name for latent in target.latents]
    if unknown := sorted(set(factors) - set(names)):
        raise ValueError(
            f"factors names latents that the target does not have: {', '.join(unknown)}; it has {', '.join(names)}"
        )
    grouped: dict[Factor, int] = {}
    counts: list[int] = []
    slots, starts = [], []
    for latent in target.latents:
        factor = _resolve(latent, factors.get(latent.name))
        pushed = factor.real_line and not supports.is_real(latent.support)
        value = target.init[latent.name]
        working = supports.to_real(latent.support, value) if pushed else np.asarray(value)
        working = working.reshape(-1, *factor.event_shape)
        with np.errstate(all="ignore"):  # values that are not finite raise an error below
            params = _inside(factor.start(working).astype(target.dtype), latent)
        group = grouped.setdefault(factor, len(grouped))
        if group == len(counts):
            counts.append(0)
            starts.append([])
        slots.append(Slot(latent, group, counts[group], working.shape[0], pushed))
        counts[group] += working.shape[0]
        starts[group].append(params)
    params = np.concatenate([part.ravel() for parts in starts for part in parts])
    return Layout(tuple(grouped), tuple(counts), tuple(slots)), params


def _resolve(latent: Latent, factor: Factor | None) -> Factor:
    if factor is not None:
        if not isinstance(factor, Factor):
            raise ValueError(f"the factor of latent '{latent.name}' must be one of curvi.factors; got {factor!r}")
        resolved = factor.resolve(latent.support, latent.shape)
        if resolved is None:
            raise factor.misfit(latent.name, latent.support)
        return resolved
    defaults = (Bernoulli(), Categorical(), Poisson()) if latent.discrete else (Normal(),)
    for candidate in defaults:
        if (resolved := candidate.resolve(latent.support, latent.shape)) is not None:
            return resolved
    raise ValueError(
        f"latent '{latent.name}' has support {supports.describe(latent.support)}, for which there is no factor; "
        "use a boolean, bounded integer, count or continuous support, or marginalise the latent out of the model"
    )


def _inside(params, latent: Latent):
    """The start parameters; ValueError if `init` lies on the edge of its support (0 for a positive latent)."""
    # A host-side check: jnp's would compile two small programs per latent.
    if np.all(np.isfinite(np.asarray(params))):
        return params
    raise ValueError(
        f"init of latent '{latent.name}' lies on the edge of its support ({supports.describe(latent.support)}); "
        "give a start strictly inside"
    )
