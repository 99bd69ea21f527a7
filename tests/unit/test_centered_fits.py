"""Centring in `curvi.fit`: what is asked for, what is refused, resuming, files, and results by the model's names."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import curvi
from curvi import FullRank, MeanField, Target
from curvi.methods import LBFGS

KEY = jax.random.key(3)
ROWS = np.repeat(np.arange(6), 5)
VALUES = np.random.default_rng(0).normal(size=30) + 0.8 * np.random.default_rng(1).normal(size=6)[ROWS]


def effects(row, y):
    loc = numpyro.sample("loc", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    a = numpyro.sample("a", dist.Normal(loc, tau).expand([6]).to_event(1))
    numpyro.deterministic("first", a[0] - loc)
    numpyro.sample("y", dist.Normal(a[row], 1.0), obs=y)


@lru_cache
def target():
    return curvi.from_numpyro(effects, ROWS, VALUES)


def fit(**options):
    return curvi.fit(target(), **{"key": KEY, "progress": False, **options})


@lru_cache
def learned():
    return fit()


def on(start, **options):
    return curvi.fit(target(), start=start, progress=False, **options)


def same(one, other):
    np.testing.assert_array_equal(one.q.params, other.q.params)
    np.testing.assert_array_equal(one.q.centering.vector(), other.q.centering.vector())
    assert (one.elbo, one.elbo_se, one.remaining_gain) == (other.elbo, other.elbo_se, other.remaining_gain)


# -- asked for --------------------------------------------------------------------------------------------------------


def test_the_table_says_what_was_found():
    found = learned()
    (row,) = found.centering
    assert found.converged and row.name == "a" and row.amount.shape == (6,) and row.as_written == 1.0
    assert np.all((row.amount >= 0) & (row.amount <= 1)) and "climbs" in row.how
    np.testing.assert_array_equal(row.amount.ravel(), found.q.centering.vector())
    assert found.centering["a"] is row and "lambda" in str(found.centering) and "lambda" in str(found)
    with pytest.raises(KeyError, match="there are \\['a'\\]"):
        found.centering["tau"]


def test_off_leaves_the_model_as_written():
    plain = Target(target().full(), dict(target().init), {"tau": constraints.positive})
    ours, other = (fit(centering=word) for word in ("off", False))
    without = curvi.fit(plain, key=KEY, progress=False)
    for found in (ours, other):
        np.testing.assert_array_equal(found.q.params, without.q.params)
        assert found.counts == without.counts and not len(found.centering) and found.q.centering is None


def test_given_lambdas_are_kept():
    for amount in (0.25, np.linspace(0, 1, 6)):
        found = fit(centering={"a": amount}, family="full_rank")
        np.testing.assert_allclose(found.centering["a"].amount, np.broadcast_to(amount, 6))
        assert found.converged and found.centering["a"].how == "given" and isinstance(found.q, FullRank)
    instance = fit(family=MeanField(target()))
    assert not len(instance.centering)
    given = fit(family=MeanField(target()), centering={"a": 0.0}, num_steps=2)
    assert given.centering["a"].amount.max() == 0.0
    other = fit(method=LBFGS(64), centering={"a": 0.0}, num_steps=2)
    assert other.centering["a"].amount.max() == 0.0


@pytest.mark.parametrize(
    ("centering", "message"),
    [
        ({"b": 0.5}, "there is no latent of that name; latents are loc, tau, a"),
        ({"tau": 0.5}, "does not show it as drawn around a location, on a scale"),
        ({"a": 1.5}, "between 0 .non-centred. and 1"),
        ({"a": np.zeros(5)}, "of shape \\(6,\\); got \\(5,\\)"),
        ({"a": np.nan}, "between 0"),
        ("on", 'must be "learn", "off", or a dict'),
        (3, 'must be "learn", "off", or a dict'),
    ],
)
def test_what_cannot_be_centred_is_refused(centering, message):
    with pytest.raises(ValueError, match=message):
        fit(centering=centering)


def test_methods_that_do_not_learn_say_so():
    with pytest.raises(ValueError, match="LBFGS does not learn a centring"):
        fit(method=LBFGS(64), centering="learn")
    assert not len(fit(method=LBFGS(64), num_steps=1).centering)


def test_a_target_declares_what_a_density_does_not_show():
    def log_density(t):
        return -jnp.sum((t["a"] - t["loc"]) ** 2) / 2 - t["loc"] ** 2 - jnp.sum((t["a"] - 1.0) ** 2)

    init = {"loc": np.array(0.0), "a": np.zeros(3)}
    around = {"a": lambda t: (t["loc"], 1.0)}
    found = curvi.fit(Target(log_density, init, location_scale=around), key=KEY, family="mean_field", progress=False)
    # Of a location alone the best lambda is known: u and the location are independent at 2 / (2 + 1).
    np.testing.assert_allclose(found.centering["a"].amount, 2 / 3, atol=0.05)
    wrong = [
        ({"b": around["a"]}, "which is not in init"),
        ({"a": 3}, "must be a function"),
        ({"a": lambda t: (t["a"].sum(), 1.0)}, "must not depend on 'a' itself"),
        ({"a": lambda t: (0.0, 1.0)}, "depend on no other latent"),
        ({"a": lambda t: (t["loc"], 1.0), "loc": lambda t: (t["a"][0], 1.0)}, "in a circle"),
    ]
    for functions, message in wrong:
        with pytest.raises(ValueError, match=message):
            Target(log_density, init, location_scale=functions)
    with pytest.raises(ValueError, match="'a' cannot be centred: it has support unit interval"):
        Target(log_density, init, {"a": constraints.unit_interval}, location_scale=around)


# -- resuming and files -----------------------------------------------------------------------------------------------


def test_steps_add_up():
    whole = learned()
    for cut in (1, len(whole.history) // 2):
        same(on(fit(num_steps=cut)), whole)


def test_a_fit_stopped_within_the_search_goes_on():
    whole = learned()
    first = fit(max_evaluations=1)
    assert first.centering["a"].how == "not found yet" and not len(first.history)
    found = on(first)
    np.testing.assert_array_equal(found.q.params, whole.q.params)
    assert found.elbo == whole.elbo


def test_a_file_keeps_the_lambdas(tmp_path):
    found = fit(num_steps=1)
    assert not found.converged
    found.save(tmp_path / "fit")
    again = curvi.load(tmp_path / "fit", target=curvi.from_numpyro(effects, ROWS, VALUES))
    assert str(again.centering) == str(found.centering)
    np.testing.assert_array_equal(again.sample(KEY, 5)["a"], found.sample(KEY, 5)["a"])
    same(curvi.fit(again.target, start=again, progress=False), learned())
    with pytest.raises(ValueError, match=r"curvi.load\(path, target=target\)"):
        curvi.load(tmp_path / "fit").sample(KEY, 5)


# -- results ----------------------------------------------------------------------------------------------------------


def test_results_are_by_the_models_names():
    found = learned()
    draws = found.sample(KEY, 2000)
    assert set(draws) == {"loc", "tau", "a", "first"}
    np.testing.assert_allclose(draws["first"], draws["a"][:, 0] - draws["loc"], rtol=1e-10)
    mean, sd = found.mean(), found.sd()
    np.testing.assert_allclose(draws["a"].mean(0), mean["a"], atol=5 * sd["a"].max() / 2000**0.5)
    assert found.khat < 1 and found.posterior_check.answer in ("right", "doubtful")
    assert "a[3]" in found.summary().labels and found.sd(kind="linear_response")["a"].shape == (6,)
    np.testing.assert_allclose(found.sd(kind="linear_response")["a"], sd["a"], rtol=0.2)
    groups = found.predictive(KEY, 10)
    assert groups["posterior_predictive"]["y"].shape == (10, 30)


def test_nuts_runs_in_qs_coordinates_and_returns_the_models():
    start = learned().to_nuts(KEY, 3)
    named = start.to_named(start.starts)
    assert named["a"].shape == (3, 6) and np.all(named["tau"] > 0)
    q = learned().q
    theta, log_det = q.to_model(q.from_vector(start.starts[0])[0])
    np.testing.assert_allclose(named["a"][0], theta["a"])
    np.testing.assert_allclose(start.logdensity_fn(start.starts[0]), target().full()(theta) + log_det, rtol=1e-10)


def test_single_precision():
    def log_density(t):
        effects = -jnp.sum((t["a"] - t["loc"]) ** 2) / (2 * t["tau"] ** 2) - 6 * jnp.log(t["tau"])
        return effects - t["tau"] ** 2 - t["loc"] ** 2 - jnp.sum((jnp.arange(6.0, dtype="float32") - 2.5 - t["a"]) ** 2)

    init = {name: np.float32(value) for name, value in (("loc", 0), ("tau", 1))} | {"a": np.zeros(6, np.float32)}
    around = {"a": lambda t: (t["loc"], t["tau"])}
    single = Target(log_density, init, {"tau": constraints.positive}, location_scale=around)
    found = curvi.fit(single, key=KEY, progress=False)
    assert found.converged and found.q.params.dtype == np.float32 == found.q.centering.amounts[0].dtype
