"""Fits for ArviZ: InferenceData on ArviZ 0.x, an xarray DataTree on 1.x."""

import importlib
from typing import TYPE_CHECKING

import jax
import numpy as np

from curvi.model.origin import Origin, origin_of
from curvi.record.version import VERSION

if TYPE_CHECKING:
    from curvi.results import Fit


def to_arviz(fit: "Fit", key, num_draws: int, predictive: bool = False, kind: str = "q"):
    """Draws with their ln p and ln q as one chain; see `Fit.to_arviz`."""
    find_arviz()  # before what takes time
    draws, log_p, log_q = fit.draws_and_densities(key, num_draws, kind)
    origin = origin_of(fit.target)
    groups = {"posterior": _chains(draws), "sample_stats": _chains({"lp": log_p, "log_q": log_q})}
    if predictive:
        predicted = fit.predict(jax.random.fold_in(key, 1), draws)
        groups.update({name: _chains(group) for name, group in predicted.items()})
    return container(groups, origin, {**_attributes(fit), "draws": kind})


def container(groups: dict[str, dict], origin: Origin, attributes: dict):
    """Groups of arrays (chains, draws, ...) by name, with what the origin knows of the model, in ArviZ's container."""
    module = find_arviz()
    if origin.observed_data:
        groups = {**groups, "observed_data": dict(origin.observed_data)}
    names = {name for group in groups.values() for name in group}
    options = {
        "dims": {name: list(axes) for name, axes in origin.dims.items() if name in names} or None,
        "coords": dict(origin.coords) or None,
    }
    if _is_old(module):
        return module.from_dict(**groups, **options, attrs=attributes, posterior_attrs=attributes)
    return module.from_dict(groups, **options, attrs={"/": attributes, "posterior": attributes})


def find_arviz():
    """The module of ArviZ that makes containers; ImportError without one."""
    for name in ("arviz", "arviz_base"):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            reason = error
        else:
            return module
    raise ImportError(f"to_arviz needs ArviZ ({reason}): pip install arviz")


def _is_old(module) -> bool:
    """Whether this is ArviZ 0.x, whose `from_dict` takes one keyword per group."""
    return module.__name__ == "arviz" and int(module.__version__.split(".")[0]) < 1


def _chains(group: dict) -> dict[str, np.ndarray]:
    return {name: np.asarray(value)[None] for name, value in group.items()}


def _attributes(fit: "Fit") -> dict:
    """The outcome of the fit, as numbers and strings for NetCDF; whether the posterior is right where that is known."""
    check = vars(fit).get("posterior_check")
    return {
        **({} if check is None else {"posterior_check": check.answer}),
        "inference_library": "curvi",
        "inference_library_version": VERSION,
        "method": type(fit.method).__name__,
        "outcome": fit.outcome.name,
        "converged": int(fit.converged),
        "message": fit.outcome.message,
        "elbo": fit.elbo,
        "elbo_se": fit.elbo_se,
        "remaining_gain": fit.remaining_gain,
        "remaining_gain_se": fit.remaining_gain_se,
        "num_steps": len(fit.history),
        "num_log_density": fit.counts.log_density,
        "num_gradient": fit.counts.gradient,
        "num_hvp": fit.counts.hvp,
        "compile_seconds": fit.seconds.compile,
        "run_seconds": fit.seconds.run,
    }
