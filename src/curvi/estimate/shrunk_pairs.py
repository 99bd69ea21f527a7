"""As much of a regressed curvature as is not noise: what one half of the draws says of it, the other half must see."""

from typing import NamedTuple

import numpy as np

from curvi.estimate.pairs import MainEffects, PairFit, PairLayout, fit_pairs, main_effects, pair_part

_LARGEST_UNCONFIRMED = 0.9


class Curvature(NamedTuple):
    """B as it is used.

    Attributes
    ----------
    pairs
        B times `shrinkage`, kept below one where a half sample does not confirm more; None for zero.
    control
        B as it was regressed, the best multiple of the products to take from the response; None for zero.
    shrinkage
        How much of what one half of the draws says of B the other half sees, 0 (noise) to 1.
    """

    pairs: np.ndarray | None
    control: np.ndarray | None
    shrinkage: float


NO_CURVATURE = Curvature(None, None, 0.0)


def shrunk_curvature(found: PairFit, scores, response, weights, layout: PairLayout) -> Curvature:
    """The curvature of a regression with as much of it as is not noise; on the host.

    The ridge shrinks B towards zero by the noise that leaving out shows. Half samples check it: B from one half
    predicts part of the response in the other, and the slope of the response on that prediction is one where the
    ridge was right, less where noise passed for curvature.
    """
    if found.pairs is None or not np.isfinite(found.ridge):
        return NO_CURVATURE
    halves = [(scores[i::2], response[i::2], weights[i::2]) for i in (0, 1)]
    fits = [fit_pairs(*half, layout, ridge=found.ridge).pairs for half in halves]
    mains = [main_effects(np, *half) for half in halves]
    slopes = [_slope(mains[1 - i], fits[i]) for i in (0, 1)]
    shrinkage = float(np.clip(np.mean(slopes), 0.0, 1.0))
    pairs = shrinkage * found.pairs
    # An eigenvalue of one or more makes the ELBO curve upwards along its direction. The largest of a noisy matrix is
    # too large; what one half sees along the direction that the other one chose is not.
    values, vectors = np.linalg.eigh(pairs)
    if values[-1] > _LARGEST_UNCONFIRMED:
        confirmed = np.mean([_curvature_along(mains[1 - i], fits[i], layout) for i in (0, 1)])
        if confirmed < 1:
            pairs = (vectors * np.minimum(values, _LARGEST_UNCONFIRMED)) @ vectors.T
    return Curvature(pairs, found.pairs, shrinkage)


def _slope(main: MainEffects, pairs) -> float:
    """Least-squares slope of the response on s~' B s~ / 2, main effects taken from both."""
    predicted = main.project(main.root * pair_part(main.scores, pairs))
    size = predicted @ predicted
    return float(predicted @ main.residual / size) if size > 0 else 0.0


def _curvature_along(main: MainEffects, pairs, layout: PairLayout) -> float:
    """v' B v as these draws see it, v the direction of the largest eigenvalue of `pairs`, found on others."""
    v = np.linalg.eigh(pairs)[1][:, -1]
    square = np.outer(v, v) * layout.across
    return _slope(main, square) * float(np.sum(square**2))
