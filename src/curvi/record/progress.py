"""Progress: a line that is redrawn in a terminal or a notebook, or occasional plain lines in a log file.

The run reports after each advance; displays drop reports that come too fast, so that the cost is negligible. The
computation is the same with and without progress.
"""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TextIO, runtime_checkable

import numpy as np

from curvi.record.counts import CallCounts
from curvi.record.history import Row

_REDRAW_SECONDS = 0.125
_LOG_SECONDS = 10.0  # between lines of a log file; shorter fits write none


@runtime_checkable
class Progress(Protocol):
    """The interface of a display for a run."""

    def show(self, taken: int, row: Row, counts: CallCounts) -> None:
        """Show the number of steps so far, the history row of the last one, and the evaluations so far."""
        ...


class Silent:
    """Shows nothing."""

    def show(self, taken: int, row: Row, counts: CallCounts) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class Report:
    """One progress report of a run."""

    taken: int
    limit: int
    elbo: float
    elbo_se: float
    gain: float
    promised: float
    calls: int
    radius: float
    num_draws: int
    seconds: float
    seconds_left: float
    passes: float = 0.0
    pass_seconds_left: float = float("inf")  # of the pass over all rows that is under way

    def words(self) -> str:
        parts = [f"ELBO {self.elbo:.2f} ± {self.elbo_se:.2g}"]
        if np.isfinite(self.gain) or not np.isfinite(self.promised):
            parts.append(f"gain left {self.gain:.2g} nats" if np.isfinite(self.gain) else "gain left ?")
        else:
            parts.append(f"last step promised {self.promised:.2g} nats")
        if self.num_draws:
            parts.append(f"{self.num_draws:,} draws")
        if np.isfinite(self.radius):
            parts.append(f"radius {self.radius:.2g}")
        parts.append(f"{self.calls:,} calls")
        if self.passes:
            parts.append(self._passes())
        return "  ".join(parts)

    def _passes(self) -> str:
        done, share = divmod(self.passes, 1)
        return f"pass {int(done) + 1} at {share:.0%}" if share else f"{int(done)} pass{'es' if done > 1 else ''}"

    def left(self) -> str:
        """The time left, as far as it is known: of a pass over all rows, or of the steps that are allowed."""
        if np.isfinite(self.pass_seconds_left):
            return f"{_duration(self.pass_seconds_left)} left of this pass"
        return f"at most {_duration(self.seconds_left)} left" if np.isfinite(self.seconds_left) else ""

    def time(self) -> str:
        return ", ".join(part for part in (_duration(self.seconds), self.left()) if part)

    def line(self) -> str:
        return f"curvi  step {self.taken}/{self.limit}  {self.words()}  {self.time()}"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02d} min" if whole < 3600 else f"{whole // 3600}:{whole // 60 % 60:02d} h"


class Reporter:
    """Makes reports from the messages of a run, and passes on those that are due.

    Parameters
    ----------
    limit
        Largest number of steps of the run.
    draw
        Takes a `Report`.
    every
        Least number of seconds between reports, and before the first.
    """

    def __init__(self, limit: int, draw: Callable[[Report], object], every: float):
        self.limit, self.draw, self.every = limit, draw, every
        self.began = self.drawn = self.last_time = time.perf_counter()
        self.last_taken, self.last_passes = 0, 0.0

    def show(self, taken: int, row: Row, counts: CallCounts) -> None:
        now = time.perf_counter()
        # Time for the remaining steps at the pace of the last ones; the fit ends earlier if it converges. The time
        # before the first report was compilation.
        known = taken > self.last_taken > 0
        left = (self.limit - taken) * (now - self.last_time) / (taken - self.last_taken) if known else np.inf
        read, of_pass = counts.passes - self.last_passes, np.inf
        if counts.passes % 1 and read > 0:
            of_pass = (1 - counts.passes % 1) * (now - self.last_time) / read
        self.last_time, self.last_taken, self.last_passes = now, taken, counts.passes
        if now - self.drawn < self.every:
            return
        self.drawn = now
        calls = counts.log_density + counts.gradient + counts.hvp
        numbers = ("elbo", "elbo_se", "remaining_gain", "predicted_gain", "radius")
        elbo, elbo_se, gain, promised, radius = (float(row.get(name, np.nan)) for name in numbers)
        draws, seconds = int(row.get("num_draws", 0)), now - self.began
        passed = counts.passes, of_pass
        self.draw(
            Report(taken, self.limit, elbo, elbo_se, gain, promised, calls, radius, draws, seconds, left, *passed)
        )


@contextlib.contextmanager
def open_progress(visible: bool, limit: int, tolerance: float, file: TextIO | None = None) -> Iterator[Progress]:
    """A display for a run of at most `limit` steps: on `file`, or on standard error."""
    if not visible:
        yield Silent()
        return
    out: TextIO = sys.stderr if file is None else file
    if out is sys.stderr and (show := _notebook_display()) is not None:
        with _notebook(show, limit) as display:
            yield display
    elif getattr(out, "isatty", bool)():
        with _terminal(out, limit) as display:
            yield display
    else:
        yield Reporter(limit, lambda report: _write_line(out, report), _LOG_SECONDS)


def _write_line(file: TextIO, report: Report) -> None:
    file.write(report.line() + "\n")
    file.flush()


@contextlib.contextmanager
def _terminal(file: TextIO, limit: int) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("curvi"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    console = Console(file=file, force_terminal=True)
    with RichProgress(*columns, console=console, transient=True, refresh_per_second=4) as display:
        task = display.add_task("fit", total=limit, status="compiling", left="")

        def draw(report: Report):
            display.update(task, completed=report.taken, status=report.words(), left=report.left())

        yield Reporter(limit, draw, _REDRAW_SECONDS)


def _notebook_display() -> Callable | None:
    """IPython's `display` if this is a notebook, else None."""
    if (shell := sys.modules.get("IPython")) is None:
        return None
    if type(shell.get_ipython()).__name__ != "ZMQInteractiveShell":
        return None
    from IPython.display import display

    return display


@contextlib.contextmanager
def _notebook(show: Callable, limit: int) -> Iterator[Progress]:
    # One output updated in place needs no widgets, and stays readable in a saved notebook.
    handle = show({"text/plain": "curvi  compiling"}, raw=True, display_id=True)

    def draw(report: Report):
        handle.update({"text/plain": report.line()}, raw=True)

    yield Reporter(limit, draw, _REDRAW_SECONDS)
