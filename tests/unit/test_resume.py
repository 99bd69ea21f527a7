"""A fit that goes on from another one: the same bits as if it had never stopped."""

import importlib
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpyro.distributions import constraints

import curvi
from curvi import FullRank, MinibatchTarget, Outcome, Target
from curvi.estimate import AnchoredScore, Pathwise
from curvi.methods import BBVI, LBFGS, Algorithm0, GrowingDraws, HessianFree, SchemeI, SchemeII

KEY = jax.random.key(4)


@lru_cache
def rosenbrock():
    """A curved valley: tens of steps, and no quadratic."""

    def log_density(t):
        x, s = t["x"], t["s"]
        return -jnp.sum(5 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2) - s + 3 * jnp.log(s)

    return Target(log_density, {"x": np.full(3, -1.5), "s": np.array(8.0)}, {"s": constraints.positive})


@lru_cache
def wide(dimension=20):
    """More dimensions than are matched: the Hessian at the mean takes part."""
    scale = np.linspace(0.5, 2, dimension)

    def log_density(t):
        return -jnp.sum(jnp.logaddexp(0, 3 * t["x"]) - t["x"]) - (t["x"] * scale).sum() ** 2 / 8 - jnp.sum(t["x"] ** 4)

    return Target(log_density, {"x": np.full(dimension, 3.0)})


@lru_cache
def batches():
    rows = np.random.default_rng(0).normal(1.0, 1.0, 60)
    return MinibatchTarget(
        lambda t: -(t["x"] ** 2) / 2, lambda t, row: -((row - t["x"]) ** 2) / 2, rows, 20, {"x": np.array(-2.0)}
    )


def fit(target, **options):
    return curvi.fit(target, **{"key": KEY, "progress": False, **options})


def on(start, **options):
    return curvi.fit(start.target, start=start, progress=False, **options)


def same(one, other, history=True):
    np.testing.assert_array_equal(one.q.params, other.q.params)
    for name in ("elbo", "elbo_se", "remaining_gain", "remaining_gain_se", "outcome"):
        assert getattr(one, name) == getattr(other, name), name
    for name in ("elbo", "remaining_gain", "predicted_gain", "radius", "num_draws", "accepted") if history else ():
        np.testing.assert_array_equal(getattr(one.history, name), getattr(other.history, name))
    np.testing.assert_array_equal(
        0 if one.error_copies is None else one.error_copies, 0 if other.error_copies is None else other.error_copies
    )


ADAM = optax.adam(0.05)
METHODS = {
    "Scheme I": SchemeI(estimator=AnchoredScore(64)),
    "Scheme II": SchemeII(),
    "Algorithm 0": Algorithm0(AnchoredScore(64)),
    "literal": SchemeI.literal(64, step_length=0.01),
    "Hessian-free": HessianFree(Pathwise(16)),
    "BBVI": BBVI(ADAM, AnchoredScore(32)),
    "L-BFGS": LBFGS(32),
}


SLOW = ("Scheme II", "Algorithm 0", "literal", "Hessian-free", "L-BFGS")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in METHODS]
)
def test_steps_add_up(name):
    method = METHODS[name]
    whole = fit(rosenbrock(), method=method, num_steps=17, tolerance=1e-9)
    first = fit(rosenbrock(), method=method, num_steps=7, tolerance=1e-9)
    assert not np.array_equal(first.q.params, whole.q.params)
    second = on(first, num_steps=6, tolerance=1e-9)
    same(on(second, num_steps=4, tolerance=1e-9), whole)


def test_certificates_add_up():
    """Certificates that were asked for in vain count, the one at the end of a call does not."""
    method = BBVI(ADAM, AnchoredScore(256))
    options = {"tolerance": 0.02, "method": method}
    whole = fit(batches(), num_steps=150, **options)
    part = fit(batches(), num_steps=60, **options)
    while not part.converged and len(part.history) < 150:
        part = on(part, num_steps=min(37, 150 - len(part.history)), tolerance=0.02)
    same(part, whole)


@pytest.mark.parametrize(
    ("target", "every"),
    [(rosenbrock, 1), (wide, 4), pytest.param(wide, 1, marks=pytest.mark.slow)],
    ids=["matched", "corrected", "corrected, all"],
)
def test_growing_draws_add_up_wherever_they_are_cut(target, every):
    """Across the step from a mean field to full rank, too."""
    options = {"tolerance": 1e-2}
    whole = fit(target(), **options)
    steps = len(whole.history)
    assert steps > 8 and whole.converged and isinstance(whole.q, FullRank)
    for cut in range(1, steps + 1, every):
        first = fit(target(), num_steps=cut, **options)
        assert len(first.history) == cut
        # At its limit a call may find that it is done, with fewer draws than a longer one would have gone on to.
        same(on(first, **options), first if first.converged else whole)
    # In many pieces.
    part = fit(target(), num_steps=2, **options)
    while not part.converged and len(part.history) < 2 * steps:
        part = on(part, num_steps=3, **options)
    assert part.converged


def test_growing_draws_on_batches_add_up():
    whole = fit(batches(), tolerance=0.3)
    first = fit(batches(), num_steps=2, tolerance=0.3)
    same(on(first, tolerance=0.3), whole)


def test_cost_and_time_add_up():
    first = fit(wide(), num_steps=3)
    second = on(first)
    assert second.counts.log_density > first.counts.log_density
    assert second.seconds.compile >= first.seconds.compile and second.seconds.run > first.seconds.run
    assert np.all(np.diff(second.history.seconds) >= 0) and np.all(np.diff(second.history.log_density) >= 0)


def test_a_converged_fit_is_returned_as_it_is():
    done = fit(rosenbrock())
    assert done.converged and on(done) is done
    closer = on(done, tolerance=1e-3)
    assert closer.converged and closer.remaining_gain + 2 * closer.remaining_gain_se <= 1e-3
    assert len(closer.history) >= len(done.history)


@pytest.mark.parametrize("method", [None, METHODS["BBVI"]], ids=["growing draws", "stepwise"])
def test_an_interrupted_fit_goes_on(method, monkeypatch):
    options = {"tolerance": 1e-3, "num_steps": 120 if method else None, "method": method}
    whole = fit(rosenbrock(), **options)
    module = importlib.import_module("curvi.methods.stepwise" if method else "curvi.estimate.fixed_draws.sweep")
    name = "run_chunk" if method else "run_gradients"
    original = getattr(module, name)
    cut = 0
    for moment in (2, 4, 7, 30, 70):
        calls = []

        def interrupted(*args, calls=calls, moment=moment):
            calls.append(1)
            if len(calls) == moment:
                raise KeyboardInterrupt
            return original(*args)

        monkeypatch.setattr(module, name, interrupted)
        part = fit(rosenbrock(), **options)
        monkeypatch.setattr(module, name, original)
        if part.outcome is Outcome.INTERRUPTED:
            cut += 1
            rest = None if method is None else 120 - len(part.history)
            same(on(part, tolerance=1e-3, num_steps=rest), whole)
    assert cut >= 2


def test_several_starts_go_on():
    whole = fit(rosenbrock(), num_starts=3, tolerance=1e-3)
    first = fit(rosenbrock(), num_starts=3, num_steps=len(whole.history) - 1, tolerance=1e-3)
    second = on(first, tolerance=1e-3)
    np.testing.assert_array_equal(second.start_elbos, first.start_elbos)


def test_wrong_use_is_refused():
    start = fit(rosenbrock(), num_steps=2, tolerance=1e-9)
    wrong = [
        ({"start": 3}, "start must be a fit"),
        ({"key": jax.random.key(5)}, "own random key"),
        ({"key": 3}, "own random key"),
        ({"family": start.q}, "leave family, centering, marginals and num_starts out"),
        ({"num_starts": 2}, "leave family, centering, marginals and num_starts out"),
        ({"method": SchemeI()}, "own method, GrowingDraws"),
        ({"method": GrowingDraws(128)}, "own method, GrowingDraws"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            curvi.fit(rosenbrock(), **{"start": start, "progress": False, **options})
    with pytest.raises(ValueError, match="belongs to another model"):
        curvi.fit(wide(), start=start, progress=False)
    # What start has may be repeated.
    curvi.fit(rosenbrock(), start=start, key=KEY, method=GrowingDraws(), progress=False, num_steps=1)


def test_a_target_made_anew_is_the_same_model():
    start = fit(rosenbrock(), num_steps=3, tolerance=1e-3)
    anew = rosenbrock.__wrapped__()
    same(curvi.fit(anew, start=start, progress=False, tolerance=1e-3), on(start, tolerance=1e-3))
