"""The remaining gain, the rule of convergence, and the outcome where it is not met."""

import dataclasses

import numpy as np

from curvi.outcome import Outcome
from curvi.record.counts import CallCounts

NUM_ERRORS = 2.0
LARGEST_STEP = 0.1  # in sds of q: the Monte Carlo error of a mean of a hundred independent draws
LARGEST_STEP_ERROR = 0.05  # the largest standard error of such a step
_NATS, _NATS_A_LATENT = 0.05, 0.001


def default_tolerance(num_latents: int) -> float:
    """The largest total remaining gain in nats; a thousandth of a nat is an error of a mean of 0.045 sd."""
    return max(_NATS, _NATS_A_LATENT * num_latents)


@dataclasses.dataclass(frozen=True)
class Gain:
    """The remaining gain at this optimum.

    Attributes
    ----------
    nats, error
        The remaining gain in nats and its standard error; infinite where it is unknown.
    doubt
        The failed consistency check of the derivatives, None if there is none.
    weights
        One weight per parameter, large for those that show a problem most; None without a problem.
    copies
        Copies of the error that finite draws leave in the parameters.
    counts
        Evaluations spent on it.
    sds, sds_error
        The largest whitened Newton step among all latents, in sds of q (`HostPath.sds_moved`), and its standard error;
        zero where a method does not know it.
    sds_noise
        The largest standard error of these steps.
    """

    nats: float
    error: float
    doubt: Outcome | None = None
    weights: np.ndarray | None = None
    copies: tuple[np.ndarray, ...] = ()
    counts: CallCounts = dataclasses.field(default_factory=CallCounts)
    sds: float = 0.0
    sds_error: float = 0.0
    sds_noise: float = 0.0

    def within(self, tolerance: float) -> bool:
        """The rule of convergence: the remaining gain plus two standard errors is at most `tolerance` nats, and no mean
        or sd is further than `LARGEST_STEP` sds from where it belongs, two standard errors granted.
        """
        near = self.sds <= LARGEST_STEP + NUM_ERRORS * self.sds_error and self.sds_noise <= LARGEST_STEP_ERROR
        return self.doubt is None and near and self.nats + NUM_ERRORS * self.error <= tolerance

    @property
    def known(self) -> bool:
        return bool(np.isfinite(self.nats))


UNKNOWN = Gain(np.inf, np.inf)


def unfinished(gain: Gain, tolerance: float) -> Outcome:
    """The outcome of a fit that ended before its remaining gain was within the tolerance."""
    if gain.doubt is not None:
        return gain.doubt
    if not gain.known:
        return Outcome.NOT_A_MAXIMUM
    return Outcome.NOISE_LIMIT if gain.nats <= max(tolerance, NUM_ERRORS * gain.error) else Outcome.MAX_STEPS


def as_finite_or_inf(value) -> float:
    """A remaining gain as a Python number; NaN counts as infinite."""
    number = float(value)
    return float("inf") if np.isnan(number) else number
