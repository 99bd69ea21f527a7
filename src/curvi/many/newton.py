"""Newton's method for many normal q at a time on fixed draws: for those whose fixed point converges slowly.

The Hessian of the ELBO, dense, is that of few draws, the gradient that of all. Steps are cut to a trust radius in nats,
and taken where the ELBO on the draws rises.
"""

import numpy as np

from curvi.estimate.fixed_draws.noise import matched_noise
from curvi.many.entries import Entries, hessian_draws
from curvi.many.programs import Programs
from curvi.many.steps import State, look, slopes_of

_MOST_STEPS = 25
_FIRST_RADIUS, _LEAST_RADIUS = 2.0, 1e-4  # nats
_LEAST_CURVATURE = 0.05  # of the whitened Hessian, one for a Gaussian: steps along less are no longer than along this


def newton_climb(programs: Programs, state: State, chosen: np.ndarray, noise, entries: Entries, enough: float, rng):
    """Climb on with the chosen fits until a step promises less than `enough` nats; changes `state`."""
    curved = matched_noise(rng, hessian_draws(entries.size), entries.size, 1)
    radius, active = np.full(len(state.mean), _FIRST_RADIUS), chosen
    resolution = 20 * float(np.finfo(programs.dtype).eps)
    for _ in range(_MOST_STEPS):
        step, predicted, definite = _steps(programs, state, active, noise, curved, entries, radius[active])
        ended = definite & (predicted <= enough)
        state.done[active[ended]] = True
        active, step, predicted = active[~ended], step[~ended], predicted[~ended]
        if not len(active):
            break
        mean, factor = entries.moved(state.mean[active], state.factor[active], step)
        value, slope, bend = look(programs, active, mean, factor, noise)
        state.gradients[active] += len(noise)
        state.steps[active] += 1
        gained = value - state.value[active]
        rounding = resolution * (np.abs(value) + 1)
        accepted = np.isfinite(value) & (gained > -rounding * (predicted < rounding))
        here = active[accepted]
        state.mean[here], state.factor[here], state.value[here] = mean[accepted], factor[accepted], value[accepted]
        state.slope[here], state.bend[here] = slope[accepted], bend[accepted]
        longer = np.where(gained > 0.5 * predicted, 3.0, 1.0)
        radius[active] *= np.where(accepted, longer, 0.2)
        active = active[radius[active] >= _LEAST_RADIUS]


def _steps(programs: Programs, state: State, chosen, noise, curved, entries: Entries, radius):
    """Whitened steps inside of the radius, what whole steps promise, and where the Hessian is definite."""
    step, predicted = np.zeros((len(chosen), len(entries))), np.zeros(len(chosen))
    definite = np.zeros(len(chosen), bool)
    for at in entries.blocks(len(chosen)):
        mean, factor = state.mean[chosen[at]], state.factor[chosen[at]]
        gradient = entries.join(*slopes_of(programs, chosen[at], mean, factor, noise))
        bent = programs.hessians(chosen[at], mean, factor, curved)
        fine = np.asarray(np.isfinite(bent).all((1, 2, 3)))
        minus = entries.minus_hessian(np.where(fine[:, None, None, None], bent, 0.0), curved)
        values, vectors = np.linalg.eigh(minus)
        along = (np.swapaxes(vectors, 1, 2) @ gradient[..., None])[..., 0]
        clipped = np.maximum(np.abs(values), _LEAST_CURVATURE)
        step[at] = (vectors @ (along / clipped)[..., None])[..., 0]
        predicted[at] = np.sum(along**2 / clipped, 1) / 2
        definite[at] = fine & (values[:, 0] > 0)
    state.gradients[chosen] += len(noise) + len(curved) * programs.per_hessian(entries.size)
    nats = np.sum(step**2, 1) / 2
    return step * np.sqrt(np.minimum(1.0, radius / np.maximum(nats, 1e-12)))[:, None], predicted, definite
