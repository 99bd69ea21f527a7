"""Calls of a Python function in other processes: those spawned here, or those behind an executor of the user's.

Where a worker dies its calls are lost, and they are tried again: once with all others that were lost, then one by one,
so that a draw which kills its worker is known.
"""

import concurrent.futures
import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from typing import Any

import numpy as np

Draw = dict[str, np.ndarray]
_START_SECONDS = 120.0  # time for a worker to import what the function needs
RETRIES = 2  # after the first try, where a worker died
# What executors of other libraries say of a worker that died, in classes of their own.
_DEATHS = ("KilledWorker", "WorkerDied", "LostWorker", "TerminatedWorker", "CommClosed")


class WorkerError(Exception):
    """A call that failed, with the position of its draw in the batch; None where no draw is to blame."""

    def __init__(self, message: str, at: int | None):
        super().__init__(message)
        self.at = at


class _LostError(Exception):
    """The worker of a call died."""


class WorkerPool:
    """Workers that compute the values of a function at draws, by an executor that `make` gives.

    Attributes
    ----------
    owned
        Whether executors are closed here, and the processes of one that does not answer ended.
    """

    def __init__(self, function: Callable, make: Callable[[], Executor], owned: bool, timeout: float | None):
        self.pickled, self.make, self.owned, self.timeout = _pickled(function), make, owned, timeout
        self.executor: Executor | None = None

    def values(self, draws: Sequence[Draw]) -> np.ndarray:
        """The values in the order of the draws; raises WorkerError."""
        found: dict[int, float] = {}
        why = ""
        for attempt in range(1 + RETRIES):
            left = [at for at in range(len(draws)) if at not in found]
            for batch in [[at] for at in left] if attempt == RETRIES else [left]:
                try:
                    self._compute(draws, batch, found)
                except _LostError as lost:
                    self.close()
                    why = str(lost)
                    if attempt == RETRIES:
                        raise WorkerError(f"its worker died in each of {1 + RETRIES} tries ({why})", batch[0]) from lost
            if len(found) == len(draws):
                break
        return np.array([found[at] for at in range(len(draws))])

    def _compute(self, draws: Sequence[Draw], which: list[int], found: dict[int, float]) -> None:
        """Add the values at some draws; raises _LostError after all calls have ended, if one of them was lost."""
        waiting: list[tuple[int, Future]] = []
        lost: _LostError | None = None
        try:
            # All calls before the awaited one are done, so it is running or starts at once: the timeout is per call.
            waiting += [(at, self._submit(draws[at], at)) for at in which]
            for at, future in waiting:
                try:
                    found[at] = self._value(future, at)
                except _LostError as error:
                    lost = error
        except WorkerError:
            # Those of processes that are about to end fail by themselves; Python's pool stumbles over cancelled ones.
            for _, future in [] if self.owned else waiting:
                future.cancel()
            self.close(end=True)
            raise
        if lost is not None:
            raise lost

    def _submit(self, draw: Draw, at: int) -> Future:
        try:
            return self._open().submit(work, self.pickled, draw)
        except BrokenExecutor as error:
            raise _LostError(_words(error)) from error
        except RuntimeError as error:  # what executors say after a shutdown
            raise WorkerError(f"the executor given as workers takes no calls ({error}); keep it open", at) from error

    def _value(self, future: Future, at: int) -> float:
        try:
            value, failure = future.result(self.timeout)
        except (BrokenExecutor, CancelledError) as error:
            raise _LostError(_words(error)) from error
        except (TimeoutError, concurrent.futures.TimeoutError) as error:
            if future.done():
                raise _LostError(_words(error)) from error  # the executor's own trouble
            raise WorkerError(f"no answer within timeout = {self.timeout} s", at) from None
        except Exception as error:
            if any(word in type(error).__name__ for word in _DEATHS):
                raise _LostError(_words(error)) from error
            raise WorkerError(_words(error), at) from error
        if failure is not None:
            raise WorkerError(failure, at)
        return value

    def _open(self) -> Executor:
        if self.executor is None:
            self.executor = self.make()
            if self.owned:
                self._see_that_it_starts(self.executor)
        return self.executor

    def _see_that_it_starts(self, executor: Executor) -> None:
        try:
            executor.submit(os.getpid).result(_START_SECONDS)
        except (BrokenExecutor, TimeoutError, concurrent.futures.TimeoutError):
            self.close(end=True)
            raise WorkerError(
                "the worker processes did not start; in a script, call curvi.fit under if __name__ == '__main__':, "
                "since spawned processes import the script again",
                None,
            ) from None

    def close(self, end: bool = False) -> None:
        """Close the executor if it is owned, and with `end` its processes too; the next batch makes another."""
        executor, self.executor = self.executor, None
        if executor is None or not self.owned:
            return
        processes = list((getattr(executor, "_processes", None) or {}).values())
        executor.shutdown(wait=False, cancel_futures=not end)
        for process in processes if end else ():
            process.kill()


def work(pickled: bytes, draw) -> tuple[float, str | None]:
    """Value and failure, in a worker. Nothing is raised here, since not every exception can be pickled."""
    try:
        return as_number(pickle.loads(pickled)(draw)), None
    except Exception as error:
        place = traceback.format_exc(limit=-3)
        return np.nan, f"{type(error).__name__}: {error}\n{place}"


def as_number(value) -> float:
    """What a log density returned, as a number; raises an error that says what is wrong with it."""
    array = np.asarray(value)
    if array.shape != () or not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise TypeError(f"one real number is expected, ln p(theta, X); got {array.dtype} of shape {array.shape}")
    if np.isnan(array) or array == np.inf:
        raise ArithmeticError(f"the value is {float(array)}; -inf is allowed where the density is zero")
    return float(array)


def pool_for(function: Callable, workers, timeout: float | None) -> WorkerPool | None:
    """The workers that a user asked for; None to call the function in this process. Raises ValueError."""
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise ValueError(f"timeout must be a positive number of seconds a call, or None; got {timeout!r}")
    if isinstance(workers, Executor):
        return WorkerPool(function, lambda: workers, False, timeout)
    if callable(workers):
        make: Callable[..., Any] = workers
        return WorkerPool(function, make, False, timeout)
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 0:
        raise ValueError(
            "workers must be a number of processes, 0 for none, or a concurrent.futures.Executor, such as Dask's "
            f"client.get_executor(), or a function that makes one; got {workers!r}"
        )
    # Only a call in another process can be abandoned.
    number = max(workers, 1) if timeout is not None else workers
    spawn = multiprocessing.get_context("spawn")
    return WorkerPool(function, lambda: ProcessPoolExecutor(number, spawn), True, timeout) if number else None


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _pickled(function: Callable) -> bytes:
    try:
        return pickle.dumps(function)
    except Exception as error:
        raise ValueError(
            f"log_density cannot be sent to worker processes ({error}); define it at the top level of a "
            "module, without a lambda or a closure, or leave out workers and timeout"
        ) from error
