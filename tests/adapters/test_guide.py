"""curvi.numpyro.AutoGuide: a fit where NumPyro takes a guide."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro import handlers
from numpyro.infer import SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoGuide as NumPyroGuide

import curvi
from curvi.numpyro import AutoGuide

KEY = jax.random.key(0)
X = np.linspace(-1, 1, 20)
Y = 0.5 + 1.5 * X + 0.3 * np.random.default_rng(0).normal(size=20)


def regression(x, y=None):
    with numpyro.plate("coefficients", 2):
        line = numpyro.sample("line", dist.Normal(0.0, 2.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    centre = numpyro.deterministic("centre", line[0] + line[1] * x)
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(centre, noise), obs=y)


def switched():
    on = numpyro.sample("on", dist.Bernoulli(0.3))
    numpyro.sample("level", dist.Normal(2.0 * on, 1.0))


@lru_cache
def fitted():
    return curvi.fit(curvi.from_numpyro(regression, X, Y), key=KEY, family="full_rank", progress=False)


@lru_cache
def discrete():
    return curvi.fit(curvi.from_numpyro(switched), key=KEY, progress=False)


def test_predictive_draws_new_data_at_new_places():
    guide, new = AutoGuide(fitted()), np.array([-2.0, 0.0, 3.0])
    for params in ({}, guide.params):
        found = Predictive(regression, guide=guide, params=params, num_samples=4000)(KEY, new)
        assert found["y"].shape == found["centre"].shape == (4000, 3)
        draws = fitted().sample(jax.random.key(1), 4000)
        centre = draws["line"][:, :1] + draws["line"][:, 1:] * new
        # Two independent samples of the same distributions.
        z = (found["centre"].mean(0) - centre.mean(0)) / np.hypot(found["centre"].std(0), centre.std(0)) * 4000**0.5
        assert np.all(np.abs(z) < 4)
        noise = np.sqrt(centre.var(0) + np.mean(draws["noise"] ** 2))
        np.testing.assert_allclose(found["y"].std(0), noise, rtol=0.06)


def test_the_density_of_the_sites_is_that_of_q():
    """So that NumPyro's ELBO is that of the fit; without the density of q it would be off by its entropy."""
    guide = AutoGuide(fitted())
    assert isinstance(guide, NumPyroGuide)
    losses = Trace_ELBO(num_particles=2000).loss(KEY, guide.params, regression, guide, X, Y)
    ratios = fitted().log_ratios(KEY, 2000)
    error = np.hypot(np.std(ratios) / 2000**0.5 * 2**0.5, fitted().elbo_se)
    assert abs(-losses - fitted().elbo) < 4 * error < 0.5
    trace = handlers.trace(handlers.seed(guide, 1)).get_trace(X, Y)
    total = sum(site["fn"].log_prob(site["value"]).sum() for site in trace.values() if site["type"] == "sample")
    assert abs(float(total)) > 1


def test_svi_goes_on_from_a_fit_and_finds_nothing_to_gain():
    guide = AutoGuide(fitted(), prefix="curvi")
    assert list(guide.params) == ["curvi_params"]
    svi = SVI(regression, guide, optax.adam(1e-4), Trace_ELBO(num_particles=16))
    state = svi.init(KEY, X, Y)
    np.testing.assert_array_equal(svi.get_params(state)["curvi_params"], fitted().q.params)
    for _ in range(3):
        state, _ = svi.update(state, X, Y)
    moved = svi.get_params(state)
    assert 0 < np.max(np.abs(moved["curvi_params"] - fitted().q.params)) < 1e-3
    # What was learned is what is drawn.
    far = {"curvi_params": fitted().q.params.at[0].add(5.0)}
    draws = [guide.sample_posterior(KEY, params, sample_shape=(500,)) for params in ({}, far)]
    assert np.max(np.abs(draws[1]["line"].mean(0) - draws[0]["line"].mean(0))) > 1


def test_posterior_draws_medians_and_quantiles():
    guide, own = AutoGuide(fitted()), fitted().sample(KEY, 6)
    draws = guide.sample_posterior(KEY, {}, sample_shape=(2, 3))
    assert set(draws) == set(own) == {"line", "noise", "centre"}
    for name, value in own.items():
        np.testing.assert_array_equal(draws[name], np.reshape(value, (2, 3, *value.shape[1:])))
    one = guide.sample_posterior(jax.random.PRNGKey(0), guide.params, X, Y)
    assert one["line"].shape == (2,) and one["noise"].shape == ()
    quantiles = guide.quantiles({}, [0.1, 0.5, 0.9])
    assert set(quantiles) == {"line", "noise"} and quantiles["line"].shape == (3, 2)
    for name, value in fitted().quantiles([0.1, 0.5, 0.9]).items():
        if name in quantiles:
            np.testing.assert_allclose(quantiles[name], value)
            np.testing.assert_allclose(guide.median({})[name], value[1])
    assert guide.quantiles({}, 0.1)["line"].shape == (2,)


def test_discrete_latents_stay_what_they_are():
    guide = AutoGuide(discrete())
    assert guide.params == {} and guide.median({})["on"].dtype == discrete().q.latents[0].dtype
    found = Predictive(switched, guide=guide, params={}, num_samples=2000, return_sites=["on", "level"])(KEY)
    share = discrete().mean()["on"]
    assert abs(found["on"].mean() - share) < 4 * (share * (1 - share) / 2000) ** 0.5
    assert set(np.unique(found["on"])) == {0, 1}
    loss = Trace_ELBO(num_particles=2000).loss(KEY, {}, switched, guide)
    ratios = discrete().log_ratios(KEY, 2000)
    assert abs(-loss - ratios.mean()) < 4 * np.std(ratios) * (2 / 2000) ** 0.5


def test_a_fit_from_a_file_serves_as_well(tmp_path):
    fitted().save(tmp_path / "fit")
    guide = AutoGuide(curvi.load(tmp_path / "fit"))
    np.testing.assert_array_equal(
        guide.sample_posterior(KEY, {}, sample_shape=(4,))["line"], fitted().sample(KEY, 4)["line"]
    )


def test_misuse_is_named():
    with pytest.raises(ValueError, match=r"takes a fit.*got function.*curvi.from_numpyro"):
        AutoGuide(regression)
    with pytest.raises(ValueError, match="of another fit"):
        AutoGuide(fitted()).median({"auto_params": jnp.zeros(3)})
    with pytest.raises(ValueError, match=r"handlers.seed\(guide"):
        AutoGuide(fitted())(X, Y)
    with pytest.raises(ValueError, match="probabilities must lie between 0 and 1"):
        AutoGuide(fitted()).quantiles({}, [0.5, 1.5])
    with pytest.raises(ValueError, match="sample_shape"):
        AutoGuide(fitted()).sample_posterior(KEY, {}, sample_shape=(2, -1))
