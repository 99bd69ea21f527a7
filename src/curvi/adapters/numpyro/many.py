"""One NumPyro model on many data sets: its log density as a function of latents and data."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.util import compute_log_probs

from curvi.adapters.numpyro.checks import is_traced
from curvi.adapters.numpyro.model import from_numpyro, read_sites, trace_of
from curvi.many.readers import READERS, Reading, traced, with_data
from curvi.many.stacking import Group
from curvi.model import support as supports_of
from curvi.model.target import AbstractTarget


def read_numpyro(model, group: Group) -> Reading:
    """The reading of a NumPyro model; ValueError for observations outside of their supports."""

    def target_of(index: int) -> AbstractTarget:
        args, named = group.call(index, on_device)
        return from_numpyro(model, *args, **named)

    on_device = False
    try:
        try:
            sites, template = read_sites(model, *group.call(0)), target_of(0)
        except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):
            on_device = True
            sites, template = read_sites(model, *group.call(0, on_device)), target_of(0)
    except TypeError as error:
        if isinstance(error, jax.errors.JAXTypeError) or "argument" not in str(error):
            raise
        raise ValueError(
            f"the model cannot be called with one entry of each argument ({error}); a log density needs init= as well"
        ) from error

    def joint(theta, *args, **named):
        validation = contextlib.nullcontext() if sites.validate else numpyro.validation_enabled(False)
        with validation, handlers.seed(rng_seed=0):
            return sum(compute_log_probs(model, args, named, theta, sum_log_prob=True)[0].values(), start=0.0)

    def deterministic(theta, *args, **named):
        trace = trace_of(handlers.substitute(model, data=theta), args, named)
        return {name: jnp.asarray(trace[name]["value"]) for name in sites.deterministic}

    outputs = with_data(deterministic, group) if sites.deterministic else None
    reading = traced(group, target_of, with_data(joint, group), outputs)
    if reading.model is None:
        return reading
    if dependent := _check(model, group, sites, template.init):
        return Reading(target_of, None, f"the support of site '{dependent[0]}' depends on the data")
    return reading


def _check(model, group: Group, sites, init: dict) -> list[str]:
    """Names of latents whose supports depend on the data; ValueError where observations lie outside of theirs."""
    observed = {
        name for name, _, support, value in sites.samples if value is not None and not is_traced((value, support))
    }
    dependent: list[str] = []

    def inside(data):
        args, named = group.build(data)
        found = {}
        dependent.clear()
        for name, site in trace_of(handlers.substitute(model, data=init), args, named).items():
            if site["type"] != "sample":
                continue
            support = site["fn"].support
            if not site["is_observed"]:
                dependent.extend([name] if is_traced(support) else [])
            elif name in observed and not _is_masked(site["fn"]) and not supports_of.is_real(support):
                found[name] = jnp.all(supports_of.elementwise(support)(site["value"]))
        return found

    example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), group.data)
    if not jax.eval_shape(inside, example):
        return dependent
    for name, fine in jax.device_get(jax.jit(jax.vmap(inside))(group.data)).items():
        if not np.all(fine):
            bad = group.members[~np.asarray(fine)]
            raise ValueError(
                f"observations of site '{name}' lie outside their support in {len(bad):,} data sets, the first of them "
                f"number {bad[0]}; correct the data or the distribution"
            )
    return dependent


def _is_masked(fn) -> bool:
    while fn is not None:
        if isinstance(fn, dist.MaskedDistribution):
            return True
        fn = getattr(fn, "base_dist", None)
    return False


READERS["numpyro"] = read_numpyro
