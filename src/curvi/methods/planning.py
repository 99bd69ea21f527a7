"""Plans of what fits take in memory, from shapes and the total of memory alone.

Every plan holds the data, compiled programs and what their compilation leaves, vectors of the parameters, and a chunk
of draws with what the model's derivatives keep of it. Numbers of vectors and of copies are measured (tests/laws/
test_memory.py holds the peak of whole fits against 1.2 times the plan).
"""

import math

import equinox as eqx
import jax
import numpy as np

from curvi.certify.streamed import streams
from curvi.estimate.fixed_draws.groups import CHUNK
from curvi.estimate.fixed_draws.objective import LARGEST_HESSIAN
from curvi.estimate.made_score import MOST_AT_ONCE, VECTORS_A_DRAW, made
from curvi.estimate.sampling import at_once
from curvi.estimate.score import AnchoredScore
from curvi.family import Family
from curvi.family.path import ExpandablePath
from curvi.model.memory import TEMPORARIES
from curvi.model.over_draws import widest_array
from curvi.model.placement import bytes_here
from curvi.model.target import AbstractTarget
from curvi.record.plan import Plan
from curvi.solve import Dense, ShermanMorrison, Woodbury

PROGRAMS = 256 * 2**20  # what compiling leaves behind, for the host's loops and the streamed sums
STEP_PROGRAMS = 448 * 2**20  # the same of programs that hold whole steps
VECTORS = 72  # of the parameters, with those that checks keep in double precision
_CERTIFICATE = 2**26  # bytes of the draws of a certificate that stores them
_CERTIFICATE_DRAWS = 4096
_COPIES = 8  # of an array of stored scores, in sums and derivatives
_BUFFERS, _HOST_COPIES = 3, 4  # of stored noise: on the device, and in double precision on the host while it is made
_SQUARES = 6  # matrices of the Hessian at the mean: itself, its factors, and its rows while it is taken
_COPIES_SOLVED = 3  # of the same by a solver that needs all of them at a time


def data_bytes(target: AbstractTarget) -> int:
    """Bytes of the arrays that a target holds, on one device or in the memory that several share."""
    return sum(bytes_here(leaf) for leaf in jax.tree.leaves(target) if eqx.is_array(leaf))


def one_draw(target: AbstractTarget, q: Family) -> int:
    """Bytes that one draw takes with its derivatives."""
    return TEMPORARIES * q.params.dtype.itemsize * max(widest_array(target), q.noise_size)


def plain_parts(target: AbstractTarget, q: Family, programs: int = PROGRAMS) -> tuple[tuple[str, int], ...]:
    """What every fit takes: data, programs, vectors of the parameters."""
    vectors = VECTORS * q.num_params * q.params.dtype.itemsize
    return ("programs", programs), ("data", data_bytes(target)), ("vectors of the parameters", vectors)


def affordable_draws(each: int, parts: tuple[tuple[str, int], ...], memory: int, most: int) -> int:
    """Draws of `each` bytes that memory has left for beside other parts: a power of two, from 1 to `most`."""
    left = memory - sum(size for _, size in parts)
    return 2 ** int(math.log2(np.clip(left / max(each, 1), 1, most)))


def chunk_plan(target: AbstractTarget, q: Family, memory: int, most: int, remedy: str, *more: tuple[str, int]) -> Plan:
    """The plan of a fit that stores no draws: as many at a time as memory allows, at most `most`."""
    parts, each = (*plain_parts(target, q), *more), one_draw(target, q)
    count = affordable_draws(each, parts, memory, most)
    return Plan((*parts, ("a chunk of draws", count * each)), memory, count, None, remedy)


def plain_plan(target: AbstractTarget, q: Family, memory: int) -> Plan:
    """The plan of a method without one of its own."""
    return chunk_plan(target, q, memory, at_once(target, q, memory), "give fewer latents or rows")


def stored_plan(
    target: AbstractTarget, q: Family, memory: int, fewest: int, num_draws: int, *more: tuple[str, int]
) -> Plan:
    """The plan of a fit on stored draws: `num_draws`, halved down to `fewest` where memory asks for it."""
    size, itemsize = q.noise_size, q.params.dtype.itemsize
    each = size * (_BUFFERS * itemsize + 8 * _HOST_COPIES)
    # The whole Hessian at the mean, and gradients at as many draws, where these are not too many.
    square = _SQUARES * 8 * size**2 if isinstance(q.path, ExpandablePath) and size <= LARGEST_HESSIAN else 0
    parts, one = (*plain_parts(target, q), ("the Hessian at the mean", square), *more), one_draw(target, q)
    while num_draws > fewest and sum(size for _, size in parts) + one + num_draws * each > memory:
        num_draws = max(num_draws // 2 // CHUNK * CHUNK, fewest)
    parts = (*parts, ("stored draws", num_draws * each))
    at_once = affordable_draws(one, parts, memory, CHUNK)
    remedy = "take a smaller max_draws, float32 in place of float64, or fewer latents or rows"
    return Plan((*parts, ("a chunk of draws", at_once * one)), memory, at_once, num_draws, remedy)


def elbo_bytes(target: AbstractTarget, q: Family, memory: int) -> int:
    """What draws for the final ELBO take at a time; a CPU takes few of large ones."""
    return 0 if jax.default_backend() == "cpu" else at_once(target, q, memory) * one_draw(target, q)


def step_plan(method, target: AbstractTarget, q: Family, memory: int) -> Plan:
    """The plan of a method whose steps are one program: scores are made some draws at a time, or stored with copies."""
    estimator, solver = getattr(method, "estimator", None), getattr(method, "solver", None)
    vector, num_draws = q.num_params * q.params.dtype.itemsize, getattr(estimator, "num_draws", 0)
    anchored = isinstance(estimator, AnchoredScore)
    makes = anchored and made(target, q, num_draws)
    stored = num_draws * vector
    held = (_COPIES_SOLVED if isinstance(solver, Woodbury | ShermanMorrison) else 0) if makes else _COPIES
    certificate = 0 if streams(target, q) else _COPIES * min(_CERTIFICATE, _CERTIFICATE_DRAWS * vector)
    parts = (*plain_parts(target, q, STEP_PROGRAMS), ("stored scores", max(held * stored, certificate)))
    if isinstance(solver, Dense):
        parts = (*parts, ("the whole Hessian", _COPIES * vector * q.num_params))
    each = max(one_draw(target, q), VECTORS_A_DRAW * vector)
    count = affordable_draws(each, parts, memory, MOST_AT_ONCE)
    remedy = "take CG as solver, an AnchoredScore of fewer draws, or fewer latents"
    chunk, keeps = max(count * each, elbo_bytes(target, q, memory)), stored and not makes
    return Plan((*parts, ("a chunk of draws", chunk)), memory, count, num_draws if keeps else None, remedy)
