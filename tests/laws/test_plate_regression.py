"""Local latents in closed form: against enumeration, and with ten thousand assignments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

import curvi
import reference_models as examples
from curvi import FactoredTarget, MeanField
from curvi.methods import PlateRegression, PooledRegression
from curvi.methods.plate_regression.method import _estimate
from curvi.methods.plate_regression.table import tabulate
from curvi.model.factored import check_rows
from reference_models.exact import basin, enumerated_elbo


def run(target, **settings):
    return curvi.fit(target, **{"key": jax.random.key(0), "progress": False, **settings})


def small_plate(num_rows=5, **changes) -> FactoredTarget:
    """Three global bits, and a three-way local latent in each row that interacts with all of them."""
    rng = np.random.default_rng(0)
    field, coupling = rng.normal(size=3), rng.normal(size=(num_rows, 3, 3))
    pairs = np.triu(rng.normal(size=(3, 3)), 1)

    def log_factors(theta):
        g, z = theta["g"].astype(float), theta["z"]
        rows = jnp.take_along_axis(jnp.asarray(coupling) @ g, z[:, None], 1)[:, 0]
        return {"prior": field @ g, "pairs": g @ pairs @ g, "rows": rows}

    init = {"g": np.zeros(3, int), "z": np.zeros(num_rows, int)}
    supports = {"g": constraints.boolean, "z": constraints.integer_interval(0, 2)}
    return FactoredTarget(
        changes.get("log_factors", log_factors), init, supports, local=changes.get("local", {"z": "rows"})
    )


@pytest.mark.parametrize("seed", range(3))
def test_against_enumeration(seed):
    target = small_plate()
    elbo = enumerated_elbo(target)
    fit = run(target, key=jax.random.key(seed), tolerance=1e-3)
    params, best = basin(elbo, fit.q.params)
    assert isinstance(fit.method, PlateRegression) and fit.converged
    assert best - float(elbo(fit.q.params)) < 0.01
    np.testing.assert_allclose(jax.nn.sigmoid(fit.q.params[:3]), jax.nn.sigmoid(params[:3]), atol=0.02)
    assert abs(fit.elbo - float(elbo(fit.q.params))) < 5 * fit.elbo_se + 0.01


def test_any_method_fits_the_sum_of_the_factors():
    target = small_plate()
    elbo = enumerated_elbo(target)
    fit = run(target, method=PooledRegression())
    assert basin(elbo, fit.q.params)[1] - float(elbo(fit.q.params)) < 0.05


def test_hessian_of_the_global_latents_is_that_of_the_profile():
    """The model's curvature against finite differences of the ELBO with its rows at their best."""
    target = small_plate()
    elbo = jax.jit(enumerated_elbo(target))
    q = MeanField(target)
    part = q.part(["g"])
    local = _estimate(tabulate(target, part, jax.random.key(0), 0, 4096, 16), part)

    def profile(white):
        """Rows at their best by coordinate ascent, exact by enumeration."""
        scale = np.sqrt(np.asarray(part.fisher().blocks[0]).reshape(-1))
        g = np.asarray(part.params) + white / scale
        slope = jax.grad(lambda z: elbo(jnp.concatenate([jnp.asarray(g), z])))
        z = np.asarray(q.params[3:])
        for _ in range(60):
            z = z + 3.0 * np.asarray(slope(jnp.asarray(z)))
        return float(elbo(jnp.concatenate([jnp.asarray(g), jnp.asarray(z)])))

    h, eye = 1e-2, np.eye(3)
    slopes = [(profile(h * e) - profile(-h * e)) / (2 * h) for e in eye]
    np.testing.assert_allclose(local.model.grad, slopes, atol=0.1)
    cross = []
    for a, b in ((0, 1), (0, 2), (1, 2)):
        same, other = h * (eye[a] + eye[b]), h * (eye[a] - eye[b])
        cross.append((profile(same) - profile(other) - profile(-other) + profile(-same)) / (4 * h * h))
    found = np.stack([local.model.curvature.mv(e) for e in eye])
    np.testing.assert_allclose([found[0, 1], found[0, 2], found[1, 2]], cross, atol=0.15)


def test_ten_thousand_assignments():
    values = examples.mixture_data(10_000)
    fit = run(examples.mixture(values))
    assert fit.converged
    np.testing.assert_allclose(fit.mean()["mean"], [-3, 0, 4], atol=0.08)
    np.testing.assert_allclose(fit.mean()["share"], [0.3, 0.5, 0.2], atol=0.02)
    # An assignment is that of Bayes' rule at the means, up to the little that these are uncertain.
    means, shares = fit.mean()["mean"], fit.mean()["share"]
    log_p = np.log(shares) - 0.5 * (values[:, None] - means) ** 2
    expected = (np.exp(log_p) / np.exp(log_p).sum(1, keepdims=True)) @ np.arange(3)
    np.testing.assert_allclose(fit.mean()["part"], expected, atol=0.05)


def test_structure_that_is_not_there_is_refused():
    def crosses(theta):
        z = theta["z"]
        return {"rows": 0.1 * (z * jnp.roll(z, 1)), "prior": 1.0 * theta["g"].sum()}

    def elsewhere(theta):
        return {"rows": 0.1 * theta["z"], "prior": 1.0 * theta["z"].sum() * theta["g"].sum() + 1.0 * theta["z"].sum()}

    assert check_rows(small_plate()) == 2
    for wrong in (crosses, elsewhere):
        with pytest.raises(ValueError, match="'z' touches more than its own row"):
            run(small_plate(4, log_factors=wrong))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"local": {}}, "use Target"),
        ({"local": {"y": "rows"}}, "local names 'y', which is not in init"),
        ({"local": {"z": "rose"}}, "touch factor 'rose'; log_factors returned"),
        ({"local": {"z": "prior"}}, "factor 'prior' must have one entry a row of 'z'"),
        ({"local": {"g": "rows"}}, "one entry a row of 'g'"),
        ({"log_factors": lambda theta: 0.0}, "must return a dict of arrays"),
    ],
)
def test_wrong_input_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        small_plate(**changes)


def test_a_target_without_factors_is_refused_with_what_to_do():
    plain = curvi.Target(lambda t: -(t["x"] ** 2) / 2, {"x": 0.3})
    with pytest.raises(ValueError, match=r"PlateRegression needs a FactoredTarget.*got a Target"):
        run(plain, method=PlateRegression())


def test_few_draws_are_rounded_up():
    fit = run(small_plate(), method=PlateRegression(first_draws=3, max_draws=5), num_steps=3)
    assert np.all(fit.history.num_draws == 16)
    with pytest.raises(ValueError, match="max_draws must be a positive integer"):
        PlateRegression(max_draws=0)
