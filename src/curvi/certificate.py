"""A certificate: how many nats are left to gain at q, with a standard error, on fresh draws.

The Newton decrement g'(-H)^-1 g / 2 with the best curvature that the target allows, whatever the method that led to q: first-order methods
cannot see flat directions, along which a small gradient still leaves much to gain. Infinite where -H is not positive definite.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi.descent.newton import newton_step
from curvi.estimate.draws import Antithetic, Independent
from curvi.estimate.local import Counts
from curvi.estimate.pathwise import Pathwise
from curvi.estimate.score import AnchoredScore
from curvi.family import MeanField
from curvi.methods.base import as_counts
from curvi.solve import CG
from curvi.target import AbstractTarget

_PATHWISE_DRAWS = 256
_SCORE_DRAWS = 4096


class Certificate(eqx.Module):
    """Remaining gain in nats with its standard error, and what it cost to find."""

    gain: Float[Array, ""]
    gain_se: Float[Array, ""]
    counts: Counts


@eqx.filter_jit
def certify(target: AbstractTarget, q: MeanField, key) -> Certificate:
    """The certificate of q: pathwise curvature where the target has two derivatives, shrunk score curvature elsewhere."""
    key_estimate, key_solve = jax.random.split(key)
    pathwise = target.order >= 2 and q.reparameterised
    estimator = (
        Pathwise(_PATHWISE_DRAWS, Antithetic()) if pathwise else AnchoredScore(_SCORE_DRAWS, draws=Independent())
    )
    local = estimator(target, q, key_estimate)
    solver = CG(tolerance=1e-3, max_steps=200)
    step = newton_step(local, local.curvature, solver, jnp.inf, 1.0, 0.0, not pathwise, key_solve)
    counts = local.counts + Counts(hvp=step.num_products * local.calls_per_product)
    return Certificate(step.remaining_gain, step.remaining_gain_se, as_counts(counts))
