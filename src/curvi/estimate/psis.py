"""Pareto-smoothed importance sampling (Vehtari, Simpson, Gelman, Yao and Gabry 2024).

The ratios w = p / q of draws of q turn averages over q into averages over the posterior, if their tail is not too
heavy. A generalised Pareto distribution is fitted to the largest ratios by the quick Bayesian estimator of Zhang and
Stephens (2009); its shape k-hat measures how heavy the tail is, and its quantiles replace the largest ratios.

The numbers are those of ArviZ's `psislw`; they are computed here so that they do not depend on what is installed.
"""

import dataclasses

import numpy as np
from scipy.special import logsumexp

KHAT_DRAWS = 4096  # draws for the k-hat of a fit
# k-hat up to which weights are stable, given enough draws (Vehtari et al. 2024); it is the shape of the far tail alone,
# so that a larger one does not matter where the weights hardly vary: half of the draws effective.
MAX_KHAT, ENOUGH_EFFECTIVE = 0.7, 0.5
FEWEST_EFFECTIVE = 1_000  # leave means to 0.03 sd and sds to 2 %
_USEFUL_EFFECTIVE = 400  # 0.05 sd and 4 %
_FEWEST = 5  # ratios in the tail needed for a fit
_SMALLEST = np.log(np.finfo(float).tiny)


@dataclasses.dataclass(frozen=True)
class SmoothedWeights:
    """Normalised log weights of the draws, and the tail shape of their ratios."""

    log_weights: np.ndarray
    khat: float

    @property
    def effective_draws(self) -> float:
        """Effective sample size: 1 / sum of squared weights."""
        return float(np.exp(-np.asarray(logsumexp(2 * self.log_weights))))

    @property
    def reliable(self) -> bool:
        """Whether moments under the weights are those of the posterior, within their errors.

        The largest k-hat for a number of draws is that of Vehtari et al. (2024, section 3.2), without its end at 0.7:
        k-hat itself is noisy, and what keeps an accident of it from being believed is the effective number.
        """
        count, effective = len(self.log_weights), self.effective_draws
        stable = self.khat <= 1 - 1 / np.log10(count) and effective >= FEWEST_EFFECTIVE
        return bool(stable or effective >= ENOUGH_EFFECTIVE * count)

    @property
    def useful(self) -> bool:
        """Whether moments under the weights are nearer to the posterior than those without, though perhaps not near:
        smoothed weights with a mean (k-hat below 1) err towards q.
        """
        return self.reliable or bool(self.khat < 1 and self.effective_draws >= _USEFUL_EFFECTIVE)


def smooth_weights(log_ratios) -> SmoothedWeights:
    """The smoothed weights of draws whose ln p - ln q is given.

    k-hat is minus infinity where the largest ratios do not vary (q is the posterior, or bounds it), and infinite where
    they are NaN or too few for a tail.
    """
    ratios = np.array(log_ratios, dtype=np.float64)
    count = len(ratios)
    largest = ratios.max()
    if np.isnan(ratios).any() or not np.isfinite(largest):
        return SmoothedWeights(np.full(count, -np.log(count)), np.inf)
    # Equal up to the rounding of ln p.
    if largest - ratios.min() <= 1e3 * np.finfo(float).eps * max(1.0, abs(largest)):
        return SmoothedWeights(np.full(count, -np.log(count)), -np.inf)
    ratios -= largest
    order = np.argsort(ratios)
    tail_size = int(np.ceil(min(count / 5, 3 * np.sqrt(count))))
    cutoff = max(ratios[order[max(-tail_size - 1, -count)]], _SMALLEST)
    tail = order[ratios[order] > cutoff]
    # If many draws share the largest ratio (discrete latents), the ratios are bounded.
    khat = -np.inf if cutoff == 0 else np.inf
    if len(tail) >= _FEWEST:
        khat, scale = fit_pareto(np.exp(ratios[tail]) - np.exp(cutoff))
        if np.isfinite(khat):
            levels = (np.arange(len(tail)) + 0.5) / len(tail)
            smoothed = np.log(_pareto_quantile(levels, khat, scale) + np.exp(cutoff))
            # No weight above the largest that was seen.
            ratios[tail] = np.minimum(smoothed, 0.0)
    return SmoothedWeights(ratios - logsumexp(ratios), float(khat))


def fit_pareto(excesses: np.ndarray) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto distribution, from excesses in ascending order.

    Zhang and Stephens (2009), with the weak prior of Vehtari et al. on the shape: ten draws with shape 0.5.
    """
    count = len(excesses)
    grid_size = 30 + int(count**0.5)
    quartile = excesses[int(count / 4 + 0.5) - 1]
    grid = 1 / excesses[-1] + (1 - np.sqrt(grid_size / (np.arange(1, grid_size + 1) - 0.5))) / (3 * quartile)
    shapes = np.log1p(-grid[:, None] * excesses).mean(1)
    profile = count * (np.log(-grid / shapes) - shapes - 1)
    weights = np.exp(profile - logsumexp(profile))
    weights = np.where(weights >= 10 * np.finfo(float).eps, weights, 0.0)
    point = grid @ weights / weights.sum()
    shape = np.log1p(-point * excesses).mean()
    return float((count * shape + 10 * 0.5) / (count + 10)), float(-shape / point)


def _pareto_quantile(levels, shape: float, scale: float) -> np.ndarray:
    if abs(shape) < np.finfo(float).eps:
        return -scale * np.log1p(-levels)
    return scale * np.expm1(-shape * np.log1p(-levels)) / shape


def khat_meaning(khat: float) -> str:
    """The meaning of k-hat in a few words (thresholds of Vehtari et al. 2024)."""
    if khat == -np.inf:
        return "ratios are constant: q matches the posterior at these draws"
    if not np.isfinite(khat):
        return "unknown: the importance ratios are not finite, or too few of them differ"
    if khat < 0.5:
        return "good: q is close to the posterior, and importance weights correct the rest"
    if khat <= MAX_KHAT:
        return "usable: importance weights correct q (fit.resample)"
    if khat <= 1:
        return "the tails of q are too light for importance weights to correct it"
    # k-hat is about the far tail: slight skewness of the posterior is enough, and means and sds may be accurate.
    return "the tails of q are far too light: no importance weights; of means and sds it says little"
