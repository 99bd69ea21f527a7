"""Progress display: one line that is redrawn in a terminal, an occasional plain line in a log file."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

import numpy as np


class Progress(Protocol):
    """What the loop tells a display after each chunk of steps."""

    def show(self, taken: int, records, counts) -> None: ...

    def note(self, taken: int, elbo: float, elbo_se: float, gain: float, counts, radius: float = np.nan) -> None: ...


class Silent:
    """Shows nothing."""

    def show(self, taken, records, counts):
        pass

    def note(self, taken, elbo, elbo_se, gain, counts, radius=np.nan):
        pass


class _Line:
    """A line on a rich display: ELBO, remaining gain, draws, radius."""

    def __init__(self, display, task):
        self.display, self.task = display, task

    def show(self, taken, records, counts):
        last = (records.elbo, records.elbo_se, records.remaining_gain)
        elbo, elbo_se, gain = (float(column[-1]) for column in last)
        self.note(taken, elbo, elbo_se, gain, counts, float(records.radius[-1]))

    def note(self, taken, elbo, elbo_se, gain, counts, radius=np.nan):
        words = [f"ELBO {elbo:.2f} ± {elbo_se:.2g}"]
        words.append(f"gain left {gain:.2g} nats" if np.isfinite(gain) else "gain left ?")
        words.append(f"{counts.log_density + counts.gradient + counts.hvp:,} calls")
        if np.isfinite(radius):
            words.append(f"radius {radius:.2g}")
        self.display.update(self.task, completed=taken, status="  ".join(words))


@contextlib.contextmanager
def open_progress(visible: bool, limit: int, tolerance: float) -> Iterator[Progress]:
    """A display for a run of at most `limit` steps."""
    if not visible:
        yield Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("curvi"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=8) as display:
        yield _Line(display, display.add_task("fit", total=limit, status="compiling"))
