"""Natural gradient: Newton's method with the Fisher information in place of the Hessian."""

from curvi.descent import natural_gradient_step
from curvi.estimate import AnchoredScore
from curvi.estimate.local import Estimator
from curvi.methods.second_order import Safeguard, safe_init, safe_step
from curvi.methods.stepwise import StepMethod
from curvi.record.plain import register


@register
class NaturalGradient(StepMethod):
    """Steps F^-1 g inside the trust region: the second-order methods without their curvature correction.

    Attributes
    ----------
    estimator
        Gradient; the anchored form by default.
    safeguard
        How steps are kept safe.
    """

    estimator: Estimator = AnchoredScore(256)
    safeguard: Safeguard = Safeguard()

    def start(self, target, q, key):
        return safe_init(self.estimator, self.safeguard, target, q, key)

    def step(self, target, state, key):
        def descend(local, radius, length, key):
            return natural_gradient_step(local, radius, length)

        return safe_step(self.estimator, self.safeguard, descend, 0, target, state, key)
