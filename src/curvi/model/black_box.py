"""Log densities that are ordinary Python functions, called from the host, one draw at a time or by worker processes."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from curvi.model.worker_pool import WorkerError, as_number, pool_for

if TYPE_CHECKING:
    from curvi.results import Fit


class BlackBoxError(RuntimeError):
    """A black-box log density failed: it raised an error, did not return a number, or took too long; or a worker died.

    Attributes
    ----------
    theta
        The draw at which it failed.
    fit
        The fit so far, as `curvi.fit` would have returned it; None where there is none yet.
    """

    def __init__(self, message: str, theta: dict | None = None):
        super().__init__(message)
        self.theta = theta
        self.fit: Fit | None = None


class Caller:
    """Calls a Python function for a batch of draws, in this process or in others.

    A function is sent to other processes by pickle, so it must be importable: defined at the top level of a module.
    Processes of its own are started by the first batch and end with `close`.
    """

    def __init__(self, function: Callable, workers=0, timeout: float | None = None):
        if not callable(function):
            raise ValueError(f"log_density must be a function of a dict of latents; got {type(function).__name__}")
        self.function, self.pool = function, pool_for(function, workers, timeout)

    def __call__(self, thetas: dict[str, np.ndarray]) -> np.ndarray:
        """The values at the rows of `thetas`; raises BlackBoxError."""
        count = len(next(iter(thetas.values())))
        draws = [{name: np.asarray(rows[i]) for name, rows in thetas.items()} for i in range(count)]
        if self.pool is None:
            return np.array([self._here(draw) for draw in draws])
        try:
            return self.pool.values(draws)
        except WorkerError as error:
            if error.at is None:
                raise BlackBoxError(str(error)) from error
            raise _failure(str(error), draws[error.at]) from error

    def _here(self, draw) -> float:
        try:
            return as_number(self.function(draw))
        except Exception as error:
            raise _failure(f"{type(error).__name__}: {error}", draw) from error

    def close(self) -> None:
        """End the worker processes; the next batch starts new ones. An executor of the user's stays open."""
        if self.pool is not None:
            self.pool.close()


def _failure(what: str, draw) -> BlackBoxError:
    shown = ", ".join(f"{name} = {np.array2string(value, precision=17, threshold=20)}" for name, value in draw.items())
    return BlackBoxError(f"the black-box log density failed at {shown}: {what}", draw)
