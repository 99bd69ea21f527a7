"""Wall time, split into compilation and running."""

import time

from curvi.record.history import Seconds


class Clock:
    """Splits wall time into compilation and running."""

    def __init__(self, earlier: Seconds | None = None):
        self.mark = time.perf_counter()
        # A run that goes on counts on from what it had spent.
        self.began = self.mark - (earlier.compile + earlier.run if earlier else 0.0)
        self.compile = earlier.compile if earlier else 0.0

    def compiled(self):
        """What passed since the last mark was compilation."""
        now = time.perf_counter()
        self.compile += now - self.mark
        self.mark = now

    def ran(self) -> float:
        now = time.perf_counter()
        passed, self.mark = now - self.mark, now
        return passed

    def seconds(self) -> Seconds:
        return Seconds(self.compile, time.perf_counter() - self.began - self.compile)
