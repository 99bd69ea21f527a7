"""What happened in a fit and how long it took, as numbers."""

import dataclasses

import numpy as np

from curvi.record.plain import register

Row = dict[str, float]  # one step: what is known of it, by column


@dataclasses.dataclass(frozen=True)
class Seconds:
    """Wall time: `compile` for tracing and compiling programs, `run` for everything else."""

    compile: float
    run: float


@register
@dataclasses.dataclass(frozen=True)
class History:
    """Arrays with one entry a step: the estimates that the step made and what had been spent by then.

    Attributes
    ----------
    elbo, elbo_se
        The ELBO as the step estimated it, on its own draws.
    remaining_gain, remaining_gain_se
        Nats left to gain at the q of the step: the Newton decrement, less what noise adds to it, and its standard
        error. Infinite where the curvature is not definite, not a number where the method has no such estimate.
    predicted_gain
        Nats that the quadratic model promised of the step.
    gradient_gain
        The decrement with the Fisher information in the place of the curvature, less its noise: the size of the
        gradient in nats. It knows nothing of flat directions.
    log_density, seconds
        Calls of the log density and seconds of running by then.
    num_draws, radius, accepted
        Draws of the step, the trust radius in nats, whether the step was taken.
    shrinkage
        How much of the estimated curvature was used, 0 to 1.
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
        """From one dict a step; columns that a step lacks are not numbers there."""
        integers = {"log_density": np.int64, "num_draws": np.int64, "accepted": bool}

        def column(name: str) -> np.ndarray:
            default = 0 if name in integers else np.nan
            return np.asarray([row.get(name, default) for row in rows], integers.get(name, float))

        return cls(**{field.name: column(field.name) for field in dataclasses.fields(cls)})

    def rows(self) -> list[Row]:
        names = [field.name for field in dataclasses.fields(self)]
        return [{name: getattr(self, name)[i] for name in names} for i in range(len(self))]


def mean_and_error(values) -> tuple[float, float]:
    """Mean and its standard error, in double precision; the error is infinite where a value is not finite."""
    array = np.asarray(values, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        mean, error = float(array.mean()), float(array.std(ddof=1) / len(array) ** 0.5)
    return mean, float("inf") if np.isnan(error) else error
