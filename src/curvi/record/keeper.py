"""Writes a run to a file every so often, so that a killed process loses at most one interval."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class CheckpointError(RuntimeError):
    """A checkpoint could not be written.

    Attributes
    ----------
    fit
        The fit so far, to go on from by `start=`; the file has the state that was last written.
    """

    fit: Any = None


class Keeper:
    """Calls `write` once `seconds` have passed since the last time; `write` replaces the file in one step."""

    def __init__(self, path: Path, seconds: float, write: Callable[[], None]):
        self.path, self.seconds, self._write = path, seconds, write
        self._last = time.monotonic()

    def keep_if_due(self) -> None:
        if time.monotonic() - self._last >= self.seconds:
            self.keep()

    def keep(self) -> None:
        try:
            self._write()
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint {self.path} could not be written ({error}); it holds the state of the last time. Mend "
                "that and go on from the file, or from the fit of this error: start=error.fit"
            ) from error
        self._last = time.monotonic()


def checked_path(path, seconds) -> Path:
    """The path of a checkpoint, after seeing that it can be written; ValueError where it cannot."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise ValueError(f"checkpoint_seconds must be a number of seconds, at least 0; got {seconds!r}")
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"checkpoint must be the path of a file; got {path!r}")
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"checkpoint must be the path of a file; {path} is a directory")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(f"no checkpoint can be written to {path.parent} ({error.strerror}): create it") from None
    return path
