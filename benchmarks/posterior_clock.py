"""Seconds on the wall and of the processors: on a shared machine the second kind says more."""

import dataclasses
import statistics
import time


@dataclasses.dataclass(frozen=True)
class Seconds:
    """Seconds of waiting, and of processors that worked meanwhile for this process."""

    wall: float
    cpu: float

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.wall - other.wall, self.cpu - other.cpu)


def now() -> Seconds:
    return Seconds(time.perf_counter(), time.process_time())


def repeated(once) -> Seconds:
    """Seconds of a call; of short ones the median of three."""
    passed = []
    while not passed or (len(passed) < 3 and passed[0].wall < 2):
        began = now()
        once()
        passed.append(now() - began)
    return Seconds(statistics.median(p.wall for p in passed), statistics.median(p.cpu for p in passed))


def fields(cold: Seconds, warm: Seconds) -> dict[str, float]:
    """Both kinds of both, as a line has them."""
    seconds = {"cold_seconds": cold.wall, "warm_seconds": warm.wall}
    return {**seconds, "cold_cpu_seconds": cold.cpu, "warm_cpu_seconds": warm.cpu}
