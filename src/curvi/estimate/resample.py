"""Draws of q, chosen by smoothed importance weights."""

import warnings

import jax
import numpy as np

from curvi.estimate.psis import KHAT_DRAWS, smooth_weights
from curvi.estimate.sampling import _CHUNK, _host_log_ratios, ratios_of_keys, sample
from curvi.family import Family
from curvi.model.target import AbstractTarget


def resample(
    target: AbstractTarget, q: Family, key, num_draws: int, num_proposals: int | None = None
) -> dict[str, np.ndarray]:
    """Draws chosen by smoothed importance weights; see `Fit.resample`."""
    wanted = max(10 * num_draws, KHAT_DRAWS) if num_proposals is None else num_proposals
    if num_draws < 1 or wanted < num_draws:
        raise ValueError(f"num_draws must be from 1 to num_proposals; got {num_draws} of {wanted}")
    key_propose, key_choose = jax.random.split(key)
    keys = jax.random.split(key_propose, -(-wanted // _CHUNK) * _CHUNK)
    # The same keys give the same draws here and in `sample` below.
    black_box = target.black_box
    ratios = _host_log_ratios(target, q, keys[:wanted]) if black_box else ratios_of_keys(target, q, keys)
    weights = smooth_weights(ratios[:wanted])
    if weights.khat > 0.7:
        warnings.warn(
            f"k-hat is {weights.khat:.2f}: a few draws carry most of the weight, and resampled draws are not draws of "
            "the posterior; fit.sample gives those of q",
            stacklevel=3,
        )
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key_choose)).astype(np.uint32))
    chosen = rng.choice(wanted, num_draws, p=np.exp(weights.log_weights))
    draws = sample(target, q, keys[chosen])
    return {name: np.asarray(draw) for name, draw in draws.items()}
