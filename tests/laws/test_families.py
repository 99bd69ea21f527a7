"""Laws of families beside the factors of a mean field: densities, scores, metric and paths, over a registry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from law_statistics import assert_zero_mean
from numpyro.distributions import constraints

import curvi
from curvi import FullRank, MeanField, Outcome, Target
from curvi.estimate.fixed_draws.objective import Objective
from curvi.family.full_rank import TriangularRoot

RNG = np.random.default_rng(0)
PRECISION = np.linalg.inv(np.cov(RNG.normal(size=(12, 4)), rowvar=False))
CENTRE = np.array([0.3, -1.0, 2.0, 0.0])


def gaussian(order=2, dtype=float):
    precision, centre = PRECISION.astype(dtype), CENTRE.astype(dtype)
    return Target(
        lambda t: -0.5 * (t["x"] - centre) @ precision @ (t["x"] - centre), {"x": np.zeros(4, dtype)}, order=order
    )


def skewed():
    """Correlated, not normal, and partly constrained."""

    def log_density(t):
        return 3 * jnp.log(t["s"]) - t["s"] * (1 + t["x"] @ t["x"]) + 0.5 * t["x"][0] * t["x"][1] - 0.1 * t["x"][0] ** 4

    return Target(log_density, {"x": np.zeros(2), "s": np.array(1.0)}, {"s": constraints.positive})


FAMILIES = {"mean field": MeanField, "full rank": FullRank}
every = pytest.mark.parametrize("name", FAMILIES)


def moved(name, target=None):
    """A q away from its start."""
    q = FAMILIES[name](gaussian() if target is None else target)
    return q.replace(q.params + 0.3 * jnp.cos(jnp.arange(q.num_params) ** 2.0))


@every
def test_draws_follow_the_density(name):
    q = moved(name)
    (x,) = jax.vmap(q.sample)(jax.random.split(jax.random.key(0), 4000))
    log_q = jax.vmap(lambda one: q.log_prob((one,)))(x)
    # The mean of -ln q over its own draws is the entropy; of draws that are a little wider it is not.
    assert_zero_mean(np.asarray(-log_q - q.entropy()))
    with pytest.raises(AssertionError):
        assert_zero_mean(np.asarray(-jax.vmap(lambda one: q.log_prob((1.1 * one,)))(x) - q.entropy()))


@every
def test_scores_and_metric(name):
    q = moved(name)
    x = jax.vmap(q.sample)(jax.random.split(jax.random.key(1), 4000))
    scores = np.asarray(jax.vmap(q.score)(x))
    fisher = np.asarray(q.fisher().dense())
    root = np.linalg.cholesky(fisher)
    white = np.linalg.solve(root, scores.T).T
    assert_zero_mean(white)
    assert_zero_mean((white[:, :, None] * white[:, None, :] - np.eye(q.num_params)).reshape(len(white), -1), 5.0)
    hessian = np.asarray(jax.vmap(lambda one: q.hessian(one).dense())(x))
    assert_zero_mean((scores[:, :, None] * scores[:, None, :] + hessian).reshape(len(white), -1), 5.0)


@every
def test_vectors_have_the_moments_that_the_family_says(name):
    q = moved(name)
    draws = jax.vmap(q.sample)(jax.random.split(jax.random.key(2), 4000))
    vectors = np.asarray(jax.vmap(q.to_vector)(draws))
    again, log_det = jax.vmap(q.from_vector)(jnp.asarray(vectors))
    jax.tree.map(np.testing.assert_array_equal, again, draws)
    assert not np.any(log_det)
    mean, covariance = map(np.asarray, q.moments())
    covariance = np.diag(covariance) if covariance.ndim == 1 else covariance
    away = vectors - mean
    assert_zero_mean(away)
    products = away[:, :, None] * away[:, None, :]
    assert_zero_mean((products - covariance).reshape(len(away), -1))
    with pytest.raises(AssertionError):
        assert_zero_mean((products - 1.2 * covariance).reshape(len(away), -1))


@every
def test_the_path_is_that_of_the_family(name):
    """Value, gradient and product on fixed noise, against automatic differentiation through the draws."""
    target = skewed()
    q = moved(name, target)
    objective = Objective(target, q, jax.random.key(0), 256)
    objective.exact_products = True
    params = np.asarray(q.params)
    fixed = objective.noise(params, (1,), 64)
    noise = jnp.asarray(fixed.values)

    def elbo(p):
        here = q.replace(p)
        return jax.vmap(lambda e: here.log_joint(target.full(), here.from_normal(e)))(noise).mean() + here.entropy()

    local, direction = objective(params, fixed), np.cos(np.arange(len(params)))
    product = jax.jvp(jax.grad(elbo), (q.params,), (jnp.asarray(direction),))[1]
    np.testing.assert_allclose(local.value, elbo(q.params), rtol=1e-10)
    np.testing.assert_allclose(local.grad, jax.grad(elbo)(q.params), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(local.curvature.mv(direction), product, rtol=1e-8, atol=1e-9)
    root = local.root()
    solved = root.solve_transpose(root.solve(direction))
    np.testing.assert_allclose(np.asarray(q.fisher().dense()) @ solved, direction, atol=1e-8)


def test_a_wrong_metric_or_a_missing_triangle_fails():
    q = moved("full rank")
    params, v = np.asarray(q.params), np.cos(np.arange(q.num_params))
    fisher = np.asarray(q.fisher().dense())
    right = TriangularRoot(q.path, params)
    np.testing.assert_allclose(fisher @ right.solve_transpose(right.solve(v)), v, atol=1e-8)
    wrong = TriangularRoot(q.path, params)
    wrong.factor = np.diag(np.diag(wrong.factor))  # the triangle is left out
    assert np.abs(fisher @ wrong.solve_transpose(wrong.solve(v)) - v).max() > 0.1


@pytest.mark.parametrize("order", [1, 2])
def test_full_rank_is_exact_on_gaussians(order):
    target = gaussian(order)
    found = curvi.fit(target, key=jax.random.key(0), family="full_rank", progress=False, tolerance=1e-6)
    assert found.converged and isinstance(found.q, FullRank) and len(found.history) <= 12
    factor = np.asarray(found.q.factor())
    np.testing.assert_allclose(factor @ factor.T, np.linalg.inv(PRECISION), atol=2e-3)
    np.testing.assert_allclose(found.mean()["x"], CENTRE, atol=5e-3)
    evidence = 2 * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(PRECISION)[1]
    np.testing.assert_allclose(found.elbo, evidence, atol=1e-4)


def test_never_below_mean_field():
    target = skewed()
    fits = [
        curvi.fit(target, key=jax.random.key(1), family=name, progress=False) for name in ("mean_field", "full_rank")
    ]
    assert all(fit.converged for fit in fits)
    assert curvi.compare(fits[1], fits[0]).difference > -0.05


def test_single_precision():
    found = curvi.fit(gaussian(dtype=np.float32), key=jax.random.key(0), family="full_rank", progress=False)
    assert found.q.params.dtype == np.float32 and found.outcome in (Outcome.CONVERGED, Outcome.PRECISION)
    factor = np.asarray(found.q.factor(), float)
    np.testing.assert_allclose(factor @ factor.T, np.linalg.inv(PRECISION), atol=0.05)


def test_a_full_rank_fit_is_saved_resumed_and_shown(tmp_path):
    target = skewed()
    whole = curvi.fit(target, key=jax.random.key(2), family="full_rank", progress=False, tolerance=1e-3)
    part = curvi.fit(target, key=jax.random.key(2), family="full_rank", progress=False, tolerance=1e-3, num_steps=3)
    part.save(tmp_path / "fit.curvi")
    again = curvi.load(tmp_path / "fit.curvi", target)
    resumed = curvi.fit(target, start=again, progress=False, tolerance=1e-3)
    np.testing.assert_array_equal(resumed.q.params, whole.q.params)
    assert "x[1]" in str(whole.summary()) and np.isfinite(whole.khat)
    whole.report(tmp_path / "report.html")


def test_bad_input_is_named():
    bits = Target(lambda t: -1.0 * t["z"], {"z": np.array(0)}, {"z": constraints.boolean})
    with pytest.raises(ValueError, match="FullRank needs continuous latents; z"):
        FullRank(bits)
    wide = Target(lambda t: -jnp.sum(t["x"] ** 2), {"x": np.zeros(2000)})
    with pytest.raises(ValueError, match="at most 1024 latents; this target has 2000"):
        FullRank(wide)
    with pytest.raises(ValueError, match="family must be one of mean_field, full_rank"):
        curvi.fit(gaussian(), key=jax.random.key(0), family="fullrank")


@every
def test_a_jump_is_seen(name):
    """The gradient along the draws does not see it; the values do."""
    target = Target(
        lambda t: -0.5 * t["x"] @ PRECISION @ t["x"] + jnp.where(t["x"][0] > 0.3, 3.0, 0.0), {"x": np.zeros(4)}
    )
    found = curvi.fit(target, key=jax.random.key(0), family=FAMILIES[name](target), progress=False)
    assert found.outcome is Outcome.DISAGREEMENT and "x[0]" in found.suspects
