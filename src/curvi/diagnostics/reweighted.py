"""Means and sds of the posterior as importance weights of the draws of q see them.

With normalised Pareto-smoothed weights w of N draws, standardised by q to z, the posterior mean is estimated by
sum w z and the variance by sum w z^2 - (sum w z)^2. Both are compared with the same draws without weights, so that
where q is the posterior neither the difference nor its error is any noise of the draws; the errors are

    mean: sqrt(sum (w - 1/N)^2 z^2),    ln sd: sqrt(sum (w - 1/N)^2 (z^2 - 1)^2) / 2.
"""

import dataclasses
from typing import TYPE_CHECKING

import jax
import numpy as np

from curvi.diagnostics.moments import MOST_LATENTS
from curvi.estimate.psis import SmoothedWeights, smooth_weights
from curvi.estimate.sampling import final_draws, sample

if TYPE_CHECKING:
    from curvi.results import Fit

_CHUNK = 256


@dataclasses.dataclass(frozen=True)
class Reweighted:
    """What weights make of q, one number per scalar in the order of `labels_of`.

    Attributes
    ----------
    shift, shift_error
        The change of the mean in sds of q, and its standard error.
    widening, widening_error
        The logarithm of the factor by which the sd changes, and its standard error.
    """

    shift: np.ndarray
    shift_error: np.ndarray
    widening: np.ndarray
    widening_error: np.ndarray


def weights_of(fit: "Fit") -> SmoothedWeights:
    """The smoothed weights of the draws behind k-hat; made once."""
    if "_weights" not in vars(fit):
        vars(fit)["_weights"] = smooth_weights(fit.log_ratios(jax.random.key(0), final_draws(fit.q)))
    return vars(fit)["_weights"]


def reweighted(fit: "Fit") -> Reweighted:
    """The moments of the weighted draws, in chunks, less those without weights."""
    found = weights_of(fit)
    weights = np.exp(found.log_weights)
    count = len(weights)
    if fit.q.noise_size > MOST_LATENTS:
        raise ValueError(
            f"{found.effective_draws:,.0f} of {count:,} draws are effective (k-hat {found.khat:.2f}), and of more than "
            f"{MOST_LATENTS:,} latents no moments are taken under weights"
        )
    plain = np.full(count, 1 / count)
    mean, sd = flat(fit.mean()), flat(fit.sd())
    # The keys of `log_ratios`: the same draws.
    keys = jax.random.split(jax.random.key(0), count)
    powers = np.zeros((3, 5, len(mean)))
    for at in range(0, count, _CHUNK):
        draws = sample(fit.target, fit.q, keys[at : at + _CHUNK])
        with np.errstate(divide="ignore", invalid="ignore"):
            z = (np.concatenate([_rows(draws[name]) for name in fit.mean()], 1) - mean) / sd
        w, p = (values[at : at + _CHUNK] for values in (weights, plain))
        for power in range(5):
            powers[:, power] += np.stack([w, p, (w - p) ** 2]) @ z**power
    with_weights, without, error = powers
    with np.errstate(divide="ignore", invalid="ignore"):
        variances = [moments[2] - moments[1] ** 2 for moments in (with_weights, without)]
        return Reweighted(
            with_weights[1] - without[1],
            np.sqrt(error[2]),
            np.log(variances[0] / variances[1]) / 2,
            np.sqrt(np.maximum(error[4] - 2 * error[2] + error[0], 0.0)) / 2,
        )


def flat(values: dict) -> np.ndarray:
    """Arrays by name as one vector."""
    return np.concatenate([np.ravel(np.asarray(value, dtype=float)) for value in values.values()])


def _rows(draws) -> np.ndarray:
    return np.asarray(draws, np.float64).reshape(len(draws), -1)
