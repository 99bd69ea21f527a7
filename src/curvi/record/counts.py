"""Counts of evaluations of the model."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class CallCounts:
    """Evaluations of the model, counted per draw, including checks, rejected steps and the final evaluation."""

    log_density: int = 0
    gradient: int = 0
    hvp: int = 0

    @property
    def evaluations(self) -> int:
        """Evaluations of the log density or its gradient; a Hessian-vector product counts as two."""
        return max(self.log_density, self.gradient) + 2 * self.hvp

    def less(self, other: "CallCounts") -> "CallCounts":
        """The evaluations since `other`."""
        return CallCounts(self.log_density - other.log_density, self.gradient - other.gradient, self.hvp - other.hvp)

    def plus(self, log_density=0, gradient=0, hvp=0) -> "CallCounts":
        return CallCounts(self.log_density + int(log_density), self.gradient + int(gradient), self.hvp + int(hvp))
