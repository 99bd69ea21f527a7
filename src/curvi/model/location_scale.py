"""Latents that stand, given other latents, at a location and on a scale: a ~ Normal(loc, tau), element by element.

In unconstrained coordinates such a latent a may be replaced by

    u = lambda loc + tau^lambda (a - loc) / tau,    so that    a = loc + tau^(1 - lambda) (u - lambda loc),

without a change of the model: lambda = 1 is the model as written, in "centred" form, 0 is the "non-centred" form, in
which u no longer depends on location and scale a priori (Papaspiliopoulos, Roberts and Skold 2007; Gorinova, Moore and
Hoffman 2020). A model may also be written in non-centred form, with a latent z and loc + tau z where it is used. There
z = (u - lambda loc) / tau^lambda: u is the same, and 0 is the model as written.
"""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi.model import support as supports_of
from curvi.model.latents import Latent
from curvi.model.slices import behind
from curvi.model.tracing import convert


class LocationScale(eqx.Module):
    """The location and the scale of one latent.

    Attributes
    ----------
    name
        The latent.
    parents
        The latents from which location and scale are computed.
    standardised
        Whether the model is written in non-centred form: the latent is the distance from the location in scales.
    function
        Takes the dict of parents, returns location and scale in the shape of the latent; None in a fit that was read
        from a file without its target.
    """

    name: str = eqx.field(static=True)
    parents: tuple[str, ...] = eqx.field(static=True)
    standardised: bool = eqx.field(static=True)
    function: Callable | None

    def at(self, theta: Mapping[str, Array]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """The location and the logarithm of the scale, given the parents."""
        if self.function is None:
            raise ValueError(
                f"'{self.name}' is drawn around a location that the model computes, which a file does not hold: "
                "curvi.load(path, target=target)"
            )
        loc, scale = self.function({name: theta[name] for name in self.parents})
        return loc, jnp.log(scale)

    def __call__(self, u: Array | np.ndarray, amount: Array, theta: Mapping[str, Array]):
        """The latent in unconstrained coordinates at u for this lambda, and the log Jacobian."""
        loc, log_scale = self.at(theta)
        loc, log_scale = loc.astype(u.dtype), log_scale.astype(u.dtype)
        power = -amount if self.standardised else 1 - amount
        value = (u - amount * loc) * jnp.exp(power * log_scale)
        return value if self.standardised else loc + value, jnp.sum(power * log_scale)


def read_location_scale(functions, latents: tuple[Latent, ...], init) -> tuple[LocationScale, ...]:
    """What the functions of the latents in `functions` say, each after all its parents; ValueError for a mismatch.

    `functions` has, by the name of a latent, a function of the dict of latents that returns location and scale; or that
    function with True, for a latent that is the distance from the location in scales.
    """
    known, found = {latent.name: latent for latent in latents}, {}
    for name, given in dict(functions or {}).items():
        function, standardised = given if isinstance(given, tuple) else (given, False)
        if name not in known:
            raise ValueError(f"location_scale names '{name}', which is not in init; init has {', '.join(known)}")
        if (why := why_not_centered(known[name])) is not None:
            raise ValueError(why)
        found[name] = _traced(known[name], function, standardised, init)
    return _after_parents(found, tuple(known))


def why_not_centered(latent: Latent) -> str | None:
    """Why a latent cannot have a location and a scale in unconstrained coordinates; None if it can."""
    if supports_of.is_real(latent.support) or supports_of.is_positive(latent.support):
        return None
    return (
        f"'{latent.name}' cannot be centred: it has support {supports_of.describe(latent.support)}, and only real and "
        "positive latents have a location and a scale on the unconstrained line"
    )


def _traced(latent: Latent, function: Callable, standardised: bool, init) -> LocationScale:
    if not callable(function):
        raise ValueError(
            f"location_scale of '{latent.name}' must be a function of the dict of latents that returns location and "
            f"scale; got {type(function).__name__}"
        )

    def both(theta):
        loc, scale = function(theta)
        return tuple(jnp.broadcast_to(part, latent.shape) for part in (loc, scale))

    names = sorted(init)  # the order in which JAX flattens a dict
    program = jax.make_jaxpr(both)(dict(init)).jaxpr
    _, read = behind(program, program.outvars)
    parents = tuple(name for name, var in zip(names, program.invars) if var in read)
    if latent.name in parents:
        raise ValueError(f"location and scale of '{latent.name}' must not depend on '{latent.name}' itself")
    if not parents:
        raise ValueError(
            f"location and scale of '{latent.name}' depend on no other latent: centring would change nothing but units"
        )
    blank = {name: value for name, value in init.items() if name not in parents}
    traced = convert(lambda theta: both({**blank, **theta}), {name: init[name] for name in parents})
    return LocationScale(latent.name, parents, standardised, traced)


def _after_parents(found: dict[str, LocationScale], names: tuple[str, ...]) -> tuple[LocationScale, ...]:
    """The sites, each after those that it depends on, else in the order of the latents."""
    left, ordered = [name for name in names if name in found], []
    while left:
        ready = next((name for name in left if not set(found[name].parents) & set(left)), None)
        if ready is None:
            raise ValueError(f"locations and scales of {', '.join(left)} depend on each other in a circle")
        left.remove(ready)
        ordered.append(found[ready])
    return tuple(ordered)


def location_scale_of(target) -> tuple[LocationScale, ...]:
    """The latents of a target of which location and scale are known."""
    return getattr(target, "location_scale", ())
