"""The trust radius in nats, adapted by a ratio test that accounts for noise.

The actual gain is a difference of two estimates. Below its standard error it says nothing about the model, so the
radius changes only on evidence: a significant shortfall shrinks it, a gain near the prediction at the edge lets it
grow, and a significant loss is rejected. On fixed draws the difference is exact, and its standard error is zero.
"""

from curvi.record.plain import register
from curvi.record.pytree import pytree
from curvi.solve.truncated_cg import COMPILED, Loop


@register
@pytree
class RadiusControl:
    """Acceptance and next radius from predicted and actual gain (Nocedal and Wright 2006, algorithm 4.1, with noise).

    Attributes
    ----------
    initial, largest, smallest
        Radius in nats at the start, and its bounds.
    num_errors
        Standard errors of evidence needed for a rejection.
    least_ratio
        Least ratio of actual to predicted gain for an accepted step.
    shrink_taken, shrink_refused
        Factors for the radius, or for the size of the step if that was smaller, after an accepted step with a poor
        ratio, and after a rejected step.
    growth, fast_growth
        Factors for the radius after a step to the edge that gained three quarters of the prediction, and after one
        that gained nine tenths.
    """

    initial: float = 1.0
    largest: float = 1e4
    smallest: float = 1e-6
    num_errors: float = 2.0
    least_ratio: float = 0.0
    shrink_taken: float = 0.5
    shrink_refused: float = 0.25
    growth: float = 2.0
    fast_growth: float = 2.0

    def __call__(self, radius, predicted, divergence, at_edge, actual, actual_se, loop: Loop = COMPILED):
        """Whether to accept a step of size `divergence` in nats, and the next radius.

        The fractions 1/4 and 3/4 are Nocedal and Wright's.
        """
        xp, choose = loop.xp, loop.choose
        most = actual + self.num_errors * actual_se
        # Written so that a NaN gain is rejected.
        accept = most >= self.least_ratio * predicted
        fine = most >= 0.25 * predicted
        likely = actual + actual_se
        good = accept & fine & at_edge & (likely > 0.75 * predicted)
        growth = choose(likely > 0.9 * predicted, lambda: self.fast_growth, lambda: self.growth)
        shrunk = choose(accept, lambda: self.shrink_taken, lambda: self.shrink_refused)
        ball = xp.minimum(radius, choose(divergence >= 0, lambda: divergence, lambda: radius))
        radius = choose(
            accept & fine,
            lambda: choose(good, lambda: growth * xp.maximum(radius, divergence), lambda: radius),
            lambda: shrunk * ball,
        )
        return accept, xp.minimum(xp.maximum(radius, self.smallest), self.largest)
