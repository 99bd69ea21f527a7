"""Simulations from the prior of a NumPyro model."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers

from curvi.adapters.numpyro.checks import refuse
from curvi.adapters.numpyro.model import start, trace_of
from curvi.adapters.numpyro.origin import Unobserved
from curvi.calibration.simulators import SIMULATORS, Simulated


def simulate_numpyro(model, args, named, observed, key, num_simulations: int) -> Simulated:
    """Latents and observations of a NumPyro model, drawn from its prior; ValueError where that is not possible."""
    trace = _sites(model, args, named)
    data_names = _observed(trace, observed)
    latents = _latents(trace, data_names)
    with numpyro.validation_enabled(False):

        def one(key):
            drawn = handlers.trace(handlers.seed(Unobserved(model), key)).get_trace(*args, **named)
            return {name: drawn[name]["value"] for name in (*latents, *data_names)}

        values = jax.device_get(jax.jit(jax.vmap(one))(jax.random.split(key, num_simulations)))
    for name, value in values.items():
        if bad := int((~np.isfinite(value)).reshape(num_simulations, -1).any(1).sum()):
            raise ValueError(
                f"site '{name}' is not finite in {bad:,} of {num_simulations:,} simulations from the prior; choose "
                "priors whose data your computer can hold"
            )

    def conditioned(data):
        return handlers.condition(model, data=data)(*args, **named)

    truths = {name: np.asarray(values[name]) for name in latents}
    return Simulated(truths, conditioned, ({name: np.asarray(values[name]) for name in data_names},), {})


def _sites(model, args, named) -> dict:
    """The sites of the model, with latents at their starts: improper priors cannot be drawn from."""
    traces = []

    def run():
        traces.append(trace_of(handlers.substitute(model, substitute_fn=start), args, named))

    jax.eval_shape(run)
    return traces[0]


def _observed(trace, observed) -> list[str]:
    """Names of the sites that are data."""
    sites = [name for name, site in trace.items() if site["type"] == "sample"]
    given = [name for name in sites if trace[name]["is_observed"]]
    if observed is None:
        if not given:
            raise ValueError(
                'no site of the model is observed: name those that are data, as in observed="y"; there are '
                + ", ".join(sites)
            )
        return given
    wanted = [observed] if isinstance(observed, str) else list(observed)
    if unknown := sorted(set(wanted) - set(sites)):
        raise ValueError(f"observed names sites that the model does not have: {', '.join(unknown)}; it has {sites}")
    if left := sorted(set(given) - set(wanted)):
        raise ValueError(f"the model observes {', '.join(left)}, which observed does not name; all data are simulated")
    if len(wanted) == len(sites):
        raise ValueError("observed names every site of the model, so that there is nothing to infer")
    return wanted


def _latents(trace, data_names) -> list[str]:
    """Names of latents and outputs; ValueError for sites that no prior draws."""
    names = []
    for name, site in trace.items():
        refuse(name, site)
        if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
            raise ValueError(f"plate '{name}' is subsampled; calibration simulates whole data sets: leave that out")
        if site["type"] == "deterministic":
            names.append(name)
        if site["type"] != "sample":
            continue
        base = site["fn"]
        while getattr(base, "base_dist", None) is not None:
            if isinstance(base, dist.MaskedDistribution):
                raise ValueError(f"site '{name}' is masked; a prior simulates all of it: leave the mask out")
            base = base.base_dist
        if isinstance(base, dist.Unit) or site.get("scale") is not None:
            raise ValueError(f"site '{name}' changes the density by a factor or a scale, which no prior simulates")
        if isinstance(base, dist.ImproperUniform):
            raise ValueError(
                f"site '{name}' has an improper prior, from which nothing can be simulated; give a proper one"
            )
        if name not in data_names:
            names.append(name)
    return names


SIMULATORS["numpyro"] = simulate_numpyro
