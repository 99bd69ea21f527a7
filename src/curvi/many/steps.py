"""Steps of many normal q at a time on fixed draws, in numpy with a leading axis for the fits.

Of each q = N(m, L L'), in the coordinates x = m + L u, one gradient gives slope = L'E[grad] and, by Stein's identity,
bend = -L'E[Hessian]L. At the optimum the slope is zero and the bend, or its diagonal for independent factors, is the
identity. The step goes there at once where ln p is quadratic; elsewhere a share of it is taken, the natural gradient
step of that size, which raises the ELBO if it is short enough.
"""

import dataclasses

import numpy as np

from curvi.many.programs import Programs

_LEAST_BEND = 0.02  # where some direction curves upwards, none is widened by more than a factor of seven
_SHORTER, _LONGER, _LEAST_SHARE = 0.25, 4.0, 1e-4
_MOST_STEPS = 25  # beyond, Newton's method is faster


@dataclasses.dataclass
class State:
    """The q of each fit and what is known there; arrays are changed in place.

    `mean` and `factor` are m and L, `slope` and `bend` as above, `value` the ELBO on the draws of the climb, `done`
    whether it ended there. `gradients` counts evaluations, `steps` steps.
    """

    mean: np.ndarray
    factor: np.ndarray
    slope: np.ndarray
    bend: np.ndarray
    value: np.ndarray
    done: np.ndarray
    steps: np.ndarray
    gradients: np.ndarray

    @classmethod
    def begin(cls, mean: np.ndarray, factor: np.ndarray, count: int) -> "State":
        """All fits at the same start."""
        size = len(mean)
        return cls(
            mean=np.tile(mean, (count, 1)),
            factor=np.tile(factor, (count, 1, 1)),
            slope=np.zeros((count, size)),
            bend=np.zeros((count, size, size)),
            value=np.full(count, -np.inf),
            done=np.zeros(count, bool),
            steps=np.zeros(count, int),
            gradients=np.zeros(count, int),
        )


def log_det(factor: np.ndarray) -> np.ndarray:
    return np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(-1)


def entropy(factor: np.ndarray) -> np.ndarray:
    return log_det(factor) + factor.shape[-1] * (1 + np.log(2 * np.pi)) / 2


def symmetric(matrix: np.ndarray) -> np.ndarray:
    return (matrix + np.swapaxes(matrix, -1, -2)) / 2


def look(programs: Programs, chosen: np.ndarray, mean, factor, noise) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ELBO, slope and bend of these q on these draws; the ELBO is minus infinity where a number is not finite."""
    values, slopes, matrices = programs.gradients(chosen, mean, factor, noise)
    turned = np.swapaxes(factor, -1, -2)
    with np.errstate(invalid="ignore", over="ignore"):
        value = values.mean(1) + entropy(factor)
        slope = (turned @ slopes.mean(1)[..., None])[..., 0]
        bend = -symmetric(turned @ matrices.mean(1))
    finite = np.isfinite(value) & np.isfinite(slope).all(-1) & np.isfinite(bend).all((-1, -2))
    return np.where(finite, value, -np.inf), slope, bend


def slopes_of(programs: Programs, chosen: np.ndarray, mean, factor, noise) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of the ELBO on these draws in delta and A of x = m + L (delta + (I + A) e)."""
    _, slopes, matrices = programs.gradients(chosen, mean, factor, noise)
    turned = np.swapaxes(factor, -1, -2)
    return (turned @ slopes.mean(1)[..., None])[..., 0], turned @ matrices.mean(1) + np.eye(mean.shape[-1])


def climb(programs: Programs, state: State, chosen: np.ndarray, noise: np.ndarray, independent: bool, enough: float):
    """Climb with the chosen fits on fixed noise until a whole step promises less than `enough` nats; changes `state`,
    and returns those that are not there yet.
    """
    found = look(programs, chosen, state.mean[chosen], state.factor[chosen], noise)
    state.value[chosen], state.slope[chosen], state.bend[chosen] = found
    state.gradients[chosen] += len(noise)
    state.done[chosen] = False
    share, active = np.ones(len(state.mean)), chosen[np.isfinite(state.value[chosen])]
    resolution = 20 * float(np.finfo(programs.dtype).eps)
    for _ in range(_MOST_STEPS):
        step = Step.towards_fixed_point(state, active, independent)
        ended = step.definite & (step.predicted <= enough)
        state.done[active[ended]] = True
        active, step = active[~ended], step.at(~ended)
        if not len(active):
            break
        mean, factor = step.taken(state, active, share[active])
        value, slope, bend = look(programs, active, mean, factor, noise)
        state.gradients[active] += len(noise)
        state.steps[active] += 1
        gained = value - state.value[active]
        rounding = resolution * (np.abs(value) + 1)
        accepted = np.isfinite(value) & (gained > -rounding * (step.predicted < rounding))
        here = active[accepted]
        state.mean[here], state.factor[here], state.value[here] = mean[accepted], factor[accepted], value[accepted]
        state.slope[here], state.bend[here] = slope[accepted], bend[accepted]
        share[active] = np.where(accepted, np.minimum(_LONGER * share[active], 1.0), _SHORTER * share[active])
        active = active[share[active] >= _LEAST_SHARE]
    return chosen[~state.done[chosen] & np.isfinite(state.value[chosen])]


@dataclasses.dataclass(frozen=True)
class Step:
    """The steps of some fits: eigenvalues and vectors of the bend, and what the whole steps promise."""

    values: np.ndarray
    vectors: np.ndarray
    along: np.ndarray  # the slope along the vectors
    predicted: np.ndarray
    definite: np.ndarray
    independent: bool

    @classmethod
    def towards_fixed_point(cls, state: State, chosen: np.ndarray, independent: bool) -> "Step":
        bend = state.bend[chosen]
        values, vectors = np.linalg.eigh(bend)
        definite = values[:, 0] > 1e-8 * values[:, -1]
        values = np.where(definite[:, None], values, np.maximum(values, _LEAST_BEND))
        along = np.einsum("nij,ni->nj", vectors, state.slope[chosen])
        spreads = np.diagonal(bend, axis1=-2, axis2=-1) if independent else values
        spreads = np.maximum(spreads, 1e-8)
        predicted = (along**2 / values).sum(-1) / 2 + (spreads - 1 - np.log(spreads)).sum(-1) / 2
        return cls(values, vectors, along, predicted, definite, independent)

    def at(self, chosen: np.ndarray) -> "Step":
        values, vectors, along, predicted, definite = (
            part[chosen] for part in (self.values, self.vectors, self.along, self.predicted, self.definite)
        )
        return Step(values, vectors, along, predicted, definite, self.independent)

    def taken(self, state: State, chosen: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and factor after a share of each step."""
        share = share[:, None]
        precision = (1 - share) + share * self.values
        shift = np.einsum("nij,nj->ni", self.vectors, share * self.along / precision)
        factor = state.factor[chosen]
        if self.independent:
            # The diagonal of the bend with its eigenvalues, which are clipped where it is not definite.
            diagonal = np.einsum("nij,nj->ni", self.vectors**2, precision)
            root = diagonal[:, :, None] ** -0.5 * np.eye(factor.shape[-1])
        else:
            root = np.linalg.cholesky(symmetric((self.vectors / precision[:, None]) @ np.swapaxes(self.vectors, 1, 2)))
        return state.mean[chosen] + np.einsum("nij,nj->ni", factor, shift), factor @ root
