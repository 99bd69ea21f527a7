"""How far latents with a location and a scale are centred: the part of q's map to the model that is learned.

A coordinate u of q stands for a latent a = loc + tau^(1 - lambda) (u - lambda loc) (`curvi.model.location_scale`). The
lambdas are arrays of q, not part of its structure: a program is not compiled again when they change. They are no
variational parameters either. Where tau is certain the ELBO does not depend on them, and a Hessian with such flat
directions would certify nothing.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from curvi.model import support as supports
from curvi.model.location_scale import LocationScale, location_scale_of
from curvi.record.plain import register

if TYPE_CHECKING:
    from curvi.family.base import Family

_ROWS = 64  # draws per pass: one program for all numbers of draws


@register
class Centering(eqx.Module):
    """Sites with a location and a scale, each after its parents, and their lambdas in the shapes of the latents."""

    sites: tuple[LocationScale, ...]
    amounts: tuple[Float[Array, "..."], ...]

    @classmethod
    def as_written(cls, sites: Sequence[LocationScale], shapes: Mapping[str, tuple[int, ...]], dtype) -> "Centering":
        """That of the model as it is written."""
        amounts = (np.full(shapes[site.name], 0.0 if site.standardised else 1.0, dtype) for site in sites)
        return cls(tuple(sites), tuple(jax.device_put(amount) for amount in amounts))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.sites)

    def of(self, name: str) -> tuple[LocationScale, Float[Array, "..."]] | None:
        """The site and the lambda of a latent; None for one that has none."""
        return next(((s, a) for s, a in zip(self.sites, self.amounts) if s.name == name), None)

    def place(self, name: str) -> int:
        """Where a latent stands in the order in which latents are computed: after its parents."""
        return self.names.index(name) if name in self.names else -1

    def vector(self) -> Float[np.ndarray, " E"]:
        """The lambdas of all elements, site after site."""
        return np.concatenate([np.asarray(amount, np.float64).ravel() for amount in self.amounts])

    def with_vector(self, vector: Float[np.ndarray, " E"]) -> Self:
        """The same with these lambdas."""
        ends = np.cumsum([amount.size for amount in self.amounts])
        parts = zip(np.split(vector, ends[:-1]), self.amounts)
        amounts = tuple(jax.device_put(part.reshape(old.shape).astype(old.dtype)) for part, old in parts)
        return eqx.tree_at(lambda c: c.amounts, self, amounts)

    def onto(self, target) -> Self:
        """The same with the functions of another target of the same model."""
        known = {site.name: site for site in location_scale_of(target)}
        return eqx.tree_at(lambda c: c.sites, self, tuple(known.get(site.name, site) for site in self.sites))


def centerable(q, sites: Sequence[LocationScale]) -> tuple[LocationScale, ...]:
    """Those among the sites whose coordinates are unconstrained, with a location and a scale under q."""
    slots = {slot.latent.name: slot for slot in q.layout.slots}
    free = {name for name, slot in slots.items() if slot.pushed or supports.is_real(slot.latent.support)}
    return tuple(s for s in sites if s.name in free and q.layout.factor_of(slots[s.name]).location_scale)


def centering_of(q: "Family") -> Centering | None:
    """The centring of q; None where its coordinates are those of the model."""
    return getattr(q, "centering", None)


def with_centering(q, centering: Centering | None):
    """q with this centring and the same parameters."""
    return replaced(q, centering=centering)


def replaced(q, **changes):
    """q with some of its fields replaced."""
    # Past the initialiser, which takes other arguments than the fields.
    made = object.__new__(type(q))
    for field in dataclasses.fields(q):
        object.__setattr__(made, field.name, changes.get(field.name, getattr(q, field.name)))
    return made


def with_amounts(q, amounts: Float[np.ndarray, " E"]):
    """q with these lambdas and the same parameters."""
    return with_centering(q, q.centering.with_vector(amounts))


def centered_columns(q) -> np.ndarray:
    """The coordinates of the elements of all sites within the group of normal factors, site after site."""
    slots = {slot.latent.name: slot for slot in q.layout.slots}
    ends = [(slots[name].start, slots[name].start + slots[name].count) for name in q.centering.names]
    return np.concatenate([np.arange(*pair) for pair in ends])


def locations(q, noise: Float[np.ndarray, "S n"]) -> np.ndarray:
    """Coordinates, locations and logarithms of scales of the elements of all sites at the draws of some noise, as an
    array (3, S, E).
    """
    count = len(noise)
    padded = np.zeros((-(-count // _ROWS) * _ROWS, q.noise_size))
    padded[:count] = noise
    chunks = np.split(padded.astype(q.params.dtype), len(padded) // _ROWS)
    return np.concatenate([np.asarray(_locations(q, chunk), np.float64) for chunk in chunks], 1)[:, :count]


@eqx.filter_jit
def _locations(q, noise):
    slots = {slot.latent.name: slot for slot in q.layout.slots}

    def one(e):
        x, parts = q.from_uniform(ndtr(e)), []
        theta, _ = q.to_model(x)
        for site in q.centering.sites:
            slot = slots[site.name]
            u = x[slot.group][slot.start : slot.start + slot.count]
            parts.append(jnp.stack([u, *(jnp.ravel(part).astype(u.dtype) for part in site.at(theta))]))
        return jnp.concatenate(parts, 1)

    return jnp.moveaxis(jax.vmap(one)(noise), 1, 0)


def recentered_columns(q, amounts: Float[np.ndarray, " E"]) -> tuple[np.ndarray, np.ndarray]:
    """The medians of the elements of all sites in the coordinates of other lambdas, and the logarithms of the factors
    by which their spreads change, at the medians of locations and scales.
    """
    (u, loc, log_scale), old = locations(q, np.zeros((1, q.noise_size)))[:, 0], q.centering.vector()
    log_factor = (amounts - old) * log_scale
    return amounts * loc + (u - old * loc) * np.exp(log_factor), log_factor


def slope_terms(q, noise: Float[np.ndarray, "S n"]) -> tuple[np.ndarray, np.ndarray]:
    """The parts w and c (S, E) of the derivative of ln p at each draw in the lambda of each element: it is w s + c for
    a gradient s of ln p in the coordinate of the element.

    To move lambda at a fixed coordinate u moves the latent as far as w = -ln tau (u - lambda loc) - loc in the
    coordinate would; and the log Jacobian by c = -ln tau.
    """
    u, loc, log_scale = locations(q, noise)
    return -log_scale * (u - q.centering.vector() * loc) - loc, -log_scale
