"""from_numpyro against NumPyro itself: densities, supports, starts, deterministic sites, and its cost."""

import importlib.util
import json
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers, infer
from numpyro.contrib.control_flow import scan
from numpyro.distributions import biject_to, constraints
from numpyro.infer import util

from curvi import Bordered, MeanField, MinibatchTarget, fit
from curvi.adapters import from_numpyro
from curvi.adapters.numpyro.starts import known_start
from curvi.model.minibatch import check_scale
from curvi.model.support import elementwise

POSTERIORDB = Path(__file__).parents[3] / "shared" / "posteriordb"
RTOL = 1e-10  # both sides sum the same terms in float64


def _load():
    spec = importlib.util.spec_from_file_location("posteriordb_models", POSTERIORDB / "models.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MODELS


MODELS = _load() if (POSTERIORDB / "models.py").exists() else {}
needs_posteriordb = pytest.mark.skipif(not MODELS, reason=f"no posteriordb models at {POSTERIORDB}")

COMPILATIONS = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: COMPILATIONS.append(seconds) if "backend_compile" in event else None
)


def read(name):
    model, arguments = MODELS[name]
    return model, arguments(json.loads((POSTERIORDB / "open" / name / "data.json").read_text()))


def unconstrained_point(target, key):
    """A random point in unconstrained coordinates and its image on the supports."""
    free, theta = {}, {}
    for latent, k in zip(target.latents, jax.random.split(key, len(target.latents))):
        transform = biject_to(latent.support)
        free[latent.name] = 0.3 * jax.random.normal(k, transform.inverse_shape(latent.shape))
        theta[latent.name] = transform(free[latent.name])
    return free, theta


def log_jacobian(target, free):
    return sum(
        jnp.sum(biject_to(latent.support).log_abs_det_jacobian(x, biject_to(latent.support)(x)))
        for latent, x in ((latent, free[latent.name]) for latent in target.latents)
    )


def check_densities(target, model, args=(), kwargs=None, seed=0):
    """The target against NumPyro's log density and potential energy at two random points."""
    kwargs = kwargs or {}

    @jax.jit
    def compare(key):
        free, theta = unconstrained_point(target, key)
        return (
            target.full()(theta),
            util.log_density(model, args, kwargs, theta)[0],
            -util.potential_energy(model, args, kwargs, free) - log_jacobian(target, free),
        )

    for key in jax.random.split(jax.random.key(seed), 2):
        own, density, potential = compare(key)
        assert np.isfinite(own)
        np.testing.assert_allclose(own, density, rtol=RTOL)
        np.testing.assert_allclose(own, potential, rtol=RTOL)


# -- real models ---------------------------------------------------------------------------------------------


@needs_posteriordb
@pytest.mark.parametrize("name", sorted(MODELS))
def test_density_of_posteriordb_models_is_numpyros(name):
    model, kwargs = read(name)
    check_densities(from_numpyro(model, **kwargs), model, kwargs=kwargs)


@needs_posteriordb
@pytest.mark.parametrize("name", sorted(MODELS))
def test_start_of_posteriordb_models_is_unconstrained_zero(name):
    model, kwargs = read(name)
    target = from_numpyro(model, **kwargs)
    for latent in target.latents:
        transform = biject_to(latent.support)
        zero = transform(jnp.zeros(transform.inverse_shape(latent.shape)))
        np.testing.assert_allclose(target.init[latent.name], zero, rtol=1e-14, atol=1e-14)


@needs_posteriordb
def test_names_supports_and_outputs_of_eight_schools():
    model, kwargs = read("eight_schools-eight_schools_noncentered")
    target = from_numpyro(model, **kwargs)
    assert [latent.name for latent in target.latents] == ["mu", "tau", "theta_trans"]
    assert [latent.shape for latent in target.latents] == [(), (), (8,)]
    assert target.latents[1].support is constraints.positive
    assert target.order == 2
    theta = {"mu": jnp.asarray(1.0), "tau": jnp.asarray(2.0), "theta_trans": jnp.arange(8.0)}
    out = target.outputs(theta)
    assert set(out) == {"theta"}
    np.testing.assert_allclose(out["theta"], 1 + 2 * np.arange(8.0))
    many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1]), theta)
    assert jax.vmap(target.outputs)(many)["theta"].shape == (2, 8)


@needs_posteriordb
@pytest.mark.parametrize("name, calls", [("centered", 2), ("noncentered", 3)])
def test_model_runs_only_at_construction(name, calls):
    model, kwargs = read(f"eight_schools-eight_schools_{name}")
    count = 0

    def counted(**kwargs):
        nonlocal count
        count += 1
        return model(**kwargs)

    target = from_numpyro(counted, **kwargs)
    assert count == calls
    eqx.filter_jit(target.full())(target.init)
    jax.vmap(jax.grad(target.full()))(jax.tree.map(lambda leaf: leaf[None], target.init))
    if target.outputs is not None:
        eqx.filter_jit(target.outputs)(target.init)
    assert count == calls


@needs_posteriordb
@pytest.mark.parametrize("name", sorted(MODELS))
def test_nothing_is_compiled(name):
    model, kwargs = read(name)
    before = len(COMPILATIONS)
    start = time.perf_counter()
    target = from_numpyro(model, **kwargs)
    seconds, compiled = time.perf_counter() - start, len(COMPILATIONS) - before
    # Positive ordered vectors alone have a start that is computed, and a membership test that runs in JAX.
    kinds = [type(elementwise(latent.support)) for latent in target.latents]
    computed = type(constraints.positive_ordered_vector) in kinds
    assert compiled == 0 or computed
    if name == "eight_schools-eight_schools_noncentered":
        start = time.perf_counter()
        util.initialize_model(jax.random.key(0), model, model_kwargs=kwargs)
        print(f"{name}: from_numpyro {seconds:.3f} s, initialize_model {time.perf_counter() - start:.3f} s")


# -- what a model may hold -----------------------------------------------------------------------------------


def test_arguments_may_be_positional_and_named_like_our_own():
    def model(model, kwargs):
        numpyro.sample("x", dist.Normal(model, kwargs))

    positional, named = from_numpyro(model, 1.0, 2.0), from_numpyro(model, model=1.0, kwargs=2.0)
    theta = {"x": jnp.asarray(0.3)}
    assert positional.full()(theta) == named.full()(theta)


def test_data_are_leaves_of_the_target():
    def model(y):
        numpyro.sample("obs", dist.Normal(numpyro.sample("mu", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    for y in (jnp.arange(1000.0), np.arange(1000.0)):
        target = from_numpyro(model, y)
        assert any(getattr(leaf, "shape", None) == (1000,) for leaf in jax.tree.leaves(target))


def test_scales_masks_plates_and_factors_count_as_in_numpyro():
    x, y = jnp.linspace(-1, 1, 12), jnp.linspace(0, 3, 12)

    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("groups", 3):
            level = numpyro.sample("level", dist.Gamma(2.0, 1.0))
        with handlers.scale(scale=0.5), numpyro.plate("rows", 12), handlers.mask(mask=x > -0.5):
            numpyro.sample("obs", dist.Normal(slope * x + level[jnp.arange(12) % 3], 1.0), obs=y)
        numpyro.factor("penalty", -jnp.abs(slope))

    target = from_numpyro(model, x, y)
    assert {latent.name: latent.shape for latent in target.latents} == {"slope": (), "level": (3,)}
    check_densities(target, model, (x, y))


def test_conditioned_sites_are_observed():
    def model():
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.sample("b", dist.HalfNormal(jnp.exp(a)))

    conditioned = handlers.condition(model, {"b": jnp.asarray(0.7)})
    target = from_numpyro(conditioned)
    assert [latent.name for latent in target.latents] == ["a"]
    check_densities(target, conditioned)


def test_improper_priors_and_constrained_matrices():
    def model():
        mu = numpyro.sample("mu", dist.ImproperUniform(constraints.real, (), (2,)))
        scale = numpyro.sample("scale", dist.ImproperUniform(constraints.positive, (2,), ()))
        chol = numpyro.sample("chol", dist.LKJCholesky(2, 2.0))
        numpyro.sample("cov", dist.Wishart(4.0, jnp.eye(2)))
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
        numpyro.sample("order", dist.ImproperUniform(constraints.ordered_vector, (), (3,)))
        tril = scale[:, None] * chol
        numpyro.sample("obs", dist.MultivariateNormal(mu, scale_tril=tril), obs=weights[:2])

    target = from_numpyro(model)
    assert {latent.name: latent.shape for latent in target.latents} == {
        "mu": (2,),
        "scale": (2,),
        "chol": (2, 2),
        "cov": (2, 2),
        "weights": (3,),
        "order": (3,),
    }
    check_densities(target, model)
    assert MeanField(target).num_factors == 2 + 2 + 1 + 3 + 2 + 3


def test_reparameterised_sites():
    def model():
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        numpyro.sample("x", dist.Normal(0.0, tau).expand([3]))

    reparameterised = handlers.reparam(model, {"x": numpyro.infer.reparam.LocScaleReparam(0)})
    target = from_numpyro(reparameterised)
    assert [latent.name for latent in target.latents] == ["tau", "x_decentered"]
    check_densities(target, reparameterised)
    assert set(target.outputs(target.init)) == {"x"}


def test_scanned_sites():
    y = jnp.linspace(-1, 1, 5)

    def model(y):
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))

        def step(previous, observed):
            state = numpyro.sample("state", dist.Normal(previous, noise))
            numpyro.sample("y", dist.Normal(state, 1.0), obs=observed)
            return state, None

        scan(step, 0.0, y)

    target = from_numpyro(model, y)
    assert {latent.name: latent.shape for latent in target.latents} == {"noise": (), "state": (5,)}
    theta = {"noise": jnp.asarray(0.8), "state": jnp.linspace(0, 1, 5)}
    density = util.log_density(handlers.seed(model, 0), (y,), {}, theta)[0]
    np.testing.assert_allclose(target.full()(theta), density, rtol=RTOL)


def test_discrete_latents():
    def model():
        numpyro.sample("flag", dist.Bernoulli(0.3).expand([4]).to_event(1))
        numpyro.sample("kind", dist.Categorical(jnp.array([0.2, 0.3, 0.5])))
        numpyro.sample("count", dist.Poisson(2.0))
        numpyro.sample("step", dist.DiscreteUniform(2, 5))

    target = from_numpyro(model)
    assert all(latent.discrete and latent.dtype == np.int32 for latent in target.latents)
    assert {name: np.asarray(value).tolist() for name, value in target.init.items()} == {
        "flag": [0] * 4,
        "kind": 0,
        "count": 0,
        "step": 2,
    }
    theta = {name: value + 1 for name, value in target.init.items()}
    np.testing.assert_allclose(target.full()(theta), util.log_density(model, (), {}, theta)[0], rtol=RTOL)
    assert [type(factor).__name__ for factor in MeanField(target).layout.factors] == [
        "Bernoulli",
        "Categorical",
        "Poisson",
        "Categorical",
    ]


def test_supports_that_are_computed_in_the_model():
    def model(width):
        numpyro.sample("a", dist.Uniform(0.0, jnp.array(2.0)))
        numpyro.sample("b", dist.Uniform(-jnp.asarray(width), 2 * jnp.asarray(width)))
        numpyro.sample("c", dist.TruncatedNormal(0.0, 1.0, low=jnp.array([0.5, 1.5])))

    target = from_numpyro(model, np.array([1.0, 2.0, 3.0]))
    a, b, c = (latent.support for latent in target.latents)
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((a, b, c)))
    np.testing.assert_allclose(a.upper_bound, 2.0)
    np.testing.assert_allclose(b.lower_bound, [-1.0, -2.0, -3.0])
    np.testing.assert_allclose(target.init["b"], [0.5, 1.0, 1.5])
    np.testing.assert_allclose(target.init["c"], [1.5, 2.5])
    check_densities(target, model, (np.array([1.0, 2.0, 3.0]),))


def test_support_of_an_observation_may_depend_on_a_latent():
    def model(y):
        top = numpyro.sample("top", dist.HalfNormal(5.0))
        numpyro.sample("y", dist.Uniform(0.0, top), obs=y)

    y = jnp.array([0.2, 1.7])
    target = from_numpyro(model, y)
    for top, inside in ((2.0, True), (1.0, False)):
        theta = {"top": jnp.asarray(top)}
        own = target.full()(theta)
        assert bool(np.isfinite(own)) == inside
        with numpyro.validation_enabled():  # which NumPyro has by default from 0.20 on
            expected = jax.jit(lambda t: util.log_density(model, (y,), {}, t)[0])(theta)
        np.testing.assert_array_equal(own, expected)


def test_the_support_of_an_observation_counts_without_validation_of_numpyro():
    def model(y):
        top = numpyro.sample("top", dist.HalfNormal(5.0))
        numpyro.sample("y", dist.Uniform(0.0, top), obs=y)

    with numpyro.validation_enabled(False):
        target = from_numpyro(model, jnp.array([0.2, 1.7]))
        assert [bool(np.isfinite(target.full()({"top": jnp.asarray(top)}))) for top in (2.0, 1.0)] == [True, False]


@pytest.mark.parametrize(
    "support, shape",
    [
        (constraints.real, (2,)),
        (constraints.independent(constraints.positive, 1), (3,)),
        (constraints.nonnegative, ()),
        (constraints.greater_than(np.array([1.0, 2.0])), (3, 2)),
        (constraints.unit_interval, ()),
        (constraints.circular, (2,)),
        (constraints.interval(-1.0, np.array([1.0, 4.0])), (2,)),
        (constraints.simplex, (2, 4)),
        (constraints.ordered_vector, (5,)),
    ],
)
def test_known_starts_are_the_images_of_zero(support, shape):
    transform = biject_to(support)
    known = known_start(support, shape)
    assert known.shape == shape and known.dtype == jnp.result_type(float)
    zero = transform(jnp.zeros(transform.inverse_shape(shape)))
    np.testing.assert_allclose(known, np.broadcast_to(zero, shape), rtol=1e-14, atol=1e-14)


def test_floats_follow_the_default_of_jax():
    def model():
        numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("p", dist.ImproperUniform(constraints.positive_ordered_vector, (), (2,)))

    assert from_numpyro(model).dtype == jnp.float64
    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # its name before 0.8
    with enable_x64(False):
        assert from_numpyro(model).dtype == jnp.float32


# -- models that are refused ---------------------------------------------------------------------------------


def local_latents():
    with numpyro.plate("rows", 100, subsample_size=10):
        numpyro.sample("z", dist.Normal(0.0, 1.0))


def subsampled_twice():
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    for name in ("rows", "more"):
        with numpyro.plate(name, 100, subsample_size=10) as rows:
            numpyro.sample(f"obs_{name}", dist.Normal(mu, 1.0), obs=jnp.arange(100.0)[rows])


def observed_only():
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=1.0)


def dependent_support():
    top = numpyro.sample("top", dist.HalfNormal(1.0))
    numpyro.sample("below", dist.Uniform(0.0, jnp.exp(top) + 1))


def with_param():
    numpyro.sample("x", dist.Normal(numpyro.param("loc", 0.0), 1.0))


def on_a_sphere():
    numpyro.sample("direction", dist.ProjectedNormal(jnp.zeros(3)))


def bad_parameter():
    numpyro.sample("x", dist.Normal(jnp.zeros(2), np.array([1.0, -1.0])).to_event(1))


def bad_observation():
    numpyro.sample("y", dist.Poisson(numpyro.sample("rate", dist.Gamma(1.0, 1.0))), obs=np.array([2, -1]))


@pytest.mark.parametrize(
    "model, words",
    [
        (local_latents, ["'z'", "'rows'", "10 of 100", "subsample_size"]),
        (subsampled_twice, ["'rows'", "'more'", "one subsampled plate"]),
        (observed_only, ["'observed_only'", "no latent site"]),
        (dependent_support, ["'below'", "depends on another latent", "numpyro.deterministic"]),
        (with_param, ["'loc'", "numpyro.param", "prior"]),
        (on_a_sphere, ["'direction'", "sphere", "reparam"]),
        (bad_parameter, ["'x'", "Normal", "invalid scale", "positive"]),
        (bad_observation, ["'y'", "outside the support", "Poisson", "counts"]),
        (3.0, ["NumPyro model", "float"]),
    ],
    ids=lambda case: getattr(case, "__name__", None),
)
def test_refused_models_are_told_why(model, words):
    with pytest.raises(ValueError) as error:
        from_numpyro(model)
    for word in words:
        assert word in str(error.value)


# -- subsampled plates ---------------------------------------------------------------------------------------

COUNTS = np.random.default_rng(0).poisson(np.exp(0.3 + 0.5 * np.linspace(-1, 1, 60)))


def poisson_rows(x, y, batch_size):
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    numpyro.deterministic("at_one", jnp.exp(level + slope))
    with numpyro.plate("rows", 60, subsample_size=batch_size) as rows:
        rate = numpyro.deterministic("rate", jnp.exp(level + slope * jnp.asarray(x)[rows]))
        with handlers.scale(scale=0.5):
            numpyro.sample("y", dist.Poisson(rate), obs=numpyro.subsample(jnp.asarray(y), 0))
        numpyro.factor("tilt", -0.01 * (level - jnp.asarray(x)[rows]) ** 2)


def test_subsampled_plate_is_a_minibatch_target():
    x = np.linspace(-1, 1, 60)
    target = from_numpyro(poisson_rows, x, COUNTS, 12)
    whole = from_numpyro(poisson_rows, x, COUNTS, None)
    assert isinstance(target, MinibatchTarget) and target.minibatched
    assert (target.batch_size, target.num_rows) == (12, 60)
    assert set(target.outputs(target.init)) == {"at_one"}
    theta = {"level": jnp.asarray(0.2), "slope": jnp.asarray(-0.4)}
    np.testing.assert_allclose(target.full()(theta), whole.full()(theta), rtol=RTOL)
    # A batch is what NumPyro computes on the same rows, its scale included.
    key = jax.random.key(3)
    rows = jax.random.choice(key, 60, (12,), replace=False)
    fixed = handlers.substitute(poisson_rows, data={"rows": rows})
    expected = util.log_density(fixed, (x, COUNTS, 12), {}, theta)[0]
    np.testing.assert_allclose(target.batch(key)(theta), expected, rtol=RTOL)
    check_scale(target, jax.random.key(0), log_density=whole.full())


def test_subsampled_model_fits_like_the_whole():
    x = np.linspace(-1, 1, 60)
    key = jax.random.key(0)
    whole = fit(from_numpyro(poisson_rows, x, COUNTS, None), key=key, progress=False)
    batches = fit(from_numpyro(poisson_rows, x, COUNTS, 30), key=key, tolerance=0.2, progress=False)
    assert abs(batches.elbo - whole.elbo) < 0.5 + 3 * batches.elbo_se
    for name in ("level", "slope"):
        assert abs(batches.mean()[name] - whole.mean()[name]) < 0.5 * whole.sd()[name]


# -- starts --------------------------------------------------------------------------------------------------


def scales():
    numpyro.sample("mu", dist.Normal(3.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("tau", dist.Gamma(4.0, 2.0))
    numpyro.sample("k", dist.Poisson(3.0))


def test_strategies_set_the_start():
    at_mean = from_numpyro(scales, init_strategy=infer.init_to_mean)
    np.testing.assert_allclose(at_mean.init["mu"], [3.0, 3.0])
    np.testing.assert_allclose(at_mean.init["tau"], 2.0)
    assert at_mean.init["k"] == 0
    given = {"mu": jnp.array([1.0, 2.0]), "tau": jnp.asarray(0.5)}
    at_value = from_numpyro(scales, init_strategy=infer.init_to_value(values=given))
    np.testing.assert_allclose(at_value.init["mu"], [1.0, 2.0])
    np.testing.assert_allclose(at_value.init["tau"], 0.5)
    feasible = from_numpyro(scales, init_strategy=infer.init_to_feasible)
    np.testing.assert_allclose(feasible.init["tau"], 1.0)
    for strategy in (infer.init_to_median, infer.init_to_sample, infer.init_to_uniform(radius=1)):
        one, same = (from_numpyro(scales, init_strategy=strategy).init for _ in range(2))
        assert one["tau"] > 0 and one["tau"] != 1.0 and one["tau"].dtype == jnp.float64
        np.testing.assert_array_equal(one["mu"], same["mu"])


def test_bad_strategies_are_told():
    with pytest.raises(ValueError, match="init_to_"):
        from_numpyro(scales, init_strategy="mean")
    with pytest.raises(ValueError, match="'mu' the shape"):
        from_numpyro(scales, init_strategy=infer.init_to_value(values={"mu": jnp.zeros(3)}))


# -- references of posteriordb --------------------------------------------------------------------------------

COMPARED = [
    "arK-arK", "eight_schools-eight_schools_noncentered", "garch-garch11", "gp_pois_regr-gp_regr",
    "kidiq-kidscore_interaction", "low_dim_gauss_mix-low_dim_gauss_mix", "mesquite-logmesquite_logvas",
    "wells_data-wells_dae_inter_model",
]  # fmt: skip


# Latents that the references report through another quantity, and their value from these.
INVERSES = {
    "theta_trans": lambda r: (r["theta"] - r["mu"][:, None]) / r["tau"][:, None],
    "beta1_frac": lambda r: r["beta1"] / (1 - r["alpha1"]),
}


def reference_draws(name):
    """Draws by name in the shape of the parameter: the columns "theta[1]", "theta[2]", ... are entries of theta."""
    stored = np.load(POSTERIORDB / "open" / name / "reference_draws.npz")
    columns = {}
    for label, draws in zip(stored["names"], stored["draws"].T):
        columns.setdefault(str(label).partition("[")[0], []).append(draws.astype(float))
    return {base: np.stack(c, -1) if len(c) > 1 else c[0] for base, c in columns.items()}


@needs_posteriordb
@pytest.mark.parametrize("name", COMPARED)
def test_names_shapes_and_values_are_those_of_the_references(name):
    model, kwargs = read(name)
    target = from_numpyro(model, **kwargs)
    expected = reference_draws(name)
    latents = {one.name: one for one in target.latents}
    theta = {base: expected[base] if base in expected else INVERSES[base](expected) for base in latents}
    outputs = {} if target.outputs is None else jax.vmap(target.outputs)(theta)
    assert {*theta, *outputs} - set(INVERSES) == set(expected)
    for base, latent in latents.items():
        assert theta[base].shape[1:] == latent.shape
        assert np.all(latent.support(theta[base]))
    for base, value in outputs.items():
        np.testing.assert_allclose(value, expected[base], rtol=1e-4, atol=1e-4)  # stored as float32
    density = jax.vmap(target.full())(theta)
    assert np.all(np.isfinite(density))


@pytest.mark.slow
@needs_posteriordb
@pytest.mark.parametrize("name", COMPARED)
def test_fits_lie_where_the_references_do(name):
    model, kwargs = read(name)
    draws = fit(from_numpyro(model, **kwargs), key=jax.random.key(0), progress=False).sample(jax.random.key(1), 1000)
    for base, expected in reference_draws(name).items():
        mean, sd = expected.mean(0), expected.std(0)
        # What a factorised q may be off by.
        assert np.all(abs(np.asarray(draws[base]).mean(0) - mean) < 0.75 * sd + 0.05 * abs(mean)), base


def test_masked_observations_may_lie_outside():
    y = np.array([1.0, -3.0])

    def model(y):
        rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
        with numpyro.plate("rows", 2), handlers.mask(mask=y > 0):
            numpyro.sample("y", dist.Exponential(rate), obs=y)

    check_densities(from_numpyro(model, y), model, (y,))


def test_validation_switch_is_left_as_it_was():
    for setting in (True, False):
        with numpyro.validation_enabled(setting):
            from_numpyro(lambda: numpyro.sample("x", dist.Normal(0.0, 1.0)))
            assert dist.Normal(0.0, 1.0)._validate_args == setting


def test_plates_give_blocks():
    """Nested and crossed plates: latents by the axis of their plate; small sets of blocks are global."""

    def model():
        numpyro.sample("scale", dist.HalfNormal(1))
        with numpyro.plate("student", 400):
            numpyro.sample("ability", dist.Normal(0, 1))
            numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("item", 8):
            numpyro.sample("easiness", dist.Normal(0, 1))
        items, schools = numpyro.plate("part", 2, dim=-2), numpyro.plate("school", 300, dim=-1)
        with items, schools:
            numpyro.sample("effect", dist.Normal(0, 1))

    target = from_numpyro(model)
    assert target.origin.plates["school"] == {"effect": 1}
    assert target.origin.plates["student"] == {"ability": 0, "shares": 0}
    q = Bordered(target)
    sets = {one.name: (one.count, one.size) for one in q.arrow.sets}
    assert sets == {"student": (400, 3), "school": (300, 2)} and q.arrow.num_global == 9
    assert Bordered(target, {"student": "ability"}).arrow.num_global == 1 + 800 + 8 + 600


# -- locations and scales ---------------------------------------------------------------------------------------------


def _nested(x, group):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0).expand([2]).to_event(1))
    slope = numpyro.sample("slope", dist.StudentT(3.0, 0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("schools", 4):
        school = numpyro.sample("school", dist.Normal(mu + x @ slope, spread[0]))
    with numpyro.plate("classes", 8):
        size = numpyro.sample("size", dist.LogNormal(school[group], spread[1]).mask(False))
    numpyro.sample("pair", dist.Gumbel(mu, 2.0).expand([3, 2]).to_event(2))
    numpyro.sample("share", dist.Beta(2.0, spread[1]))
    numpyro.sample("obs", dist.Normal(size, 1.0), obs=jnp.ones(8))


def test_sites_with_a_latent_location_or_scale():
    x, group = np.random.default_rng(0).normal(size=(4, 2)), np.arange(8) % 4
    target = from_numpyro(_nested, x, group)
    sites = {site.name: site for site in target.location_scale}
    assert {name: site.parents for name, site in sites.items()} == {
        "school": ("mu", "slope", "spread"),
        "size": ("school", "spread"),
        "pair": ("mu",),
    }
    assert not any(site.standardised for site in sites.values())
    theta = {latent.name: jnp.asarray(target.init[latent.name]) + 0.3 for latent in target.latents}
    expected = {
        "school": (theta["mu"] + x @ theta["slope"], np.full(4, theta["spread"][0])),
        "size": (theta["school"][group], np.full(8, theta["spread"][1])),
        "pair": (np.full((3, 2), theta["mu"]), np.full((3, 2), 2.0)),
    }
    for name, (loc, scale) in expected.items():
        found_loc, found_log_scale = sites[name].at(theta)
        np.testing.assert_allclose(found_loc, loc, rtol=1e-6)
        np.testing.assert_allclose(found_log_scale, np.log(scale), rtol=1e-6)
