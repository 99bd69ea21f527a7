"""The front door: what it refuses, what it returns, and that it computes the same whatever is shown meanwhile."""

import dataclasses
import importlib
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpyro.distributions import constraints

import curvi
from curvi import MeanField, MinibatchTarget, Outcome, Target, factors
from curvi.certify.decrement import certify
from curvi.estimate import AnchoredScore, PaperScore, Pathwise
from curvi.estimate.start import find_start
from curvi.methods import BBVI, LBFGS, GrowingDraws, HessianFree, SchemeI, StepMethod

KEY = jax.random.key(0)
PRECISION = np.array([[2.0, 0.8], [0.8, 1.0]])
CENTRE = np.array([1.0, -2.0])

# Compilations are counted by JAX's own events; a listener cannot be taken back, so there is one for the module.
COMPILATIONS: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def _listen():
    def note(event, duration, **more):
        if event == "/jax/core/compile/backend_compile_duration":
            COMPILATIONS.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    # Laying out a family takes an operation or two that JAX compiles once a process: not what is counted below.
    MeanField(gaussian())
    MeanField(positive())


def _log_density(theta):
    away = theta["x"] - CENTRE.astype(theta["x"].dtype)
    return -away @ (PRECISION.astype(theta["x"].dtype) @ away) / 2


@lru_cache
def gaussian(order=2, dtype="float64") -> Target:
    return Target(_log_density, {"x": np.zeros(2, dtype)}, order=order)


def gap(q) -> float:
    """Nats between a factorised normal and the best one for the Gaussian target."""
    mu, log_sigma = np.asarray(q.params, float).reshape(2, 2).T
    ratio = np.diag(PRECISION) * np.exp(2 * log_sigma)
    return float((mu - CENTRE) @ PRECISION @ (mu - CENTRE) + np.sum(ratio - 1 - np.log(ratio))) / 2


def fit(target, method, **options):
    return curvi.fit(target, **{"key": KEY, "method": method, "progress": False, **options})


def ascent(num_draws=32, rate=0.05) -> BBVI:
    return BBVI(_adam(rate), AnchoredScore(num_draws))


# One object: the optimiser is compared by identity when a compiled program is looked up.
_adam = lru_cache(optax.adam)


@lru_cache
def gaussian_fit():
    return fit(gaussian(), ascent(), num_steps=400)


# -- wrong input ------------------------------------------------------------------------------------------------------


def _other():
    return Target(_log_density, {"x": np.zeros(2)})


@lru_cache
def positive() -> Target:
    return Target(lambda theta: -theta["x"], {"x": np.array(1.0)}, {"x": constraints.positive})


WRONG = {
    "no target": (lambda: {"target": _log_density}, "target must be a curvi Target"),
    "no key": (lambda: {"key": None}, "needs a random key"),
    "old-style key": (lambda: {"key": jax.random.PRNGKey(0)}, "typed key"),
    "integer key": (lambda: {"key": 0}, "typed key"),
    "many keys": (lambda: {"key": jax.random.split(KEY, 3)}, "single key"),
    "no family": (lambda: {"family": "normal"}, "family must be one of auto, mean_field, full_rank"),
    "family of another target": (lambda: {"family": MeanField(_other())}, "made for another target"),
    "class for a method": (lambda: {"method": SchemeI}, "as an instance"),
    "name for a method": (lambda: {"method": "newton"}, "as an instance"),
    "order 0, Hessian-free": (lambda: {"target": gaussian(0), "method": HessianFree()}, "order=0"),
    "order 1, Hessian-free": (lambda: {"target": gaussian(1), "method": HessianFree()}, "order=1"),
    "order 0, L-BFGS": (lambda: {"target": gaussian(0), "method": LBFGS()}, "order=0"),
    "order 0, growing draws": (lambda: {"target": gaussian(0), "method": GrowingDraws()}, "order=0"),
    "no path": (
        lambda: {
            "target": positive(),
            "family": MeanField(positive(), {"x": factors.Gamma()}),
            "method": HessianFree(),
        },
        "factors of x do not allow",
    ),
    "negative tolerance": (lambda: {"tolerance": -0.1}, "tolerance must be a positive number"),
    "zero tolerance": (lambda: {"tolerance": 0.0}, "tolerance must be a positive number"),
    "nan tolerance": (lambda: {"tolerance": float("nan")}, "tolerance must be a positive number"),
    "no steps": (lambda: {"num_steps": 0}, "num_steps must be a positive integer"),
    "half a step": (lambda: {"num_steps": 2.5}, "num_steps must be a positive integer"),
    "no starts": (lambda: {"num_starts": 0}, "num_starts must be a positive integer"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused_before_anything_is_compiled(name):
    make, message = WRONG[name]
    given = {"target": gaussian(), "key": KEY, "method": ascent(), "progress": False, **make()}
    target = given.pop("target")
    before = len(COMPILATIONS)
    with pytest.raises(ValueError, match=message):
        curvi.fit(target, **given)
    assert len(COMPILATIONS) == before


@pytest.mark.parametrize("make", [AnchoredScore, PaperScore, Pathwise, LBFGS, GrowingDraws])
def test_no_draws_are_refused_where_they_are_asked_for(make):
    before = len(COMPILATIONS)
    with pytest.raises(ValueError, match="draws must be"):
        make(0)
    assert len(COMPILATIONS) == before


# -- starts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [ascent(), GrowingDraws()], ids=["stepwise", "growing draws"])
@pytest.mark.parametrize(("value", "shown"), [(jnp.nan, "NaN"), (-jnp.inf, "-inf")], ids=["nan", "-inf"])
def test_a_log_density_that_is_finite_nowhere_is_refused(method, value, shown):
    target = Target(lambda theta: value * jnp.ones(()) + 0 * theta["weight"], {"weight": np.array(0.0)})
    with pytest.raises(ValueError, match=f"{shown} at init.*weight"):
        fit(target, method)


def _away_from_zero():
    # Minus infinity at the start and ten standard deviations from the optimum, finite in between.
    return Target(
        lambda theta: jnp.where(theta["x"] > 1.5, -8 * (theta["x"] - 4.0) ** 2, -jnp.inf), {"x": np.array(0.0)}
    )


def test_a_start_that_is_not_finite_is_replaced_by_one_nearby():
    target = _away_from_zero()
    q, calls = find_start(target, MeanField(target), KEY)
    assert calls > 0 and q.params[0] - 3 * jnp.exp(q.params[1]) > 1.5
    found = fit(target, ascent(), num_steps=400)
    assert np.isfinite(found.elbo) and abs(found.mean()["x"] - 4.0) < 0.1


def test_a_start_that_is_finite_is_kept():
    target = gaussian()
    q = MeanField(target)
    found, _ = find_start(target, q, KEY)
    np.testing.assert_array_equal(found.params, q.params)


# -- what comes back --------------------------------------------------------------------------------------------------


def test_fields_of_a_fit():
    found = gaussian_fit()
    assert isinstance(found, curvi.Fit) and isinstance(found.q, MeanField)
    assert isinstance(found.outcome, Outcome) and isinstance(found.outcome.message, str) and found.outcome.message
    assert found.converged is (found.outcome is Outcome.CONVERGED)
    for name in ("elbo", "elbo_se", "remaining_gain", "remaining_gain_se"):
        assert type(getattr(found, name)) is float and np.isfinite(getattr(found, name))
    for name in ("log_density", "gradient", "hvp"):
        assert type(getattr(found.counts, name)) is int and getattr(found.counts, name) >= 0
    for name in ("compile", "run"):
        assert type(getattr(found.seconds, name)) is float and getattr(found.seconds, name) > 0
    text = str(found)
    assert found.outcome.message in text and f"{found.elbo:.4f}" in text and f"{len(found.history)} steps" in text


def test_history_has_one_entry_a_step():
    history = gaussian_fit().history
    columns = {field.name: getattr(history, field.name) for field in dataclasses.fields(history)}
    needed = {"elbo", "elbo_se", "remaining_gain", "log_density", "seconds", "num_draws", "radius"}
    assert needed <= set(columns) and len(history) > 0
    for name, column in columns.items():
        assert isinstance(column, np.ndarray) and column.shape == (len(history),), name
    # Between two steps there may be a certificate.
    steps = np.diff(history.log_density)
    assert np.all(steps >= 32) and np.mean(steps == 32) > 0.9 and np.all(history.num_draws == 32)
    assert np.all(np.diff(history.seconds) >= 0)


def test_draws_ratios_and_moments():
    found = gaussian_fit()
    draws = found.sample(jax.random.key(5), 300)
    assert set(draws) == {"x"} and draws["x"].shape == (300, 2)
    ratios = np.asarray(found.log_ratios(jax.random.key(6), 4000))
    assert ratios.shape == (4000,)
    assert abs(ratios.mean() - found.elbo) < 4 * np.hypot(ratios.std() / 4000**0.5, found.elbo_se)
    mu, log_sigma = np.asarray(found.q.params).reshape(2, 2).T
    sigma = np.exp(log_sigma)
    # Quasi-random draws: far below the 0.016 sd of as many independent ones.
    assert np.all(np.abs(found.mean("q")["x"] - mu) < 0.003 * sigma)
    np.testing.assert_allclose(found.sd("q")["x"], sigma, rtol=0.01)
    for wrong in (found.sample, found.log_ratios):
        with pytest.raises(ValueError, match="at least 1"):
            wrong(KEY, 0)


def test_draws_lie_on_the_supports_of_the_model():
    def log_density(theta):
        bits = theta["bits"].astype(float)
        ends = jnp.log(theta["share"]) + theta["kind"] * 0.1 - theta["free"] @ theta["free"]
        return ends - theta["scale"] * (1 + bits.sum())

    target = Target(
        log_density,
        {
            "scale": np.array(1.0),
            "share": np.array(0.5),
            "bits": np.zeros((2, 3), int),
            "kind": np.array(1),
            "free": np.zeros(2),
        },
        {
            "scale": constraints.positive,
            "share": constraints.unit_interval,
            "bits": constraints.boolean,
            "kind": constraints.integer_interval(1, 3),
        },
        order=0,
        outputs=lambda theta: {"log scale": jnp.log(theta["scale"])},
    )
    draws = fit(target, ascent(), num_steps=3).sample(jax.random.key(1), 50)
    shapes = {"scale": (), "share": (), "bits": (2, 3), "kind": (), "free": (2,), "log scale": ()}
    assert {name: draw.shape[1:] for name, draw in draws.items()} == shapes
    assert np.all(draws["scale"] > 0) and np.all((draws["share"] > 0) & (draws["share"] < 1))
    assert set(np.unique(draws["bits"])) <= {0, 1} and set(np.unique(draws["kind"])) <= {1, 2, 3}
    np.testing.assert_allclose(draws["log scale"], np.log(draws["scale"]))


# -- reproducibility and compilation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [ascent(), GrowingDraws()], ids=["stepwise", "growing draws"])
def test_same_key_same_bits_shown_or_not(method, capsys):
    runs = [fit(gaussian(), method, num_steps=60, progress=shown) for shown in (False, True)]
    other = fit(gaussian(), method, num_steps=60, key=jax.random.key(1))
    assert capsys.readouterr().out == "", "progress goes to stderr"
    for field in ("elbo", "elbo_se", "remaining_gain", "remaining_gain_se", "outcome", "counts"):
        assert getattr(runs[0], field) == getattr(runs[1], field)
    np.testing.assert_array_equal(runs[0].q.params, runs[1].q.params)
    np.testing.assert_array_equal(runs[0].history.elbo, runs[1].history.elbo)
    assert not np.array_equal(runs[0].q.params, other.q.params)


@pytest.mark.parametrize("method", [ascent(), GrowingDraws()], ids=["stepwise", "growing draws"])
def test_functions_of_the_user_are_traced_once(method):
    calls = {"prior": 0, "row": 0}

    def prior(theta):
        calls["prior"] += 1
        return -(theta["x"] ** 2) / 2

    def row(theta, value):
        calls["row"] += 1
        return -((value - theta["x"]) ** 2) / 2

    target = MinibatchTarget(prior, row, np.linspace(0, 1, 12), 4, {"x": np.array(0.0)})
    found = fit(target, method, num_steps=5)
    found.sample(KEY, 10)
    found.mean()
    assert calls == {"prior": 1, "row": 1}


TRACES: list[int] = []


class Counting(StepMethod):
    """A method that notes every time its step is traced."""

    base: BBVI

    def start(self, target, q, key):
        return self.base.start(target, q, key)

    def step(self, target, state, key):
        TRACES.append(1)
        return self.base.step(target, state, key)


def test_more_chunks_compile_nothing_more(monkeypatch):
    stepwise = importlib.import_module("curvi.methods.stepwise")
    run_chunk, compiled = stepwise.run_chunk, []

    def counted(*args):
        before = len(COMPILATIONS)
        out = run_chunk(*args)
        compiled.append(len(COMPILATIONS) - before)
        return out

    monkeypatch.setattr(stepwise, "run_chunk", counted)
    # A tolerance that nothing meets: the steps run out, in chunks of growing size.
    fit(gaussian(), Counting(ascent()), num_steps=150, tolerance=1e-9)
    assert len(compiled) >= 4 and compiled[0] >= 1 and sum(compiled[1:]) == 0
    traces = len(TRACES)
    fit(gaussian(), Counting(ascent()), num_steps=200, tolerance=1e-6, key=jax.random.key(3))
    assert len(TRACES) == traces, "another key, limit and tolerance are no reason to trace again"


# -- endings ----------------------------------------------------------------------------------------------------------


def test_an_interrupt_returns_what_there_is(monkeypatch):
    stepwise = importlib.import_module("curvi.methods.stepwise")
    run_chunk, calls = stepwise.run_chunk, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return run_chunk(*args)

    monkeypatch.setattr(stepwise, "run_chunk", interrupted)
    found = fit(gaussian(), ascent(), num_steps=100, tolerance=1e-9)
    assert found.outcome is Outcome.INTERRUPTED and not found.converged
    assert 0 < len(found.history) < 100 and np.isfinite(found.elbo)
    assert np.isinf(found.remaining_gain), "no certificate was reached"


def test_an_interrupt_before_the_first_step_returns_the_start(monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("curvi.methods.stepwise"), "run_chunk", interrupted)
    found = fit(gaussian(), ascent(), num_steps=100)
    assert found.outcome is Outcome.INTERRUPTED and len(found.history) == 0
    np.testing.assert_array_equal(found.q.params, MeanField(gaussian()).params)


def _cliff(value):
    # The way up leads over a cliff at 1, beyond which there are no numbers.
    return Target(lambda theta: jnp.where(theta["x"] < 1, 3 * theta["x"], value), {"x": np.array(0.0)})


@pytest.mark.parametrize(
    "method",
    [SchemeI(estimator=AnchoredScore(64)), HessianFree(Pathwise(16)), ascent(16), LBFGS(32)],
    ids=["Scheme I", "Hessian-free", "BBVI", "L-BFGS"],
)
def test_steps_into_a_region_without_numbers_are_rejected(method):
    found = fit(_cliff(jnp.nan), method, num_steps=80)
    # The line search of L-BFGS turns back by itself; the others try the way up and refuse what they find.
    assert isinstance(method, LBFGS) or not np.all(found.history.accepted)
    assert np.all(np.isfinite(found.q.params)) and not found.converged


def test_a_first_order_method_that_was_stopped_early_is_not_called_converged():
    found = fit(gaussian(), ascent(rate=0.01), num_steps=20)
    assert gap(found.q) > 1
    assert found.outcome is Outcome.MAX_STEPS and not found.converged
    assert found.remaining_gain > 0.5


@pytest.mark.parametrize("method", [SchemeI(estimator=AnchoredScore(64)), GrowingDraws()], ids=["Scheme I", "growing"])
def test_single_precision_stays_single(method):
    found = fit(gaussian(dtype="float32"), method, num_steps=60, family="mean_field")
    assert found.q.params.dtype == np.float32
    assert found.sample(KEY, 4)["x"].dtype == np.float32
    assert found.log_ratios(KEY, 4).dtype == np.float32
    assert gap(found.q) < 0.1


# -- certificates -----------------------------------------------------------------------------------------------------

# The best factorised normal: the centre, and the precisions of the diagonal.
BEST = np.stack([CENTRE, -np.log(np.diag(PRECISION)) / 2], 1).ravel()


@pytest.mark.parametrize("order", [0, 2])
def test_the_certificate_finds_the_gap_of_a_displaced_q(order):
    # Moved means alone: along these the ELBO is a quadratic, and the Newton decrement is the gap itself.
    target = gaussian(order)
    q = MeanField(target).replace(jnp.asarray(BEST + np.array([0.5, 0, 0.3, 0])))
    truth = gap(q)
    assert truth > 0.3
    for seed in range(3):
        found = certify(target, q, jax.random.key(seed))
        assert 0 < found.error < 0.3 * truth
        # With values alone the curvature is shrunk, and so errs a little besides.
        assert abs(found.nats - truth) < 3 * found.error + (0.03 * truth if order == 0 else 1e-3)


@pytest.mark.parametrize("order", [0, 2])
def test_the_certificate_is_infinite_at_a_saddle(order):
    # x y pulls along the diagonal harder than the quartic holds: a stationary point of the ELBO, and no maximum.
    # Mirrored draws give a gradient without any part along the diagonal: the gradient alone would not show it.
    target = Target(
        lambda theta: 3 * theta["x"][0] * theta["x"][1] - jnp.sum(theta["x"] ** 4) / 4, {"x": np.zeros(2)}, order=order
    )
    q = MeanField(target).replace(jnp.tile(jnp.array([0.0, -np.log(3) / 4]), 2))
    for seed in range(3):
        assert np.isposinf(certify(target, q, jax.random.key(seed)).nats)


@pytest.mark.parametrize("order", [0, 2])
def test_the_certificate_of_the_optimum_is_small(order):
    target = gaussian(order)
    q = MeanField(target).replace(jnp.asarray(BEST))
    found = certify(target, q, KEY)
    assert abs(found.nats) < 3 * found.error and found.error < 0.05


def test_a_certificate_is_no_number_where_the_target_is_none():
    target = _cliff(jnp.nan)
    q = MeanField(target).replace(jnp.array([2.0, 0.0]))
    assert not np.isfinite(certify(target, q, KEY).nats)


# -- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [None, ascent()], ids=["growing draws", "stepwise"])
def test_compilation_is_booked_as_such_whatever_was_compiled_before(method):
    target = Target(lambda theta: -jnp.sum(jnp.cosh(theta["x"] - 1)), {"x": np.zeros(3)})
    first = fit(target, method, num_steps=20)
    warm = fit(target, method, num_steps=20)
    assert warm.seconds.compile < 0.3 * first.seconds.compile
    jax.clear_caches()
    cold = fit(target, method, num_steps=20)
    assert cold.seconds.compile > 0.3 * first.seconds.compile
    assert cold.seconds.run < cold.seconds.compile
