"""The search for the lambdas of latents with a location and a scale (`curvi.family.centering`), by climbs on few draws.

Every climb is of the same family on the same draws: a mean field, or a bordered q where there are many latents in
blocks. The first is in the middle, at lambda = 1/2; the next two, at both
ends, start from where it ended, and so does what follows: they take a few steps each. At the end of a climb the
derivative of the ELBO in each lambda costs nothing: it is made of the gradients at the draws, locations and scales.
Along three climbs it is integrated for every element, and the best lambdas of each site are tried in a fourth climb;
where the derivative there says so, they are moved once more. The best of all climbs is kept. A climb that ends far
below where another one and the derivatives between them say has ended at another optimum, and is repeated from there.

Rows do not tell as much of every element of a site as of the others. The lambdas of a site lie therefore on the curve

    lambda_j = t r_j / (t r_j + (1 - t) r),    0 <= t <= 1,

with r_j the information of the rows on element j, in units of that of its prior, as the scales of the middle climb show
it, and r its geometric mean: what is known well without its group is centred first.
"""

import dataclasses

import jax
import numpy as np

from curvi.control.climb import ON_FIXED_DRAWS, End, climb_step, end_at_start, fixed_point_step, scale_step
from curvi.estimate.fixed_draws.objective import Objective
from curvi.estimate.start import find_start
from curvi.family import Family
from curvi.family.centering import Centering, centered_columns, centering_of, locations, slope_terms, with_amounts
from curvi.family.normal_path import NormalPath
from curvi.family.path import HostPath, Path
from curvi.methods.base import News, Problem
from curvi.methods.centering import MIDDLE
from curvi.methods.growing_draws.state import CenteringSearch, GrowingState
from curvi.methods.growing_draws.streams import FOR_CLIMBING

_ENDS = (0.0, 1.0)
_CLIMBED = 0.05  # nats: the gain tolerance of a climb, whose derivatives are compared
_CLIMBED_A_LATENT = 1e-4  # the same for each latent, where there are many
_MOST_STEPS, _MOST_OF_TIED = 60, 120  # of a climb; of those of a tied family half cost nothing
_MOST_TRIED = 6
_WORTH = 0.03  # nats: predicted gain of other lambdas below which they are not tried
_APART = 10.0  # nats between climbs of different optima
_SAME = 0.02  # difference of lambdas below which they are not tried again
_LEAST_INFORMATION = 1e-3  # in units of the prior's
_GRID = np.linspace(0.0, 1.0, 41)


def search_centering(problem: Problem, objective: Objective, state: GrowingState) -> tuple[GrowingState, News]:
    """The state after a climb at the lambdas of its q, ready for the next one, or with the best of all."""
    search = state.search
    assert search is not None
    q, value, slopes = _climbed(problem, objective, state)
    centering = centering_of(q)
    assert centering is not None
    search = search.after(centering.vector(), value, slopes, np.asarray(q.params, np.float64))
    if len(search.values) == 1 or search.again[-1:] == (0,):
        search = dataclasses.replace(search, information=_information(q))
    astray = _astray(search)
    if astray is not None:
        search = dataclasses.replace(search, again=(*search.again, astray), repeats=True)
    wanted = _next(search, _site_of_element(centering)) if astray is None else search.tried[astray]
    if wanted is None:
        search = dataclasses.replace(search, done=True)
        q = _tried(q, search, int(np.argmax(search.values))) if np.isfinite(search.values).any() else q
    else:
        good = np.isfinite(search.values) & (search.values > search.values.max() - _APART)
        near = np.where(good, np.abs(search.tried - wanted).mean(1), np.inf)
        q = (_tried(q, search, int(np.argmin(near))) if good.any() else q).recentered(wanted)
    # The best climb goes on where it ended, on the same draws.
    return state.but(family=q, params=np.asarray(q.params, np.float64), search=search), News()


def _climbed(problem: Problem, objective: Objective, state: GrowingState) -> tuple[Family, float, np.ndarray]:
    """q after a climb on the draws of the first round, the ELBO on them, and its derivative in each lambda."""
    q = state.q
    fixed = objective.noise(state.params, (FOR_CLIMBING, 0), state.num_draws, 1, correct=False)
    local = objective(state.params, fixed)
    if not local.finite() and not len(state.search.values):  # pyright: ignore[reportOptionalMemberAccess]
        q, calls = find_start(problem.target, q, objective.key)
        objective.counts = objective.counts.plus(log_density=calls)
        local = objective(np.asarray(q.params, np.float64), fixed)
    end, radius, steps = end_at_start(objective, local), ON_FIXED_DRAWS.initial, 0
    local = scale_step(objective, local) if end is None else local
    fixed_point = isinstance(objective.path, HostPath) and objective.path.has_fixed_point
    newton, tolerance = not fixed_point, max(_CLIMBED, _CLIMBED_A_LATENT * objective.dimension)
    while end is None and steps < (_MOST_OF_TIED if fixed_point else _MOST_STEPS):
        climbed = (climb_step if newton else fixed_point_step)(objective, local, radius, tolerance)
        # Where the fixed point does not help, one Newton step leads to where it is tried again.
        newton = not fixed_point or (not climbed.accepted and not newton)
        local, radius, end, steps = climbed.local, climbed.radius, climbed.end, steps + 1
    q = q.replace(jax.device_put(local.params.astype(q.params.dtype)))
    kept = local.kept()
    if end is End.BAD_START or not local.finite() or kept is None:
        return q, -np.inf, np.full(len(centering_of(q).vector()), np.nan)  # pyright: ignore[reportOptionalMemberAccess]
    along, own = slope_terms(q, fixed.values[: len(kept)])
    columns = centered_columns(q)  # pyright: ignore[reportAttributeAccessIssue]
    return q, local.value, (kept[:, columns] * along + own).mean(0)


def _tried(q, search: CenteringSearch, index: int):
    """The q with which a climb ended."""
    moved = with_amounts(q, search.tried[index])
    return moved.replace(jax.device_put(search.params[index].astype(q.params.dtype)))


def _information(q) -> np.ndarray:
    """What the rows tell of each element in units of what the prior tells: the precision of a coordinate is
    tau^(-2 lambda) (1 + r).
    """
    log_scale = locations(q, np.zeros((1, q.noise_size)))[2, 0]
    columns = centered_columns(q)
    sds = conditional_sds(q.path, np.asarray(q.params, np.float64))[columns]
    ratio = np.exp(2 * q.centering.vector() * log_scale) / sds**2 - 1
    return np.clip(np.nan_to_num(ratio, nan=_LEAST_INFORMATION), _LEAST_INFORMATION, 1 / _LEAST_INFORMATION)


def conditional_sds(path: Path, params: np.ndarray) -> np.ndarray:
    """The sd under q of each latent given all others."""
    assert isinstance(path, HostPath)
    return path.sds(params) if isinstance(path, NormalPath) else path.spreads(params)[: path.size]


def _site_of_element(centering: Centering) -> np.ndarray:
    return np.repeat(np.arange(len(centering.sites)), [amount.size for amount in centering.amounts])


def _curves(information: np.ndarray, site: np.ndarray) -> np.ndarray:
    """The lambdas of all elements at each point of the grid (elements, grid)."""
    logarithm = np.log(information)
    typical = np.bincount(site, logarithm) / np.bincount(site)
    known = np.exp(logarithm - typical[site])[:, None] * _GRID
    return known / (known + 1 - _GRID)


def _next(search: CenteringSearch, site: np.ndarray) -> np.ndarray | None:
    """The lambdas to try next; None where no others are worth it."""
    number = len(search.values)
    if number <= len(_ENDS):
        return np.full(len(site), _ENDS[number - 1])
    if number >= _MOST_TRIED or not np.all(np.isfinite(search.slopes)):
        return None
    curves = _curves(search.information, site)
    gained = _predicted(search, curves, site)
    best = np.argmax(gained, 1)
    if number > 1 + len(_ENDS):
        distance = np.abs(curves - search.tried[-1][:, None])
        now = np.array([distance[site == index].sum(0).argmin() for index in range(len(gained))])
        rows = np.arange(len(gained))
        if (gained[rows, best] - gained[rows, now]).sum() < _WORTH:
            return None
    wanted = curves[np.arange(len(site)), best[site]]
    return None if np.any(np.all(np.abs(search.tried - wanted) < _SAME, 1)) else wanted


def _astray(search: CenteringSearch) -> int | None:
    """The first of the three climbs in the middle and at the ends that has ended far below where the best of them and
    the slopes on the way say: at another optimum, such as one where the scale of a group has collapsed. None if there
    is none that has not been repeated.
    """
    if len(search.values) != 1 + len(_ENDS) or not np.isfinite(search.values).any():
        return None
    best = int(np.argmax(search.values))
    along = np.sum((search.slopes + search.slopes[best]) / 2 * (search.tried - search.tried[best]), 1)
    reached = search.values > search.values[best] + np.minimum(along, 0.0) - _APART
    return next((row for row in range(len(reached)) if not reached[row] and row not in search.again), None)


def _predicted(search: CenteringSearch, curves: np.ndarray, site: np.ndarray) -> np.ndarray:
    """The ELBO less that in the middle at each point of the grid, by site (sites, grid), if the others stay there.

    The derivative of each element is a parabola through those in the middle and at the ends. The last climb elsewhere
    shows how far that was off.
    """
    middle, low, high = search.slopes[:3]
    tilt, bend = high - low, 2 * (low + high - 2 * middle)
    away = curves - MIDDLE
    gains = middle[:, None] * away + tilt[:, None] * away**2 / 2 + bend[:, None] * away**3 / 3
    if len(search.values) > 3:
        last = search.tried[-1] - MIDDLE
        missed = search.slopes[-1] - (middle + tilt * last + bend * last**2)
        gains += missed[:, None] * (away - last[:, None])
    return np.stack([gains[site == index].sum(0) for index in range(site[-1] + 1)])
