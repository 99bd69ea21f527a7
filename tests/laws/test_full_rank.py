"""What is particular to FullRank: fits against exact answers, discrete latents beside it, its makers and its limits."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family_registry import CENTRE, FAMILIES, PRECISION, evidence, gaussian, mixed, several_kinds, skewed
from numpyro.distributions import constraints

import curvi
from curvi import FullRank, MeanField, Outcome, Target, factors
from curvi.family.triangular_path import TriangularRoot

RNG = np.random.default_rng(4)
NUM_ROWS = 60
ROWS = np.concatenate([np.ones((NUM_ROWS, 1)), 2 + 0.5 * RNG.normal(size=(NUM_ROWS, 1))], 1)
ROWS = np.concatenate([ROWS, ROWS[:, 1:] + 0.3 * RNG.normal(size=(NUM_ROWS, 1))], 1)
SHIFT = np.where(np.arange(NUM_ROWS) % 2, 0.25, -0.25)
RESPONSE = ROWS @ np.array([0.5, 1.0, -0.7]) + SHIFT + RNG.normal(size=NUM_ROWS)
SCALE = 2.0  # of the prior of the coefficients


def regression(order=2, dtype=float):
    """Correlated coefficients beside an indicator: whether the shift of the rows belongs to the model."""
    rows, response, shift = (part.astype(dtype) for part in (ROWS, RESPONSE, SHIFT))

    def log_density(t):
        residuals = response - rows @ t["b"] - shift * t["z"]
        return -0.5 * jnp.sum(residuals**2) - 0.5 * jnp.sum(t["b"] ** 2) / SCALE**2

    return Target(log_density, {"b": np.zeros(3, dtype), "z": np.array(0)}, {"z": constraints.boolean}, order=order)


def states():
    """ln p(y, z) up to a constant, mean and covariance of the coefficients, for each value of the indicator."""
    covariance = np.linalg.inv(ROWS.T @ ROWS + np.eye(3) / SCALE**2)
    out = []
    for z in (0, 1):
        left = RESPONSE - SHIFT * z
        mean = covariance @ ROWS.T @ left
        log_p = 0.5 * mean @ np.linalg.solve(covariance, mean) - 0.5 * left @ left
        out.append((log_p + 1.5 * np.log(2 * np.pi) + 0.5 * np.linalg.slogdet(covariance)[1], mean))
    return out, covariance


def best_joint():
    """The best normal and Bernoulli of the regression, and its ELBO, by enumeration of the indicator.

    Given q(z) the best normal has the covariance of every state and the mean of their means, given the normal the log
    odds are linear in its mean; both alternate.
    """
    (first, second), covariance = states()
    inverse, share = np.linalg.inv(covariance), 0.5

    def log_p(state, mean):
        apart = mean - state[1]
        return state[0] - 0.5 * apart @ inverse @ apart

    mean = first[1]
    for _ in range(500):
        mean = (1 - share) * first[1] + share * second[1]
        share = 1 / (1 + np.exp(log_p(first, mean) - log_p(second, mean)))
    bits = -share * np.log(share) - (1 - share) * np.log1p(-share)
    return mean, covariance, share, (1 - share) * log_p(first, mean) + share * log_p(second, mean) + bits


@pytest.mark.parametrize(("order", "dtype"), [(2, np.float64), (1, np.float64), (2, np.float32)])
def test_a_regression_beside_an_indicator(order, dtype):
    found = curvi.fit(regression(order, dtype), key=jax.random.key(0), family="full_rank", progress=False)
    assert found.converged and found.q.params.dtype == dtype and not found.q.reparameterised
    mean, covariance, share, elbo = best_joint()
    sds = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(np.asarray(found.q.mean()) - mean) < 0.2 * sds)
    factor = np.asarray(found.q.factor(), float)
    np.testing.assert_allclose(factor @ factor.T, covariance, atol=0.1 * sds.max() ** 2)
    np.testing.assert_allclose(jax.nn.sigmoid(found.q.rest.params[0]), share, atol=0.06)
    assert abs(found.elbo - elbo) < 0.05 + 3 * found.elbo_se
    if (order, dtype) == (2, np.float64):
        # Far above the best mean field, which has the sds of each coefficient given the others.
        apart = curvi.fit(regression(), key=jax.random.key(0), progress=False)
        assert apart.elbo < elbo - 0.5


def test_minibatches():
    def prior(t):
        return -0.5 * jnp.sum(t["b"] ** 2) / SCALE**2

    def row(t, data):
        return -0.5 * (data["y"] - data["x"] @ t["b"]) ** 2

    data = {"x": ROWS, "y": RESPONSE}
    target = curvi.MinibatchTarget(prior, row, data, 20, {"b": np.zeros(3)})
    found = curvi.fit(target, key=jax.random.key(0), family="full_rank", progress=False)
    (state, _), covariance = states()
    assert found.converged
    np.testing.assert_allclose(found.mean()["b"], state[1], atol=0.2 * np.sqrt(covariance.max()))
    sds = np.sqrt(np.sum(np.asarray(found.q.factor()) ** 2, 1))
    np.testing.assert_allclose(sds, np.sqrt(np.diag(covariance)), rtol=0.15)


@pytest.mark.parametrize("order", [1, 2])
def test_full_rank_is_exact_on_gaussians(order):
    target = gaussian(order=order)
    found = curvi.fit(target, key=jax.random.key(0), family="full_rank", progress=False, tolerance=1e-6)
    assert found.converged and isinstance(found.q, FullRank) and len(found.history) <= 12
    factor = np.asarray(found.q.factor())
    np.testing.assert_allclose(factor @ factor.T, np.linalg.inv(PRECISION), atol=2e-3)
    np.testing.assert_allclose(found.mean()["x"], CENTRE, atol=5e-3)
    np.testing.assert_allclose(found.elbo, evidence(), atol=1e-4)


@pytest.mark.parametrize("make", [skewed, mixed])
def test_never_below_mean_field(make):
    fits = [
        curvi.fit(make(), key=jax.random.key(1), family=name, progress=False) for name in ("mean_field", "full_rank")
    ]
    assert all(fit.converged for fit in fits)
    assert curvi.compare(fits[1], fits[0]).difference > -0.05


def test_single_precision():
    found = curvi.fit(gaussian(dtype=np.float32), key=jax.random.key(0), family="full_rank", progress=False)
    assert found.q.params.dtype == np.float32 and found.outcome in (Outcome.CONVERGED, Outcome.PRECISION)
    factor = np.asarray(found.q.factor(), float)
    np.testing.assert_allclose(factor @ factor.T, np.linalg.inv(PRECISION), atol=0.05)


@pytest.mark.parametrize("make", [skewed, mixed])
def test_a_full_rank_fit_is_saved_resumed_and_shown(make, tmp_path):
    target = make()
    whole = curvi.fit(target, key=jax.random.key(2), family="full_rank", progress=False, tolerance=1e-2)
    part = curvi.fit(target, key=jax.random.key(2), family="full_rank", progress=False, tolerance=1e-2, num_steps=3)
    part.save(tmp_path / "fit.curvi")
    again = curvi.load(tmp_path / "fit.curvi", target)
    resumed = curvi.fit(target, start=again, progress=False, tolerance=1e-2)
    np.testing.assert_array_equal(resumed.q.params, whole.q.params)
    assert "x[1]" in str(whole.summary()) and np.isfinite(whole.khat)
    whole.report(tmp_path / "report.html")


def test_regression_on_values_alone():
    """A target without derivatives, by the default method of values: a joint factor and those of discrete latents."""
    found = curvi.fit(regression(order=0), key=jax.random.key(0), family="full_rank", progress=False)
    assert found.converged and abs(found.elbo - best_joint()[3]) < 0.1 + 3 * found.elbo_se


# -- makers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [skewed, mixed])
def test_of_a_mean_field_is_the_same_q(make):
    target = make()
    narrow = MeanField(target)
    narrow = narrow.replace(narrow.params + 0.3 * jnp.cos(jnp.arange(narrow.num_params)))
    assert narrow.why_not_full_rank() is None
    q = FullRank.of(narrow)
    first = np.argsort(~narrow.pathwise_columns, kind="stable")  # columns of normal noise come first
    noise = jax.random.normal(jax.random.key(0), (narrow.noise_size,))
    theta, log_det = q.to_model(q.from_normal(noise[first]))
    own = narrow.follow(narrow, noise)
    own_theta, own_log_det = narrow.to_model(own)
    for name in theta:
        np.testing.assert_allclose(theta[name], own_theta[name], rtol=1e-12)
    np.testing.assert_allclose(log_det, own_log_det)
    np.testing.assert_allclose(q.log_prob(q.from_normal(noise[first])), narrow.log_prob(own), rtol=1e-12)
    np.testing.assert_allclose(q.entropy(), narrow.entropy(), rtol=1e-12)
    assert q.layout == FullRank(target).layout
    assert q.why_not_full_rank() == "q is a FullRank already"


def test_moments_are_taken_and_checked():
    q = FAMILIES["full rank, discrete"].q()
    mean, factor = np.array([1.0, -2.0, 0.5]), np.linalg.cholesky(np.eye(3) + 0.5)
    moved = q.with_moments(mean, factor)
    np.testing.assert_allclose(moved.mean(), mean)
    np.testing.assert_allclose(moved.factor(), factor, atol=1e-15)
    np.testing.assert_array_equal(moved.rest.params, q.rest.params)
    for wrong, words in {
        "shape": ((mean[:2], factor), r"expected a mean of shape \(3,\)"),
        "upper": ((mean, factor.T), "lower triangular with a positive diagonal"),
        "sign": ((mean, -factor), "lower triangular with a positive diagonal"),
        "number": ((mean, np.nan * factor), "must be finite"),
    }.values():
        with pytest.raises(ValueError, match=words):
            q.with_moments(*wrong)


def test_what_cannot_be_widened_says_why():
    q = MeanField(several_kinds(), {"s": factors.LogNormal(), "share": factors.Beta()})
    assert "the factors of s, share are not Normal" in q.why_not_full_rank()
    with pytest.raises(ValueError, match="the factors of s, share are not Normal"):
        FullRank.of(q)
    wide = MeanField(Target(lambda t: -jnp.sum(t["x"] ** 2), {"x": np.zeros(2000)}))
    assert "budget of 525,824" in wide.why_not_full_rank() and wide.why_not_full_rank(2_100_000) is None


# -- limits -----------------------------------------------------------------------------------------------------------


def test_bad_input_is_named():
    bits = Target(lambda t: -1.0 * t["z"], {"z": np.array(0)}, {"z": constraints.boolean})
    with pytest.raises(ValueError, match="FullRank needs a continuous latent, and z are discrete"):
        FullRank(bits)
    wide = Target(lambda t: -jnp.sum(t["x"] ** 2), {"x": np.zeros(2000)})
    with pytest.raises(
        ValueError, match="budget of 525,824 parameters, which are at most 1,024 dimensions; here are 2,0"
    ):
        curvi.fit(wide, key=jax.random.key(0), family="full_rank")
    assert FullRank(wide, max_params=2_003_000).num_params == 2_003_000
    beside = Target(
        lambda t: -jnp.sum(t["x"] ** 2) * t["z"], {"x": np.zeros(65), "z": np.array(0)}, {"z": constraints.boolean}
    )
    with pytest.raises(
        ValueError, match="budget of 2,144 parameters beside discrete latents, which are at most 64 dim"
    ):
        FullRank(beside)
    for family in ("fullrank", ""):
        with pytest.raises(ValueError, match="family must be one of auto, mean_field, full_rank"):
            curvi.fit(gaussian(), key=jax.random.key(0), family=family)
    for family in (FullRank, 3):
        with pytest.raises(ValueError, match="family must be a name or a"):
            curvi.fit(gaussian(), key=jax.random.key(0), family=family)
    with pytest.raises(ValueError, match="another target"):
        curvi.fit(gaussian(), key=jax.random.key(0), family=FullRank(skewed()))


def test_a_root_without_its_triangle_is_another_metric():
    q = FAMILIES["full rank"].q()
    params, v = np.asarray(q.params), np.cos(np.arange(q.num_params))
    fisher = np.asarray(q.fisher().dense())
    right, wrong = (TriangularRoot(q.path, params) for _ in range(2))
    np.testing.assert_allclose(fisher @ right.solve_transpose(right.solve(v)), v, atol=1e-8)
    wrong.factor = np.diag(np.diag(wrong.factor))
    assert np.abs(fisher @ wrong.solve_transpose(wrong.solve(v)) - v).max() > 0.1


def test_discrete_values_are_all_tried():
    """For regression on values: a copy of a draw for each value of each discrete latent."""
    q = FAMILIES["full rank, discrete"].q()
    x = q.sample(jax.random.key(0))
    (normal, bit, kind), owner = q.every_value(x)
    np.testing.assert_array_equal(normal, np.repeat(np.asarray(x[0])[None], 5, 0))
    np.testing.assert_array_equal(owner, [1, 1, 2, 2, 2])
    assert list(bit[:2, 0]) == [0, 1] and list(kind[2:, 0]) == [0, 1, 2]
    flat = q.flattened()
    np.testing.assert_array_equal(flat.params[: q.num_normal_params], q.params[: q.num_normal_params])
    least = [
        min(
            float(jnp.exp(one.weighed_log_prob((x[0], np.array([b]), np.array([k])))))
            for b, k in itertools.product(range(2), range(3))
        )
        for one in (q, flat)
    ]
    assert least[1] > least[0]
