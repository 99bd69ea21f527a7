"""`fit_many`: what it takes, what it refuses, and how its results are put together."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import curvi

KEY = jax.random.key(0)
NUM = 12


def regression(x, y, scale=1.0):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.deterministic("sum", b.sum())
    numpyro.sample("y", dist.Normal(x @ b, scale), obs=y)


def made(num_rows, num=NUM, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num, num_rows, 2))
    return x, np.einsum("nij,j->ni", x, [1.0, -0.5]) + rng.normal(size=(num, num_rows))


def exact(x, y):
    """Mean and covariance of the posterior of `regression`."""
    covariance = np.linalg.inv(np.eye(2) + x.T @ x)
    return covariance @ x.T @ y, covariance


@pytest.fixture(scope="module")
def stacked():
    x, y = made(10)
    return x, y, curvi.fit_many(regression, x, y, key=KEY)


def test_a_gaussian_posterior_is_found_exactly(stacked):
    x, y, many = stacked
    assert many.converged.all() and many.together.all() and len(many) == NUM
    # Rounding of a sum over draws and rows.
    for index, fit in enumerate(many):
        mean, covariance = exact(x[index], y[index])
        found_mean, found = fit.q.moments()
        np.testing.assert_allclose(found_mean, mean, atol=1e-7)
        np.testing.assert_allclose(found, covariance, atol=1e-7)
        evidence = _log_evidence(x[index], y[index])
        assert many.elbo[index] == pytest.approx(evidence, abs=1e-6)
    assert np.all(many.remaining_gain < 1e-6)


def _log_evidence(x, y):
    covariance = np.eye(len(y)) + x @ x.T
    return -0.5 * (y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(2 * np.pi * covariance)[1])


def test_each_is_a_fit_with_its_own_target(stacked, tmp_path):
    _, _, many = stacked
    fit = many[3]
    assert isinstance(fit, curvi.Fit) and fit.converged and many[3] is fit
    for name in ("b", "sum"):
        np.testing.assert_allclose(fit.mean()[name], many.mean()[name][3], atol=1e-10)
        np.testing.assert_allclose(fit.sd()[name], many.sd()[name][3], atol=1e-10)
    assert fit.khat < 0.5
    assert fit.predictive(KEY, 5)["log_likelihood"]["y"].shape == (5, 10)
    fit.save(tmp_path / "fit.curvi")
    assert curvi.load(tmp_path / "fit.curvi", fit.target).elbo == many.elbo[3]
    assert "one of many" in str(fit)
    with pytest.raises(IndexError, match="fits 0 to 11"):
        many[NUM]


def test_lists_of_unequal_data_sets_keep_their_order():
    parts = [made(rows, 1, seed) for seed, rows in enumerate((6, 9, 6, 9, 6, 9, 7))]
    x, y = [x[0] for x, _ in parts], [y[0] for _, y in parts]
    many = curvi.fit_many(regression, x, y, key=KEY, family="mean_field")
    assert many.together.tolist() == [True] * 6 + [False]
    assert "fewer than 3" in many.reasons[6] and "fewer than 3" in str(many)
    for index, fit in enumerate(many):
        np.testing.assert_allclose(many.mean()["b"][index], exact(x[index], y[index])[0], atol=1e-3)
        precision = np.eye(2) + x[index].T @ x[index]
        np.testing.assert_allclose(fit.sd()["b"], np.diag(precision) ** -0.5, rtol=0.01)


def test_what_is_shared_and_what_is_named():
    x, y = made(10)
    many = curvi.fit_many(regression, x[0], y=y, key=KEY, shared="x", scale=2.0)
    for index in range(NUM):
        mean, _ = exact(x[0] / 2, y[index] / 2)
        np.testing.assert_allclose(many.mean()["b"][index], mean, atol=1e-3)


def log_density(theta, data, scale):
    fitted = theta["b"] * data["x"].sum(-1)
    return dist.Normal(fitted, scale).log_prob(data["y"]).sum() - theta["b"] ** 2 / 2 + jnp.log(theta["s"]) - theta["s"]


def test_a_log_density_with_outputs_draws_and_the_same_bits():
    x, y = made(10)
    options = {
        "init": {"b": 0.0, "s": 1.0},
        "supports": {"s": dist.constraints.positive},
        "outputs": lambda theta, data, scale: {"first": theta["b"] * data["x"][0, 0] / scale},
    }
    data = {"x": x, "y": y}
    many = curvi.fit_many(log_density, data, np.full(NUM, 0.5), key=KEY, **options)
    again = curvi.fit_many(log_density, data, np.full(NUM, 0.5), key=KEY, **options)
    assert np.array_equal(many.elbo, again.elbo)
    draws, num = many.sample(jax.random.key(1), 2000), 2000
    assert draws["s"].shape == (NUM, num) and np.all(draws["s"] > 0)
    np.testing.assert_allclose(draws["first"], 2 * draws["b"] * x[:, :1, 0])
    z = (draws["b"].mean(1) - many.mean()["b"]) / many.sd()["b"] * num**0.5
    assert np.abs(z).max() < 4
    assert np.abs(z + 0.2 * num**0.5).max() > 4  # draws that are off by 0.2 sd


def test_linear_response_of_independent_factors_has_the_right_spread():
    x, y = made(10)
    many = curvi.fit_many(regression, x, y, key=KEY, family="mean_field")
    draws = many.sample(KEY, 4000, kind="linear_response")["b"]
    sds = np.array([np.sqrt(np.diag(exact(x[i], y[i])[1])) for i in range(NUM)])
    assert np.abs(draws.std(1) / sds - 1).max() < 0.06  # five standard errors
    assert np.abs(many.sample(KEY, 4000)["b"].std(1) / sds - 1).max() > 0.06


def test_the_model_is_traced_and_not_run_for_each():
    calls = []

    def counted(y):
        calls.append(0)
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0, 1)), 1.0), obs=y)

    curvi.fit_many(counted, np.random.default_rng(0).normal(size=(200, 5)), key=KEY)
    assert len(calls) < 20


# -- what is fitted singly --------------------------------------------------------------------------------------------


def branching(y):
    scale = 1.0 if y.sum() > 0 else 2.0
    numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0, 1)), scale), obs=y)


def bounded(y):
    m = numpyro.sample("m", dist.Uniform(0.0, jnp.max(y)))
    numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def sized(num, y):
    with numpyro.plate("all", num):
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0, 1)), 1.0), obs=y)


def test_supports_of_observations_may_depend_on_latents():
    def uniform(y):
        end = numpyro.sample("end", dist.Gamma(5.0, 1.0))
        numpyro.sample("y", dist.Uniform(0.0, end + 3.0), obs=y)

    many = curvi.fit_many(uniform, np.random.default_rng(0).uniform(size=(4, 6)), key=KEY)
    assert many.together.all()


def test_sizes_in_a_list_are_numbers_for_single_fits():
    many = curvi.fit_many(sized, [3, 3, 4], [np.ones(3), np.zeros(3), np.ones(4)], key=KEY)
    assert many.converged.all() and not many.together.any()
    assert [value.shape for value in many.mean()["m"]] == [(3,), (3,), (4,)]
    np.testing.assert_allclose(many.mean()["m"][2], 0.5, atol=1e-3)


@pytest.mark.parametrize("model, why", [(branching, "needs the numbers"), (bounded, "'m' depends on the data")])
def test_models_that_cannot_be_stacked_are_fitted_singly(model, why):
    many = curvi.fit_many(model, np.ones((3, 4)) + np.arange(12).reshape(3, 4), key=KEY)
    assert not many.together.any() and many.converged.all()
    assert why in many.reasons[0] and why in str(many)
    assert many.counts.gradient > 0


def test_a_kinked_log_density_is_not_certified_together():
    def laplace(y):
        numpyro.sample("y", dist.Laplace(numpyro.sample("m", dist.Normal(0, 3)), 1.0), obs=y)

    many = curvi.fit_many(laplace, np.random.default_rng(0).laplace(size=(3, 15)), key=KEY)
    assert not many.together.any()
    assert "not certified together" in many.reasons[0]


# -- bad input --------------------------------------------------------------------------------------------------------

X, Y = made(10, 4)
BAD = [
    ((regression, X, Y), {}, "pass key="),
    ((regression, X, Y[:3]), {"key": KEY}, "'x' 4, 'y' 3.*shared="),
    ((regression, X, Y), {"key": KEY, "shared": "z"}, "shared names arguments.*z; there are 'x', 'y'"),
    ((regression, X, Y), {"key": KEY, "shared": ("x", "y")}, "no argument has one entry per data set"),
    ((regression, X[:0], Y[:0]), {"key": KEY}, "there is no data set"),
    ((regression, X, Y), {"key": KEY, "family": "best"}, "family must be one of"),
    ((regression, X, Y), {"key": KEY, "tolerance": 0}, "tolerance must be a positive number"),
    ((regression, X, Y), {"key": KEY, "outputs": lambda t: t}, "pass init="),
    ((regression, X, np.full((4, 10), "a")), {"key": KEY}, "'y' must hold numbers"),
    ((regression, {"a": X, "b": Y[:2]}, Y), {"key": KEY}, "argument 'x' have first axes of different lengths"),
    ((regression, X, np.where(np.arange(4)[:, None] == 2, np.nan, Y)), {"key": KEY}, "data set 2.*site 'y'"),
    (("model", X, Y), {"key": KEY}, "fit_many takes a model"),
    ((log_density, {"x": X, "y": Y}), {"key": KEY}, "cannot be called .* needs init="),
    ((regression, curvi.Rows({"x": X[0]}), Y), {"key": KEY}, "argument 'x' is Rows"),
    ((curvi.Target(lambda t: -(t["a"] ** 2), {"a": 0.0}), X), {"key": KEY}, "a target has its data"),
]


@pytest.mark.parametrize("arguments, options, message", BAD, ids=[message for *_, message in BAD])
def test_bad_input_is_refused_before_anything_is_fitted(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        curvi.fit_many(*arguments, **options)


def test_observations_outside_of_their_support_name_the_data_set():
    def poisson(y):
        numpyro.sample("y", dist.Poisson(numpyro.sample("rate", dist.Exponential(1.0))), obs=y)

    counts = np.ones((5, 4), int)
    counts[3, 1] = -1
    with pytest.raises(
        ValueError, match=r"site 'y' lie outside their support in 1 data sets, the first of them number 3"
    ):
        curvi.fit_many(poisson, counts, key=KEY)


def test_draws_are_asked_for_by_a_positive_number(stacked):
    with pytest.raises(ValueError, match="num_draws must be at least 1"):
        stacked[2].sample(KEY, 0)
    with pytest.raises(ValueError, match="kind must be"):
        stacked[2].sample(KEY, 1, kind="exact")
