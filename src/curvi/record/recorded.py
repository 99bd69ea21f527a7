"""What the runs that climb by regression keep of their steps, and leave behind."""

import time

import numpy as np

from curvi.control.trust import TrustRadius
from curvi.record.clock import Clock
from curvi.record.counts import CallCounts
from curvi.record.history import History
from curvi.record.progress import Progress


class RecordedRun:
    """Rows of history, and the ELBO of the last verdict."""

    clock: Clock
    display: Progress
    counts: CallCounts
    trust: TrustRadius

    def __init__(self):
        self.gain, self.gain_se = float("inf"), float("inf")
        self.elbo, self.elbo_se = float("nan"), float("inf")
        self.start_elbos = None
        self.suspects: tuple[str, ...] = ()
        self.rows: list[dict] = []

    def record(self, value: float, value_se: float, num_draws: int, believed: float, accepted: bool) -> None:
        """Note a step: what was estimated there, and what had been spent by then."""
        gain, gain_se = (self.gain, self.gain_se) if accepted else (np.inf, np.inf)
        self.rows.append(
            {
                "elbo": value,
                "elbo_se": value_se,
                "remaining_gain": gain,
                "remaining_gain_se": gain_se,
                "log_density": self.counts.log_density,
                "seconds": time.perf_counter() - self.clock.began - self.clock.compile,
                "num_draws": num_draws,
                "radius": self.trust.radius,
                "accepted": accepted,
                "curvature_weight": believed,
            }
        )
        self.display.note(len(self.rows), value, value_se, gain, self.counts, self.trust.radius, num_draws)

    def final_elbo(self) -> tuple[float, float]:
        """ELBO and its standard error from the last batch that was drawn for a verdict: no further calls."""
        return self.elbo, self.elbo_se

    def error_copies(self) -> None:
        return None

    def history(self) -> History:
        names = History.__dataclass_fields__
        return History(**{name: np.array([row[name] for row in self.rows]) for name in names})
