"""The trust radius in nats, moved by a ratio test that knows its own noise.

The actual gain is a difference of two Monte Carlo estimates. Below their standard error it says nothing of the
model's quality, so the radius moves only on evidence: a clear shortfall shrinks it, a gain in line with the
prediction at the edge lets it grow, a clear loss is rejected.
"""

import equinox as eqx
import jax.numpy as jnp


class RadiusControl(eqx.Module):
    """Next radius and verdict from predicted and actual gain.

    Attributes
    ----------
    initial, largest, smallest
        Radius in nats at the start, and its bounds.
    num_errors
        How many standard errors of evidence a rejection needs.
    """

    initial: float = 1.0
    largest: float = 1e4
    smallest: float = 1e-6
    num_errors: float = 2.0

    def __call__(self, radius, step, actual, actual_se):
        """Whether to accept, and the next radius. The fractions 1/4 and 3/4 are Nocedal and Wright's (2006, algorithm
        4.1).
        """
        slack = self.num_errors * actual_se
        accept = actual >= -slack
        poor = actual + slack < 0.25 * step.predicted
        good = (actual + actual_se > 0.75 * step.predicted) & step.at_edge
        # A rejected step shrinks the ball below itself, whatever the ball's size was.
        shrunk = 0.25 * jnp.minimum(radius, step.divergence)
        radius = jnp.where(poor, jnp.where(accept, radius / 2, shrunk), jnp.where(good, 2 * radius, radius))
        return accept, jnp.clip(radius, self.smallest, self.largest)
