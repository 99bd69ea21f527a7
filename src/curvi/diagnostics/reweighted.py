"""Means, sds and quantiles of the posterior as importance weights of draws see them.

With normalised Pareto-smoothed weights w towards the posterior and v towards q, of draws standardised by q to z, the
moments under w are compared with those of the same draws under v, and the difference is added to q's own, which are
known without noise: where q is the posterior neither the difference nor its error is any noise of the draws. To first
order the errors are

    mean: sqrt(sum (w - v)^2 z^2),    ln sd: sqrt(sum (w - v)^2 (z^2 - 1)^2) / 2.
"""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from curvi.diagnostics.linear_response import by_name
from curvi.diagnostics.moments import MOST_LATENTS, check_probabilities
from curvi.diagnostics.weighted_draws import WeightedDraws
from curvi.estimate.resample import chosen_evenly
from curvi.estimate.sampling import sample
from curvi.estimate.widened_draws import WidenedDraws

if TYPE_CHECKING:
    from curvi.results import Fit

_CHUNK = 256
_STORED, _FEWER = 2**24, 4096  # numbers of stored draws; draws that are chosen of them where there would be more


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


def reweighted(fit: "Fit", found: WeightedDraws | None = None) -> Reweighted:
    """The moments of the weighted draws, in chunks, less those of q; made once for the weights of the fit."""
    if found is None:
        if "_reweighted" not in vars(fit):
            vars(fit)["_reweighted"] = reweighted(fit, fit.weighted_draws)
        return vars(fit)["_reweighted"]
    if fit.q.noise_size > MOST_LATENTS:
        raise ValueError(
            f"{found.effective_draws:,.0f} of {len(found.log_weights):,} draws are effective (k-hat {found.khat:.2f}), "
            f"and of more than {MOST_LATENTS:,} latents no moments are taken under weights"
        )
    names, (mean, sd) = list(fit.mean("q")), (flat(values) for values in (fit.mean("q"), fit.sd("q")))
    weights, own = np.exp(found.log_weights), np.exp(found.log_own)
    drawn, keys = WidenedDraws(fit.q, found.widened), found.keys
    powers = np.zeros((3, 5, len(mean)))
    for at in range(0, len(keys), _CHUNK):
        draws = sample(fit.target, drawn, keys[at : at + _CHUNK])
        with np.errstate(divide="ignore", invalid="ignore"):
            z = (np.concatenate([_rows(draws[name]) for name in names], 1) - mean) / sd
        w, v = weights[at : at + _CHUNK], own[at : at + _CHUNK]
        for power in range(5):
            powers[:, power] += np.stack([w, v, (w - v) ** 2]) @ z**power
    with_weights, without, error = powers
    with np.errstate(divide="ignore", invalid="ignore"):
        variances = [moments[2] - moments[1] ** 2 for moments in (with_weights, without)]
        return Reweighted(
            with_weights[1] - without[1],
            np.sqrt(error[2]),
            np.log(variances[0] / variances[1]) / 2,
            np.sqrt(np.maximum(error[4] - 2 * error[2] + error[0], 0.0)) / 2,
        )


def reweighted_moments(fit: "Fit") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean and sd by name; those of q for what does not vary."""
    found, mean, sd = reweighted(fit), fit.mean("q"), fit.sd("q")
    shift, widening = (np.where(np.isfinite(change), change, 0.0) for change in (found.shift, found.widening))
    shapes = {name: np.shape(value) for name, value in mean.items()}
    shifts, widenings = by_name(shift, shapes), by_name(np.exp(widening), shapes)
    return {name: (mean[name] + sd[name] * shifts[name], sd[name] * widenings[name]) for name in mean}


def reweighted_errors(fit: "Fit") -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """One standard error of each mean and of each sd, both in units of the sd."""
    found, shapes = reweighted(fit), {name: np.shape(value) for name, value in fit.mean("q").items()}
    errors = (found.shift_error * np.exp(-found.widening), found.widening_error)
    means, sds = (by_name(np.where(np.isfinite(error), error, 0.0), shapes) for error in errors)
    return means, sds


def reweighted_quantiles(fit: "Fit", probabilities) -> dict[str, np.ndarray]:
    """Quantiles by name, with a first axis for the probabilities: the values at which the sum of weights gets there."""
    wanted, found = check_probabilities(probabilities), fit.weighted_draws
    weights, keys, out = np.exp(found.log_weights), found.keys, {}
    if len(weights) * fit.q.noise_size > _STORED:
        chosen = chosen_evenly(np.random.default_rng(0), weights, _FEWER)
        weights, keys = np.full(_FEWER, 1 / _FEWER), keys[chosen]
    draws = sample(fit.target, WidenedDraws(fit.q, found.widened), keys)
    for name in fit.mean("q"):
        values = _rows(draws[name])
        order = np.argsort(values, axis=0, kind="stable")
        ends = np.cumsum(weights[order], axis=0)
        middles = ends - weights[order] / 2
        columns = [
            np.interp(wanted, middles[:, i] / ends[-1, i], values[order[:, i], i]) for i in range(values.shape[1])
        ]
        out[name] = np.stack(columns, 1).reshape(len(wanted), *np.shape(draws[name])[1:])
    return out


def flat(values: dict) -> np.ndarray:
    """Arrays by name as one vector."""
    return np.concatenate([np.ravel(np.asarray(value, dtype=float)) for value in values.values()])


def _rows(draws) -> np.ndarray:
    return np.asarray(draws, np.float64).reshape(len(draws), -1)
