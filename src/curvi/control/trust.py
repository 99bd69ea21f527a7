"""The trust radius of regressions, and the larger ball in which a regression is known to be accurate."""

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
    """A radius in nats, and whether the last step was accepted: only then may a step go beyond the radius."""

    radius: float = 1.0
    holds: bool = True

    def judge(self, actual: float, error: float, predicted: float, divergence: float) -> tuple[bool, "Trust"]:
        """Whether to accept a step of size `divergence` in nats, and the next `Trust`."""
        far = divergence > 0.5 * self.radius
        accept, radius = RULE(self.radius, predicted, divergence, far, actual, error, HOST)
        return bool(accept), Trust(float(radius), bool(accept))

    def refused(self, divergence: float) -> "Trust":
        """The `Trust` after a step to values that are not finite, with a radius below the size of the step."""
        return self.judge(-np.inf, 0.0, 0.0, divergence)[1]

    def step(self, model: DenseModel, residual_variance: float, value: float, complete: bool) -> np.ndarray:
        """The step inside the ball, or inside the larger one in which a regression is known to be accurate.

        Away from q the mean of the residual e changes by at most sd(e) (exp(2 KL) - 1)^(1/2) to leading order
        (Cauchy-Schwarz with the chi-square divergence). If that is at most half the predicted gain, the
        prediction is valid beyond the radius; where the residual is zero, as in conjugate models, it is valid
        everywhere. This is not used after a rejected step or if the regression is not `complete`.
        """
        radius = self.radius
        if self.holds and complete:
            whole = model.step(np.inf if model.definite else RULE.largest)
            spread = np.sqrt(residual_variance)
            if spread < 1e-9 * max(abs(value), 1.0):
                return whole
            radius = max(radius, 0.5 * np.log1p((0.5 * model.predicted(whole) / spread) ** 2))
        return model.step(radius)
