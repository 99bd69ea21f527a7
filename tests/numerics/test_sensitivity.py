"""Sensitivity against refits on common draws, and the directions of the curvature against dense algebra."""

import dataclasses
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

import curvi
from curvi import MeanField, Target
from curvi.diagnostics import curvature_report as directions
from curvi.diagnostics import hessian

KEY = jax.random.key(1)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = (RNG.uniform(size=60) < 1 / (1 + np.exp(-X @ np.array([1.0, -0.5, 0.0])))).astype(float)


def terms(theta):
    """Log likelihood of each row of a logistic regression."""
    logits = X @ theta["slope"] + theta["offset"]
    return Y * logits - jnp.logaddexp(0, logits)


def prior(theta, log_scale):
    slope, scale = theta["slope"] / jnp.exp(log_scale), theta["width"]
    return -0.5 * jnp.sum((slope / scale) ** 2) - 3 * (jnp.log(scale) + log_scale) - scale - theta["offset"] ** 2 / 2


def regression(change=lambda theta: 0.0):
    return Target(
        lambda t: terms(t).sum() + prior(t, 0.0) + change(t),
        {"slope": np.zeros(3), "offset": np.array(0.0), "width": np.array(1.0)},
        {"width": constraints.positive},
        outputs=lambda t: {"odds": jnp.exp(t["slope"][0])},
    )


def refit(change):
    found = curvi.fit(regression(change), key=KEY, family="mean_field", progress=False, tolerance=1e-5)
    assert found.converged or found.remaining_gain < 1e-3
    return found.mean()


@lru_cache
def fitted():
    return curvi.fit(regression(), key=KEY, family="mean_field", progress=False, tolerance=1e-5)


PERTURBATIONS = {
    "prior scale": (lambda theta, t: prior(theta, t) - prior(theta, 0.0), 0.05),
    "weight of an observation": (lambda theta, t: t * terms(theta)[4], 0.2),
    "shift of a prior": (lambda theta, t: t * theta["offset"], 0.1),
}


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_agrees_with_refits_on_common_draws(name):
    perturbation, step = PERTURBATIONS[name]
    found = fitted().sensitivity(perturbation)
    ahead, behind = (refit(lambda theta, t=t: perturbation(theta, t)) for t in (step, -step))

    def error(share):
        """Largest error of so much of the derivative, relative to the largest change; all in posterior sds."""
        size = max(np.abs(slope).max() for slope in found.in_sds().values())
        secants = {latent: (ahead[latent] - behind[latent]) / (2 * step) for latent in ahead}
        off = [np.abs(secants[n] - share * found.derivative[n]) / found.sd[n] for n in found.derivative]
        return max(one.max() for one in off) / size

    assert error(1.0) <= 0.05
    assert error(0.9) > 0.05, "a derivative that is wrong by a tenth would show"


def test_many_weights_at_once():
    """One derivative an observation; weighting all of them is the sum."""
    each = fitted().sensitivity(lambda theta, w: w @ terms(theta), at=np.zeros(60))
    together = fitted().sensitivity(lambda theta, t: t * terms(theta).sum())
    for name, derivative in each.derivative.items():
        assert derivative.shape == (*fitted().mean()[name].shape, 60)
        np.testing.assert_allclose(derivative.sum(-1), together.derivative[name], rtol=1e-8, atol=1e-10)
    moved, expected = each.means_at(np.full(60, 0.01)), together.means_at(0.01)
    for name in moved:
        np.testing.assert_allclose(moved[name], expected[name], rtol=1e-10)
    assert "slope[0]" in str(together) and "size of d mean" in str(each)


def test_gaussian_is_exact():
    covariance = np.array([[1.0, 0.6], [0.6, 0.8]])
    precision = np.linalg.inv(covariance)
    target = Target(lambda t: -t["x"] @ precision @ t["x"] / 2, {"x": np.ones(2)})
    found = curvi.fit(target, key=KEY, family="mean_field", progress=False)
    # A tilt t x_0 moves the posterior mean by t Cov[x, x_0].
    response = found.sensitivity(lambda theta, t: t * theta["x"][0])
    np.testing.assert_allclose(response.derivative["x"], covariance[:, 0], rtol=1e-6)
    np.testing.assert_allclose(response.means_at(2.0)["x"], found.mean()["x"] + 2 * covariance[:, 0], rtol=1e-6)


def test_wrong_use():
    with pytest.raises(ValueError, match="must be a function"):
        fitted().sensitivity(3.0)
    with pytest.raises(ValueError, match="one number"):
        fitted().sensitivity(lambda theta, t: t * theta["slope"])
    with pytest.raises(ValueError, match="not finite"):
        fitted().sensitivity(lambda theta, t: jnp.sqrt(t) * theta["offset"])
    flat = Target(lambda t: -(t["x"] ** 2), {"x": np.array(0.0)}, order=1)
    lacking = dataclasses.replace(fitted(), target=flat, q=MeanField(flat))
    with pytest.raises(ValueError, match="sensitivity needs the Hessian of a twice differentiable"):
        lacking.sensitivity(lambda theta, t: t * theta["x"])
    with pytest.raises(ValueError, match="a curvature report needs the Hessian"):
        lacking.curvature_report()


def test_products_agree_with_dense_algebra():
    curved, by_products = (hessian.WhitenedHessian(fitted().target, fitted().q, KEY) for _ in range(2))
    size = fitted().q.num_params
    rows = np.random.default_rng(3).normal(size=(2, size))
    np.testing.assert_allclose(by_products.product(rows[0]), curved.dense @ rows[0], rtol=1e-8, atol=1e-10)
    expected, residual = curved.solve(rows, size)
    assert curved.blocks is not None and residual < 1e-8
    np.testing.assert_allclose(expected @ curved.dense, rows, rtol=1e-8, atol=1e-10)
    found, residual = by_products._by_products(rows)
    assert by_products.blocks is None and residual < 1e-5
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_lanczos_agrees_with_dense_algebra():
    curved = hessian.WhitenedHessian(fitted().target, fitted().q, KEY)
    size = fitted().q.num_params
    values, vectors = directions.extreme_eigenpairs(curved, 2)
    whole = np.linalg.eigvalsh(curved.dense)
    np.testing.assert_allclose(values, whole[[0, 1, -2, -1]], rtol=1e-8)
    again, lanczos = directions.lanczos(curved.product, size, size)
    np.testing.assert_allclose(again, whole, rtol=1e-6)
    assert np.all(np.abs(np.sum(vectors * lanczos[:, [0, 1, -2, -1]], 0)) > 0.999)
    # Of a large matrix a few products give the ends that stand apart.
    spectrum = np.concatenate([[0.01, 0.05], np.linspace(0.5, 2.0, 2000), [9.0]])
    ends, _ = directions.lanczos(lambda v: spectrum * v, len(spectrum), 60)
    np.testing.assert_allclose(ends[[0, 1, -1]], spectrum[[0, 1, -1]], rtol=1e-3)


# -- directions by name -----------------------------------------------------------------------------------------------


def test_a_flat_direction_is_named():
    # The data determine a + b; their difference has only a weak prior.
    ridge = Target(
        lambda t: -50 * (t["a"] + t["b"][1] - 1) ** 2 - 0.005 * (t["a"] ** 2 + t["b"][1] ** 2) - t["b"][0] ** 2 / 2,
        {"a": np.array(0.0), "b": np.zeros(2)},
    )
    found = curvi.fit(ridge, key=KEY, family="mean_field", progress=False).curvature_report()
    flattest = found.directions[0]
    assert flattest.kind == "flat" and flattest.width > 10
    top = list(flattest.parts.items())[:2]
    assert {label for label, _ in top} == {"a", "b[1]"} and top[0][1] * top[1][1] < 0
    assert abs(abs(top[0][1]) - 0.5**0.5) < 0.02
    text = str(found)
    assert "flat:" in text and "a" in text and "times as wide" in text


def test_a_negative_direction_is_named():
    saddle = Target(lambda t: 3 * t["x"][0] * t["x"][1] - jnp.sum(t["x"] ** 4) / 4, {"x": np.zeros(2)})
    q = MeanField(saddle).replace(jnp.tile(jnp.array([0.0, -np.log(3) / 4]), 2))
    found = dataclasses.replace(fitted(), target=saddle, q=q).curvature_report(num_directions=1)
    worst = found.directions[0]
    assert worst.kind == "negative" and worst.width == np.inf
    assert {label for label, w in worst.parts.items() if abs(w) > 0.3} == {"x[0]", "x[1]"}
    assert "curves upwards" in str(found)


def test_an_independent_posterior_has_nothing_to_report():
    plain = Target(lambda t: -jnp.sum(t["x"] ** 2) / 2, {"x": np.zeros(3)})
    found = curvi.fit(plain, key=KEY, progress=False).curvature_report()
    assert {direction.kind for direction in found.directions} == {"ordinary"}
    assert all(
        abs(direction.curvature - 1) < 0.1 or abs(direction.curvature - 2) < 0.2 for direction in found.directions
    )
    assert "No direction is flat" in str(found)
    with pytest.raises(ValueError, match="at least 1"):
        curvi.fit(plain, key=KEY, progress=False).curvature_report(0)


def test_labels_of_mixed_supports():
    target = Target(
        lambda t: jnp.sum(jnp.log(t["share"])) - t["s"] - jnp.sum(t["m"] ** 2),
        {"share": np.full(3, 1 / 3), "m": np.zeros((2, 1)), "s": np.array(1.0)},
        {"share": constraints.simplex, "s": constraints.positive},
    )
    labels = MeanField(target).parameter_labels()
    assert labels[:4] == ["share~[0]", "spread of share~[0]", "share~[1]", "spread of share~[1]"]
    assert labels[4:] == ["m[0,0]", "spread of m[0,0]", "m[1,0]", "spread of m[1,0]", "s", "spread of s"]
