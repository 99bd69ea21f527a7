"""The compiled programs of pooled regression: draws with their log densities, and scores of draws."""

import equinox as eqx
import jax
import numpy as np

from curvi.estimate.draws import bits_to_unit
from curvi.family import Family
from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget

_ROWS = 256  # rows per compiled call


@eqx.filter_jit
def _draw(target: AbstractTarget, q: Family, bits, key, index):
    """The draws of q at these points, and ln p at each; a minibatched target uses a new batch for each draw."""

    def one(bits, key):
        x = q.from_uniform(bits_to_unit(bits, q.params.dtype))
        return x, q.log_joint(target.batch(key), x)

    return over_draws(target, len(bits))(one)(bits, jax.random.split(jax.random.fold_in(key, index), len(bits)))


@eqx.filter_jit
def _log_p(target: AbstractTarget, q: Family, x, key, index):
    """ln p at each of the rows x."""

    def one(x, key):
        return q.log_joint(target.batch(key), x)

    size = len(jax.tree.leaves(x)[0])
    return over_draws(target, size)(one)(x, jax.random.split(jax.random.fold_in(key, index), size))


@eqx.filter_jit
def _inputs(q: Family, x):
    return jax.vmap(q.to_model)(x)


@eqx.filter_jit
def _points(q: Family, bits):
    return jax.vmap(lambda bits: q.from_uniform(bits_to_unit(bits, q.params.dtype)))(bits)


@eqx.filter_jit
def _draw_inputs(q: Family, bits):
    """The draws of q at these points, each as the dict that a model takes, and the log Jacobian of its bijections."""

    def one(bits):
        x = q.from_uniform(bits_to_unit(bits, q.params.dtype))
        return x, *q.to_model(x)

    return jax.vmap(one)(bits)


def draw(target: AbstractTarget, q: Family, bits, key, index):
    """Draws of q and ln p at each, computed on the host if the log density is a black box."""
    if not target.black_box:
        return _draw(target, q, bits, key, index)
    x, theta, log_det = _draw_inputs(q, bits)
    return x, _called(target, theta, log_det)


def _called(target: AbstractTarget, theta, log_det):
    # Only black-box targets have a caller.
    caller = target.caller  # pyright: ignore[reportAttributeAccessIssue]
    values = caller({name: np.asarray(rows) for name, rows in theta.items()})
    return values + np.asarray(log_det, np.float64)


def points(q: Family, bits):
    """The draws of q at these points."""
    return _points(q, bits)


def log_density(target: AbstractTarget, q: Family, x, key, index):
    """ln p at each of the rows x, computed on the host if the log density is a black box."""
    if not target.black_box:
        return _log_p(target, q, x, key, index)
    return _called(target, *_inputs(q, x))


@eqx.filter_jit
def _score(q: Family, x):
    factor = q.fisher().factorise()

    def one(row):
        return q.log_prob(row), factor.solve(q.score(row))

    return jax.vmap(one)(x)


def scores_at(q: Family, x) -> tuple[np.ndarray, np.ndarray]:
    """ln q and whitened scores of each row of x, a fixed number of rows at a time."""
    size = len(jax.tree.leaves(x)[0])
    log_q, scores = [], []
    for first in range(0, size, _ROWS):
        rows = min(_ROWS, size - first)
        padded = jax.tree.map(lambda part, first=first, rows=rows: padded_to(_ROWS, part[first : first + rows]), x)
        found = _score(q, padded)
        log_q.append(np.asarray(found[0], np.float64)[:rows])
        scores.append(np.asarray(found[1], np.float64)[:rows])
    return np.concatenate(log_q), np.concatenate(scores)


def padded_to(size: int, part: np.ndarray) -> np.ndarray:
    """`part` with copies of its last row, `size` rows in all."""
    return np.concatenate([part, np.repeat(part[-1:], size - len(part), 0)])


@eqx.filter_jit
def move(q: Family, step):
    """q moved by a whitened step."""
    return q.move(step)


@eqx.filter_jit
def unwhitened(q: Family, step):
    """The step of the parameters that a whitened one stands for."""
    return q.fisher().factorise().solve_transpose(step)
