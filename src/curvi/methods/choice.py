"""The choice of a family: the rule, and what of the table is open to a problem.

The rule: of the families that a budget of memory and evaluations affords, the cheapest whose predicted gain is within
0.2 nats of the best. A mean field is kept where nothing gains more than 0.05 nats and no sd of linear response differs
by 10 %. Cost is the number of parameters, to which memory and the time of a product are proportional; families of up to
5,150 parameters (full rank in 100 dimensions) cost the same, most of which is compiling: full rank, which contains the
others and takes the steadiest steps, is taken before them, or else the one that gains most. Budgets depend on shapes
and on the total memory of the device alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

from curvi.certify.predicted import PredictedGain
from curvi.methods.base import Problem
from curvi.methods.rung import Rung
from curvi.methods.rungs import ALL, MEAN_FIELD, RUNGS

GAIN, WIDER = 0.05, 1.1  # nats, and a factor of an sd, from which a mean field is left
WITHIN = 0.2  # nats of the best
SMALL = 5_150  # parameters up to which families cost the same: full rank of 100 latents
_SHARE = 1 / 6  # of the memory of a fit that another family may take


class Candidate(NamedTuple):
    """A family with its number of parameters and what it should gain."""

    name: str
    num_params: int
    gain: PredictedGain


def open_rungs(problem: Problem) -> list[Rung]:
    """The families besides the mean field that it may become within the budget."""
    target, q = problem.target, problem.q
    wider = [one for one in RUNGS if one.name in problem.families and one.name != MEAN_FIELD]
    afforded = [one for one in wider if (one.why_not(target, q) or one.why_not_afforded(target, q)) is None]
    return [one for one in afforded if one.num_bytes(target, q) <= _SHARE * problem.memory]


def choose(candidates: Sequence[Candidate]) -> str:
    """The name of the family that the rule takes; a mean field where the gain of no other is known."""
    known = [one for one in candidates if one.gain.known and one.name != MEAN_FIELD]
    if not known:
        return MEAN_FIELD
    best = max(one.gain.nats for one in known)
    if not (best > GAIN or any(one.gain.wider > WIDER for one in known)):
        return MEAN_FIELD
    near = [one for one in known if one.gain.nats >= best - WITHIN and one.gain.nats >= min(GAIN, best)]
    # Of those that cost the same the one that contains all others, or what gains most; of equals the first.
    return min(near, key=lambda one: (max(one.num_params, SMALL), one.name != ALL, -round(one.gain.nats, 2))).name


def asked_for(problem: Problem) -> str | None:
    """The only family that a fit was asked for by name; None where it chooses, or has an instance."""
    return problem.families[0] if len(problem.families) == 1 else None
