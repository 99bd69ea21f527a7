"""What happened in a fit and how long it took, as numbers."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Seconds:
    """Wall time: `compile` until the first step could be taken, `run` for everything else."""

    compile: float
    run: float


@dataclasses.dataclass(frozen=True)
class History:
    """Arrays with one entry a step: the estimates that the step made and what had been spent by then."""

    elbo: np.ndarray
    elbo_se: np.ndarray
    remaining_gain: np.ndarray
    remaining_gain_se: np.ndarray
    log_density: np.ndarray
    seconds: np.ndarray
    num_draws: np.ndarray
    radius: np.ndarray
    accepted: np.ndarray
    curvature_weight: np.ndarray

    def __len__(self) -> int:
        return len(self.elbo)

    def then(self, later: "History") -> "History":
        """This history with a later one after it."""
        names = [field.name for field in dataclasses.fields(self)]
        return History(**{name: np.concatenate([getattr(self, name), getattr(later, name)]) for name in names})


def mean_and_error(values) -> tuple[float, float]:
    """Mean and its standard error, in double precision; the error is infinite where a value is not finite."""
    array = np.asarray(values, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        mean, error = float(array.mean()), float(array.std(ddof=1) / len(array) ** 0.5)
    return mean, float("inf") if np.isnan(error) else error


def as_finite_or_inf(value) -> float:
    """A remaining gain as a Python number; what is not a number says nothing, and so counts as infinite."""
    number = float(value)
    return float("inf") if np.isnan(number) else number
