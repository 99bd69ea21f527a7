"""The remaining gain of many normal q at a time, on fresh independent draws.

The gradient is that of plain mirrored pairs, less the share that a quadratic ln p explains, whose bend is that of other
draws: it has no noise where ln p is quadratic.
"""

import dataclasses

import numpy as np

from curvi.certify.consistency import SUSPECT_DISCREPANCY
from curvi.certify.gain import LARGEST_STEP, LARGEST_STEP_ERROR, NUM_ERRORS
from curvi.estimate.fixed_draws.noise import matched_noise
from curvi.many.entries import Entries, hessian_draws
from curvi.many.programs import GROUPS, Programs
from curvi.many.steps import State, entropy, symmetric

_LARGEST_Z, _MATERIAL, _LARGEST_PATH_ERROR = 6.0, 0.02, 0.25  # those of `curvi.certify.consistency`
_FLAT = 1e-3


@dataclasses.dataclass
class Certificates:
    """One certificate for each fit; see `curvi.certify.gain.Gain` and `Fit`."""

    elbo: np.ndarray
    elbo_se: np.ndarray
    gain: np.ndarray
    gain_se: np.ndarray
    sds: np.ndarray
    sds_se: np.ndarray
    sds_noise: np.ndarray
    doubt: np.ndarray
    step: np.ndarray  # the whitened Newton step
    response: np.ndarray  # the covariance of linear response, in q's own coordinates

    @classmethod
    def unknown(cls, count: int, num_entries: int, size: int) -> "Certificates":
        infinite = {
            name: np.full(count, np.inf) for name in ("elbo_se", "gain", "gain_se", "sds", "sds_se", "sds_noise")
        }
        return cls(
            elbo=np.full(count, np.nan),
            **infinite,
            doubt=np.zeros(count, bool),
            step=np.zeros((count, num_entries)),
            response=np.full((count, size, size), np.nan),
        )

    def put(self, chosen: np.ndarray, others: "Certificates") -> None:
        """Take the certificates of the chosen fits from others."""
        for field in dataclasses.fields(self):
            getattr(self, field.name)[chosen] = getattr(others, field.name)

    def within(self, tolerance: float) -> np.ndarray:
        """The rule of convergence (`Gain.within`) for each fit."""
        near = (self.sds <= LARGEST_STEP + NUM_ERRORS * self.sds_se) & (self.sds_noise <= LARGEST_STEP_ERROR)
        return ~self.doubt & near & (self.gain + NUM_ERRORS * self.gain_se <= tolerance)


def certify(programs: Programs, state: State, chosen: np.ndarray, entries: Entries, noise, rng) -> Certificates:
    """The certificates of the chosen fits on plain mirrored noise; counts its evaluations in `state`."""
    curved = matched_noise(rng, hessian_draws(entries.size), entries.size, 1)
    state.gradients[chosen] += len(noise) + len(curved) * programs.per_hessian(entries.size)
    made = Certificates.unknown(len(chosen), len(entries), entries.size)
    for at in entries.blocks(len(chosen)):
        made.put(np.arange(len(chosen))[at], _certify(programs, state, chosen[at], entries, noise, curved))
    return made


def _certify(programs, state, chosen, entries: Entries, noise, curved) -> Certificates:
    mean, factor, bend = state.mean[chosen], state.factor[chosen], state.bend[chosen]
    made = Certificates.unknown(len(chosen), len(entries), entries.size)
    values, slopes, matrices = programs.gradients(chosen, mean, factor, noise)
    bent = programs.hessians(chosen, mean, factor, curved)
    fine = np.isfinite(values).all(1) & np.isfinite(slopes).all((1, 2)) & np.isfinite(matrices).all((1, 2, 3))
    fine = np.flatnonzero(fine & np.isfinite(bent).all((1, 2, 3)))
    minus = entries.minus_hessian(bent[fine], curved)
    roots, definite = _roots(minus)
    fine, roots = fine[definite], roots[definite]
    if not len(fine):
        return made
    values, slopes, matrices, mean, factor, bend = (a[fine] for a in (values, slopes, matrices, mean, factor, bend))
    turned = np.swapaxes(factor, 1, 2)[:, None]
    slopes, matrices = (turned @ slopes[..., None])[..., 0], turned @ matrices
    matrices = matrices + _explained(bend, noise)
    groups = entries.join(slopes, matrices + np.eye(entries.size))
    known = Certificates.unknown(len(fine), len(entries), entries.size)
    _elbo(known, values, bend, factor, noise)
    _gain(known, groups, roots, factor, entries)
    kinked = _kinks(bent[fine], -symmetric(matrices.mean(1)))
    known.doubt[:] = kinked | _contradicted(values, groups, noise, entries)
    made.put(fine, known)
    return made


def _explained(bend: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """What a quadratic with this bend adds to the gradients of the groups, because their moments are not exact."""
    size = noise.shape[-1]
    pairs = noise.reshape(-1, GROUPS, 2, size)
    moments = np.einsum("cgpi,cgpj->gij", pairs, pairs) / (2 * len(pairs))
    return bend[:, None] @ (moments - np.eye(size))


def _elbo(known: Certificates, values, bend, factor, noise) -> None:
    """The ELBO and its error, from pairs less what the quadratic explains."""
    size = noise.shape[-1]
    squares = (noise[:, :, None] * noise[:, None, :] - np.eye(size)).reshape(len(noise), -1)
    left = values + bend.reshape(len(bend), -1) @ squares.T / 2
    pairs = left.reshape(len(left), -1, 2).mean(-1)
    known.elbo[:] = pairs.mean(1) + entropy(factor)
    known.elbo_se[:] = pairs.std(1, ddof=1) / pairs.shape[1] ** 0.5


def _gain(known: Certificates, groups, roots, factor, entries: Entries) -> None:
    """Decrement, step and response, with the noise that groups show; `roots` are R with R R' = -H."""
    solved = np.swapaxes(np.linalg.solve(roots, np.swapaxes(groups, 1, 2)), 1, 2)  # (fits, groups, entries)
    middle = solved.mean(1)
    apart = (solved - middle[:, None]) / (GROUPS * (GROUPS - 1)) ** 0.5
    gram = apart @ np.swapaxes(apart, 1, 2)
    added, squared = np.trace(gram, axis1=1, axis2=2), np.sum(gram**2, (1, 2))
    known.gain[:] = np.maximum((np.sum(middle**2, 1) - added) / 2, 0.0)
    along = np.sum((apart @ middle[..., None]) ** 2, (1, 2))
    known.gain_se[:] = np.sqrt(along + squared / 2)
    back = np.swapaxes(np.linalg.inv(roots), 1, 2)
    known.step[:] = (back @ middle[..., None])[..., 0]
    steps = solved @ np.swapaxes(back, 1, 2)
    moved = np.abs(entries.in_sds(factor, known.step))
    own = entries.in_sds(factor, steps).var(1, ddof=1) / GROUPS
    errors = np.sqrt((own + own.mean(1, keepdims=True)) / 2)
    worst = np.argmax(moved - NUM_ERRORS * errors, 1)[:, None]
    known.sds[:] = np.take_along_axis(moved, worst, 1)[:, 0]
    known.sds_se[:] = np.take_along_axis(errors, worst, 1)[:, 0]
    known.sds_noise[:] = errors.max(1)
    half = factor @ back[:, : entries.size]
    known.response[:] = half @ np.swapaxes(half, 1, 2)


def _roots(minus: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cholesky factors, and for which matrices there is one that is not flat."""
    try:
        roots = np.linalg.cholesky(minus)
    except np.linalg.LinAlgError:
        roots = np.full_like(minus, np.nan)
        for index, one in enumerate(minus):
            try:
                roots[index] = np.linalg.cholesky(one)
            except np.linalg.LinAlgError:
                continue
    pivots = np.diagonal(roots, axis1=1, axis2=2)
    with np.errstate(invalid="ignore"):
        return roots, pivots.min(1, initial=np.inf) ** 2 > _FLAT * 1e-3


def _kinks(bent: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Whether the mean of Hessians contradicts what gradients say of it, as at kinks of ln p."""
    apart = np.linalg.norm(-bent.mean(1) - seen, axis=(1, 2))
    return apart > np.maximum(SUSPECT_DISCREPANCY * np.linalg.norm(seen, axis=(1, 2)), _FLAT)


def _contradicted(values, groups, noise, entries: Entries) -> np.ndarray:
    """Whether values contradict gradients: z-scores between the pathwise and the score gradient, as in
    `curvi.certify.consistency`.
    """
    ratios = values + np.sum(noise**2, -1) / 2
    ratios = ratios - ratios.mean(1, keepdims=True)
    scores = entries.join(noise, noise[:, :, None] * noise[:, None, :] - np.eye(entries.size))
    terms = (ratios[..., None] * scores).reshape(len(values), -1, 2, len(entries)).mean(2)
    terms = terms - groups.mean(1, keepdims=True)
    error = np.minimum(groups.std(1, ddof=1) / GROUPS**0.5, _LARGEST_PATH_ERROR)
    material = np.hypot(_MATERIAL, 1e-7 * np.abs(values).max(1))[:, None]
    z = terms.mean(1) / np.sqrt(terms.var(1, ddof=1) / terms.shape[1] + error**2 + material**2)
    return np.any(np.abs(z) > _LARGEST_Z, 1)
