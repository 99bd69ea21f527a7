"""Dependence on rows, as read from a program, against what happens when one row is moved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from curvi.adapters.numpyro import row_dependence as module
from curvi.adapters.numpyro.row_dependence import MIXED, row_dependence

ROWS = 5
RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(3, 4))
SQUARE = RNG.normal(size=(ROWS, ROWS))
MATRICES = np.stack([np.eye(2) * (k + 1) for k in range(3)])
VALUES = RNG.normal(size=(2, ROWS))
ORDER = np.array([1, 0, 2, 4, 3])
WEIGHTS = RNG.normal(size=(ROWS, 4))


@jax.custom_vjp
def doubled(x):
    return 2 * x


doubled.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))

IN_ROWS = {
    "elementwise": lambda z: jnp.exp(-1.0 * z) + jnp.where(z > 1, VALUES[0], 0.5) ** 2,
    "lookup": lambda z: jnp.asarray(TABLE)[:, 0][z],
    "lookup of vectors": lambda z: jnp.asarray(TABLE)[z],
    "lookup, rows last": lambda z: jnp.asarray(TABLE)[:, :3][:, z],
    "one entry of a row": lambda z: jnp.take_along_axis(WEIGHTS, z[:, None], 1)[:, 0],
    "entry of a looked-up row": lambda z: jnp.take_along_axis(jnp.asarray(TABLE)[z], np.ones((ROWS, 1), int), 1),
    "vmapped lookup": jax.vmap(lambda k: jnp.asarray(TABLE)[k, k + 1]),
    "one hot": lambda z: jax.nn.one_hot(z, 3) @ TABLE,
    "batched product": lambda z: jnp.einsum("nk,nk->n", jnp.asarray(TABLE)[z], WEIGHTS),
    "both sides": lambda z: jnp.einsum("nk,nk->n", jnp.asarray(TABLE)[z], jax.nn.one_hot(z, 4)),
    "softmax": lambda z: jax.nn.log_softmax(jnp.asarray(TABLE)[z], axis=-1),
    "moved axes": lambda z: jnp.moveaxis(jnp.asarray(TABLE)[z][:, None, :] * VALUES.T[:, :, None], 0, -1),
    "reshaped": lambda z: (z[None, :, None] * np.ones((2, 1, 4))).reshape(1, 2, ROWS, 2, 2).sum((0, 3)),
    "reduced": lambda z: (z * VALUES).max(0) + (z * VALUES).argmin(0),
    "cumulated along another axis": lambda z: jnp.cumsum(z * VALUES, 0),
    "sorted along another axis": lambda z: jnp.sort(z[:, None] * WEIGHTS, 1)[:, ::-1],
    "stacked": lambda z: jnp.stack([z, z**2, np.ones(ROWS)], axis=1),
    "stacked before": lambda z: jnp.stack([z, z**2], axis=0),
    "joined": lambda z: jnp.concatenate([z[:, None], WEIGHTS], 1)[:, 1:3] + jnp.pad(z[:, None], ((0, 0), (1, 0))),
    "factorised": lambda z: jnp.linalg.cholesky(jnp.asarray(MATRICES)[z]).sum((1, 2)),
    "solved": lambda z: lax.linalg.triangular_solve(jnp.asarray(MATRICES)[z], VALUES.T[..., None], left_side=True),
    "right sides": lambda z: lax.linalg.triangular_solve(jnp.asarray(MATRICES)[2], z * VALUES, left_side=True),
    "jitted": jax.jit(lambda z: jnp.clip(z, 0, 1) * 2.0),
    "custom derivative": lambda z: doubled(1.0 * z) + jax.nn.relu(1.0 * z),
    "remembered less": jax.checkpoint(lambda z: jnp.sin(1.0 * z)),
    "dynamic slice of another axis": lambda z: lax.dynamic_slice_in_dim(z[:, None] * WEIGHTS, 1, 2, axis=1),
    "shared part": lambda z: z + VALUES.sum(),
}

MIXING = {
    "sum": lambda z: jnp.sum(z) * VALUES[0],
    "reversed": lambda z: z[::-1] * 1.0,
    "rolled": lambda z: z * jnp.roll(z, 1),
    "neighbours": lambda z: 1.0 * z[1:] * z[:-1],
    "permuted": lambda z: z[ORDER] * 1.0,
    "centred": lambda z: z - jnp.mean(z),
    "cumulated": lambda z: jnp.cumsum(z) * 1.0,
    "sorted": lambda z: jnp.sort(z) * 1.0,
    "matrix": lambda z: SQUARE @ z,
    "pairs": lambda z: z[:, None] * z[None, :] * SQUARE,
    "transposed": lambda z: z[:, None] * SQUARE + (z[:, None] * SQUARE).T,
    "reshaped": lambda z: (z[:, None] * np.ones((ROWS, 2))).reshape(2, ROWS) * VALUES,
    "scanned": lambda z: lax.scan(lambda c, k: (c + k, c * 1.0), 0, z)[1],
    "scattered": lambda z: jnp.zeros(3).at[z].add(1.0),
    "index": lambda z: jnp.asarray(TABLE)[z[0]],
    "slice at": lambda z: lax.dynamic_slice_in_dim(jnp.asarray(WEIGHTS), z[0], 2),
    "softmax over rows": lambda z: jax.nn.softmax(1.0 * z),
    "joined": lambda z: jnp.concatenate([z, z])[2 : 2 + ROWS] * 1.0,
    "inner": lambda z: (z @ z) * VALUES[0],
    "branches": lambda z: lax.cond(z[0] > 0, lambda: z, lambda: -z),
    "looped": lambda z: lax.fori_loop(0, z[0], lambda i, c: c + z, z),
}


def dependence(function):
    program = jax.make_jaxpr(function)(jax.ShapeDtypeStruct((ROWS,), jnp.int32))
    return row_dependence(program.jaxpr, [0])[0]


def stays_in_rows(function, axis) -> bool:
    """Whether moving one row moves no other row of the result, from several values."""
    function = jax.jit(function)
    for seed in range(3):
        z = np.random.default_rng(seed).integers(3, size=ROWS)
        before = np.asarray(function(z))
        for row in range(ROWS):
            moved = z.copy()
            moved[row] = (z[row] + 1) % 3
            change = np.moveaxis(np.asarray(function(moved)) != before, axis, 0)
            if np.any(np.delete(change, row, axis=0)):
                return False
    return True


@pytest.mark.parametrize("name", IN_ROWS)
def test_rows_are_found(name):
    axis = dependence(IN_ROWS[name])
    assert isinstance(axis, int)
    assert jax.eval_shape(IN_ROWS[name], jax.ShapeDtypeStruct((ROWS,), jnp.int32)).shape[axis] == ROWS
    assert stays_in_rows(IN_ROWS[name], axis)


@pytest.mark.parametrize("name", MIXING)
def test_mixing_is_not_taken_for_rows(name):
    assert dependence(MIXING[name]) is MIXED


def test_no_dependence():
    assert dependence(lambda z: jnp.zeros(3) + VALUES.sum()) is None
    assert dependence(lambda z: jnp.ones(z.shape)) is None


def test_a_wrong_rule_is_seen(monkeypatch):
    monkeypatch.setitem(module._RULES, "rev", module._elementwise)
    axis = dependence(MIXING["reversed"])
    assert axis == 0 and not stays_in_rows(MIXING["reversed"], axis)
