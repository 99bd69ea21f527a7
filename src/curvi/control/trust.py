"""The trust radius of runs on the host, moved by predicted and actual gain with its standard error."""

import numpy as np

SMALLEST_RADIUS, LARGEST_RADIUS = 1e-8, 1e4
_NUM_ERRORS = 2.0


class TrustRadius:
    """A radius in nats (Nocedal and Wright 2006, algorithm 4.1, with standard errors), and whether the last step held.

    Attributes
    ----------
    radius
        In nats.
    trusting
        Whether the last step was taken: only then may a prediction be trusted beyond the radius.
    """

    def __init__(self, radius: float = 1.0):
        self.radius = radius
        self.trusting = True

    def judge(self, actual: float, error: float, predicted: float, divergence: float) -> bool:
        """Whether to take a step that covered `divergence` nats; the radius follows."""
        if not actual >= -_NUM_ERRORS * error:
            self.retreat(divergence)
            return False
        if actual + _NUM_ERRORS * error < 0.25 * predicted:
            self.radius = max(0.5 * min(self.radius, divergence), SMALLEST_RADIUS)
        elif actual + error > 0.75 * predicted and divergence > 0.5 * self.radius:
            self.radius = min(2 * max(self.radius, divergence), LARGEST_RADIUS)
        self.trusting = True
        return True

    def retreat(self, divergence: float) -> None:
        """After a step that failed: a smaller ball than the step's own."""
        self.radius = max(0.25 * min(self.radius, divergence), SMALLEST_RADIUS)
        self.trusting = False

    def step(self, model, residual_variance: float, value: float, complete: bool) -> np.ndarray:
        """The step inside the ball, or inside the larger one in which a regression is known to hold.

        Away from q the mean of the residual e changes by at most sd(e) (exp(2 KL) - 1)^(1/2) to leading order
        (Cauchy-Schwarz with the chi-square divergence). As long as that is half the predicted gain at most, the
        prediction stands whatever the radius: where the residual is zero, in conjugate models, everywhere. Not so after
        a step that failed, nor where something has hardly been seen.
        """
        radius = self.radius
        if self.trusting and complete:
            whole = model.step(np.inf if model.definite else LARGEST_RADIUS)
            spread = np.sqrt(residual_variance)
            if spread < 1e-9 * max(abs(value), 1.0):
                return whole
            radius = max(radius, 0.5 * np.log1p((0.5 * model.predicted(whole) / spread) ** 2))
        return model.step(radius)
