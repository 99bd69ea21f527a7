"""R-hat and effective sample sizes of Markov chains, rank-normalised, element by element.

References
----------
Vehtari, Gelman, Simpson, Carpenter, Bürkner (2021), "Rank-normalization, folding, and localization: an improved R-hat",
Bayesian Analysis 16(2).
"""

import numpy as np
import scipy  # its statistics are imported where they are first used: they take as long as all of curvi
from scipy.fft import next_fast_len
from scipy.special import ndtri

_CHUNK = 64  # elements at a time, so that memory does not grow with their number
TAILS = (0.05, 0.95)


def diagnose(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """R-hat and the effective sizes of bulk and tail of draws (chains, draws, ...), each with the shape of one draw.

    Not a number for elements that are constant or not finite, and with fewer than four draws a chain.
    """
    shape, flat = draws.shape[2:], np.asarray(draws, np.float64).reshape(*draws.shape[:2], -1)
    found = np.full((3, flat.shape[-1]), np.nan)
    if flat.shape[1] >= 4:
        for begin in range(0, flat.shape[-1], _CHUNK):
            part = flat[:, :, begin : begin + _CHUNK]
            known = np.all(np.isfinite(part), (0, 1)) & np.any(part != part[:1, :1], (0, 1))
            if known.any():
                found[:, begin : begin + _CHUNK][:, known] = _diagnose(part[:, :, known])
    r_hat, bulk, tail = (row.reshape(shape) for row in found)
    return r_hat, bulk, tail


def _diagnose(draws):
    halves = split_chains(draws)
    ranked = _normal_scores(halves)
    folded = _normal_scores(np.abs(halves - np.median(halves, (0, 1))))
    tails = [split_chains((draws <= np.quantile(draws, p, (0, 1))).astype(float)) for p in TAILS]
    r_hat = np.maximum(potential_scale_reduction(ranked), potential_scale_reduction(folded))
    return r_hat, effective_size(ranked), np.min([effective_size(tail) for tail in tails], 0)


def split_chains(draws: np.ndarray) -> np.ndarray:
    """Each chain as two: its first and its last half, without the middle draw of an odd number."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


def _normal_scores(draws):
    ranks = scipy.stats.rankdata(draws.reshape(-1, draws.shape[-1]), axis=0).reshape(draws.shape)
    return ndtri((ranks - 0.375) / (draws.shape[0] * draws.shape[1] + 0.25))


def potential_scale_reduction(draws: np.ndarray) -> np.ndarray:
    """The root of the ratio of the variance of all draws to that within chains (chains, draws, elements)."""
    within = draws.var(1, ddof=1).mean(0)
    between = draws.mean(1).var(0, ddof=1)
    num_draws = draws.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((num_draws - 1) / num_draws + between / within)


def effective_size(draws: np.ndarray) -> np.ndarray:
    """The effective number of draws (chains, draws, elements) for the mean of each element, by Geyer's initial monotone
    sequence of sums of two autocorrelations.
    """
    num_chains, num_draws = draws.shape[:2]
    total = num_chains * num_draws
    covariance = _autocovariance(draws).mean(0)
    within = covariance[0] * num_draws / (num_draws - 1)
    overall = covariance[0] + (draws.mean(1).var(0, ddof=1) if num_chains > 1 else 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = 1 - (within - covariance) / overall
    correlation[0] = 1.0
    pairs = correlation[: num_draws // 2 * 2].reshape(num_draws // 2, 2, -1)
    sums = pairs.sum(1)
    # One pair, that of lag 0, is always there; the sequence ends before the first sum that is not positive.
    used = np.logical_and.accumulate(sums > 0)
    used[0] = True
    monotone = np.minimum.accumulate(sums)
    ends = np.minimum(used.sum(0), len(pairs) - 1)
    # The even autocorrelation after the end, where positive, lessens the variance for antithetic chains.
    rest = np.maximum(np.take_along_axis(pairs[:, 0], ends[None], 0)[0], 0)
    time = -1 + 2 * np.sum(np.where(used, monotone, 0.0), 0) + rest
    return total / np.maximum(time, 1 / np.log10(total))


def _autocovariance(draws):
    """Autocovariances of each chain at all lags, by the fast Fourier transform."""
    num_draws = draws.shape[1]
    centred = draws - draws.mean(1, keepdims=True)
    length = next_fast_len(2 * num_draws)
    power = np.abs(np.fft.rfft(centred, length, axis=1)) ** 2
    return np.fft.irfft(power, length, axis=1)[:, :num_draws] / num_draws
