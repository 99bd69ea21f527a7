"""Linear response: dense algebra, exact on Gaussians, and better than the mean field where latents are correlated."""

import importlib.util
import json
import pathlib
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints
from scipy.linalg import solve_banded

from curvi import MeanField, Target, fit
from curvi.adapters.numpyro.model import from_numpyro
from curvi.diagnostics.hessian import WhitenedHessian
from curvi.diagnostics.linear_response import linear_response, response_sd
from curvi.estimate.fixed_draws.noise import matched_noise
from curvi.estimate.pathwise import path_log_density

COVARIANCE = np.array([[1.0, 0.6, -0.3], [0.6, 0.5, 0.0], [-0.3, 0.0, 0.4]])
CENTRE = np.array([0.5, -1.0, 0.3])
PRECISION = np.linalg.inv(COVARIANCE)


def run(target, **options):
    return fit(target, key=jax.random.key(0), family="mean_field", progress=False, **options)


def _gaussian(u):
    return -(u - CENTRE) @ PRECISION @ (u - CENTRE) / 2


@lru_cache
def gaussian():
    """Two latents, three numbers, and an output that is linear in them."""
    target = Target(
        lambda t: _gaussian(jnp.append(t["a"], t["b"])),
        {"a": np.zeros(2), "b": np.array(0.0)},
        outputs=lambda t: {"contrast": t["a"][0] - 2 * t["b"]},
    )
    return run(target, tolerance=1e-6)


@lru_cache
def log_gaussian():
    """exp of a correlated Gaussian: a positive latent of three."""
    target = Target(
        lambda t: _gaussian(jnp.log(t["x"])) - jnp.sum(jnp.log(t["x"])),
        {"x": np.ones(3)},
        {"x": constraints.positive},
    )
    return run(target, tolerance=1e-6)


# -- closed forms -----------------------------------------------------------------------------------------------------


def test_gaussian_covariance_is_exact():
    found = gaussian()
    joint = found.covariance()
    assert joint.labels == ("a[0]", "a[1]", "b", "contrast")
    pick = np.concatenate([np.eye(3), [[1.0, 0.0, -2.0]]])
    assert np.allclose(joint.matrix, pick @ COVARIANCE @ pick.T, atol=1e-3)
    assert joint.residual < 1e-8
    sd = found.sd(kind="linear_response")
    assert np.allclose(sd["a"], np.sqrt(np.diag(COVARIANCE)[:2]), rtol=1e-3)
    assert np.isclose(sd["b"], np.sqrt(COVARIANCE[2, 2]), rtol=1e-3)
    assert sd["a"].shape == (2,) and sd["b"].shape == ()
    # The mean field's own are those of the precision, and too small.
    assert np.allclose(found.sd()["a"], np.diag(PRECISION)[:2] ** -0.5, rtol=0.02)
    assert np.all(sd["a"] > 1.2 * found.sd()["a"])


def test_constrained_latents_by_the_delta_method():
    """Cov_ij = m_i m_j S_ij + [i = j] m_i^2 s_i^4 / 2 for x = exp(u), with m = E_q[x] and s the sds of q: the means
    respond through both parameters of each factor.
    """
    found = log_gaussian()
    variance = 1 / np.diag(PRECISION)
    mean = np.exp(CENTRE + variance / 2)
    expected = np.outer(mean, mean) * COVARIANCE + np.diag(mean**2 * variance**2 / 2)
    assert np.allclose(found.covariance().matrix, expected, rtol=0.03, atol=0.01)


def test_dense_algebra():
    found = log_gaussian()
    q, key = found.q, jax.random.key(5)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint32))
    noise = jnp.asarray(matched_noise(rng, 512, q.num_factors))

    def elbo(params):
        moved = q.replace(params)
        values = jax.vmap(lambda e: path_log_density(found.target.full(), moved, e))(noise)
        return values.mean() + moved.entropy()

    def means(params):
        moved = q.replace(params)
        return jax.vmap(lambda e: moved.to_model(moved.from_normal(e))[0]["x"])(noise).mean(0)

    params = jnp.asarray(q.params)
    hessian, jacobian = jax.hessian(elbo)(params), jax.jacobian(means)(params)
    expected = jacobian @ np.linalg.solve(-hessian, jacobian.T)
    assert np.allclose(linear_response(found.target, q, key).matrix, expected, rtol=1e-8)


def test_mean_field_covariance():
    joint = gaussian().covariance(kind="mean_field", names="a")
    assert joint.labels == ("a[0]", "a[1]") and joint.matrix.shape == (2, 2)
    assert np.allclose(np.diag(joint.matrix), 1 / np.diag(PRECISION)[:2], rtol=0.15)
    # Factors are independent: 4,096 draws leave a correlation of 1/64.
    assert abs(joint.matrix[0, 1]) < 0.07 * np.sqrt(joint.matrix[0, 0] * joint.matrix[1, 1])


# -- names and errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "labels"),
    [("b", ("b",)), (["b", "a"], ("b", "a[0]", "a[1]")), (("contrast",), ("contrast",))],
)
def test_selection(names, labels):
    whole, part = gaussian().covariance(), gaussian().covariance(names=names)
    assert part.labels == labels
    rows = [whole.labels.index(label) for label in labels]
    assert np.allclose(part.matrix, whole.matrix[np.ix_(rows, rows)], rtol=1e-10, atol=1e-12)
    assert set(part.sd()) == ({names} if isinstance(names, str) else set(names))


@pytest.mark.parametrize("kind", ["linear_response", "q", "mean_field"])
def test_unknown_names(kind):
    with pytest.raises(ValueError, match="no latent or output named c, z; there are a, b, contrast"):
        gaussian().covariance(kind, names=["z", "a", "c"])


@pytest.mark.parametrize("method", ["sd", "covariance"])
def test_unknown_kind(method):
    with pytest.raises(ValueError, match=r"kind must be .* got 'full'"):
        getattr(gaussian(), method)(kind="full")


def test_not_a_maximum():
    upwards = Target(lambda t: t["a"] @ t["a"] + t["b"] ** 2, {"a": np.zeros(2), "b": np.array(0.0)})
    with pytest.raises(ValueError, match="not negative definite here"):
        linear_response(upwards, MeanField(upwards), jax.random.key(0))


def test_needs_two_derivatives():
    target = Target(lambda t: -(t["x"] ** 2) / 2, {"x": np.array(0.0)}, order=1)
    with pytest.raises(ValueError, match="linear response needs the Hessian of a twice differentiable target"):
        linear_response(target, MeanField(target), jax.random.key(0))


# -- cost -------------------------------------------------------------------------------------------------------------


@lru_cache
def groups(size=60):
    """A logistic regression with group effects of unknown scale: correlated, skewed, and not small."""
    rng = np.random.default_rng(4)
    group, x = rng.integers(size, size=400), rng.normal(size=400)
    y = (rng.uniform(size=400) < 1 / (1 + np.exp(-(0.5 * x + rng.normal(size=size)[group])))).astype(float)

    def log_density(t):
        logits = t["offset"] + t["slope"] * x + t["scale"] * t["effect"][group]
        prior = -0.5 * (t["effect"] @ t["effect"] + t["offset"] ** 2 + t["slope"] ** 2 + t["scale"] ** 2)
        return prior + jnp.sum(y * logits - jnp.logaddexp(0, logits))

    start = {"effect": np.zeros(size), "offset": np.array(0.0), "slope": np.array(0.0), "scale": np.array(1.0)}
    return run(Target(log_density, start, {"scale": constraints.positive}))


@pytest.mark.parametrize("found", [gaussian, log_gaussian, groups])
def test_all_sds_cost_at_most_the_fit(found):
    """A product counts as two evaluations; all latents are asked for."""
    whole = found().covariance()
    assert 0 < 2 * whole.num_products <= found().counts.evaluations


def test_few_draws_are_enough():
    found = groups()
    many = WhitenedHessian(found.target, found.q, jax.random.key(9))
    few = WhitenedHessian(found.target, found.q, jax.random.key(8), budget=1)
    assert many.num_draws == 512 and few.num_draws == 32
    exact, cheap = (response_sd(curved) for curved in (many, few))
    assert few.num_products * 4 < many.num_products
    for name, sd in exact.items():
        np.testing.assert_allclose(cheap[name], sd, rtol=0.05)
    # What linear response adds is more than that.
    assert exact["offset"] > 1.3 * found.sd()["offset"]


def test_a_few_names_are_solved_without_the_matrix():
    found = groups()
    whole = WhitenedHessian(found.target, found.q, jax.random.key(8), budget=1)
    part = WhitenedHessian(found.target, found.q, jax.random.key(8), budget=1)
    every, one = (linear_response(found.target, found.q, None, n, c) for n, c in ((None, whole), ("offset", part)))
    assert part.blocks is None and one.num_products < every.num_products / 3
    np.testing.assert_allclose(np.sqrt(one.matrix[0, 0]), every.sd()["offset"], rtol=1e-3)
    assert one.residual < 1e-5
    # The control variate removes what few draws add; without it the products are those of another matrix.
    rows = np.random.default_rng(0).normal(size=(3, found.q.num_params))
    formed = whole.product(rows)
    vars(part.on)["_excess"] = None
    assert np.abs(part.on.product(rows) - formed).max() > 0.1


def test_many_latents_in_bounded_memory():
    """Beyond the largest matrix that is formed, some latents at a time are solved by products."""
    size = 5000
    target = Target(
        lambda t: -0.5 * jnp.sum(t["x"] ** 2) - 0.45 * jnp.sum(t["x"][1:] * t["x"][:-1]), {"x": np.zeros(size)}
    )
    q = MeanField(target)
    q = q.replace(jnp.tile(jnp.array([0.0, 0.0]), size))
    curved = WhitenedHessian(target, q, jax.random.key(0), budget=1)
    assert curved.num_draws == 8 and not curved.on.formable
    rows = curved.mean_rows(np.array([0, 7, 4999]), size)
    found, residual = curved.solve(rows)
    assert curved.blocks is None and residual < 1e-5
    # A tridiagonal precision matrix with 1 and 0.45.
    precision = np.zeros((3, size))
    precision[0], precision[1, 1:], precision[2, :-1] = 1.0, 0.45, 0.45
    for row, place in zip(found, (0, 7, 4999)):
        expected = solve_banded((1, 1), precision[[1, 0, 2]], np.eye(size)[place])
        np.testing.assert_allclose(row[0::2], expected, atol=1e-4)


# -- posteriors with reference answers --------------------------------------------------------------------------------

POSTERIORS = pathlib.Path(__file__).parents[3] / "shared" / "posteriordb"


@pytest.mark.skipif(not POSTERIORS.exists(), reason="needs posteriordb's reference answers")
@pytest.mark.parametrize("name", ["arK-arK", "kidiq-kidscore_interaction"])
def test_reference_posteriors(name):
    folder = POSTERIORS / "open" / name
    model, arguments = load_models()[name]
    target = from_numpyro(model, **arguments(json.loads((folder / "data.json").read_text())))
    found = run(target)
    assert found.converged
    reference = json.loads((folder / "reference.json").read_text())["parameters"]
    mean_field, response = (median_error(found.sd(kind), reference) for kind in ("mean_field", "linear_response"))
    assert response <= mean_field / 2


@lru_cache
def load_models():
    spec = importlib.util.spec_from_file_location("posteriordb_models", POSTERIORS / "models.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MODELS


def median_error(sds, reference):
    """Median of |sd / reference sd - 1|; the reference counts from one."""
    errors = []
    for name, values in sds.items():
        for index, value in np.ndenumerate(values):
            label = name if index == () else f"{name}[{','.join(str(i + 1) for i in index)}]"
            errors.append(abs(value / reference[label]["sd"] - 1))
    assert len(errors) == len(reference)
    return np.median(errors)
