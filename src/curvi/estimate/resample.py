"""Draws of the posterior: those of q, or of the mixture around it, chosen by smoothed importance weights."""

import warnings

import jax
import numpy as np

from curvi.estimate.psis import KHAT_DRAWS, MAX_KHAT, SmoothedWeights, smooth_weights
from curvi.estimate.sampling import densities, sample
from curvi.estimate.widened_draws import WidenedDraws, widened_ratios
from curvi.family import Family
from curvi.model.target import AbstractTarget

_PROPOSALS = 10  # per draw that is wanted


def resample(
    target: AbstractTarget, q: Family, key, num_draws: int, num_proposals: int | None = None
) -> dict[str, np.ndarray]:
    """Draws chosen by smoothed importance weights; see `Fit.resample`. Warns where too few draws are effective."""
    drawn, chosen, weights, _ = _choose(target, q, key, num_draws, num_proposals)
    if weights.khat > MAX_KHAT and not weights.useful:
        warnings.warn(
            f"k-hat is {weights.khat:.2f}: a few draws carry most of the weight, and resampled draws are not draws of "
            'the posterior; fit.sample(key, n, kind="q") gives those of q',
            stacklevel=3,
        )
    return {name: np.asarray(draw) for name, draw in sample(target, drawn, chosen).items()}


def resampled_densities(target: AbstractTarget, q: Family, key, num_draws: int):
    """The draws of `resample`, with ln p and the log density that they follow: that of the proposals times the
    smoothed weights, which is p itself, normalised, but for the largest weights.
    """
    drawn, chosen, _, log_weights = _choose(target, q, key, num_draws, None)
    log_p, log_proposal = (np.asarray(values, np.float64) for values in densities(target, drawn, chosen))
    draws = {name: np.asarray(draw) for name, draw in sample(target, drawn, chosen).items()}
    return draws, log_p, log_proposal + log_weights


def _choose(target, q, key, num_draws, num_proposals) -> tuple[WidenedDraws, jax.Array, SmoothedWeights, np.ndarray]:
    """The proposals, the keys of the chosen ones, all weights, and those of the chosen ones times their number."""
    wanted = max(_PROPOSALS * num_draws, KHAT_DRAWS) if num_proposals is None else num_proposals
    if num_draws < 1 or wanted < num_draws:
        raise ValueError(f"num_draws must be from 1 to num_proposals; got {num_draws} of {wanted}")
    key_propose, key_choose = jax.random.split(key)
    keys, drawn = jax.random.split(key_propose, wanted), WidenedDraws(q)
    weights = smooth_weights(widened_ratios(target, drawn, keys)[0])
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key_choose)).astype(np.uint32))
    chosen = chosen_evenly(rng, np.exp(weights.log_weights), num_draws)
    return drawn, keys[chosen], weights, weights.log_weights[chosen] + np.log(wanted)


def chosen_evenly(rng: np.random.Generator, weights: np.ndarray, count: int) -> np.ndarray:
    """Indices in random order, each as often as its weight times `count`, rounded up or down (systematic resampling):
    less noise than independent choices, and the same expectations.
    """
    ends = np.cumsum(weights)
    places = (np.arange(count) + rng.uniform()) / count * ends[-1]
    return rng.permutation(np.minimum(np.searchsorted(ends, places, side="right"), len(weights) - 1))
