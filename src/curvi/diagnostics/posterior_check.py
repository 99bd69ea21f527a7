"""Is the posterior right? An estimate of how far means and sds of q are off, from what costs little.

Two sources, each blind to something. Importance weights see every kind of difference, but where q is much too narrow
their few effective draws underestimate it. Linear response sees the correlation that a product of factors leaves out,
however strong, but no skew; it is asked for under independent latents only, and only where the next family would gain
more than 0.05 nats: no sd of a Gaussian can be too small by more than the factor exp(gain), since for P of unit
diagonal (P^-1)_ii = det(P without i) / det(P) <= exp(2 gain). Of both the larger deviation counts, scalar by scalar.
"""

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from curvi.diagnostics.elements import label_at
from curvi.diagnostics.response import affordable_response
from curvi.diagnostics.reweighted import Reweighted, flat, reweighted, weights_of
from curvi.family.shapes import SKEWED, is_skewed_name, normal_name
from curvi.record.plain import register

if TYPE_CHECKING:
    from curvi.results import Fit

RIGHT, DOUBTFUL, UNKNOWN = "right", "doubtful", "not known"
# The largest errors of an answer that is called right: root mean square error of the means in posterior sds, median
# error of the sds, and the factor of the worst sd.
MAX_MEAN, MAX_SD, MAX_FACTOR = 0.1, 0.05, 1.4
# Vehtari et al. (2024): weights are stable up to this k-hat. It is the shape of the far tail alone, so that a large one
# does not matter where the weights hardly vary: half of the draws effective.
MAX_KHAT, ENOUGH_EFFECTIVE = 0.7, 0.5
_WITH_TARGET = "curvi.load(path, target=target) has all of this"
MAX_GAIN = 0.05  # nats of the next family: sds within 5 %, by the bound above


@register
@dataclasses.dataclass(frozen=True)
class PosteriorCheck:
    """Whether the posterior of a fit is right, apart from whether its optimum was found.

    Attributes
    ----------
    answer
        "right" as far as can be seen, "doubtful", or "not known".
    reasons
        Why, one sentence each.
    next
        What to do about it; empty where nothing is to be done.
    khat, effective_draws, num_draws
        The tail shape of the importance ratios, and how many of the draws are effective; NaN where unknown.
    mean_error
        The estimated root mean square error of the means, in posterior sds; NaN where unknown.
    sd_error
        The estimated median of |sd of q / posterior sd - 1|; NaN where unknown.
    worst_factor, worst_at
        The estimated posterior sd divided by that of q where this is furthest from 1, and where that is.
    next_family, predicted_gain
        The next larger family, and the nats that it should gain; empty and NaN where unknown.
    """

    answer: str
    reasons: tuple[str, ...]
    next: str
    khat: float
    effective_draws: float
    num_draws: int
    mean_error: float
    sd_error: float
    worst_factor: float
    worst_at: str
    next_family: str
    predicted_gain: float

    @property
    def warns(self) -> bool | None:
        """Whether the posterior is doubtful; None where that is not known."""
        return None if self.answer == UNKNOWN else self.answer == DOUBTFUL

    @property
    def words(self) -> str:
        """The answer in a few words."""
        return {RIGHT: "right as far as can be seen", DOUBTFUL: "doubtful", UNKNOWN: "not known"}[self.answer]

    def __str__(self) -> str:
        return f"{self.words}: " + "; ".join(self.reasons)


@dataclasses.dataclass(frozen=True)
class _Seen:
    """What the sources say; None, NaN and reasons in words where they say nothing."""

    khat: float = math.nan
    effective: float = math.nan
    num_draws: int = 0
    moments: Reweighted | None = None
    no_weights: str = ""
    response: np.ndarray | None = None  # ln of the factor by which an sd of linear response exceeds that of q
    no_response: str = ""
    family: str = ""
    gain: float = math.nan

    @property
    def reliable(self) -> bool:
        return self.khat <= MAX_KHAT or self.effective >= ENOUGH_EFFECTIVE * self.num_draws


def check_posterior(fit: "Fit") -> PosteriorCheck:
    """The check of a fit; whatever fails in it is a reason why something is not known."""
    seen = _look(fit)
    mean_error, sd_error, factor, at = _errors(fit, seen)
    doubts = _doubts(seen, mean_error, sd_error, factor, at)
    if doubts:
        answer, reasons = DOUBTFUL, doubts
    elif seen.moments is None:
        answer, reasons = UNKNOWN, (seen.no_weights,)
    else:
        answer, reasons = RIGHT, (_within(seen.moments, mean_error, sd_error, factor),)
    return PosteriorCheck(
        answer, reasons, _next(fit, answer, seen), seen.khat, seen.effective, seen.num_draws, mean_error, sd_error,
        factor, at, seen.family, seen.gain,
    )  # fmt: skip


def _look(fit: "Fit") -> _Seen:
    seen = dataclasses.replace(_Seen(), **_next_family(fit))
    # A model that fails, on the host or in the compiler, may raise anything.
    try:
        weights = weights_of(fit)
        effective, count = weights.effective_draws, len(weights.log_weights)
        seen = dataclasses.replace(seen, khat=weights.khat, effective=effective, num_draws=count)
        if weights.khat == np.inf and effective > count - 0.5:
            raise ValueError("the importance ratios are not finite")
        seen = dataclasses.replace(seen, moments=reweighted(fit))
    except Exception as error:
        seen = dataclasses.replace(seen, no_weights=str(error))
    if not fit.q.separable or fit.q.noise_size == 1 or seen.gain <= MAX_GAIN:
        return seen
    try:
        response = flat(affordable_response(fit))
        with np.errstate(divide="ignore", invalid="ignore"):
            return dataclasses.replace(seen, response=np.log(response / flat(fit.sd())))
    except Exception as error:
        return dataclasses.replace(seen, no_response=str(error))


def _next_family(fit: "Fit") -> dict:
    """Name and predicted gain, over the family of the fit, of that with more parameters whose gain is largest."""
    chosen = next((row for row in fit.families if row.chosen), None)
    larger = [row for row in fit.families if chosen is not None and row.num_params > chosen.num_params]
    if chosen is None or not larger:
        return {}
    best = max(larger, key=lambda row: row.predicted_gain if np.isfinite(row.predicted_gain) else -np.inf)
    return {"family": best.name, "gain": float(best.predicted_gain - chosen.predicted_gain)}


def _errors(fit: "Fit", seen: _Seen) -> tuple[float, float, float, str]:
    """Estimated errors of means and sds, less what is noise, and the label of the worst sd."""
    widening, shift = seen.response, None
    if (found := seen.moments) is not None:
        sign = np.sign(found.widening)
        by_weights = sign * np.sqrt(np.maximum(found.widening**2 - found.widening_error**2, 0.0))
        shift = np.maximum(found.shift**2 - found.shift_error**2, 0.0)
        if widening is None:
            widening = by_weights
        else:
            widening = np.where(np.abs(by_weights) > np.abs(widening), by_weights, widening)
    if widening is None or not np.any(known := np.isfinite(widening)):
        return math.nan, math.nan, math.nan, ""
    # Quantities that do not vary have no sd to be off.
    mean_error = math.nan if shift is None else float(np.sqrt(np.mean(shift[known] * np.exp(-2 * widening[known]))))
    size = np.where(known, np.abs(widening), -1.0)
    worst = int(size.argmax())
    label = label_at({name: np.shape(value) for name, value in fit.sd().items()}, worst)
    sd_error = float(np.median(np.abs(np.expm1(-widening[known]))))
    return mean_error, sd_error, float(np.exp(widening[worst])), label


def _doubts(seen: _Seen, mean_error: float, sd_error: float, factor: float, at: str) -> tuple[str, ...]:
    doubts, off, small = [], max(factor, 1 / factor), "small" if factor > 1 else "large"
    if off > MAX_FACTOR:
        # Weights underestimate it where few draws are effective.
        blind = seen.moments is not None and seen.response is None and not seen.reliable
        size = f"a factor of {off:.3g} or more" if blind else f"up to a factor of {off:.3g}"
        doubts.append(f"sds of q are too {small} by {size} ({at})")
    elif sd_error > MAX_SD:
        doubts.append(
            f"sds of q are off by {100 * sd_error:.0f} % in the median, at {at} too {small} by a factor of {off:.3g}"
        )
    if mean_error > MAX_MEAN:
        doubts.append(f"means are off by about {mean_error:.2g} posterior sds")
    if not doubts and seen.moments is not None and not seen.reliable:
        doubts.append(
            f"k-hat is {seen.khat:.2f}, and {seen.effective:,.0f} of {seen.num_draws:,} draws are effective: q and the "
            "posterior differ by more than importance weights can tell"
        )
    if not doubts and seen.gain > MAX_GAIN and seen.response is None:
        doubts.append(f"{seen.family} would gain {seen.gain:.3g} nats")
    return tuple(doubts)


def _within(found: Reweighted, mean_error: float, sd_error: float, factor: float) -> str:
    if math.isnan(mean_error):
        return "importance weights do not contradict q"
    # What is hidden by the noise of the weights is not known to be smaller than it.
    mean, sd = (np.median(error[np.isfinite(error)]) for error in (found.shift_error, found.widening_error))
    mean, percent = max(mean_error, float(mean), 0.005), max(100 * max(sd_error, float(sd)), 1.0)
    return (
        f"as importance weights see it, means are within about {mean:.2g} posterior sds, sds within {percent:.0f} % in "
        f"the median and a factor of {max(factor, 1 / factor):.3g} at worst"
    )


def _next(fit: "Fit", answer: str, seen: _Seen) -> str:
    if answer == RIGHT:
        return ""
    if answer == UNKNOWN and "needs the target" in seen.no_weights:
        return _WITH_TARGET
    if answer == UNKNOWN:
        precise = fit.q.params.dtype == np.float64
        return "curvi.check(target, key=key) looks for trouble" + ("" if precise else "; float64 may help")
    steps, target = [], fit.target
    if "needs the target" in seen.no_weights:
        steps.append(_WITH_TARGET)
    if seen.gain > MAX_GAIN:
        skew = f', marginals="{SKEWED}"' if is_skewed_name(seen.family) else ""
        steps.append(f'curvi.fit(target, key=key, family="{normal_name(seen.family)}"{skew})')
    if seen.response is not None:
        steps.append('kind="linear_response" for sds, quantiles and draws')
    elif seen.khat <= MAX_KHAT:
        steps.append("fit.resample(key, n) weighs draws towards the posterior")
    smooth = target.order > 0 and not target.black_box and not any(latent.discrete for latent in target.latents)
    steps.append("fit.polish(key): NUTS from q" if smooth else "a family that is closer to the posterior")
    steps.append("or reparameterise (hierarchies: the non-centred form)")
    return "; ".join(steps)
