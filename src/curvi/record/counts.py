"""Counts of evaluations of the model."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class CallCounts:
    """Evaluations of the model, counted per draw, including checks, rejected steps and the final evaluation.

    `passes` counts how often all rows were read, where they are too many for every evaluation to take them all.
    """

    log_density: int = 0
    gradient: int = 0
    hvp: int = 0
    passes: float = 0.0

    @property
    def evaluations(self) -> int:
        """Evaluations of the log density or its gradient; a Hessian-vector product counts as two."""
        return max(self.log_density, self.gradient) + 2 * self.hvp

    def less(self, other: "CallCounts") -> "CallCounts":
        """The evaluations since `other`."""
        return self.plus(-other.log_density, -other.gradient, -other.hvp, -other.passes)

    def plus(self, log_density=0, gradient=0, hvp=0, passes=0.0) -> "CallCounts":
        more = int(log_density), int(gradient), int(hvp)
        return CallCounts(self.log_density + more[0], self.gradient + more[1], self.hvp + more[2], self.passes + passes)

    def with_all(self, other: "CallCounts") -> "CallCounts":
        """The sum of both."""
        return self.plus(other.log_density, other.gradient, other.hvp, other.passes)
