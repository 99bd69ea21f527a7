"""Residuals of draws that all but determine their own fit, by cross-validation.

Leave-one-out residuals in closed form say nothing of such a draw: without it, the coefficient that it determines has no
estimate at all. These draws are left out a part at a time, and predicted by fits to all others, in which a score that
does not vary has the coefficient zero. Where the draws of discrete latents repeat, the draws that do not are of this
kind: to take their residuals for those of the others, which have copies, would mean that what is rare is known well.
"""

import numpy as np

from curvi.estimate.pairs import PairFit, PairLayout, fit_pairs, pair_part

_NUM_PARTS = 8
_LITTLE_INFORMATION = 0.1  # one minus the leverage


def with_left_out_parts(found: PairFit, scores, response, weights, layout: PairLayout) -> PairFit:
    """The fit with the residuals of such draws from fits to other draws; on the host."""
    alone = np.flatnonzero(found.leverage > 1 - _LITTLE_INFORMATION)
    products = found.pairs is not None and bool(np.isfinite(found.ridge))
    ridge = found.ridge if products else None
    weights = weights / np.mean(weights)
    left_out = np.array(found.left_out)
    for out in (alone[part::_NUM_PARTS] for part in range(min(_NUM_PARTS, len(alone)))):
        rest = np.delete(np.arange(len(response)), out)
        if len(rest) == 0:
            left_out[:] = np.inf
            break
        fit = fit_pairs(scores[rest], response[rest], weights[rest], layout, products=products, ridge=ridge)
        predicted = fit.value + scores[out] @ fit.linear + (pair_part(scores[out], fit.pairs) if products else 0.0)
        left_out[out] = np.sqrt(weights[out]) * (response[out] - predicted)
    with np.errstate(invalid="ignore"):
        value_se = np.sqrt(np.sum(weights * left_out**2)) / np.sum(weights)
        return found._replace(left_out=left_out, value_se=value_se, residual_variance=np.mean(left_out**2))
