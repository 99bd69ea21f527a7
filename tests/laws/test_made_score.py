"""Scores that are made where they are used are those that are stored, and so is all that comes of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi import MeanField, Target
from curvi.curvature import MadeLowRank
from curvi.estimate import AnchoredScore, made_score
from curvi.methods import SchemeI, SchemeII
from curvi.solve import CG, Woodbury

KEY = jax.random.key(2)


def target(size=12):
    def log_density(t):
        return -jnp.sum(jnp.cosh(t["x"] - 0.5)) - jnp.sum(jnp.diff(t["x"]) ** 2) / 2

    return Target(log_density, {"x": np.zeros(size)})


def both(num_draws, monkeypatch):
    """The local model from stored scores and from scores that are made."""
    q, estimator = MeanField(target()), AnchoredScore(num_draws)
    stored = estimator(target(), q, KEY)
    monkeypatch.setattr(made_score, "_STORED", 0)
    made = estimator(target(), q, KEY)
    assert isinstance(made.curvature, MadeLowRank) and not isinstance(stored.curvature, MadeLowRank)
    return stored, made, q


@pytest.mark.parametrize("num_draws", [64, 80])
def test_the_same_local_model(num_draws, monkeypatch):
    stored, made, q = both(num_draws, monkeypatch)
    v = jax.random.normal(KEY, q.params.shape)
    for name in ("value", "value_se", "grad", "draw_values", "counts"):
        a, b = (jax.tree.leaves(getattr(one, name)) for one in (stored, made))
        assert all(np.allclose(x, y, rtol=1e-9, atol=1e-12) for x, y in zip(a, b, strict=True)), name
    assert np.allclose(stored.noise.groups, made.noise.groups, rtol=1e-9, atol=1e-12)
    root = q.fisher().factorise()
    pairs = [(stored.curvature, made.curvature), *zip(stored.curvature_halves, made.curvature_halves)]
    for a, b in pairs:
        assert np.allclose(a.mv(v), b.mv(v), rtol=1e-9, atol=1e-9)
        changed = [op.whiten(root).scale(-0.7).shift(0.3).mv(v) for op in (a, b)]
        assert np.allclose(*changed, rtol=1e-9, atol=1e-9)
    assert np.allclose(stored.curvature.whiten(root).dense(), made.curvature.whiten(root).stored().dense(), atol=1e-9)


def test_one_part_is_held_at_a_time():
    """What a product holds does not grow with the number of draws."""
    q, part = MeanField(target(100)), 4
    held = []
    for num_draws in (64, 1024):
        numbers = jax.random.key_data(jax.random.split(KEY, num_draws)).reshape(-1, part, 2)
        rows = made_score.ScoreRows(q, "threefry2x32")
        operator = MadeLowRank(q.fisher(), rows, numbers, jnp.ones(numbers.shape[:2]))
        arrays, rest = eqx.partition(operator, eqx.is_array)
        product = jax.jit(lambda arrays, v, rest=rest: eqx.combine(arrays, rest).mv(v))
        held.append(product.lower(arrays, q.params).compile().memory_analysis().temp_size_in_bytes)
    assert held[1] == held[0] < 20 * part * q.num_params * 8


METHODS = {
    "Scheme I": SchemeI(solver=CG(max_steps=30), estimator=AnchoredScore(64)),
    "Scheme I, Woodbury": SchemeI(solver=Woodbury(), estimator=AnchoredScore(64)),
    "Scheme II": SchemeII(estimator=AnchoredScore(64), draws_per_copy=16),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_same_steps(name, monkeypatch):
    options = {"key": KEY, "num_steps": 2, "progress": False, "method": METHODS[name]}
    stored = curvi.fit(target(10), **options)
    monkeypatch.setattr(made_score, "_STORED", 0)
    jax.clear_caches()
    made = curvi.fit(target(10), **options)
    assert np.allclose(made.q.params, stored.q.params, rtol=1e-6, atol=1e-6)
    assert np.array_equal(made.history.accepted, stored.history.accepted)
