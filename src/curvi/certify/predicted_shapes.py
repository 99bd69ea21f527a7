"""What a structured covariance would gain over independent factors, as a Gaussian problem solved without model calls.

P is the expected precision at the optimum of a mean field, scaled to unit diagonal: there q is the standard normal, and
a normal q with covariance C has an ELBO higher by

    gain(C) = (d - tr(P C) + ln det C) / 2,

exactly so where the posterior is normal. Its maximum over a family is what that family gains. Where P is not positive
definite it is unknown: not a number.
"""

import numpy as np
import scipy  # `scipy.optimize` is imported where it is first used, since that takes long
from scipy.linalg import eigh

_SMALL = 0.2  # nats: what a rank may leave to the largest one
_HARDLY = 0.02  # nats: gain of one more rank at which no further ones are tried
_LEAST_LOG_SCALE = -6.0  # where a coordinate is made of factors alone, its own scale falls without end
_MAX_STEPS, _DONE = 100, 1e-8


def _scaled(P: np.ndarray) -> np.ndarray | None:
    """P with unit diagonal; None where it is not positive definite."""
    P = np.asarray(P, float)
    if not (np.all(np.isfinite(P)) and np.all(np.diag(P) > 0)):
        return None
    scale = np.diag(P) ** -0.5
    P = P * scale * scale[:, None]
    try:
        np.linalg.cholesky(P)
    except np.linalg.LinAlgError:
        return None
    return P


# -- a triangular scale with zeros ------------------------------------------------------------------------------------


def predict_pattern(P: np.ndarray, pattern: np.ndarray) -> float:
    """The gain in nats of a lower triangular scale L whose entries below the diagonal are free where `pattern` says so,
    in the order of P: full rank, or an arrow.

    Columns of L are independent of each other: each gains -ln(1 - P_jR P_RR^-1 P_Rj) / 2, R the free rows of column j.
    """
    if (scaled := _scaled(P)) is None:
        return np.nan
    P, pattern, size = scaled, np.tril(np.asarray(pattern, bool), -1), len(scaled)
    # Given all later coordinates: one Cholesky factor in reverse order serves every column that is full.
    last = np.diag(np.linalg.cholesky(P[::-1, ::-1]))[::-1] ** 2
    full = pattern.sum(0) == size - 1 - np.arange(size)
    left = np.where(full, last, 1.0)
    for j in np.flatnonzero(~full & pattern.any(0)):
        rows = np.flatnonzero(pattern[:, j])
        left[j] -= P[j, rows] @ np.linalg.solve(P[np.ix_(rows, rows)], P[rows, j])
    return float(max(-0.5 * np.log(left).sum(), 0.0))


# -- regressions of each coordinate on earlier ones -------------------------------------------------------------------


def predict_regressions(P: np.ndarray, pattern: np.ndarray) -> float:
    """The gain in nats of the normal distribution in which each coordinate i is regressed on the earlier ones j where
    `pattern[i, j]`: a lower triangular *inverse* scale, such as a band.

    The earlier coordinates of each i must be tied to each other, as in a band with a border. One natural gradient step
    is exact where P has the pattern; elsewhere a few are needed, each shortened until it gains.
    """
    if (scaled := _scaled(P)) is None:
        return np.nan
    P, size = scaled, len(scaled)
    parents = [np.append(np.flatnonzero(row[:i]), i) for i, row in enumerate(np.asarray(pattern, bool))]
    precision, value = np.eye(size), 0.0
    for _ in range(_MAX_STEPS):
        step = _natural_step(P, precision, parents)
        for share in 0.5 ** np.arange(12):
            found = _gain_of_precision(P, precision + share * step)
            if found > value:
                break
        else:
            break
        precision, gained, value = precision + share * step, found - value, found
        if gained < _DONE:
            break
    return float(max(value, 0.0))


def _gain_of_precision(P: np.ndarray, precision: np.ndarray) -> float:
    try:
        lower = np.linalg.cholesky(precision)
    except np.linalg.LinAlgError:
        return -np.inf
    inverse = np.linalg.inv(lower)
    return (len(P) - np.sum((inverse @ P) * inverse)) / 2 - np.log(np.diag(lower)).sum()


def _natural_step(P: np.ndarray, precision: np.ndarray, parents: list[np.ndarray]) -> np.ndarray:
    """The unit step of the precision along the natural gradient.

    With precision U'U, U lower triangular, the rows of U are independent under the Fisher information: the covariance
    of a coordinate and those that it is regressed on, and 1 / U_ii^2 more for its own entry.
    """
    root = np.linalg.cholesky(precision[::-1, ::-1])[::-1, ::-1].T
    inverse = np.linalg.inv(root)
    covariance = inverse @ inverse.T
    by_root = inverse.T @ P @ covariance - np.diag(1 / np.diag(root))
    step = np.zeros_like(root)
    for i, at in enumerate(parents):
        fisher = covariance[np.ix_(at, at)]
        fisher[-1, -1] += root[i, i] ** -2
        step[i, at] = np.linalg.solve(fisher, by_root[i, at])
    bent = step.T @ root
    return bent + bent.T


# -- a diagonal and a low rank ----------------------------------------------------------------------------------------


def predict_low_rank(P: np.ndarray, rank: int) -> float:
    """The gain in nats of a covariance D^2 + V V', V of this rank."""
    return np.nan if (scaled := _scaled(P)) is None else max(best_of_rank(scaled, rank)[0], 0.0)


def best_low_rank(P: np.ndarray, most: int) -> tuple[int, np.ndarray]:
    """The smallest rank within 0.2 nats of what the largest one gains, or of what a full covariance gains, and the
    gains of ranks 1, 2, ... as far as they were worth trying. Rank 0 and no gains where P is not positive definite.
    """
    if (scaled := _scaled(P)) is None:
        return 0, np.zeros(0)
    full, gains, log_scale = -0.5 * np.linalg.slogdet(scaled)[1], [0.0], None
    for rank in range(1, most + 1):
        gain, log_scale, _ = best_of_rank(scaled, rank, log_scale)
        gains.append(max(gain, gains[-1]))
        if full - gains[-1] < _HARDLY or gains[-1] - gains[-2] < _HARDLY:
            break
    found = np.array(gains)
    return int(np.argmax(found > found[-1] - _SMALL)), found[1:]


def best_of_rank(P: np.ndarray, rank: int, start: np.ndarray | None = None) -> tuple[float, np.ndarray, np.ndarray]:
    """The gain in nats of the best covariance D^2 + V V', ln D, and V (d, rank); P has unit diagonal.

    For given D the best V is known: with D P D = sum_k l_k w_k w_k', l_1 <= l_2 <= ..., it is D W, where column k of W
    has the direction w_k and the length (1/l_k - 1)^(1/2), if l_k < 1. What remains is a smooth function of ln D.
    """
    size = len(P)

    def parts(log_scale):
        scale = np.exp(log_scale)
        scaled = P * np.outer(scale, scale)
        values, vectors = eigh(scaled, subset_by_index=[0, min(rank, size) - 1])
        return scale, scaled, np.minimum(values, 1.0), vectors

    def negative(log_scale):
        scale, scaled, values, vectors = parts(log_scale)
        value = (size - np.trace(scaled)) / 2 + np.log(scale).sum()
        # Each direction gains tr: -(1/l - 1) l / 2, and entropy: -ln(l) / 2.
        value += 0.5 * np.sum(values - 1 - np.log(values))
        return -value, np.diag(scaled) - 1 + (vectors**2) @ (1 - values)  # D_i^2 (P_ii - (C^-1)_ii)

    first = np.zeros(size) if start is None else start
    bounds, options = [(_LEAST_LOG_SCALE, None)] * size, {"maxiter": 300, "maxcor": 20}
    found = scipy.optimize.minimize(negative, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    scale, _, values, vectors = parts(found.x)
    return -float(found.fun), found.x, scale[:, None] * vectors * np.sqrt(1 / values - 1)
