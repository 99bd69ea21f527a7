"""Shrinkage of a regressed curvature by cross-validation between two halves of the draws."""

from typing import NamedTuple

import numpy as np

from curvi.estimate.main_effects import MainEffects, main_effects
from curvi.estimate.pairs import PairFit, PairLayout, fit_pairs, pair_part

_LARGEST_UNCONFIRMED = 0.9


class Curvature(NamedTuple):
    """B after shrinkage.

    Attributes
    ----------
    pairs
        B times `shrinkage`, with eigenvalues below one unless half samples confirm larger ones; None for zero.
    control
        B as regressed, the best coefficients for the products as control variates; None for zero.
    shrinkage
        The share of B from one half of the draws that the other half confirms, 0 (noise) to 1.
    """

    pairs: np.ndarray | None
    control: np.ndarray | None
    shrinkage: float


NO_CURVATURE = Curvature(None, None, 0.0)


def shrunk_curvature(found: PairFit, scores, response, weights, layout: PairLayout) -> Curvature:
    """The curvature of a regression, shrunk by its noise; on the host.

    The ridge, chosen by leave-one-out, shrinks B towards zero. Half samples check it: B from one half predicts part of
    the response in the other, and the slope of the response on that prediction is one if the ridge was right, and less
    if noise was fitted.
    """
    if found.pairs is None or not np.isfinite(found.ridge):
        return NO_CURVATURE
    halves = [(scores[i::2], response[i::2], weights[i::2]) for i in (0, 1)]
    fits = [fit_pairs(*half, layout, ridge=found.ridge).pairs for half in halves]
    mains = [main_effects(np, *half) for half in halves]
    slopes = [_slope(mains[1 - i], fits[i]) for i in (0, 1)]
    shrinkage = float(np.clip(np.mean(slopes), 0.0, 1.0))
    pairs = shrinkage * found.pairs
    # An eigenvalue of one or more makes the ELBO convex along its direction. The largest eigenvalue of a noisy matrix
    # is biased upwards; the curvature in one half along the eigenvector from the other is not.
    values, vectors = np.linalg.eigh(pairs)
    if values[-1] > _LARGEST_UNCONFIRMED:
        confirmed = np.mean([_curvature_along(mains[1 - i], fits[i], layout) for i in (0, 1)])
        if confirmed < 1:
            pairs = (vectors * np.minimum(values, _LARGEST_UNCONFIRMED)) @ vectors.T
    return Curvature(pairs, found.pairs, shrinkage)


def _slope(main: MainEffects, pairs) -> float:
    """Least-squares slope of the response on s~' B s~ / 2, after removing main effects from both."""
    predicted = main.project(main.root * pair_part(main.scores, pairs))
    size = predicted @ predicted
    return float(predicted @ main.residual / size) if size > 0 else 0.0


def _curvature_along(main: MainEffects, pairs, layout: PairLayout) -> float:
    """v' B v estimated on these draws, with v the leading eigenvector of `pairs`, which was fitted on others."""
    v = np.linalg.eigh(pairs)[1][:, -1]
    square = np.outer(v, v) * layout.across
    return _slope(main, square) * float(np.sum(square**2))
