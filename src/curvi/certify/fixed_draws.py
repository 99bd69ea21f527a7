"""The remaining gain at q on fresh fixed draws: the Newton decrement, corrected for the noise of the gradient."""

import dataclasses

import numpy as np

from curvi.certify.gain import NUM_ERRORS, Gain, as_finite_or_inf
from curvi.control.climb import MAX_PRODUCTS
from curvi.descent.newton import Solved, Step, solve_curvature, trust_region_step
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.estimate.local import variance_of_mean
from curvi.family.path import HostPath
from curvi.solve.truncated_cg import HOST

# A decrement is off by the square of the relative residual of its solve: 1 %, and a tenth of what noise takes off it.
_RESIDUAL, _NOISE_RESIDUAL = 0.1, 0.3
_NO_NOISE = 1e-12  # nats: averages that are exact but for rounding


def solve(local: FixedDrawsModel, rhs: np.ndarray, residual: float = 1e-3, max_products: int = MAX_PRODUCTS) -> Solved:
    """The solution x of -H x = rhs."""
    return solve_curvature(local, rhs, residual, max_products, HOST)


@dataclasses.dataclass(frozen=True)
class Weighed:
    """A local model on fresh draws, the Newton step that it suggests, and the remaining gain at its q.

    Attributes
    ----------
    step
        The step inside the trust region.
    gain
        The remaining gain; unknown where the region or negative curvature cut the step, or it is far from small.
    bias
        The nats that the noise of this gradient would leave after the step.
    copy
        A copy of the error that it would leave in the parameters.
    """

    local: FixedDrawsModel
    step: Step
    gain: Gain
    bias: float
    copy: np.ndarray


def weigh(local: FixedDrawsModel, radius: float = np.inf, near: float = np.inf) -> Weighed:
    """The step and the remaining gain of a local model.

    That gain is independent of all that led to q if the draws of the gradient are; those of the curvature need not be.
    Where the step predicts more than `near` nats, the metric stands in for -H in what the noise adds.
    """
    step = trust_region_step(local, radius, lambda square: _RESIDUAL, MAX_PRODUCTS, HOST)
    weights = np.abs(step.direction / local.spreads)
    noise, root = local.noise.copy(), local.root()
    copy = root.solve_transpose(root.solve(noise))
    bias = as_finite_or_inf(noise @ copy / 2)
    unknown = Gain(np.inf, np.inf, weights=weights)
    if not step.definite or step.at_edge or step.predicted > near + bias:
        return Weighed(local, step, unknown, bias, copy)
    solved: list[Solved] = []

    def inverse(v):
        exact = bias < _NO_NOISE
        solved.append(Solved(copy, bias, True, 0) if exact else solve(local, v, _NOISE_RESIDUAL))
        return solved[-1].x

    nats, error = local.decrement(inverse, step.direction)
    found = solved[-1]
    if not found.definite:
        step = dataclasses.replace(step, definite=np.bool_(False))
        return Weighed(local, step, Gain(np.inf, np.inf, weights=np.abs(found.x / local.spreads)), np.inf, copy)
    nats, error = as_finite_or_inf(max(nats, 0.0)), as_finite_or_inf(error)
    sds, sds_error, sds_noise = largest_step(local, step.direction)
    gain = Gain(nats, error, copies=(found.x,), sds=sds, sds_error=sds_error, sds_noise=sds_noise)
    return Weighed(local, step, gain, as_finite_or_inf(found.decrement), found.x)


def remaining_gain(local: FixedDrawsModel) -> Gain:
    """The remaining gain of a local model on fresh draws."""
    return weigh(local).gain


def largest_step(local: FixedDrawsModel, step: np.ndarray) -> tuple[float, float, float]:
    """The largest move of a mean or ln sd among all latents, in sds of q, its standard error, and the largest of these.

    The noise of the step is that of the gradient, with the metric in the place of -H.
    """
    path, root = local.curvature.objective.path, local.root()
    groups = local.noise.groups
    natural = np.stack([root.solve_transpose(root.solve(group)) for group in groups])
    if isinstance(path, HostPath):
        moved = np.abs(path.sds_moved(local.params, step))
        noise = np.stack([path.sds_moved(local.params, one) for one in natural])
    else:
        moved, noise = np.abs(step / local.spreads), natural / local.spreads
    # Few groups know the error of each latent badly: half of it is the average over all latents.
    own = np.array([variance_of_mean(column) for column in noise.T])
    errors = np.sqrt((own + own.mean()) / 2)
    worst = int(np.argmax(moved - NUM_ERRORS * errors))
    return as_finite_or_inf(moved[worst]), as_finite_or_inf(errors[worst]), as_finite_or_inf(errors.max())
