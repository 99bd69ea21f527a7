"""Newton's method on growing fixed draws: one compiled sweep over the draws, everything else on the host."""

from curvi.growing.run import GrowingRun

__all__ = ["GrowingRun"]
