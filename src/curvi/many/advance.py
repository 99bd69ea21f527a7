"""All fits of one model together: they climb on few draws, and are certified on fresh ones before these move them.

Rounds of more and more draws take up those that are left. Those that no round certifies are left to `curvi.fit`.
"""

import dataclasses

import numpy as np

from curvi.estimate.fixed_draws.noise import matched_noise
from curvi.many.certificate import Certificates, certify
from curvi.many.entries import Entries
from curvi.many.newton import newton_climb
from curvi.many.programs import CHUNK, Programs
from curvi.many.steps import State, climb

ROUNDS = 4  # each with four times the draws of the one before
# Draws of a climb that starts from one on few, and of a certificate, in units of those few.
_MORE, _FRESH = 8, 16
_NEAR = 1.0  # nats of a Newton step from fresh draws that is taken; beyond, the climb goes on with more draws
_ROUGH, _ENOUGH = 0.2, 0.02  # shares of the tolerance that climbs on few and on more draws leave
_WORTH = 0.25  # share of the tolerance from which a certain gain is taken


@dataclasses.dataclass(frozen=True)
class Advanced:
    """Where the fits have got to."""

    state: State
    certificates: Certificates
    certified: np.ndarray  # whether each is within the tolerance


def few_draws(size: int) -> int:
    """Draws of a first climb: as many mirrored pairs as dimensions, in chunks."""
    return CHUNK * -(-2 * size // CHUNK)


def advance(programs: Programs, start, count: int, independent: bool, tolerance: float, words) -> Advanced:
    """The fits of `count` data sets from one start, a mean and a factor; `words` are those of the random key."""
    mean, factor = start
    size = len(mean)
    state, entries = State.begin(mean, factor, count), Entries(len(mean), independent)
    certificates = Certificates.unknown(count, len(entries), size)
    certified, climbing = np.zeros(count, bool), np.ones(count, bool)
    for number in range(ROUNDS):
        rng = np.random.default_rng([*words, number])
        few = few_draws(size) * 4**number
        for draws, share in ((few, _ROUGH), (_MORE * few, _ENOUGH))[number > 0 :]:
            if climbing.any():
                noise = matched_noise(rng, draws, size, 1)
                slow = climb(programs, state, np.flatnonzero(climbing), noise, independent, share * tolerance)
                newton_climb(programs, state, slow, noise, entries, share * tolerance, rng)
        chosen = np.flatnonzero(~certified & state.done)
        if len(chosen):
            fresh = matched_noise(rng, _FRESH * few, size, 1, match=False)
            certificates.put(chosen, certify(programs, state, chosen, entries, fresh, rng))
        certified = certificates.within(tolerance)
        climbing = ~certified
        if number:
            # What two rounds of draws call no maximum, or contradict, is for a closer look.
            climbing &= np.isfinite(certificates.gain) & ~certificates.doubt
            state.done &= certified | climbing
        if not climbing.any():
            break
        climbing[corrected(state, certificates, np.flatnonzero(climbing), entries, tolerance)] = False
    return Advanced(state, certificates, certified)


def corrected(state: State, certificates: Certificates, chosen: np.ndarray, entries: Entries, tolerance: float):
    """Those of the chosen fits that need not climb again: the step of their certificate has moved them, or more draws
    are all they lack.
    """
    nats = np.sum(certificates.step[chosen] ** 2, 1) / 2
    sane = np.isfinite(certificates.gain[chosen]) & ~certificates.doubt[chosen] & (nats <= _NEAR)
    chosen = chosen[sane]
    gain, error = certificates.gain[chosen], certificates.gain_se[chosen]
    moves = chosen[(gain > np.maximum(_WORTH * tolerance, 2 * error)) | (certificates.sds[chosen] > 0.05)]
    step = certificates.step[moves]
    before = state.factor[moves]
    state.mean[moves], state.factor[moves] = entries.moved(state.mean[moves], before, step)
    turn = np.linalg.solve(before, state.factor[moves])
    state.bend[moves] = np.swapaxes(turn, 1, 2) @ state.bend[moves] @ turn
    state.steps[moves] += 1
    return chosen
