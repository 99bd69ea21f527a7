"""Sites of a NumPyro model of location-scale kind, whose location or scale is computed from other latents."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpyro.distributions as dist
from jax.extend.core import ClosedJaxpr

from curvi.model.slices import as_function

# On the unconstrained line, where LogNormal is Normal.
_KINDS = (dist.Normal, dist.StudentT, dist.Cauchy, dist.Laplace, dist.Logistic, dist.Gumbel, dist.LogNormal)
_WRAPPERS = (dist.Independent, dist.ExpandedDistribution, dist.MaskedDistribution)


def location_and_scale(fn: dist.Distribution) -> tuple[jax.Array, jax.Array] | None:
    """Location and scale of a distribution in unconstrained coordinates; None if it is of another kind."""
    layer: Any = fn
    while isinstance(layer, _WRAPPERS):
        layer = layer.base_dist
    return (layer.loc, layer.scale) if type(layer) in _KINDS else None


def location_scale(program: ClosedJaxpr, values: Mapping[str, int], places: Mapping[str, range]) -> dict[str, Callable]:
    """Location and scale of latents as functions of the dict of latents, for those where they depend on any.

    Parameters
    ----------
    program
        The traced model.
    values
        The places of the values of all latents among its outputs, by name.
    places
        The places of location and scale, by the name of the latent.
    """
    out, found = program.jaxpr.outvars, {}
    named = {name: out[place] for name, place in values.items()}
    for name, pair in places.items():
        function, parents = as_function(program, [out[place] for place in pair], named)
        if parents:
            found[name] = function
    return found
