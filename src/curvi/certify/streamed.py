"""The remaining gain of a product of normal factors on streamed draws, and the check of what certifies it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from curvi.certify.gain import UNKNOWN, Gain, as_finite_or_inf
from curvi.estimate.sampling import at_once
from curvi.estimate.streamed.objective import Design, Look, StreamedObjective
from curvi.estimate.streamed.programs import Solved, variance_of_columns
from curvi.estimate.streamed.scores import Scores
from curvi.family import Family
from curvi.family.on_device import normal_on_device
from curvi.model.placement import on_host
from curvi.model.target import AbstractTarget
from curvi.outcome import Outcome

_RESIDUAL, _NOISE_RESIDUAL = 0.05, 0.1  # a decrement is off by the square of the relative residual
_SECANT = 0.1  # sds: step of the check of values against gradients
_APART = 0.2  # of the nats that such a step is worth: largest discrepancy
_LARGEST_Z, _LARGEST_Z_OF_ALL = 6.0, 4.0  # of one parameter among many; of the one test of all scales
_MATERIAL = 0.02  # a whitened gradient of this size is worth 0.0002 nats: smaller differences are ignored
_STREAM = 1 << 20
_STORED = 2**26  # bytes of noise up to which a certificate stores it
_DRAWS, _FEW = 256, 64


@dataclasses.dataclass(frozen=True)
class Weighed:
    """A look at fresh draws, the step that it suggests, the remaining gain at its q, and the nats of its noise."""

    look: Look
    step: Solved
    gain: Gain
    bias: float


def weigh(objective: StreamedObjective, look: Look, few: Design, radius: float = np.inf) -> Weighed:
    """The step and the remaining gain of a look at fresh draws, with the curvature of a design of few."""
    step = objective.solve(look, few, look.gradient, radius, _RESIDUAL)
    unknown = Gain(np.inf, np.inf)
    if not step.definite or step.at_edge:
        return Weighed(look, step, unknown, look.noise_gain)
    copied = objective.solve(look, few, look.noise, np.inf, _NOISE_RESIDUAL)
    if not copied.definite:
        return Weighed(look, step._replace(definite=np.bool_(False)), unknown, np.inf)
    found = objective.judge(look, step.x, copied.x)
    nats, error = as_finite_or_inf(max((found.slope - found.added) / 2, 0.0)), as_finite_or_inf(found.variance**0.5)
    sds = [as_finite_or_inf(number) for number in (found.sds, found.sds_error, found.sds_noise)]
    gain = Gain(nats, error, sds=sds[0], sds_error=sds[1], sds_noise=sds[2])
    return Weighed(look, step, gain, as_finite_or_inf(found.added / 2))


def checked(objective: StreamedObjective, middle: Look, fresh: Look, gain: Gain) -> Gain:
    """A small remaining gain after the checks that values and gradients are those of one smooth function.

    The gradient along the `fresh` draws must be that of their scores, which needs values alone. And along random signs
    of a tenth of an sd for every parameter, the values at both ends and in the middle, on the draws of one look, must
    differ as the gradients there say, to first and to second order.
    """
    if (weights := contradicted(objective, fresh)) is not None:
        return dataclasses.replace(gain, doubt=Outcome.DISAGREEMENT, weights=weights)
    q, few = middle.q, (middle.stream, middle.num_draws)
    rng = np.random.default_rng([*objective.words, _STREAM])
    signs = rng.integers(0, 2, q.num_params, dtype=np.int8)
    x = (_SECANT * (2 * signs - 1)).astype(q.params.dtype)
    ends = [objective.look(objective.moved(q, x, side), *few, parts=False) for side in (1.0, -1.0)]
    if not all(end.finite() for end in ends):
        return gain
    (up, down), worth = ends, float(_SECANT**2 * len(x) / 2)
    forward, into = objective.slopes(middle, up, x)
    _, back = objective.slopes(middle, down, x)
    first = (into + 4 * forward + back) / 3
    second = (into - back) / 2
    gained = [objective.difference(middle, end) for end in ends]
    apart = max(abs(gained[0] - gained[1] - first), abs(gained[0] + gained[1] - second))
    if apart > _APART * worth + 4 * objective.rounding(middle):
        return dataclasses.replace(gain, doubt=Outcome.DISAGREEMENT)
    return gain


def contradicted(objective: StreamedObjective, look: Look) -> np.ndarray | None:
    """Weights of the parameters whose gradient along the draws is not that of the values, on two independent designs;
    None where there is none.
    """
    z, wider = _score_z(objective, look)
    if not (float(jnp.abs(z).max()) > _LARGEST_Z or abs(wider) > _LARGEST_Z_OF_ALL):
        return None
    stream = (*look.stream, _STREAM)
    z_again, wider_again = _score_z(objective, objective.look(look.q, stream, look.num_draws, parts=True))
    first, again = on_host(z), on_host(z_again)
    twice = (np.abs(first) > _LARGEST_Z) & (np.sign(first) * again > _LARGEST_Z / 2)
    # If the joint test of the scales fails, all parameters are suspects.
    all_scales = abs(wider) > _LARGEST_Z_OF_ALL and np.sign(wider) * wider_again > _LARGEST_Z_OF_ALL / 2
    weights = np.abs(first) * (twice | all_scales)
    return in_order(weights) if weights.any() else None


def in_order(whitened: np.ndarray) -> np.ndarray:
    """Weights of means, then of scales, in the order of the parameters."""
    return whitened.reshape(2, -1).T.ravel()


def _score_z(objective: StreamedObjective, look: Look) -> tuple[jax.Array, float]:
    """z-scores of the score gradient less the gradient along the draws: of each parameter, and of all scales as one."""
    least = np.asarray(_MATERIAL**2 + objective.rounding(look) ** 2, look.gradient.dtype)
    z, wider = _z_scores(objective.scores(look), look.grads, least)
    return z, float(wider)


@jax.jit
def _z_scores(found: Scores, grads, least):
    """The same on the device, where the gradients of the parts are."""
    size = grads.shape[1] // 2
    apart = found.gradient - grads.mean(0)
    z = apart / jnp.sqrt(found.variance + variance_of_columns(grads) + least)
    wider = grads[:, size:].sum(1) * size**-0.5
    variance = found.wider_variance + wider.var(ddof=1) / len(wider) + least
    return z, (found.wider - wider.mean()) / jnp.sqrt(variance)


def streams(target: AbstractTarget, q: Family) -> bool:
    """Whether the certificate of a q is taken on streamed draws."""
    plain = normal_on_device(q) and target.order >= 2 and not target.minibatched
    return plain and q.noise_size * _DRAWS * q.params.dtype.itemsize > _STORED


def streamed_certificate(target: AbstractTarget, q: Family, key, memory: int | None = None) -> Gain:
    """The remaining gain of any q that `streams`, on draws of its own."""
    objective = StreamedObjective.of(target, q, key, min(at_once(target, q, memory), 32), _DRAWS)
    look = objective.look(q, (_STREAM, 0), _DRAWS, parts=True)
    gain = weigh(objective, look, ((_STREAM, 1), _FEW)).gain if look.finite() else UNKNOWN
    return dataclasses.replace(gain, counts=objective.counts)
