"""An estimate of how far means and sds of a fit are off, from what costs little.

Two sources, each blind to something. Importance weights, of draws of q and of wider ones around it, see every kind of
difference, but where q is much too narrow their few effective draws underestimate it. Linear response sees the
correlation that a product of factors leaves out, however strong, but no skew; it is asked for under independent latents
only, and only where the next family would gain more than 0.05 nats: no sd of a Gaussian can be too small by more than
the factor exp(gain), since for P of unit diagonal (P^-1)_ii = det(P without i) / det(P) <= exp(2 gain). Of both the
larger deviation counts, scalar by scalar.

An answer made of reliable weights (`curvi.diagnostics.kinds`) has no such differences; what is off is their own noise.
"""

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from curvi.diagnostics.elements import label_at
from curvi.diagnostics.response import affordable_response
from curvi.diagnostics.reweighted import Reweighted, flat, reweighted
from curvi.diagnostics.weighted_draws import WeightedDraws, weights_of

if TYPE_CHECKING:
    from curvi.results import Fit

MAX_GAIN = 0.05  # nats of the next family: sds within 5 %, by the bound above


@dataclasses.dataclass(frozen=True)
class Seen:
    """What the sources say; None, NaN and reasons in words where they say nothing."""

    kind: str = "q"  # the answer that is judged
    khat: float = math.nan
    effective: float = math.nan
    num_draws: int = 0
    weighted: WeightedDraws | None = None
    moments: Reweighted | None = None
    no_weights: str = ""
    response: np.ndarray | None = None  # ln of the factor by which an sd of linear response exceeds that of q
    no_response: str = ""
    family: str = ""
    gain: float = math.nan

    @property
    def reliable(self) -> bool:
        return self.weighted is not None and self.weighted.reliable


def look_at(fit: "Fit") -> Seen:
    seen = dataclasses.replace(Seen(), **_next_family(fit))
    # A model that fails, on the host or in the compiler, may raise anything.
    try:
        weights = weights_of(fit)
        effective, count = weights.effective_draws, len(weights.log_weights)
        seen = dataclasses.replace(seen, khat=weights.khat, effective=effective, num_draws=count)
        if weights.khat == np.inf and effective > count - 0.5:
            raise ValueError("the importance ratios are not finite")
        seen = dataclasses.replace(seen, weighted=fit.weighted_draws, moments=reweighted(fit), kind=fit.kind)
    except Exception as error:
        seen = dataclasses.replace(seen, no_weights=str(error))
    if seen.kind == "reweighted" or not fit.q.separable or fit.q.noise_size == 1 or seen.gain <= MAX_GAIN:
        return seen
    try:
        response = flat(affordable_response(fit))
        with np.errstate(divide="ignore", invalid="ignore"):
            return dataclasses.replace(seen, response=np.log(response / flat(fit.sd("q"))))
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


def errors_of_q(fit: "Fit", seen: Seen) -> tuple[float, float, float, str]:
    """Estimated errors of means and sds, less what is noise, and the label of the worst sd."""
    widening, shift, found = seen.response, None, seen.moments
    if found is not None:
        sign = np.sign(found.widening)
        by_weights = sign * np.sqrt(np.maximum(found.widening**2 - found.widening_error**2, 0.0))
        shift = np.maximum(found.shift**2 - found.shift_error**2, 0.0)
        widening = by_weights if widening is None else np.where(abs(by_weights) > abs(widening), by_weights, widening)
    if widening is None or not np.any(known := np.isfinite(widening)):
        return math.nan, math.nan, math.nan, ""
    # Quantities that do not vary have no sd to be off.
    mean_error = math.nan if shift is None else float(np.sqrt(np.mean(shift[known] * np.exp(-2 * widening[known]))))
    size = np.where(known, np.abs(widening), -1.0)
    worst = int(size.argmax())
    label = label_at({name: np.shape(value) for name, value in fit.sd("q").items()}, worst)
    sd_error = float(np.median(np.abs(np.expm1(-widening[known]))))
    return mean_error, sd_error, float(np.exp(widening[worst])), label


def noise_of_weights(fit: "Fit", seen: Seen) -> tuple[float, float, float, str]:
    """The same of an answer made of weights: one standard error of means and sds, two of the worst sd."""
    assert seen.moments is not None
    mean, sd = seen.moments.shift_error * np.exp(-seen.moments.widening), seen.moments.widening_error
    if not np.any(known := np.isfinite(mean) & np.isfinite(sd)):
        return math.nan, math.nan, math.nan, ""
    worst = int(np.where(known, sd, -1.0).argmax())
    label = label_at({name: np.shape(value) for name, value in fit.sd("q").items()}, worst)
    return float(np.sqrt(np.mean(mean[known] ** 2))), float(np.median(sd[known])), float(np.exp(2 * sd[worst])), label
