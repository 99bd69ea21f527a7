"""Three answers that a fit gives about the posterior, and which of them is given unasked.

"q"                the fitted distribution.
"linear_response"  q's means, with a covariance corrected for what q leaves out (`curvi.diagnostics.linear_response`).
"reweighted"       draws of q and of wider ones around it, under importance weights (`curvi.diagnostics.reweighted`).

Weights correct every difference between q and the posterior, as far as the draws reach, at the cost of values of the
log density alone. So they are the answer wherever the choice was left to the library and enough draws are effective;
where they are not reliable, the verdict says so (`posterior_check`). Whoever names a family gets it.
"""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from curvi.diagnostics.draws_error import errors_of_moments
from curvi.diagnostics.linear_response import Covariance, sample_covariance
from curvi.diagnostics.moments import mean_and_sd, quantiles
from curvi.diagnostics.response import corrected, response_covariance, response_of
from curvi.diagnostics.reweighted import reweighted_errors, reweighted_moments, reweighted_quantiles
from curvi.diagnostics.weighted_draws import why_not_widened
from curvi.estimate.resample import resample, resampled_densities
from curvi.estimate.sampling import densities, sample
from curvi.family import Family

if TYPE_CHECKING:
    from curvi.results import Fit

KINDS = ("q", "linear_response", "reweighted")
_ALIASES = {"mean_field": "q"}
_COVARIANCE_DRAWS = 4096


def check_kind(fit: "Fit", kind: str | None) -> str:
    """The kind under its own name, that of the fit for None; ValueError for another."""
    return fit.kind if kind is None else known_kind(kind)


def known_kind(kind: str) -> str:
    """The kind under its own name; ValueError for another."""
    kind = _ALIASES.get(kind, kind) if isinstance(kind, str) else kind
    if kind not in KINDS:
        raise ValueError(
            f'kind must be "q" (the fitted distribution; "mean_field" means the same), "reweighted" (draws under '
            f'importance weights) or "linear_response" (corrected for what q leaves out); got {kind!r}'
        )
    return kind


def best_kind(fit: "Fit") -> str:
    """The kind that is given unasked: "reweighted" where the family was the library's choice, the optimum is found,
    and the weights are useful; else "q". Raises nothing.
    """
    left_to_us = fit.checkpoint is not None and len(fit.checkpoint.families) > 1
    if not left_to_us or not fit.converged or fit.target.minibatched or why_not_widened(fit):
        return "q"
    # A model that fails, on the host or in the compiler, may raise anything.
    try:
        found = fit.weighted_draws
    except Exception:
        return "q"
    return "reweighted" if found.widened and found.useful else "q"


def family_of(fit: "Fit", kind: str) -> Family:
    """The distribution of a kind that is one."""
    return corrected(fit) if kind == "linear_response" else fit.q


def draws_of(fit: "Fit", kind: str, keys, key, num_draws: int) -> dict[str, Any]:
    """Draws by name: of the distribution by `keys`, or chosen by weights by `key`."""
    if kind == "reweighted":
        return resample(fit.target, fit.q, key, num_draws)
    return sample(fit.target, family_of(fit, kind), keys)


def draws_and_densities_of(fit: "Fit", kind: str, keys, key, num_draws: int):
    """The draws of `draws_of`, ln p, and the log density that they were drawn from."""
    if kind == "reweighted":
        return resampled_densities(fit.target, fit.q, key, num_draws)
    q = family_of(fit, kind)
    return sample(fit.target, q, keys), *densities(fit.target, q, keys)


def moments_of(fit: "Fit", kind: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean and sd by name; for linear response those of draws of the corrected distribution."""
    if kind == "q":
        return fit.moments_of_q
    return reweighted_moments(fit) if kind == "reweighted" else mean_and_sd(fit.target, corrected(fit))


def sds_of(fit: "Fit", kind: str) -> dict[str, np.ndarray]:
    """Sds by name."""
    if kind == "linear_response":
        return response_of(fit)
    return {name: sd for name, (_, sd) in moments_of(fit, kind).items()}


def quantiles_of(fit: "Fit", probabilities, kind: str) -> dict[str, np.ndarray]:
    """Quantiles by name, with a first axis for the probabilities."""
    if kind == "reweighted":
        return reweighted_quantiles(fit, probabilities)
    return quantiles(fit.target, family_of(fit, kind), probabilities)


def covariance_of(fit: "Fit", kind: str, names) -> Covariance:
    """The joint covariance of all or of the named quantities."""
    if kind == "linear_response":
        return response_covariance(fit, names)
    return sample_covariance(fit.sample(jax.random.key(0), _COVARIANCE_DRAWS, kind), names)


def errors_of(fit: "Fit", kind: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """One standard error of means and of sds from finite draws, in units of the sd."""
    if kind == "reweighted":
        return reweighted_errors(fit)
    if "_errors" not in vars(fit):
        vars(fit)["_errors"] = errors_of_moments(fit)
    return vars(fit)["_errors"]
