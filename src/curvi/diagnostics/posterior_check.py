"""Is the posterior right? The answer, with its reasons and what to do, from estimated errors (`posterior_errors`)."""

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from curvi.diagnostics.posterior_errors import MAX_GAIN, Seen, errors_of_q, look_at, noise_of_weights
from curvi.diagnostics.weighted_draws import WeightedDraws
from curvi.family.shapes import SKEWED, is_skewed_name, normal_name
from curvi.record.plain import register

if TYPE_CHECKING:
    from curvi.results import Fit

RIGHT, DOUBTFUL, UNKNOWN = "right", "doubtful", "not known"
# The largest errors of an answer that is called right: root mean square error of the means in posterior sds, median
# error of the sds, and the factor of the worst sd.
MAX_MEAN, MAX_SD, MAX_FACTOR = 0.1, 0.05, 1.4
_WITH_TARGET = "curvi.load(path, target=target) has all of this"


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
        The tail shape of the importance ratios of q, and how many of the draws are effective; NaN where unknown.
    mean_error
        The estimated root mean square error of the means, in posterior sds; NaN where unknown.
    sd_error
        The estimated median of |sd / posterior sd - 1|; NaN where unknown.
    worst_factor, worst_at
        The estimated posterior sd divided by that of the answer where this is furthest from 1, and where that is.
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


def check_posterior(fit: "Fit") -> PosteriorCheck:
    """The check of a fit; whatever fails in it is a reason why something is not known."""
    seen = look_at(fit)
    by_weights = seen.kind == "reweighted"
    mean_error, sd_error, factor, at = (noise_of_weights if by_weights else errors_of_q)(fit, seen)
    doubts = _doubts(seen, mean_error, sd_error, factor, at)
    if doubts:
        answer, reasons = DOUBTFUL, doubts
    elif seen.moments is None:
        answer, reasons = UNKNOWN, (seen.no_weights,)
    else:
        answer, reasons = RIGHT, (_within(seen, mean_error, sd_error, factor),)
    return PosteriorCheck(
        answer, reasons, _next(fit, answer, seen), seen.khat, seen.effective, seen.num_draws, mean_error, sd_error,
        factor, at, seen.family, seen.gain,
    )  # fmt: skip


def _doubts(seen: Seen, mean_error: float, sd_error: float, factor: float, at: str) -> tuple[str, ...]:
    doubts, off, small = [], max(factor, 1 / factor), "small" if factor > 1 else "large"
    if seen.kind == "reweighted":
        if off > MAX_FACTOR or sd_error > MAX_SD or mean_error > MAX_MEAN:
            doubts.append(
                f"importance weights leave an error of {mean_error:.2g} sds in means, {100 * sd_error:.0f} % in sds "
                f"and a factor of {off:.3g} at {at}"
            )
        if not seen.reliable:
            doubts.append(_unreliable(seen.weighted, "importance weights correct q in part only"))
        return tuple(doubts)
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
        doubts.append(_unreliable(seen.weighted, "q and the posterior differ by more than importance weights can tell"))
    if not doubts and seen.gain > MAX_GAIN and seen.response is None:
        doubts.append(f"{seen.family} would gain {seen.gain:.3g} nats")
    return tuple(doubts)


def _unreliable(found: WeightedDraws | None, meaning: str) -> str:
    if found is None:
        return "of importance weights nothing is known"
    effective = f"{found.effective_draws:,.0f} of {len(found.log_weights):,} draws are effective"
    return f"k-hat is {found.khat:.2f}, and {effective}: {meaning}"


def _within(seen: Seen, mean_error: float, sd_error: float, factor: float) -> str:
    found = seen.moments
    if math.isnan(mean_error) or found is None:
        return "importance weights do not contradict q"
    if seen.kind == "reweighted" and seen.weighted is not None:
        return (
            f"importance weights correct q, {seen.weighted.effective_draws:,.0f} of {len(seen.weighted.log_weights):,} "
            f"draws effective: means within about {max(mean_error, 0.005):.2g} posterior sds, sds within "
            f"{max(100 * sd_error, 1.0):.0f} % in the median and a factor of {factor:.3g} at worst"
        )
    # What is hidden by the noise of the weights is not known to be smaller than it.
    mean, sd = (np.median(error[np.isfinite(error)]) for error in (found.shift_error, found.widening_error))
    mean, percent = max(mean_error, float(mean), 0.005), max(100 * max(sd_error, float(sd)), 1.0)
    return (
        f"as importance weights see it, means are within about {mean:.2g} posterior sds, sds within {percent:.0f} % in "
        f"the median and a factor of {max(factor, 1 / factor):.3g} at worst"
    )


def _next(fit: "Fit", answer: str, seen: Seen) -> str:
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
    elif seen.reliable and seen.kind == "q":
        steps.append('kind="reweighted" for means, sds, quantiles and draws')
    smooth = target.order > 0 and not target.black_box and not any(latent.discrete for latent in target.latents)
    steps.append("fit.polish(key): NUTS from q" if smooth else "a family that is closer to the posterior")
    steps.append("or reparameterise (hierarchies: the non-centred form)")
    return "; ".join(steps)
