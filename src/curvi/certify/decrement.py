"""A certificate: the remaining gain at q in nats, with a standard error, on fresh draws.

The Newton decrement g'(-H)^-1 g / 2 with the best curvature that the target allows, for any method that led to q:
first-order methods miss flat directions, along which a small gradient still leaves much to gain. Infinite where -H is
not positive definite, which is also tested by a solve with a random right-hand side: at a symmetric saddle, the
gradient on mirrored draws has no component along the direction of increase.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from curvi.certify.gain import Gain, as_finite_or_inf
from curvi.certify.streamed import streamed_certificate, streams
from curvi.descent.newton import newton_step
from curvi.estimate.local import Counts
from curvi.estimate.pathwise import Pathwise
from curvi.estimate.score import AnchoredScore
from curvi.estimate.stein import Stein
from curvi.family import Family
from curvi.model.target import AbstractTarget
from curvi.record.counts import CallCounts
from curvi.solve import CG, SolveOutcome

_PATHWISE_DRAWS = 256
_STEIN_DRAWS = 1024
_SCORE_DRAWS = 4096
_PROBE = CG(tolerance=1e-2, max_steps=50)


def certify(target: AbstractTarget, q: Family, key, memory: int | None = None) -> Gain:
    """The certificate of q: pathwise curvature where the target has two derivatives, Stein's where it has one, score
    curvature elsewhere; the last two shrunk by their noise.
    """
    if streams(target, q):
        return streamed_certificate(target, q, key, memory)
    nats, error, counts = _certify(target, q, key)
    calls = CallCounts(*(int(number) for number in jax.tree.leaves(counts)))
    return Gain(as_finite_or_inf(nats), as_finite_or_inf(error), counts=calls)


@eqx.filter_jit
def _certify(target: AbstractTarget, q: Family, key):
    key_estimate, key_solve, key_probe = jax.random.split(key, 3)
    pathwise = target.order >= 2 and q.reparameterised
    if pathwise:
        estimator = Pathwise(_PATHWISE_DRAWS)
    elif target.order == 1 and q.has_stein_blocks:
        estimator = Stein(_STEIN_DRAWS)
    else:
        estimator = AnchoredScore(_SCORE_DRAWS)
    local = estimator(target, q, key_estimate)
    solver = CG(tolerance=1e-3, max_steps=200)
    found = newton_step(local, local.curvature, solver, jnp.inf, 1.0, 0.0, not pathwise, key_solve)
    gain, num_products = found.remaining_gain, found.step.num_products
    if pathwise:
        # Not for score curvature, whose noise may look like negative curvature; its independent draws do not share
        # the symmetry.
        operator = local.curvature.whiten(local.fisher.factorise()).scale(-1.0)
        probe = _PROBE(operator, jax.random.normal(key_probe, local.grad.shape, local.grad.dtype))
        gain = jnp.where(probe.code == SolveOutcome.NEGATIVE_CURVATURE, jnp.inf, gain)
        num_products = num_products + probe.num_products
    counts = local.counts + Counts(hvp=num_products * local.calls_per_product)
    return gain, found.remaining_gain_se, jax.tree.map(lambda number: jnp.asarray(number, jnp.int32), counts)
