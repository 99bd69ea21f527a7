"""What linear response makes of a fit: its Hessian, kept with the fit, and the corrected normal distribution."""

from typing import TYPE_CHECKING

import jax
import numpy as np

from curvi.diagnostics.hessian import WhitenedHessian
from curvi.diagnostics.linear_response import Covariance, linear_response, response_sd
from curvi.diagnostics.streamed_response import is_large, streamed_response
from curvi.family import Family
from curvi.family.corrected import NormalWithCovariance, not_normal

if TYPE_CHECKING:
    from curvi.results import Fit

_FREE = 40_000  # evaluations of the model that sds may take unasked, however cheap the fit was
_MOST_JOINT = 8192  # coordinates whose joint covariance is stored
_STORED = 4_000_000


def curvature_of(fit: "Fit", purpose: str = "linear response") -> WhitenedHessian:
    """The whitened Hessian at the q of a fit, with draws that cost at most what the fit has cost; made once."""
    if "_curvature" not in vars(fit):
        vars(fit)["_curvature"] = WhitenedHessian(fit.target, fit.q, jax.random.key(0), purpose, fit.counts.evaluations)
    return vars(fit)["_curvature"]


def response_covariance(fit: "Fit", names=None) -> Covariance:
    """The covariance by linear response of all or of the named latents, outputs and elements."""
    if is_large(fit.target, fit.q):
        return streamed_response(fit.target, fit.q, names)
    return linear_response(fit.target, fit.q, jax.random.key(0), names, curvature_of(fit))


def response_of(fit: "Fit") -> dict[str, np.ndarray]:
    """The sds by linear response of all latents and outputs; computed once."""
    if is_large(fit.target, fit.q):
        return streamed_response(fit.target, fit.q, None).sd()
    if "_response" not in vars(fit):
        vars(fit)["_response"] = response_sd(curvature_of(fit))
    return dict(vars(fit)["_response"])


def affordable_response(fit: "Fit") -> dict[str, np.ndarray]:
    """The same, unasked; ValueError where it would cost much more than the fit."""
    if is_large(fit.target, fit.q):
        return response_of(fit)  # raises, naming what it can do
    spent = max(fit.counts.evaluations, _FREE)
    if (cost := 2 * curvature_of(fit).cost(fit.q.noise_size)) > spent:
        raise ValueError(
            f"it would take about {cost:,} evaluations of the model, more than the fit; "
            'ask for it with fit.sd(kind="linear_response") or fit.covariance(names=...)'
        )
    return response_of(fit)


def corrected(fit: "Fit") -> Family:
    """The normal distribution around q's means with the linear-response covariance, in q's own coordinates."""
    if "_corrected" not in vars(fit):
        curved = curvature_of(fit)
        size = fit.q.noise_size
        if not_normal(fit.q):
            return NormalWithCovariance(fit.q, np.eye(size))  # raises, naming the latents
        if size > _MOST_JOINT:
            raise ValueError(
                f"draws with the covariance of linear response need it for all coordinates together, at most "
                f"{_MOST_JOINT:,}; q has {size:,}: use fit.covariance(names=...) or fit.sd"
            )
        vars(fit)["_corrected"] = NormalWithCovariance(fit.q, working_covariance(curved))
    return vars(fit)["_corrected"]


def working_covariance(curved: WhitenedHessian) -> np.ndarray:
    """The linear-response covariance of q's own coordinates."""
    size = curved.q.noise_size
    most = max(1, _STORED // curved.q.num_params)
    parts = [curved.own_rows(np.arange(at, min(at + most, size))) for at in range(0, size, most)]
    if curved.forms(size):
        half, _ = curved.solve_half(np.concatenate(parts), check=False)
        return half.T @ half
    solved = [curved.solve(part, size)[0] for part in parts]
    covariance = np.concatenate([np.concatenate([rows @ part.T for part in solved], 1) for rows in parts])
    return (covariance + covariance.T) / 2
