"""Calls of the model that a fit has made."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class CallCounts:
    """Calls of the model, each counted per draw: checks, rejected steps and the final evaluation included."""

    log_density: int = 0
    gradient: int = 0
    hvp: int = 0

    def plus(self, log_density=0, gradient=0, hvp=0) -> "CallCounts":
        return CallCounts(self.log_density + int(log_density), self.gradient + int(gradient), self.hvp + int(hvp))
