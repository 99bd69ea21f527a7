"""How far the posterior, as Markov chains see it, lies from q."""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from curvi.results import Fit

MIN_EFFECTIVE = 100  # below, an sd is off by more than 7 % and a mean by more than a tenth of an sd


@dataclasses.dataclass(frozen=True)
class Moved:
    """How far means and sds left q, by name and element; not a number where that is unknown.

    It is unknown with fewer than 100 effective draws: of the bulk for a mean, of bulk and tail for an sd.

    Attributes
    ----------
    mean
        The new mean less q's, in units of q's sd.
    sd
        The new sd, divided by q's.
    """

    mean: dict[str, np.ndarray]
    sd: dict[str, np.ndarray]

    def __str__(self) -> str:
        return "\n".join(
            f"{name}: mean {_words(self.mean[name], '+.2f')} sd of q, sd times {_words(self.sd[name], '.2f')}"
            for name in self.mean
        )


def moved_from(fit: "Fit", draws, bulk, tail) -> Moved:
    """What draws (chains, draws, ...) with these effective sizes say of the q of a fit."""
    old_mean, old_sd = fit.mean("q"), fit.sd("q")
    means, sds = {}, {}
    for name, values in draws.items():
        new_mean, new_sd = values.mean((0, 1), dtype=np.float64), values.std((0, 1), dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            moved, factor = (new_mean - old_mean[name]) / old_sd[name], new_sd / old_sd[name]
        # A comparison with a size that is not a number is false: unknown.
        means[name] = np.where(bulk[name] >= MIN_EFFECTIVE, moved, np.nan)
        sds[name] = np.where(np.minimum(bulk[name], tail[name]) >= MIN_EFFECTIVE, factor, np.nan)
    return Moved(means, sds)


def _words(values: np.ndarray, form: str) -> str:
    """One number, or the range of several."""
    known = np.ravel(values)[~np.isnan(np.ravel(values))]
    if not known.size:
        return "unknown"
    low, high = (format(end, form) for end in (known.min(), known.max()))
    some = "" if known.size == np.size(values) else f" ({np.size(values) - known.size} unknown)"
    return (low if np.size(values) == 1 else f"{low} to {high}") + some
