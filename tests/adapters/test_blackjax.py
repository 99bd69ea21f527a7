"""`fit.polish` by BlackJAX, `fit.to_nuts` for BlackJAX and NumPyro, on posteriors with known moments."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import curvi
from curvi.mcmc.convergence import effective_size, split_chains

blackjax = pytest.importorskip("blackjax")

COVARIANCE = np.array([[1.0, 1.8, 0.0], [1.8, 4.0, 0.3], [0.0, 0.3, 0.25]])
PRECISION = np.linalg.inv(COVARIANCE)
MEAN = np.array([0.5, -3.0, 2.0])
Q_SD = np.diag(PRECISION) ** -0.5  # of the best mean field


def gaussian(dtype=float, **more):
    mean, precision = MEAN.astype(dtype), PRECISION.astype(dtype)
    return curvi.Target(
        lambda t: -0.5 * (t["x"] - mean) @ precision @ (t["x"] - mean), {"x": np.zeros(3, dtype)}, **more
    )


def total(theta):
    return {"total": theta["x"].sum()}


@pytest.fixture(scope="module")
def mean_field():
    return curvi.fit(gaussian(outputs=total), key=jax.random.key(0), family="mean_field", progress=False)


@pytest.fixture(scope="module")
def full_rank():
    return curvi.fit(gaussian(outputs=total), key=jax.random.key(0), family="full_rank", progress=False)


@pytest.fixture(scope="module")
def polished(mean_field):
    return mean_field.polish(jax.random.key(1))


def assert_moments(draws, mean, sd, at_most=4.0):
    """Draws (chains, draws, ...) have these means and sds, by z-scores with their own effective sizes."""
    flat = np.asarray(draws, float).reshape(*draws.shape[:2], -1)
    away = (flat - mean) ** 2
    for values, expected in ((flat, np.ravel(mean)), (away, np.ravel(sd) ** 2)):
        error = values.std((0, 1)) / effective_size(split_chains(values)) ** 0.5
        z = (values.mean((0, 1)) - expected) / error
        assert np.all(np.abs(z) < at_most), z


# -- polish -----------------------------------------------------------------------------------------------------------


def test_draws_have_the_moments_of_the_posterior(mean_field, polished):
    assert polished.draws["x"].shape == (4, 1000, 3) and polished.draws["total"].shape == (4, 1000)
    sd = np.diag(COVARIANCE) ** 0.5
    assert_moments(polished.draws["x"], MEAN, sd)
    assert_moments(polished.draws["total"], MEAN.sum(), COVARIANCE.sum() ** 0.5)
    with pytest.raises(AssertionError):  # draws of q, whose sds are too small
        assert_moments(np.asarray(mean_field.sample(jax.random.key(2), 4000)["x"]).reshape(4, 1000, 3), MEAN, sd)
    assert polished.largest_r_hat < 1.01 and polished.smallest_effective_size > 400
    assert polished.num_divergences == 0 and polished.problems == ()
    np.testing.assert_allclose(polished.draws["x"].sum(-1), polished.draws["total"])


def test_moved_says_how_far_q_was_off(polished):
    expected = np.diag(COVARIANCE) ** 0.5 / Q_SD
    assert expected.max() > 2
    error = (2 * polished.smallest_effective_size) ** -0.5
    assert np.all(np.abs(polished.moved.sd["x"] / expected - 1) < 4 * error)
    mean_error = expected * polished.effective_size["x"] ** -0.5
    assert np.all(np.abs(polished.moved.mean["x"]) < 4 * mean_error)
    assert abs(polished.moved.sd["total"] - (COVARIANCE.sum() / np.sum(Q_SD**2)) ** 0.5) < 0.3


def test_a_shift_of_q_is_found(mean_field):
    import dataclasses

    params = np.array(mean_field.q.params)
    params[0] -= 2 * Q_SD[0]
    wrong = dataclasses.replace(mean_field, q=mean_field.q.replace(jnp.asarray(params)))
    found = wrong.polish(jax.random.key(5))
    assert abs(found.moved.mean["x"][0] - 2) < 0.5 and np.all(np.abs(found.moved.mean["x"][1:]) < 0.5)


def test_few_effective_draws_say_unknown(mean_field):
    found = mean_field.polish(jax.random.key(1), num_draws=10, num_chains=2)
    assert np.all(np.isnan(found.moved.mean["x"])) and np.all(np.isnan(found.moved.sd["x"]))
    assert "unknown" in str(found) and "unknown" in str(found.moved) and found.problems
    assert found.draws["x"].shape == (2, 10, 3)


def test_one_draw_and_one_chain(mean_field):
    found = mean_field.polish(jax.random.key(1), num_draws=1, num_chains=1)
    assert found.draws["x"].shape == (1, 1, 3) and np.all(np.isnan(found.r_hat["x"]))
    assert "unknown" in str(found) and "Polished(1 chains" in repr(found)


def test_same_key_same_draws_and_nothing_compiled_again(mean_field, polished):
    again = mean_field.polish(jax.random.key(1))
    np.testing.assert_array_equal(again.draws["x"], polished.draws["x"])
    assert again.seconds.compile == 0.0 and again.counts == polished.counts
    other = mean_field.polish(jax.random.key(2))
    assert other.seconds.compile == 0.0 and not np.array_equal(other.draws["x"], polished.draws["x"])


def test_gradients_are_all_counted():
    seen = []

    def log_density(theta):
        jax.debug.callback(lambda: seen.append(0))
        return -0.5 * jnp.sum(theta["x"] ** 2 * jnp.array([1.0, 4.0]))

    fit = curvi.fit(curvi.Target(log_density, {"x": np.zeros(2)}), key=jax.random.key(0), progress=False)
    fit.mean()
    jax.effects_barrier()
    seen.clear()
    # With one chain no evaluation waits for another's.
    found = fit.polish(jax.random.key(1), num_draws=20, num_chains=1)
    jax.effects_barrier()
    assert found.counts.gradient == len(seen) > found.num_leapfrogs.sum() > 20


def test_a_printed_verdict_and_a_table(polished):
    text = str(polished)
    assert "4 chains of 1,000 draws" in text and "0 divergences" in text and "R-hat at most 1.0" in text
    row = polished.summary()["x[1]"]
    assert row["mean"] == polished.mean()["x"][1] and row["sd"] == polished.sd()["x"][1]
    assert row["sd / sd of q"] == polished.moved.sd["x"][1]
    low, high = polished.quantiles([0.05, 0.95])["x"].T[1]
    assert low < row["mean"] < high
    with pytest.raises(ValueError, match="between 0 and 1"):
        polished.quantiles([2.0])


# -- constrained supports, and what NumPyro's models bring ------------------------------------------------------------


def positive(counts=None):
    rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))
    spread = numpyro.sample("spread", dist.HalfNormal(2.0))
    numpyro.deterministic("product", rate * spread)
    with numpyro.plate("rows", 6):
        numpyro.sample("counts", dist.Poisson(rate), obs=counts)


def test_positive_latents_keep_their_support():
    counts = np.array([1, 0, 2, 3, 1, 1])
    fit = curvi.fit(curvi.from_numpyro(positive, counts), key=jax.random.key(0), progress=False)
    found = fit.polish(jax.random.key(1))
    shape, rate = 3 + counts.sum(), 2 + len(counts)
    assert_moments(found.draws["rate"], shape / rate, shape**0.5 / rate)
    assert_moments(found.draws["spread"], 2 * (2 / np.pi) ** 0.5, 2 * (1 - 2 / np.pi) ** 0.5)
    assert min(found.draws["rate"].min(), found.draws["spread"].min()) > 0
    np.testing.assert_allclose(found.draws["product"], found.draws["rate"] * found.draws["spread"])
    pytest.importorskip("arviz")
    data = found.to_arviz(predictive=True)
    posterior = data["posterior"]
    np.testing.assert_array_equal(np.asarray(posterior["rate"]), found.draws["rate"])
    assert data["posterior_predictive"]["counts"].shape == data["log_likelihood"]["counts"].shape == (4, 1000, 6)
    np.testing.assert_array_equal(data["observed_data"]["counts"], counts)
    np.testing.assert_array_equal(data["sample_stats"]["diverging"], found.diverging)
    expected = dist.Poisson(jnp.asarray(found.draws["rate"])[..., None]).log_prob(jnp.asarray(counts))
    np.testing.assert_allclose(data["log_likelihood"]["counts"], expected, rtol=1e-8)


def test_a_funnel_is_reported():
    def log_density(theta):
        return -0.5 * (theta["v"] / 3) ** 2 - 0.5 * jnp.sum(theta["x"] ** 2) * jnp.exp(-theta["v"]) - 4 * theta["v"]

    fit = curvi.fit(
        curvi.Target(log_density, {"v": np.zeros(()), "x": np.zeros(8)}), key=jax.random.key(0), progress=False
    )
    found = fit.polish(jax.random.key(1), num_draws=300)
    assert found.problems and "nothing speaks against" not in str(found)


# -- to_nuts ----------------------------------------------------------------------------------------------------------


def test_what_nuts_gets(mean_field, full_rank):
    start = mean_field.to_nuts(jax.random.key(3), num_chains=5)
    np.testing.assert_allclose(start.inverse_mass_matrix, Q_SD**2, rtol=0.05)
    assert start.starts.shape == (5, 3) and not start.dense_mass
    dense = full_rank.to_nuts(jax.random.key(3))
    np.testing.assert_allclose(dense.inverse_mass_matrix, COVARIANCE, rtol=0.05, atol=0.02)
    assert dense.starts.shape == (4, 3) and dense.dense_mass
    x = jnp.asarray([1.0, 2.0, 0.0])
    expected = -0.5 * (x - MEAN) @ PRECISION @ (x - MEAN)
    for one in (start, dense):
        assert np.isclose(one.logdensity_fn(x), expected) and np.isclose(one.potential_fn(x), -expected)
        named = one.to_named(np.stack([x, 2 * x])[None])
        assert named["x"].shape == (1, 2, 3) and named["total"].shape == (1, 2)
        np.testing.assert_allclose(named["total"], [[3.0, 6.0]])
    assert mean_field.to_nuts(jax.random.key(3), num_chains=1).init_params.shape == (3,)


@pytest.mark.parametrize("family", ["mean_field", "full_rank"])
def test_numpyro_samples_from_it(family, request):
    start = request.getfixturevalue(family).to_nuts(jax.random.key(4))
    kernel = numpyro.infer.NUTS(**start.for_numpyro(), adapt_mass_matrix=False)
    chains = numpyro.infer.MCMC(
        kernel, num_warmup=100, num_samples=500, num_chains=4, chain_method="vectorized", progress_bar=False
    )
    chains.run(jax.random.key(5), init_params=start.init_params)
    draws = start.to_named(chains.get_samples(group_by_chain=True))
    assert draws["x"].shape == (4, 500, 3)
    assert_moments(draws["x"], MEAN, np.diag(COVARIANCE) ** 0.5)


def test_blackjax_samples_from_it(full_rank):
    start = full_rank.to_nuts(jax.random.key(4), num_chains=3)
    nuts = blackjax.nuts(start.logdensity_fn, step_size=0.7, inverse_mass_matrix=start.inverse_mass_matrix)

    @jax.jit
    def chain(key, position):
        def advance(state, key):
            state, _ = nuts.step(key, state)
            return state, state.position

        return jax.lax.scan(advance, nuts.init(position), jax.random.split(key, 500))[1]

    draws = start.to_named(jax.vmap(chain)(jax.random.split(jax.random.key(5), 3), start.starts))
    assert_moments(draws["x"], MEAN, np.diag(COVARIANCE) ** 0.5)


# -- single precision -------------------------------------------------------------------------------------------------


def test_single_precision():
    target = gaussian(np.float32, order=1, outputs=total)
    fit = curvi.fit(target, key=jax.random.key(0), family="full_rank", tolerance=0.5, progress=False)
    found = fit.polish(jax.random.key(1), num_draws=500)
    assert found.draws["x"].dtype == np.float32
    assert_moments(found.draws["x"], MEAN, np.diag(COVARIANCE) ** 0.5)
