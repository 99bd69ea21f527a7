"""What holds for every method alike, because one run drives them all: bits, resumption, files, interruption, limits.

A new method is a new row.
"""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpyro.distributions import constraints

import curvi
import reference_models as examples
from curvi import Outcome, Target
from curvi.estimate import AnchoredScore, Pathwise
from curvi.methods import (
    BBVI,
    LBFGS,
    Algorithm0,
    GrowingDraws,
    GrowingRows,
    HessianFree,
    Method,
    NaturalGradient,
    PlateRegression,
    PooledRegression,
    SchemeI,
    SchemeII,
    StreamedNewton,
)
from curvi.methods.base import Problem

KEY = jax.random.key(3)
ADAM = optax.adam(0.05)


@lru_cache
def valley():
    """A curved valley: tens of steps, and no quadratic."""

    def log_density(t):
        x, s = t["x"], t["s"]
        return -jnp.sum(5 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2) - s + 3 * jnp.log(s)

    return Target(log_density, {"x": np.full(3, -1.5), "s": np.array(8.0)}, {"s": constraints.positive})


@lru_cache
def mixture():
    return examples.mixture(examples.mixture_data(60))


@lru_cache
def many_rows():
    """Rows that a sample stands for, and a posterior that is no normal distribution."""
    data = {"y": np.random.default_rng(0).poisson(3.0, 400), "x": np.random.default_rng(1).normal(size=400)}
    log_row = lambda t, row: row["y"] * (t["a"] + t["b"] * row["x"]) - jnp.exp(t["a"] + t["b"] * row["x"])  # noqa: E731
    log_prior = lambda t: -(t["a"] ** 4) - jnp.cosh(t["b"])  # noqa: E731
    return curvi.MinibatchTarget(
        log_prior, log_row, curvi.Rows(data, chunk_rows=90), 20, {"a": np.array(-2.0), "b": np.array(1.0)}
    )


ROWS = {
    "growing draws": (GrowingDraws(), valley, 12),
    "growing rows": (GrowingRows(sample_rows=60), many_rows, 8),
    "pooled regression": (PooledRegression(), examples.noisy_or, 6),
    "plate regression": (PlateRegression(max_draws=64), mixture, 6),
    "BBVI": (BBVI(ADAM, AnchoredScore(32)), valley, 12),
    "Scheme I": (SchemeI(estimator=AnchoredScore(64)), valley, 9),
    "natural gradient": (NaturalGradient(AnchoredScore(64)), valley, 9),
    "Algorithm 0": (Algorithm0(AnchoredScore(64)), valley, 9),
    "Scheme II": (SchemeII(), valley, 6),
    "Hessian-free": (HessianFree(Pathwise(16)), valley, 9),
    "L-BFGS": (LBFGS(32), valley, 9),
    "streamed Newton": (StreamedNewton(first_draws=16, fresh_draws=64, max_draws=64), valley, 12),
}
SLOW = ("Algorithm 0", "Scheme II", "Hessian-free", "L-BFGS", "natural gradient")
EVERY = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in ROWS]
TOLERANCE = 1e-9


def fit(name, **options):
    method, target, num_steps = ROWS[name]
    settings = {"method": method, "key": KEY, "num_steps": num_steps, "tolerance": TOLERANCE, "progress": False}
    return curvi.fit(_kept(target), **{**settings, **options})


@lru_cache
def _kept(target):
    return target()


@lru_cache
def whole(name):
    return fit(name)


def resume(start, num_steps):
    return curvi.fit(start.target, start=start, num_steps=num_steps, tolerance=TOLERANCE, progress=False)


def same(one, other):
    np.testing.assert_array_equal(one.q.params, other.q.params)
    for name in ("elbo", "elbo_se", "remaining_gain", "remaining_gain_se", "outcome"):
        assert getattr(one, name) == getattr(other, name) or np.isnan(getattr(one, name)), name
    for name in ("elbo", "remaining_gain", "predicted_gain", "radius", "num_draws", "accepted", "shrinkage"):
        np.testing.assert_array_equal(getattr(one.history, name), getattr(other.history, name), name)


def test_every_method_has_a_row():
    kinds = {type(method) for method, _, _ in ROWS.values()}
    public = {value for value in vars(curvi.methods).values() if isinstance(value, type) and issubclass(value, Method)}
    assert {kind for kind in public if not kind.__abstractmethods__} == kinds


@pytest.mark.parametrize("name", EVERY)
def test_the_same_key_gives_the_same_bits(name):
    same(fit(name), whole(name))
    assert fit(name).counts == whole(name).counts


@pytest.mark.parametrize("name", EVERY)
def test_the_state_is_a_tree_of_arrays(name):
    method, target, _ = ROWS[name]
    problem = Problem(_kept(target), curvi.MeanField(_kept(target)))
    state = method.init(problem, KEY)
    leaves = jax.tree.leaves((state, whole(name).checkpoint.state))
    plain = (jax.Array, np.ndarray, np.generic, int, float, bool)
    assert leaves and all(isinstance(leaf, plain) for leaf in leaves)
    np.testing.assert_array_equal(state.q.params, problem.q.params)


@pytest.mark.parametrize("name", EVERY)
def test_steps_add_up(name):
    total = ROWS[name][2]
    first = fit(name, num_steps=2)
    assert not np.array_equal(first.q.params, whole(name).q.params)
    second = resume(first, 1)
    same(resume(second, total - 3), whole(name))


@pytest.mark.parametrize("name", EVERY)
def test_a_file_resumes_like_the_fit_itself(name, tmp_path):
    first = fit(name, num_steps=3)
    first.save(tmp_path / "fit.curvi")
    # Optimisers of optax are made of functions, and no part of a file.
    method = ROWS[name][0] if isinstance(ROWS[name][0], BBVI) else None
    loaded = curvi.load(tmp_path / "fit.curvi", first.target)
    settings = {"num_steps": ROWS[name][2] - 3, "tolerance": TOLERANCE, "progress": False, "method": method}
    same(curvi.fit(first.target, start=loaded, **settings), whole(name))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("moment", ["advance", "certify", "elbo"])
def test_interrupted_at_any_moment_nothing_is_lost(name, moment, monkeypatch):
    method, _, total = ROWS[name]
    calls, original = [], getattr(type(method), moment)

    def interrupted(self, *args):
        calls.append(1)
        if len(calls) == (4 if moment == "advance" else 1):
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(type(method), moment, interrupted)
    part = fit(name)
    monkeypatch.undo()
    assert part.outcome is Outcome.INTERRUPTED and len(calls) >= 1
    assert np.isfinite(part.elbo) == bool(len(part.history))
    steps = len(part.history)
    if moment == "advance":
        assert steps < total
        same(resume(part, total - steps), whole(name))
    else:
        assert steps == total, "the climb was over: what was left was its verdict"
        np.testing.assert_array_equal(part.q.params, whole(name).q.params)


@pytest.mark.parametrize("name", ["growing draws", "pooled regression", "BBVI"])
def test_limits_end_a_fit_with_an_honest_word(name):
    steps = ROWS[name][2]
    few = fit(name, max_evaluations=int(whole(name).history.log_density[steps // 3]))
    assert few.outcome is Outcome.MAX_EVALUATIONS and 0 < len(few.history) < steps
    short = fit(name, max_seconds=1e-6)
    assert short.outcome is Outcome.MAX_SECONDS and len(short.history) <= 1
    for found in (few, short):
        assert not found.converged and (found.remaining_gain > TOLERANCE)
        assert np.all(np.isfinite(found.q.params))
    same(resume(few, steps - len(few.history)), whole(name))


@pytest.mark.parametrize("name", EVERY)
def test_the_remaining_gain_of_the_history_is_one_thing(name):
    """A decrement freed of noise, infinite where there is none, or not a number where the method has no such estimate:
    methods that know a gradient or a prediction alone put it into its own column.
    """
    history = whole(name).history
    first_order = isinstance(
        ROWS[name][0], BBVI | LBFGS | NaturalGradient | GrowingDraws | GrowingRows | StreamedNewton
    )
    assert np.all(np.isnan(history.remaining_gain)) == first_order
    if not first_order:
        known = np.isfinite(history.remaining_gain)
        assert np.all(history.remaining_gain_se[known] >= 0)
    assert np.any(np.isfinite(history.predicted_gain)) or np.any(np.isfinite(history.gradient_gain))


def test_stepwise_programs_may_be_mapped_over_data_and_keys():
    """The compiled runner under vmap: one program for many data sets, with the answers of separate fits."""
    import equinox as eqx

    from curvi.methods.stepwise import run_chunk

    data = jnp.asarray(np.random.default_rng(0).normal(size=(3, 20)) + np.array([[0.0], [1.0], [3.0]]))
    make = lambda y: Target(lambda t: -0.5 * jnp.sum((y - t["m"]) ** 2), {"m": np.array(0.0)})  # noqa: E731
    targets, keys = [make(y) for y in data], jax.random.split(KEY, 3)
    method = NaturalGradient(AnchoredScore(32))
    arrays = [jax.tree.leaves(eqx.filter(target, eqx.is_array)) for target in targets]
    stacked = [jnp.stack(leaves) for leaves in zip(*arrays)]
    like, code = eqx.partition(targets[0], eqx.is_array)
    q = curvi.MeanField(targets[0])
    limits = jnp.asarray(1e-9), jnp.asarray(8, jnp.int32)

    def one(leaves, key):
        target = eqx.combine(jax.tree.unflatten(jax.tree.structure(like), leaves), code)
        state = method._begin(Problem(target, q), q, key, started=True)
        return run_chunk(method, target, state, key, *limits)[0].q.params

    together = jax.vmap(one)(stacked, keys)
    apart = [one(leaves, key) for leaves, key in zip(arrays, keys)]
    np.testing.assert_allclose(together, np.stack(apart), rtol=1e-8, atol=1e-10)
