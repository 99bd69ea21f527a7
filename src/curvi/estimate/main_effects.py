"""Least squares on an intercept and scores alone: the first part of the regression on pairs."""

from typing import Any, NamedTuple

import numpy as np


class MainEffects(NamedTuple):
    """The regression on the intercept and the scores alone, on rows multiplied by the roots of their weights."""

    scores: Any
    response: Any
    weights: Any
    root: Any
    mean_score: Any
    basis: Any  # orthonormal columns that span intercept and scores
    to_linear: Any  # (P, S): coefficients from responses
    y: Any
    residual: Any
    leverage: Any
    full_rank: Any

    def project(self, z):
        """`z` without its part along intercept and scores."""
        return z - self.basis @ (self.basis.T @ z)


def main_effects(xp, scores, response, weights) -> MainEffects:
    weights = weights / xp.mean(weights)
    root = xp.sqrt(weights)
    mean_score = xp.mean(weights[:, None] * scores, 0)
    y = root * (response - xp.mean(weights * response))
    # Columns are centred, so that a score that does not vary over the draws (a nearly certain bit) drops out instead of
    # being confounded with the intercept.
    left, spread, right = xp.linalg.svd(root[:, None] * (scores - mean_score), full_matrices=False)
    kept = spread > 1e-6 * xp.maximum(xp.max(spread), 1e-3 * scores.shape[0] ** 0.5)
    left = xp.where(kept, left, 0.0)
    to_linear = (right.T * xp.where(kept, 1 / xp.where(kept, spread, 1.0), 0.0)) @ left.T
    basis = xp.concatenate([(root / xp.sqrt(xp.sum(weights)))[:, None], left], 1)
    residual = y - basis @ (basis.T @ y)
    leverage = xp.sum(basis**2, 1)
    return MainEffects(
        scores, response, weights, root, mean_score, basis, to_linear, y, residual, leverage, xp.all(kept)
    )


def slope_map(scores):
    """(P, S): the least-squares slopes of a response on the scores, as a linear map; on the host."""
    ones = np.ones(len(scores))
    return main_effects(np, scores, ones, ones).to_linear
