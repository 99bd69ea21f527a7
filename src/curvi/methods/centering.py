"""The centring that a fit is asked for."""

from collections.abc import Mapping

import numpy as np

from curvi.family import Family
from curvi.family.centering import Centering, centerable, centering_of, with_centering
from curvi.family.normal_path import NormalPath
from curvi.methods.base import Method
from curvi.model.location_scale import location_scale_of
from curvi.model.target import AbstractTarget

LEARN, OFF = "learn", "off"
MIDDLE = 0.5  # where a search begins


def first_centering(
    target: AbstractTarget, q: Family, wanted: str | bool | Mapping | None, method: Method, given: bool
) -> tuple[Family, bool]:
    """q with the centring to start from, and whether the method is to learn it.

    `given` says that q is the user's instance, which is left as it is unless centring is asked for.
    """
    asked = wanted == LEARN or isinstance(wanted, Mapping)
    if wanted is not None and wanted is not False and wanted != OFF and not asked:
        raise ValueError(
            f'centering must be "learn", "off", or a dict of lambdas by latent, from 0 (non-centred) to 1 (centred); '
            f"got {wanted!r}"
        )
    sites = location_scale_of(target)
    if not asked and (wanted is not None or given or not sites):
        return q, False
    if not hasattr(q, "centering"):
        if asked:
            raise ValueError(f"a {type(q).__name__} has no centring; use MeanField or FullRank, or leave centering out")
        return q, False
    known = centerable(q, sites)
    if isinstance(wanted, Mapping):
        if method.needs.separable:
            raise ValueError(f"{type(method).__name__} takes latents as they are written; leave centering out")
        return _given(target, q, wanted, known), False
    why = _why_not_learned(q, method)
    if why is not None and asked and sites:
        raise ValueError(why)
    if why is not None or not known:
        return q, False
    q = _as_written(target, q, known)
    return q.recentered(np.full(len(centering_of(q).vector()), MIDDLE)), True  # pyright: ignore[reportOptionalMemberAccess]


def _why_not_learned(q: Family, method: Method) -> str | None:
    if not method.learns_centering:
        return (
            f"{type(method).__name__} does not learn a centring: give lambdas, centering={{name: lambda}}, or use the "
            "default method for log densities with derivatives"
        )
    if not isinstance(q.path, NormalPath):
        return (
            "centring is learned by a mean field of Normal factors for continuous latents alone, from which other "
            "families start; give lambdas, centering={name: lambda}"
        )
    return None


def _as_written(target: AbstractTarget, q: Family, sites) -> Family:
    if centering_of(q) is not None:
        return q
    shapes = {latent.name: latent.shape for latent in target.latents}
    return with_centering(q, Centering.as_written(sites, shapes, q.params.dtype))


def _given(target: AbstractTarget, q: Family, wanted: Mapping, sites) -> Family:
    """q with these lambdas; other sites as they are written."""
    names = [site.name for site in sites]
    latents = {latent.name: latent for latent in target.latents}
    amounts = {}
    for name, amount in wanted.items():
        if name not in names:
            reason = (
                f"there is no latent of that name; latents are {', '.join(latents)}"
                if name not in latents
                else "the model does not show it as drawn around a location, on a scale, that are latent themselves"
                + (f"; it shows {', '.join(names)}" if names else "")
            )
            raise ValueError(f"centering names '{name}', which cannot be centred: {reason}")
        values, shape = np.asarray(amount, float), latents[name].shape
        if values.shape not in ((), shape):
            raise ValueError(
                f"centering of '{name}' must be one number, or one per element, of shape {shape}; got {values.shape}"
            )
        if not np.all((values >= 0) & (values <= 1)):
            raise ValueError(f"centering of '{name}' must lie between 0 (non-centred) and 1 (centred); got {amount!r}")
        amounts[name] = np.broadcast_to(values, shape)
    if not amounts:
        return q
    q = _as_written(target, q, sites)
    centering = centering_of(q)
    assert centering is not None
    parts = [amounts.get(site.name, np.asarray(old)) for site, old in zip(centering.sites, centering.amounts)]
    return q.recentered(np.concatenate([np.ravel(part) for part in parts]))
