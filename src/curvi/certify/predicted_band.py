"""What a banded precision along a chain would gain over independent normal factors, from few products.

A product along each global coordinate has its whole column of the expected precision P; one along every (2 w + 1)-th
element of the chain has the bands of all of them, if P is a band of width w there. Then -ln det(P) / 2 follows from a
banded Cholesky factor. One more product, along random signs v, shows what P has outside of the band B: what that adds
to ln det(P) / 2 is about v' B^-1 (P - B) v / 2.
"""

from collections.abc import Callable

import numpy as np
from scipy.linalg import cho_solve_banded, cholesky_banded

from curvi.certify.predicted import UNKNOWN_GAIN, PredictedGain
from curvi.family.chain import Chain

_FALSE = 0.2  # nats, and share of the gain: an error from which the gain is unknown, since P is no band


def predict_band(
    product: Callable[[np.ndarray], np.ndarray], sds: np.ndarray, chain: Chain, most: int
) -> PredictedGain:
    """The predicted gain of a banded precision over a mean field at its optimum; unknown where it would take more than
    `most` products, or where the precision is no band.

    `product` multiplies the expected Hessian of ln p with a vector of coordinates, of which q has these sds.
    """
    g, width, length, order = chain.num_global, chain.width, chain.length, chain.order()
    period = 2 * width + 1
    if g + period + 1 > most:
        return UNKNOWN_GAIN

    def times(v):
        """The precision in units of the sds, in chain order."""
        whole = np.empty(chain.size)
        whole[order] = v
        return (-sds * product(sds * whole))[order]

    columns = np.array([times(unit) for unit in np.eye(g, chain.size)]).reshape(g, chain.size).T
    band = np.zeros((width + 1, length))  # entry (k, t): row t + k, column t
    for first in range(min(period, length)):
        probe = np.zeros(chain.size)
        at = np.arange(first, length, period)
        probe[g + at] = 1.0
        found = times(probe)[g:]
        for k in range(width + 1):
            inside = at[at + k < length]
            band[k, inside] = found[inside + k]
    diagonal = np.concatenate([np.diag(columns[:g]), band[0]])
    if not np.all(np.isfinite(diagonal)) or not np.all(diagonal > 0):
        return UNKNOWN_GAIN
    scale = diagonal**-0.5
    columns = columns * scale[:, None] * scale[:g]
    own = scale[g:]
    for k in range(width + 1):
        band[k, : length - k] *= own[: length - k] * own[k:]
    top, side = (columns[:g] + columns[:g].T) / 2, columns[g:]
    try:
        root = cholesky_banded(band, lower=True)
        solved = cho_solve_banded((root, True), side) if g else np.zeros((length, 0))
        left = np.linalg.cholesky(top - side.T @ solved)
    except np.linalg.LinAlgError:
        return UNKNOWN_GAIN
    nats = float(-np.log(root[0]).sum() - np.log(np.diag(left)).sum())
    v = np.random.default_rng(0).choice([-1.0, 1.0], length)
    missed = own * times(np.concatenate([np.zeros(g), own * v]))[g:] - _band_times(band, v)
    error = abs(float(v @ cho_solve_banded((root, True), missed))) / 2
    if not error <= max(_FALSE, _FALSE * nats):
        return UNKNOWN_GAIN
    inverse = np.linalg.inv(left)
    # Of sds those of the globals, and of a few elements: the rest of the diagonal of the inverse is not needed.
    wider = [np.sqrt((inverse**2).sum(0).max())] if g else []
    for t in np.linspace(0, length - 1, min(length, 16)).astype(int):
        unit = np.zeros(length)
        unit[t] = 1.0
        wider.append(np.sqrt(cho_solve_banded((root, True), unit)[t] + np.sum((inverse @ solved[t]) ** 2)))
    return PredictedGain(max(nats, 0.0), error, float(max(wider)))


def _band_times(band: np.ndarray, v: np.ndarray) -> np.ndarray:
    out = band[0] * v
    for k in range(1, len(band)):
        below = band[k, : len(v) - k]
        out[k:] += below * v[:-k]
        out[:-k] += below * v[k:]
    return out


def predict_regressed(P: np.ndarray, pattern: np.ndarray) -> float:
    """The gain in nats of the normal distribution in which each coordinate i is regressed on the earlier ones j where
    `pattern[i, j]`, as the normal distribution with precision P has these regressions; P has unit diagonal.

    A lower bound of the best gain with this pattern (`predicted_shapes.predict_regressions`), exact where P has the
    pattern, at the cost of two factorisations.
    """
    covariance, root = np.linalg.inv(P), np.zeros_like(P)
    for i, row in enumerate(pattern):
        earlier = np.flatnonzero(row[:i])
        slopes = np.linalg.solve(covariance[np.ix_(earlier, earlier)], covariance[earlier, i])
        root[i, i] = (covariance[i, i] - slopes @ covariance[earlier, i]) ** -0.5
        root[i, earlier] = -slopes * root[i, i]
    scale = np.linalg.inv(root)
    return float(max((len(P) - np.sum((P @ scale) * scale)) / 2 - np.log(np.diag(root)).sum(), 0.0))
