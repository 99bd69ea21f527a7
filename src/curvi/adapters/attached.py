"""Fits that answer in ArviZ's container, for those who come from another library.

The arguments are checked before the model is converted, since that takes seconds. The caller sees a container of draws
rather than the fit, so what speaks against the draws is logged.
"""

import inspect
import logging

import jax

from curvi.diagnostics.kinds import known_kind
from curvi.fit import fit as fit_target
from curvi.record.checkpoint import check_key
from curvi.report.arviz import find_arviz
from curvi.results import Fit

_OPTIONS = tuple(name for name in inspect.signature(fit_target).parameters if name not in ("target", "key"))
_log = logging.getLogger("curvi")


def check_options(caller: str, options: dict, num_draws: int, kind: str | None) -> None:
    """Raise TypeError or ValueError for arguments that no fit takes, ImportError without ArviZ."""
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise TypeError(
            f"{caller} takes no argument {', '.join(map(repr, unknown))}; the draws are num_draws, predictive and "
            f"kind, and of curvi.fit it takes key, {', '.join(_OPTIONS)}"
        )
    if not isinstance(num_draws, int) or isinstance(num_draws, bool) or num_draws < 1:
        raise ValueError(f"num_draws must be a positive integer; got {num_draws!r}")
    if kind is not None:
        known_kind(kind)
    find_arviz()


def chosen_key(key, random_seed: int | None, options: dict):
    """The key of a fit: the given one, that of a seed, or that of seed 0; None where the fit goes on from another."""
    if random_seed is not None and key is not None:
        raise ValueError("key and random_seed both say what is random; leave one of them out")
    if random_seed is not None and (not isinstance(random_seed, int) or isinstance(random_seed, bool)):
        raise ValueError(f"random_seed must be an integer or None; got {random_seed!r}")
    if key is None and (random_seed is not None or options.get("start") is None):
        return jax.random.key(random_seed or 0)
    if key is not None:
        check_key(key)
    return key


def fitted_draws(target, key, num_draws: int, predictive: bool, kind: str | None, options: dict):
    """The draws of a fit in ArviZ's container, with the fit attached as `curvi_fit`."""
    fit = fit_target(target, key=key, **options)
    _say(fit)
    key_draw = None if key is None else jax.random.fold_in(key, 1)
    return attach(fit.to_arviz(num_draws, key_draw, predictive, kind), fit)


def attach(data, fit: Fit):
    """The container with the attribute `curvi_fit`.

    Groups and attributes of files cannot hold a fit. A DataTree refuses attributes set in the usual way, since they
    might be meant as variables.
    """
    object.__setattr__(data, "curvi_fit", fit)
    return data


def _say(fit: Fit) -> None:
    check = fit.posterior_check  # its answer is among the attributes of the draws
    if not fit.converged:
        _log.warning("curvi: the fit did not converge: %s", fit.outcome.message)
    elif check.answer == "doubtful":
        _log.warning("curvi: the posterior is doubtful: %s. %s", "; ".join(check.reasons), check.next)
