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
from curvi.family import Family
from curvi.model.memory import TEMPORARIES
from curvi.model.over_draws import widest_array
from curvi.model.target import AbstractTarget
from curvi.record.plan import Plan

PROGRAMS = 192 * 2**20  # what compiling leaves behind, for the host's loops and the streamed sums
STEP_PROGRAMS = 448 * 2**20  # the same of programs that hold whole steps
VECTORS = 64  # of the parameters, with those that checks keep in double precision
_CERTIFICATE = 2**26  # bytes of the draws of a certificate that stores them
_COPIES = 8  # of an array of stored draws, in sums and derivatives


def data_bytes(target: AbstractTarget) -> int:
    """Bytes of the arrays that a target holds."""
    return sum(int(leaf.nbytes) for leaf in jax.tree.leaves(target) if eqx.is_array(leaf))


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


def certificate_bytes(target: AbstractTarget, q: Family) -> int:
    """What the certificate of a method without one of its own takes beside vectors of the parameters."""
    return 0 if streams(target, q) else _COPIES * _CERTIFICATE


def stored_bytes(q: Family, num_draws: int) -> int:
    """What `num_draws` stored vectors of the parameters take, with copies of them in sums."""
    return _COPIES * num_draws * q.num_params * q.params.dtype.itemsize
