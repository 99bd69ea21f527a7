"""Wall time, split into compilation and running.

JAX reports the time to trace, lower and compile each program; for any method and any state of the caches, that is the
compilation time. A report comes at the end of its interval, and intervals may be nested (a program is traced while
another one is): their union is counted.
"""

import threading
import time

import jax

from curvi.record.history import Seconds

_EVENTS = "/jax/core/compile/"
_local = threading.local()


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    if event.startswith(_EVENTS) and (clocks := getattr(_local, "clocks", None)):
        now = time.perf_counter()
        for clock in clocks:
            clock.intervals.append((now - duration_secs, now))


jax.monitoring.register_event_duration_secs_listener(_listen)


class Clock:
    """Measures the time inside its `with` block, in this thread."""

    def __init__(self, earlier: Seconds | None = None):
        self.intervals: list[tuple[float, float]] = []
        # A resumed run adds to its earlier time.
        self._earlier = earlier or Seconds(0.0, 0.0)
        self._began = time.perf_counter()

    def __enter__(self) -> "Clock":
        _local.clocks = [*getattr(_local, "clocks", []), self]
        return self

    def __exit__(self, *_) -> None:
        _local.clocks = [clock for clock in _local.clocks if clock is not self]

    def compiling(self) -> float:
        """Seconds of compilation so far."""
        if len(self.intervals) > 1:
            self.intervals = _union(self.intervals)
        return self._earlier.compile + sum(max(end - max(start, self._began), 0.0) for start, end in self.intervals)

    def elapsed(self) -> float:
        """Seconds since this clock was started, including compilation but not earlier runs."""
        return time.perf_counter() - self._began

    def running(self) -> float:
        """Seconds so far without compilation."""
        earlier = self._earlier
        return self.elapsed() + earlier.compile + earlier.run - self.compiling()

    def seconds(self) -> Seconds:
        return Seconds(self.compiling(), self.running())


def _union(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    out: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out
