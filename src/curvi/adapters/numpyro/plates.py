"""NumPyro models with discrete latents in the rows of a plate, as factors by name.

The factors are the log densities of the sample sites. A discrete latent with one entry per row of a plate is local if
each site either does not depend on it, or has an axis of rows whose entry i depends only on row i of it. That is read
from the traced densities (`row_dependence`), not from the plates, which only declare independence of the sites inside:
a model may still permute rows, or use them outside.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from curvi.adapters.numpyro.row_dependence import MIXED, row_dependence
from curvi.model.factored import FactoredTarget, is_finite
from curvi.model.latents import read_latents
from curvi.model.origin import Origin


def has_rows(site, shape) -> bool:
    """Whether a site has one entry per row of one plate, on the last axis."""
    frames = site["cond_indep_stack"]
    return len(frames) == 1 and frames[0].dim == -1 and shape == (frames[0].size,) and frames[0].size > 1


def add_axes(plates: dict[str, dict[str, int]], name: str, site, shape) -> None:
    """Note the axis of a latent for each plate around it, where it has one entry per row."""
    num_batch = len(shape) - site["fn"].event_dim
    for frame in site["cond_indep_stack"]:
        axis = num_batch + frame.dim
        if axis >= 0 and shape[axis] == frame.size > 1:
            plates.setdefault(frame.name, {})[name] = axis


def factored_target(
    log_probs: Callable,
    init: dict,
    supports: dict,
    candidates: list[str],
    outputs: Callable | None = None,
    origin: Origin | None = None,
    location_scale: dict[str, Callable] | None = None,
) -> FactoredTarget | None:
    """The target with the local latents among the candidates; None if none or all latents are local.

    Parameters
    ----------
    log_probs
        Takes the dict of latents, returns the log densities of the sites by name, not summed. It is traced once.
    init, supports, outputs, origin, location_scale
        As for `FactoredTarget`.
    candidates
        Names of latents with one entry per row of a plate.
    """
    if not candidates:
        return None
    latents, _ = read_latents(init, supports)
    candidates = [latent.name for latent in latents if latent.name in candidates and is_finite(latent)]
    if not candidates:
        return None
    example = {latent.name: jax.ShapeDtypeStruct(latent.shape, latent.dtype) for latent in latents}
    program, shapes = jax.make_jaxpr(log_probs, return_shape=True)(example)
    # JAX flattens dicts in the order of their sorted keys.
    names, sites = sorted(example), sorted(shapes)
    touched = {}
    for latent in candidates:
        found = row_dependence(program.jaxpr, [0 if name == latent else None for name in names])
        if MIXED not in found:
            touched[latent] = {site: axis for site, axis in zip(sites, found) if axis is not None}
    local = [latent for latent in touched if _stands_apart(latent, touched)]
    if not local or len(local) == len(latents):
        return None
    rows_at = {site: axis for latent in local for site, axis in touched[latent].items()}
    evaluate = jaxpr_as_fun(program)

    def log_factors(theta):
        found = dict(zip(sites, evaluate(*(theta[name] for name in names))))
        return {
            # A site without rows is summed over all axes.
            site: jnp.sum(value, tuple(axis for axis in range(value.ndim) if axis != rows_at.get(site)))
            for site, value in found.items()
        }

    named = {latent: tuple(touched[latent]) for latent in local}
    more = {"outputs": outputs, "origin": origin, "location_scale": location_scale}
    return FactoredTarget(log_factors, init, supports, 2, local=named, **more)


def _stands_apart(latent: str, touched: dict[str, dict]) -> bool:
    """Whether a latent affects sites, and none that another latent affects: rows of two latents in one site have no
    separate closed forms.
    """
    others = {site for name, sites in touched.items() if name != latent for site in sites}
    return bool(touched[latent]) and not touched[latent].keys() & others
