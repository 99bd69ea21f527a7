"""What `to_nuts` and `polish` refuse, and where they start."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

import curvi
from curvi import factors
from curvi.mcmc.start import log_density, to_nuts

KEY = jax.random.key(0)


def normal(theta):
    return -0.5 * jnp.sum(theta["x"] ** 2)


@pytest.fixture(scope="module")
def fit():
    return curvi.fit(curvi.Target(normal, {"x": np.zeros(2)}), key=KEY, progress=False)


def at_start(target):
    """A fit that has not gone anywhere."""
    return curvi.fit(target, key=KEY, num_steps=1, progress=False)


def methods_of(fit):
    return (lambda: fit.to_nuts(KEY)), (lambda: fit.polish(KEY))


def test_discrete_latents_are_refused():
    target = curvi.Target(
        lambda t: -0.5 * t["x"] ** 2 + 0.3 * t["z"], {"x": np.zeros(()), "z": 0}, {"z": constraints.boolean}
    )
    for call in methods_of(at_start(target)):
        with pytest.raises(ValueError, match=r"continuous latents; z are discrete: sum them out"):
            call()


def test_targets_without_gradients_are_refused():
    values_only = curvi.Target(normal, {"x": np.zeros(2)}, order=0)
    outside = curvi.Target(lambda t: float(-0.5 * np.sum(t["x"] ** 2)), {"x": np.zeros(2)}, order=0, black_box=True)
    for target, why in ((values_only, "declared with order=0"), (outside, "is a black box")):
        for call in methods_of(at_start(target)):
            with pytest.raises(ValueError, match=f"needs the gradient of the log density, and this one .*{why}"):
                call()


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True, None])
def test_counts_must_be_positive(fit, wrong):
    with pytest.raises(ValueError, match="num_chains must be a positive integer"):
        fit.to_nuts(KEY, num_chains=wrong)
    with pytest.raises(ValueError, match="num_chains must be a positive integer"):
        fit.polish(KEY, num_chains=wrong)
    with pytest.raises(ValueError, match="num_draws must be a positive integer"):
        fit.polish(KEY, num_draws=wrong)


def test_a_key_is_needed(fit):
    with pytest.raises(ValueError, match="typed key"):
        fit.to_nuts(0)
    with pytest.raises(ValueError, match="typed key"):
        fit.polish(jax.random.PRNGKey(0))


def test_a_missing_blackjax_is_named(fit, monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(ImportError, match=r'pip install "curvi\[mcmc\]"'):
        fit.polish(KEY)
    assert fit.to_nuts(KEY).starts.shape == (4, 2)


def test_a_fit_without_its_target_says_so(fit, tmp_path):
    fit.save(tmp_path / "x.fit")
    for call in methods_of(curvi.load(tmp_path / "x.fit")):
        with pytest.raises(ValueError, match="needs the target"):
            call()


def test_positions_of_another_size_are_refused(fit):
    with pytest.raises(ValueError, match="2 numbers along their last axis"):
        fit.to_nuts(KEY).to_named(np.zeros((4, 3)))


def test_starts_are_draws_of_q_and_wider_on_demand(fit):
    for widen in (1.0, 2.0):
        starts = np.asarray(to_nuts(fit.target, fit.q, KEY, 2000, widen).starts)
        z = (np.mean(starts**2, 0) / widen**2 - 1) / (2 / 2000) ** 0.5
        assert np.all(np.abs(z) < 4) and np.any(np.abs(np.mean(starts**2, 0) / (1.2 * widen) ** 2 - 1) > 0.2)


def test_data_of_a_minibatched_target_are_taken_whole():
    rows = np.random.default_rng(0).normal(1.0, 1.0, 500)
    target = curvi.MinibatchTarget(
        lambda t: -0.5 * t["x"] ** 2, lambda t, row: -0.5 * (row - t["x"]) ** 2, rows, 100, {"x": np.zeros(())}
    )
    start = to_nuts(target, curvi.MeanField(target), KEY)
    assert np.isclose(start.logdensity_fn(jnp.asarray([0.3])), -0.5 * 0.09 - 0.5 * np.sum((rows - 0.3) ** 2))


def half_finite(theta):
    return jnp.where(theta["x"] > 0.5, jnp.nan, -0.5 * theta["x"] ** 2)


def test_starts_are_finite():
    target = curvi.Target(half_finite, {"x": np.zeros(())})
    q = curvi.MeanField(target).replace(jnp.array([0.0, 0.0]))
    start = to_nuts(target, q, KEY, 50)
    assert np.all(np.asarray(start.starts) <= 0.5) and start.num_tried > 50
    nowhere = curvi.MeanField(target).replace(jnp.array([9.0, -3.0]))
    with pytest.raises(ValueError, match=r"not finite at 4 of 4 starts.*curvi\.check"):
        to_nuts(target, nowhere, KEY, 4)


def test_the_density_does_not_depend_on_the_factors():
    """Coordinates are the unconstrained ones of the latents, whatever factors q has; they lead to q's own draws."""

    def log_p(t):
        return 2 * jnp.log(t["s"]) - t["s"] + jnp.sum(jnp.log(t["p"])) + jnp.log(t["u"]) - 0.5 * t["x"] @ t["x"]

    init = {"s": np.array(1.0), "x": np.zeros(2), "p": np.ones(3) / 3, "u": np.array(0.4)}
    supports = {"s": constraints.positive, "p": constraints.simplex, "u": constraints.unit_interval}
    target = curvi.Target(log_p, init, supports)
    own = curvi.MeanField(target, {"s": factors.LogNormal(), "p": factors.Dirichlet()})
    v = jnp.asarray(np.random.default_rng(0).normal(size=6))
    value = eqx.filter_jit(log_density)
    gamma = curvi.MeanField(target, {"s": factors.Gamma(), "u": factors.Beta(), "x": factors.StudentT()})
    for q in (curvi.MeanField(target), gamma, curvi.FullRank(target)):
        np.testing.assert_allclose(value(target, own, v), value(target, q, v), rtol=1e-10)

    @jax.jit
    def there_and_back(key):
        draw = own.sample(key)
        return draw, own.to_vector(draw), own.from_vector(own.to_vector(draw))[0]

    draws, vectors, again = jax.vmap(there_and_back)(jax.random.split(KEY, 1000))
    for one, other in zip(draws, again):
        np.testing.assert_allclose(one, other, rtol=1e-8)
    mean, variance = own.moments()
    z = (np.asarray(vectors).mean(0) - mean) / (np.asarray(variance) * (1 / 1000 + 1 / 4096)) ** 0.5
    assert variance.shape == (6,) and np.all(np.abs(z) < 4)
