"""from_pymc against PyMC itself, and against the NumPyro versions of the same models."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import biject_to, constraints

import curvi

pm = pytest.importorskip("pymc", reason="PyMC is not installed (an extra: pymc)", exc_type=ImportError)
import pytensor  # noqa: E402
from pymc.distributions import transforms  # noqa: E402

KIDIQ = Path(__file__).parents[3] / "shared" / "posteriordb" / "open" / "kidiq-kidscore_interaction" / "data.json"
Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools():
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        sigma = pm.Data("sigma", SIGMA, dims="school")
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        trans = pm.Normal("theta_trans", 0, 1, dims="school")
        theta = pm.Deterministic("theta", mu + tau * trans, dims="school")
        pm.Normal("obs", theta, sigma, observed=Y, dims="school")
    return model


def every_support():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 2.0)
        soft = pm.HalfNormal("soft", 1.0, default_transform=None, transform=transforms.log_exp_m1)
        share = pm.Beta("share", 2.0, 3.0, shape=2)
        between = pm.Uniform("between", -1.0, np.array([1.0, 2.0, 4.0]))
        above = pm.TruncatedNormal("above", 0.0, 1.0, lower=0.5)
        below = pm.TruncatedNormal("below", 0.0, 1.0, upper=-0.5)
        weights = pm.Dirichlet("weights", np.array([1.0, 2.0, 3.0]))
        order = pm.Normal("order", 0, 1, shape=3, transform=transforms.ordered, initval=[-1.0, 0.0, 1.0])
        angle = pm.VonMises("angle", 0.3, 2.0)
        switched_off = pm.Exponential("switched_off", 1.0, default_transform=None)
        pm.Potential("tie", -((scale - soft) ** 2) - below * above + pm.math.sum(order * weights) * switched_off)
        pm.Normal("y", pm.math.sum(share) + angle + between, scale, observed=np.array([0.3, 0.5, -1.0]))
    return model


def kept_transforms():
    with pm.Model() as model:
        top = pm.HalfNormal("top", 3.0)
        inner = pm.Uniform("inner", 0.0, top)
        pm.Uniform("innermost", 0.0, inner)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0))
        effects = pm.ZeroSumNormal("effects", 1.0, shape=4)
        pm.MvNormal("y", effects[:2], chol=chol, observed=np.array([[0.5, -1.0], [1.0, 0.2], [0.1, 0.1]]))
    return model


def structured():
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        weights = pm.Dirichlet("w", np.ones(2))
        means = pm.Normal("means", [-2, 2], 1, shape=2)
        pm.NormalMixture("mixed", weights, means, 1.0, observed=rng.normal(size=5))
        pm.Censored("cut", pm.Exponential.dist(pm.math.exp(means[0])), lower=0.0, upper=1.0, observed=[0.5, 0.2, 1.0])
        rho = pm.Uniform("rho", -1, 1)
        pm.AR("path", rho, sigma=1.0, init_dist=pm.Normal.dist(0, 1), steps=4)
    return model


def imputed():
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC says that it imputes
        pm.Gamma("y", 2.0, pm.HalfNormal("rate", 1.0), observed=np.array([1.0, np.nan, 2.0]))
    return model


MODELS = {f.__name__: f for f in (eight_schools, every_support, kept_transforms, structured, imputed)}


def point(target, seed):
    """A random point in unconstrained coordinates, and its image on the supports."""
    keys = jax.random.split(jax.random.key(seed), len(target.latents))
    theta = {}
    for latent, key in zip(target.latents, keys):
        transform = biject_to(latent.support)
        theta[latent.name] = transform(0.5 * jax.random.normal(key, transform.inverse_shape(latent.shape)))
    return theta


@pytest.mark.parametrize("name", MODELS)
def test_density_is_pymcs(name):
    model = MODELS[name]()
    target = curvi.from_pymc(model)
    kept = {rv for rv in model.free_RVs if rv.name not in target.init}
    with warnings.catch_warnings(), pytensor.config.change_flags(mode="FAST_COMPILE", linker="py", cxx=""):
        warnings.simplefilter("ignore")
        values, terms = model.value_vars, model.free_RVs + model.observed_RVs + model.potentials
        with_jacobian = model.logp(vars=list(kept), jacobian=True, sum=False) if kept else []
        without = model.logp(vars=[term for term in terms if term not in kept], jacobian=False, sum=False)
        total = sum(term.sum() for term in [*with_jacobian, *without])
        constrained = [(model.rvs_to_values[rv] if rv in kept else rv).type() for rv in model.free_RVs]
        forward = [
            value if rv in kept or (t := model.rvs_to_transforms[rv]) is None else t.forward(value, *rv.owner.inputs)
            for rv, value in zip(model.free_RVs, constrained)
        ]
        own = pytensor.function(values, total, on_unused_input="ignore")
        to_values = pytensor.function(constrained, forward, on_unused_input="ignore")
        for seed in (0, 1):
            theta = point(target, seed)
            raw = [np.asarray(theta[latent.name]) for latent in target.latents]
            expected = own(*to_values(*raw))
            assert np.isfinite(expected)
            np.testing.assert_allclose(target.full()(theta), expected, rtol=1e-9)


def test_names_supports_starts_outputs_and_labels():
    target = curvi.from_pymc(eight_schools())
    assert {latent.name: latent.shape for latent in target.latents} == {"mu": (), "tau": (), "theta_trans": (8,)}
    assert target.order == 2 and target.latents[1].support is constraints.positive
    theta = {"mu": jnp.asarray(1.0), "tau": jnp.asarray(2.0), "theta_trans": jnp.arange(8.0)}
    np.testing.assert_allclose(target.outputs(theta)["theta"], 1 + 2 * np.arange(8.0))
    origin = target.origin
    assert origin.dims["theta"] == ["school"] and list(origin.coords["school"]) == list("ABCDEFGH")
    np.testing.assert_array_equal(origin.observed_data["obs"], Y)


def test_predictions_and_likelihoods():
    target = curvi.from_pymc(eight_schools())
    draws = {"mu": jnp.ones(500), "tau": jnp.full(500, 2.0), "theta_trans": jnp.tile(jnp.arange(8.0), (500, 1))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        groups = target.origin.predict(jax.random.key(0), draws)
        again = target.origin.predict(jax.random.key(0), draws)
    theta = 1 + 2 * np.arange(8.0)
    expected = dist.Normal(theta, SIGMA).log_prob(Y)
    np.testing.assert_allclose(groups["log_likelihood"]["obs"], np.tile(expected, (500, 1)), rtol=1e-7)
    predicted = groups["posterior_predictive"]["obs"]
    assert predicted.shape == (500, 8)
    z = (predicted.mean(0) - theta) / (SIGMA / np.sqrt(500))
    assert np.all(np.abs(z) < 4.5)
    np.testing.assert_allclose(predicted.std(0), SIGMA, rtol=0.2)
    np.testing.assert_array_equal(predicted, again["posterior_predictive"]["obs"])


def test_supports_stand_for_transforms():
    target = curvi.from_pymc(every_support())
    support = {latent.name: latent.support for latent in target.latents}
    assert support["scale"] is constraints.positive and support["switched_off"] is constraints.positive
    assert support["soft"] is constraints.softplus_positive
    assert support["share"] is constraints.unit_interval
    np.testing.assert_allclose(np.broadcast_to(support["between"].upper_bound, 3), [1, 2, 4])
    assert support["above"].lower_bound == 0.5 and support["below"].upper_bound == -0.5
    assert support["weights"] is constraints.simplex and support["order"] is constraints.ordered_vector
    np.testing.assert_allclose(target.init["order"], [-1.0, 0.0, 1.0])


def test_missing_observations_are_latents():
    target = curvi.from_pymc(imputed())
    assert {latent.name: latent.shape for latent in target.latents} == {"rate": (), "y_unobserved": (1,)}
    out = target.outputs({"rate": jnp.asarray(1.0), "y_unobserved": jnp.array([3.0])})
    np.testing.assert_allclose(out["y"], [1.0, 3.0, 2.0])


def test_kept_transforms_report_the_variable_itself():
    target = curvi.from_pymc(kept_transforms())
    names = [latent.name for latent in target.latents]
    assert names == [
        "top",
        "inner_interval__",
        "innermost_interval__",
        "chol_cholesky-cov-packed__",
        "effects_zerosum__",
    ]
    theta = point(target, 0)
    out = target.outputs(theta)
    inner = theta["top"] * jax.nn.sigmoid(theta["inner_interval__"])
    np.testing.assert_allclose(out["inner"], inner, rtol=1e-12)
    np.testing.assert_allclose(out["innermost"], inner * jax.nn.sigmoid(theta["innermost_interval__"]), rtol=1e-12)
    np.testing.assert_allclose(jnp.sum(out["effects"]), 0.0, atol=1e-12)
    assert out["chol_corr"].shape == (2, 2) and out["chol_stds"].shape == (2,)


def test_evidence_of_a_prior_is_one():
    # No data: the ELBO of a q that is the prior is zero. It would not be with a wrong or a missing Jacobian.
    with pm.Model() as model:
        pm.Dirichlet("weights", np.array([2.0, 3.0, 4.0]))
        pm.Gamma("rate", 3.0, 2.0)
    target = curvi.from_pymc(model)
    family = curvi.MeanField(target, {"weights": curvi.factors.Dirichlet(3), "rate": curvi.factors.Gamma()})
    # On unconstrained coordinates, where the parameters of these factors live: the logarithms of their own.
    prior = {"weights": np.log([2.0, 3.0, 4.0]), "rate": np.log([3.0, 2.0])}
    q = family.replace(jnp.asarray(np.concatenate([prior[latent.name] for latent in target.latents])))
    ratios = jax.vmap(lambda key: log_ratio(target, q, q.sample(key)))(jax.random.split(jax.random.key(0), 20))
    np.testing.assert_allclose(ratios, 0.0, atol=1e-7)  # PyTensor takes some logarithms of constants in 32 bits


def log_ratio(target, q, x):
    theta, log_det = q.to_model(x)
    return target.full()(theta) + log_det - q.log_prob(x)


# -- the same model in NumPyro -------------------------------------------------------------------------------


def numpyro_schools(y, sigma):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    trans = numpyro.sample("theta_trans", dist.Normal(0.0, 1.0).expand([8]).to_event(1))
    numpyro.sample("obs", dist.Normal(numpyro.deterministic("theta", mu + tau * trans), sigma), obs=y)


def kidiq(x, y):
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=4)
        sigma = pm.HalfCauchy("sigma", 2.5)
        pm.Normal("obs", x @ beta, sigma, observed=y)
    return model


def numpyro_kidiq(x, y):
    beta = numpyro.sample("beta", dist.ImproperUniform(constraints.real, (), (4,)))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    numpyro.sample("obs", dist.Normal(x @ beta, sigma), obs=y)


def agree(pymc_target, numpyro_target):
    for seed in (0, 1):
        theta = point(pymc_target, seed)
        # PyTensor computes the logarithm of a small integer, such as the 5 of a prior, in 32 bits.
        np.testing.assert_allclose(pymc_target.full()(theta), numpyro_target.full()(theta), rtol=1e-7)
    fits = [curvi.fit(t, key=jax.random.key(1), tolerance=0.01, progress=False) for t in (pymc_target, numpyro_target)]
    assert all(fit.converged for fit in fits)
    error = np.hypot(fits[0].elbo_se, fits[1].elbo_se) + sum(fit.remaining_gain for fit in fits)
    assert abs(fits[0].elbo - fits[1].elbo) < 3 * error
    for name, mean in fits[1].mean().items():
        np.testing.assert_allclose(fits[0].mean()[name], mean, atol=0.1 * np.max(fits[1].sd()[name]))


def test_eight_schools_is_the_same_in_both_languages():
    agree(curvi.from_pymc(eight_schools()), curvi.from_numpyro(numpyro_schools, Y, SIGMA))


@pytest.mark.skipif(not KIDIQ.exists(), reason=f"no data at {KIDIQ}")
def test_kidiq_is_the_same_in_both_languages():
    data = {name: np.asarray(value, float) for name, value in json.loads(KIDIQ.read_text()).items()}
    columns = [np.ones_like(data["mom_hs"]), data["mom_hs"], data["mom_iq"], data["mom_hs"] * data["mom_iq"]]
    x, y = np.stack(columns, 1), data["kid_score"]
    agree(curvi.from_pymc(kidiq(x, y)), curvi.from_numpyro(numpyro_kidiq, x, y))


# -- what is refused, and what is left alone -----------------------------------------------------------------


def discrete():
    with pm.Model() as model:
        pm.Normal("y", pm.Poisson("count", 2.0), 1.0, observed=1.0)
    return model


def incomplete():
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pm.MvNormal("y", pm.Normal("mu", shape=2), np.eye(2), observed=np.array([[1.0, np.nan], [0.0, 2.0]]))
    return model


def minibatched():
    with pm.Model() as model:
        rows = pm.Minibatch(np.arange(100.0), batch_size=10)
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=rows, total_size=100)
    return model


def without_jax():
    with pm.Model() as model:
        pm.Censored("y", pm.Normal.dist(pm.Normal("mu"), 1.0), lower=0.0, upper=1.0, observed=[0.0, 1.0])
    return model


def observed_only():
    with pm.Model() as model:
        pm.Normal("y", 0.0, 1.0, observed=1.0)
    return model


@pytest.mark.parametrize(
    "model, words",
    [
        (discrete, ["'count'", "discrete", "from_numpyro"]),
        (incomplete, ["'y'", "missing observations", "incomplete rows"]),
        (minibatched, ["minibatches", "MinibatchTarget"]),
        (without_jax, ["cannot convert", "JAX", "erfcx"]),
        (observed_only, ["no free variable"]),
        (lambda: eight_schools, ["pymc.Model", "function"]),
    ],
    ids=["discrete", "incomplete", "minibatched", "without JAX", "observed_only", "a function"],
)
def test_refused_models_are_told_why(model, words):
    with pytest.raises(ValueError) as error:
        curvi.from_pymc(model())
    assert all(word in str(error.value) for word in words), str(error.value)


def test_precision_of_jax_is_left_alone_and_followed():
    code = """
import warnings; warnings.simplefilter("ignore"); import pymc as pm; warnings.simplefilter("error")
import jax, curvi
with pm.Model() as model:
    pm.Normal("y", pm.HalfNormal("s", 2.0), 1.0, observed=[1.0, 2.0])
target = curvi.from_pymc(model)
value = jax.grad(target.full())(target.init)["s"]
assert not jax.config.jax_enable_x64 and target.dtype == "float32" == value.dtype, (target.dtype, value.dtype)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_dims_give_blocks():
    with pm.Model(coords={"school": range(8), "year": range(3)}) as model:
        spread = pm.HalfNormal("spread")
        pm.Normal("level", 0, spread, dims="school")
        pm.Normal("change", 0, 1, dims=("year", "school"))
        pm.Normal("apart", 0, 1, shape=2)
    target = curvi.from_pymc(model)
    assert target.origin.plates == {"school": {"level": 0, "change": 1}, "year": {"change": 0}}
    q = curvi.Bordered(target)
    assert [(one.name, one.count, one.size) for one in q.arrow.sets] == [("school", 8, 4)]
    assert q.arrow.num_global == 3
