"""Ranks of true values among draws, and what their shape says."""

import dataclasses

import numpy as np
from scipy.special import chdtrc, ndtri

BINS = 20
_LEAST_EACH = 5  # expected simulations in a bin, for the chi-square distribution to hold
LEVEL = 0.01  # of a false alarm among all rows of a table
_OUTSIDE = 0.1  # of the true values, beyond the central 90 %


def ranks_among(truth: np.ndarray, draws: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The number of draws below each true value (simulations, ...); ties, as of discrete latents, fall at random."""
    below, equal = (draws < truth[:, None]).sum(1), (draws == truth[:, None]).sum(1)
    return below + rng.integers(0, equal + 1)


def num_bins(num_simulations: int) -> int:
    """Twenty bins, or fewer where they would hold too few."""
    return max(2, min(BINS, num_simulations // _LEAST_EACH))


def counts_of(ranks: np.ndarray, num_draws: int) -> np.ndarray:
    """How many ranks fall into each bin."""
    bins = num_bins(len(ranks))
    return np.bincount(ranks * bins // (num_draws + 1), minlength=bins)


@dataclasses.dataclass(frozen=True)
class Deviation:
    """What the ranks of one parameter say.

    Attributes
    ----------
    p_value
        Of the chi-square test of uniformity over the bins.
    shift, shift_z
        By how many of its sds the true values lie above q in the mean, and the z-score of that.
    spread, spread_z
        The spread of the true values in its sds: one where q is as wide as it should be; and the z-score of that.
    outside
        The share of true values outside its central 90 %.
    wrong
        Whether any of the three tests rejects, at a level that counts all of them in all rows.
    words
        What is wrong, in words; empty where nothing is.
    """

    p_value: float
    shift: float
    shift_z: float
    spread: float
    spread_z: float
    outside: float
    wrong: bool
    words: str


def deviation(ranks: np.ndarray, num_draws: int, num_rows: int) -> Deviation:
    """The tests of one parameter among so many."""
    number = len(ranks)
    counts = counts_of(ranks, num_draws)
    expected = number / len(counts)
    p_value = float(chdtrc(len(counts) - 1, np.sum((counts - expected) ** 2) / expected))
    share = (ranks + 0.5) / (num_draws + 1)
    # Normal scores of uniform ranks are standard normal; one beyond all draws counts as half a draw.
    scores = ndtri(share)
    shift, spread = float(scores.mean()), float(scores.std())
    shift_z, spread_z = shift * number**0.5, (spread**2 - 1) * (number / 2) ** 0.5
    outside = float(np.mean((share < _OUTSIDE / 2) | (share > 1 - _OUTSIDE / 2)))
    level = LEVEL / (3 * num_rows)
    largest = float(-ndtri(level / 2))
    shifted, stretched = abs(shift_z) > largest, abs(spread_z) > largest
    wrong = shifted or stretched or p_value < level
    words = _words(shifted, stretched, shift, spread, outside) if wrong else ""
    return Deviation(p_value, shift, shift_z, spread, spread_z, outside, wrong, words)


def _words(shifted: bool, stretched: bool, shift: float, spread: float, outside: float) -> str:
    found = []
    if stretched:
        kind = "too narrow" if spread > 1 else "too wide"
        found.append(f"{kind}: {100 * outside:.0f} % of the true values lie outside its central 90 %")
    if shifted:
        side = "low" if shift > 0 else "high"
        found.append(f"biased: too {side} by {abs(shift):.2f} of its sds")
    return "; ".join(found) or "of another shape: its ranks are not uniform, though neither shifted nor stretched"
