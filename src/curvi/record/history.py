"""The history of a fit and its wall time."""

import dataclasses

import numpy as np

from curvi.record.plain import register

Row = dict[str, float]  # the values of one step by column


@dataclasses.dataclass(frozen=True)
class Seconds:
    """Wall time: `compile` for tracing and compiling programs, `run` for everything else."""

    compile: float
    run: float


@register
@dataclasses.dataclass(frozen=True)
class History:
    """Arrays with one entry per step: the estimates of the step and the cost so far.

    Attributes
    ----------
    elbo, elbo_se
        The ELBO estimated on the draws of the step, and its standard error.
    remaining_gain, remaining_gain_se
        The remaining gain in nats at the q of the step: the Newton decrement, corrected for noise, and its standard
        error. Infinite where the curvature is not definite, NaN where the method has no such estimate.
    predicted_gain
        Gain in nats that the quadratic model predicted for the step.
    gradient_gain
        The decrement with the Fisher information in place of the curvature, corrected for noise: the size of the
        gradient in nats. It is insensitive to flat directions.
    log_density, seconds
        Evaluations of the log density and seconds of run time so far.
    num_draws, radius, accepted
        Draws of the step, the trust radius in nats, whether the step was accepted.
    shrinkage
        The share of the estimated curvature that was used, 0 to 1.
    """

    elbo: np.ndarray
    elbo_se: np.ndarray
    remaining_gain: np.ndarray
    remaining_gain_se: np.ndarray
    predicted_gain: np.ndarray
    gradient_gain: np.ndarray
    log_density: np.ndarray
    seconds: np.ndarray
    num_draws: np.ndarray
    radius: np.ndarray
    accepted: np.ndarray
    shrinkage: np.ndarray

    def __len__(self) -> int:
        return len(self.elbo)

    @classmethod
    def of_rows(cls, rows: list[Row]) -> "History":
        """The history from one dict per step; missing values are NaN, or 0 in integer columns."""
        integers = {"log_density": np.int64, "num_draws": np.int64, "accepted": bool}

        def column(name: str) -> np.ndarray:
            default = 0 if name in integers else np.nan
            return np.asarray([row.get(name, default) for row in rows], integers.get(name, float))

        return cls(**{field.name: column(field.name) for field in dataclasses.fields(cls)})

    def rows(self) -> list[Row]:
        names = [field.name for field in dataclasses.fields(self)]
        return [{name: getattr(self, name)[i] for name in names} for i in range(len(self))]


def mean_and_error(values) -> tuple[float, float]:
    """Mean and its standard error, in double precision; the error is infinite if a value is not finite."""
    array = np.asarray(values, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        mean, error = float(array.mean()), float(array.std(ddof=1) / len(array) ** 0.5)
    return mean, float("inf") if np.isnan(error) else error
