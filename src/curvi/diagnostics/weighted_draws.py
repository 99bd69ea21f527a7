"""Importance weights of a fit: those of 4,096 draws of q, then, where these vary much, those of a wider mixture."""

import dataclasses
from typing import TYPE_CHECKING

import jax
import numpy as np

from curvi.estimate.psis import FEWEST_EFFECTIVE, SmoothedWeights, smooth_weights
from curvi.estimate.sampling import final_draws
from curvi.estimate.widened_draws import WidenedDraws, widened_ratios
from curvi.record.plain import register

if TYPE_CHECKING:
    from curvi.results import Fit

# Looks at the mixture, each with draws of its own, until one is reliable or the next one would hardly be.
LOOKS = (4096, 16_384, 65_536)
_CLOSE = 0.9  # share of effective draws from which wider ones cannot show more
_MOST_WIDENED = 1024  # latents: with more, the wider parts of the mixture hardly ever meet q's


@register
@dataclasses.dataclass(frozen=True)
class WeightedDraws:
    """Weights of draws around q, without the draws: their keys make them again.

    Attributes
    ----------
    log_weights, log_own
        Normalised logarithms of the weights towards the posterior, smoothed, and towards q itself.
    khat
        The tail shape of the weights.
    widened
        Whether the draws are those of the mixture around q, rather than of q.
    seed
        The seed of their keys.
    """

    log_weights: np.ndarray
    log_own: np.ndarray
    khat: float
    widened: bool
    seed: int

    @property
    def smoothed(self) -> SmoothedWeights:
        return SmoothedWeights(self.log_weights, self.khat)

    @property
    def effective_draws(self) -> float:
        return self.smoothed.effective_draws

    @property
    def reliable(self) -> bool:
        """Whether moments under these weights are those of the posterior (`SmoothedWeights.reliable`)."""
        return self.smoothed.reliable

    @property
    def useful(self) -> bool:
        """Whether they are at least nearer to it than those of q (`SmoothedWeights.useful`)."""
        return self.smoothed.useful

    @property
    def keys(self) -> jax.Array:
        return _keys(self.seed, len(self.log_weights))


def _keys(seed: int, count: int) -> jax.Array:
    return jax.random.split(jax.random.key(seed), count)


def weights_of(fit: "Fit") -> SmoothedWeights:
    """The smoothed weights of the draws of q behind k-hat; made once."""
    if "_weights" not in vars(fit):
        vars(fit)["_weights"] = smooth_weights(fit.log_ratios(jax.random.key(0), final_draws(fit.q)))
    return vars(fit)["_weights"]


def weighted_draws(fit: "Fit") -> WeightedDraws:
    """The best weights that a fit has."""
    found = weights_of(fit)
    count = len(found.log_weights)
    plain = WeightedDraws(found.log_weights, np.full(count, -np.log(count)), found.khat, False, 0)
    if found.effective_draws >= _CLOSE * count or why_not_widened(fit):
        return plain
    drawn, best = WidenedDraws(fit.q), plain
    for seed, count in enumerate(LOOKS, 1):
        log_ratios, log_own = widened_ratios(fit.target, drawn, _keys(seed, count))
        weights = smooth_weights(log_ratios)
        own = log_own - np.logaddexp.reduce(log_own)
        best = WeightedDraws(weights.log_weights, own, weights.khat, True, seed)
        # As many of four times the draws are effective, at best.
        if best.reliable or (seed > 1 and 4 * best.effective_draws < FEWEST_EFFECTIVE):
            break
    return best


def why_not_widened(fit: "Fit") -> str:
    """Why the draws of a fit get no wider mixture, in words; empty where they do."""
    if fit.target.black_box:
        return "each draw is a call of the black box"
    if not fit.q.reparameterised:
        return f"{', '.join(fit.q.latents_without_path)} cannot be widened"
    if fit.q.noise_size > _MOST_WIDENED:
        return f"of more than {_MOST_WIDENED:,} latents"
    return ""
