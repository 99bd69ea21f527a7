"""Log densities that are ordinary Python functions, called from the host, one draw at a time or by worker processes."""

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from curvi.results import Fit

_START_SECONDS = 120.0  # time for a worker to import what the function needs


class BlackBoxError(RuntimeError):
    """A black-box log density failed: it raised an error, did not return a number, or took too long.

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
    """Calls a Python function for a batch of draws, in this process or in spawned ones.

    Processes are started by the first batch and end with `close`. A function is sent to them by pickle, so it must be
    importable: defined at the top level of a module.
    """

    def __init__(self, function: Callable, workers: int = 0, timeout: float | None = None):
        if not callable(function):
            raise ValueError(f"log_density must be a function of a dict of latents; got {type(function).__name__}")
        if not isinstance(workers, int) or isinstance(workers, bool) or workers < 0:
            raise ValueError(f"workers must be a number of processes, 0 for none; got {workers!r}")
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            raise ValueError(f"timeout must be a positive number of seconds a call, or None; got {timeout!r}")
        self.function, self.timeout = function, timeout
        # Only a call in another process can be abandoned.
        self.workers = max(workers, 1) if timeout is not None else workers
        self.pool = None
        self.pickled = b""
        if self.workers:
            try:
                self.pickled = pickle.dumps(function)
            except Exception as error:
                raise ValueError(
                    f"log_density cannot be sent to worker processes ({error}); define it at the top level of a "
                    "module, without a lambda or a closure, or leave out workers and timeout"
                ) from error

    def __call__(self, thetas: dict[str, np.ndarray]) -> np.ndarray:
        """The values at the rows of `thetas`; raises BlackBoxError."""
        count = len(next(iter(thetas.values())))
        draws = [{name: np.asarray(rows[i]) for name, rows in thetas.items()} for i in range(count)]
        if not self.workers:
            return np.array([self._here(draw) for draw in draws])
        pool = self._open()
        # All calls before the awaited one are done, so it is running or starts at once: the timeout is per call.
        waiting = [pool.apply_async(_work, (self.pickled, draw)) for draw in draws]
        return np.array([self._there(result, draw) for result, draw in zip(waiting, draws)])

    def _here(self, draw) -> float:
        try:
            return _number(self.function(draw))
        except Exception as error:
            raise _failure(f"{type(error).__name__}: {error}", draw) from error

    def _there(self, result, draw) -> float:
        try:
            value, failure = result.get(self.timeout)
        except multiprocessing.TimeoutError:
            self.close()
            raise _failure(f"no answer within timeout = {self.timeout} s", draw) from None
        if failure is not None:
            self.close()
            raise _failure(failure, draw)
        return value

    def _open(self):
        if self.pool is None:
            self.pool = multiprocessing.get_context("spawn").Pool(self.workers)
            try:
                self.pool.apply_async(os.getpid).get(_START_SECONDS)
            except multiprocessing.TimeoutError:
                self.close()
                raise BlackBoxError(
                    "the worker processes did not start; in a script, call curvi.fit under if __name__ == '__main__':, "
                    "since spawned processes import the script again"
                ) from None
        return self.pool

    def close(self) -> None:
        """End the worker processes; the next batch starts new ones."""
        if self.pool is not None:
            self.pool.terminate()
            self.pool.join()
            self.pool = None


def _work(pickled: bytes, draw) -> tuple[float, str | None]:
    """Value and failure, in a worker. Nothing is raised here, since not every exception can be pickled."""
    try:
        return _number(pickle.loads(pickled)(draw)), None
    except Exception as error:
        place = traceback.format_exc(limit=-3)
        return np.nan, f"{type(error).__name__}: {error}\n{place}"


def _number(value) -> float:
    array = np.asarray(value)
    if array.shape != () or not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise TypeError(f"one real number is expected, ln p(theta, X); got {array.dtype} of shape {array.shape}")
    if np.isnan(array) or array == np.inf:
        raise ArithmeticError(f"the value is {float(array)}; -inf is allowed where the density is zero")
    return float(array)


def _failure(what: str, draw) -> BlackBoxError:
    shown = ", ".join(f"{name} = {np.array2string(value, precision=17, threshold=20)}" for name, value in draw.items())
    return BlackBoxError(f"the black-box log density failed at {shown}: {what}", draw)
