"""The trust radius of regressions, and the larger ball in which a regression is known to hold."""

import numpy as np

from curvi.control.radius import RadiusControl
from curvi.descent.dense import DenseModel
from curvi.record.plain import register
from curvi.record.pytree import pytree
from curvi.solve.truncated_cg import HOST

RULE = RadiusControl(smallest=1e-8)


@register
@pytree
class Trust:
    """A radius in nats, and whether the last step held: only then may a prediction be trusted beyond the radius."""

    radius: float = 1.0
    holds: bool = True

    def judge(self, actual: float, error: float, predicted: float, divergence: float) -> tuple[bool, "Trust"]:
        """Whether to take a step that covered `divergence` nats, and what is trusted after it."""
        far = divergence > 0.5 * self.radius
        accept, radius = RULE(self.radius, predicted, divergence, far, actual, error, HOST)
        return bool(accept), Trust(float(radius), bool(accept))

    def refused(self, divergence: float) -> "Trust":
        """After a step to where nothing is finite: a smaller ball than the step's own."""
        return self.judge(-np.inf, 0.0, 0.0, divergence)[1]

    def step(self, model: DenseModel, residual_variance: float, value: float, complete: bool) -> np.ndarray:
        """The step inside the ball, or inside the larger one in which a regression is known to hold.

        Away from q the mean of the residual e changes by at most sd(e) (exp(2 KL) - 1)^(1/2) to leading order
        (Cauchy-Schwarz with the chi-square divergence). As long as that is half the predicted gain at most, the
        prediction stands whatever the radius: where the residual is zero, in conjugate models, everywhere. Not so after
        a step that failed, nor where something has hardly been seen.
        """
        radius = self.radius
        if self.holds and complete:
            whole = model.step(np.inf if model.definite else RULE.largest)
            spread = np.sqrt(residual_variance)
            if spread < 1e-9 * max(abs(value), 1.0):
                return whole
            radius = max(radius, 0.5 * np.log1p((0.5 * model.predicted(whole) / spread) ** 2))
        return model.step(radius)
