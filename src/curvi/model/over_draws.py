"""A function of one draw applied to many: all at once, or one after the other where that could deadlock.

jaxlib splits a large enough batch of LAPACK calls into tasks of XLA's thread pool, and waits for them on a thread of
the same pool. If as many such calls run at a time as the pool has threads, they deadlock: on two processors the
derivatives of a single Cholesky factorisation are enough. With one draw at a time there is no batch to split, and the
matrices are so large that LAPACK dominates the time of the loop.
"""

import math
from collections.abc import Callable, Iterator

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

# Number of floating-point operations from which jaxlib splits a batch; with one thread it never does.
_SPLIT = 200_000
# Numbers in the largest array of all draws from which some are computed at a time, and then: on two cores, draws of
# 73,000 rows take a tenth of the processor time one at a time.
_LARGE, _CACHED = 2**20, 2**17
# Primitives that LAPACK computes on a CPU, with a bound on their operations in units of size^3.
_LAPACK = {"cholesky": 1, "triangular_solve": 1, "lu": 1, "qr": 4, "geqrf": 4, "householder_product": 4}
_LAPACK |= {"eigh": 30, "tridiagonal": 30, "hessenberg": 30, "eig": 60, "schur": 60, "svd": 60}


def over_draws(target, num_draws: int, most: int | None = None) -> Callable:
    """`jax.vmap`, or a loop in its place on a CPU if jaxlib would split `num_draws` LAPACK calls of `target`; or a loop
    over some draws at a time, if the arrays of all are so large that each pass over them would wait for memory, or if
    memory has room for `most` alone.

    `target` is any pytree that holds the traced functions.
    """
    each = over_matrices(_largest_call(target), num_draws)
    if each is not jax.vmap:
        return each
    at_once, width = num_draws if most is None else most, widest_array(target)
    if jax.default_backend() == "cpu" and width * num_draws > _LARGE:
        at_once = min(at_once, max(_CACHED // width, 1))
    return each if at_once >= num_draws else _some_at_a_time(at_once)


def over_matrices(num_operations: int, count: int) -> Callable:
    """The same for `count` LAPACK calls of that many operations each."""
    return _one_by_one if jax.default_backend() == "cpu" and num_operations * count >= _SPLIT else jax.vmap


def map_draws(target, function, draws, batch_size: int):
    """`function` of each draw, `batch_size` at a time."""
    at_once = over_matrices(_largest_call(target), batch_size) is jax.vmap
    return jax.lax.map(function, draws, batch_size=batch_size if at_once else None)


def _some_at_a_time(count: int) -> Callable:
    return lambda function: lambda *args: jax.lax.map(lambda one: function(*one), args, batch_size=count)


def _one_by_one(function):
    return lambda *args: jax.lax.map(lambda one: function(*one), args)


def _largest_call(target) -> int:
    """A bound on the operations of the largest LAPACK call of a target's traced functions; 0 if there is none."""
    traced = jax.tree.leaves(target, is_leaf=lambda node: hasattr(node, "jaxpr"))
    rows = getattr(target, "num_rows", 1)
    return rows * max((max(_calls(node.jaxpr), default=0) for node in traced if hasattr(node, "jaxpr")), default=0)


def widest_array(target) -> int:
    """Numbers in the largest array of a target's traced functions for one draw: what memory per draw grows with."""
    traced = (node for node in jax.tree.leaves(target, is_leaf=lambda node: hasattr(node, "jaxpr")))
    rows = getattr(target, "batch_size", 1)
    return rows * max((max(_sizes(node.jaxpr), default=1) for node in traced if hasattr(node, "jaxpr")), default=1)


def _sizes(jaxpr: Jaxpr | ClosedJaxpr) -> Iterator[int]:
    for eqn in (jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr).eqns:
        yield max((math.prod(getattr(v.aval, "shape", ())) for v in eqn.outvars), default=1)
        # A derivative keeps what every step of a loop computed.
        steps = eqn.params.get("length", 1)
        for param in jax.tree.leaves(eqn.params, is_leaf=_is_jaxpr):
            if _is_jaxpr(param):
                yield from (steps * size for size in _sizes(param))


def _calls(jaxpr: Jaxpr | ClosedJaxpr) -> Iterator[int]:
    for eqn in (jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr).eqns:
        if eqn.primitive.name in _LAPACK:
            shapes = [getattr(v.aval, "shape", ()) for v in eqn.invars]
            matrices = [shape for shape in shapes if len(shape) >= 2]
            yield _LAPACK[eqn.primitive.name] * max((math.prod(s) * max(s[-2:]) for s in matrices), default=0)
        for param in jax.tree.leaves(eqn.params, is_leaf=_is_jaxpr):
            if _is_jaxpr(param):
                yield from _calls(param)


def _is_jaxpr(node) -> bool:
    return isinstance(node, Jaxpr | ClosedJaxpr)
