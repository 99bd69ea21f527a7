"""Mean fields: which factor a latent gets, where its parameters stand, and the bijections with their Jacobians."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import biject_to, constraints

from curvi import MeanField, Target, factors
from curvi.family.mean_field import Layout

# What is compiled here runs once: time spent on optimising it is lost.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

CORRELATION = np.linalg.cholesky(np.array([[1.0, 0.3, -0.2], [0.3, 1.0, 0.1], [-0.2, 0.1, 1.0]]))
COVARIANCE = np.array([[2.0, 0.4], [0.4, 1.0]])


def make(init, supports=None, **kwargs):
    """A target whose density does not matter."""
    return Target(lambda theta: sum((0.0 * jnp.sum(value) for value in theta.values()), 0.0), init, supports, **kwargs)


def one(value, support, factor=None):
    """The mean field of a single latent 'x'."""
    return MeanField(make({"x": value}, {"x": support}), None if factor is None else {"x": factor})


# -- factors by support ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, support, factor, count, pushed",
    [
        (np.zeros(3), constraints.real, factors.Normal(), 3, False),
        (np.zeros((2, 3)), constraints.real_vector, factors.Normal(), 6, False),
        (np.ones(3), constraints.positive, factors.Normal(), 3, True),
        (np.ones(2), constraints.independent(constraints.positive, 1), factors.Normal(), 2, True),
        (0.3, constraints.unit_interval, factors.Normal(), 1, True),
        (np.array([0.5, 2.0]), constraints.interval(-1.0, 3.0), factors.Normal(), 2, True),
        (np.array([2.5]), constraints.greater_than(2.0), factors.Normal(), 1, True),
        (np.array([0.2, 0.3, 0.5]), constraints.simplex, factors.Normal(), 2, True),
        (np.array([-1.0, 0.0, 2.0]), constraints.ordered_vector, factors.Normal(), 3, True),
        (CORRELATION, constraints.corr_cholesky, factors.Normal(), 3, True),
        (COVARIANCE, constraints.positive_definite, factors.Normal(), 3, True),
        (np.array([0, 1, 1]), constraints.boolean, factors.Bernoulli(), 3, False),
        (np.array([3, 4]), constraints.integer_interval(2, 5), factors.Categorical(4, 2), 2, False),
        (7, constraints.nonnegative_integer, factors.Poisson(), 1, False),
    ],
)
def test_default_factors(value, support, factor, count, pushed):
    layout = one(value, support).layout
    assert layout.factors == (factor,)
    assert layout.counts == (count,)
    assert layout.slots[0].pushed == pushed


@pytest.mark.parametrize(
    "value, support, chosen, resolved",
    [
        (np.zeros(2), constraints.real, factors.StudentT(), factors.StudentT()),
        (np.ones(2), constraints.positive, factors.StudentT(), factors.StudentT()),
        (np.ones(2), constraints.positive, factors.LogNormal(), factors.LogNormal()),
        (np.ones(2), constraints.greater_than(0.0), factors.Gamma(), factors.Gamma()),
        (np.full(2, 0.4), constraints.interval(0.0, 1.0), factors.Beta(), factors.Beta()),
        (np.full((5, 4), 0.25), constraints.simplex, factors.Dirichlet(), factors.Dirichlet(4)),
        (1, constraints.integer_interval(0, 2), factors.Categorical(), factors.Categorical(3, 0)),
    ],
)
def test_chosen_factors_are_made_concrete(value, support, chosen, resolved):
    q = one(value, support, chosen)
    assert q.layout.factors == (resolved,)
    theta, log_det = quick_jit(lambda key: q.to_model(q.sample(key)))(jax.random.key(0))
    assert theta["x"].shape == np.shape(value)
    assert np.all(support(theta["x"]))
    assert q.layout.slots[0].pushed or log_det == 0


@pytest.mark.parametrize(
    "value, support, chosen, words",
    [
        (1.0, constraints.real, factors.Gamma(), ["Gamma", "'x'", "real"]),
        (1.0, constraints.real, factors.LogNormal(), ["LogNormal", "'x'"]),
        (0.5, constraints.interval(0.0, 2.0), factors.Beta(), ["Beta", "'x'", "interval"]),
        (1.0, constraints.positive, factors.Dirichlet(), ["Dirichlet", "'x'", "positive"]),
        (1, constraints.boolean, factors.Normal(), ["Normal", "'x'", "boolean"]),
        (1, constraints.boolean, factors.Poisson(), ["Poisson", "'x'"]),
        (1.0, constraints.real, factors.Normal, ["'x'", "curvi.factors"]),
        (1.0, constraints.real, "normal", ["'x'", "curvi.factors", "normal"]),
    ],
)
def test_factors_that_do_not_fit_are_named(value, support, chosen, words):
    with pytest.raises(ValueError) as error:
        one(value, support, chosen)
    for word in words:
        assert word in str(error.value)


def test_factors_of_unknown_latents_are_named():
    with pytest.raises(ValueError, match=r"tua.*it has mu, tau"):
        MeanField(make({"mu": 0.0, "tau": 1.0}), {"tua": factors.Normal()})


@pytest.mark.parametrize(
    "support",
    [constraints.positive_integer, constraints.integer_interval(np.array([0, 1]), np.array([3, 3]))],
    ids=["positive integers", "bounds that differ"],
)
def test_supports_without_a_factor_are_named(support):
    with pytest.raises(ValueError, match=r"'x'.*no factor.*marginalise"):
        one(np.array([1, 2]), support)


@pytest.mark.parametrize(
    "value, support, factor",
    [
        (0.0, constraints.nonnegative, None),
        (0.0, constraints.nonnegative, factors.Gamma()),
        (0.0, constraints.nonnegative, factors.LogNormal()),
        (1.0, constraints.unit_interval, None),
        (0.0, constraints.unit_interval, factors.Beta()),
        (3.0, constraints.interval(1.0, 3.0), None),
        (np.array([0.0, 0.4, 0.6]), constraints.simplex, factors.Dirichlet()),
        (np.diag([1.0, 0.0]), constraints.positive_semidefinite, None),
    ],
)
def test_starts_on_the_edge_are_named(value, support, factor):
    with pytest.raises(ValueError, match=r"'x' lies on the edge of its support .*strictly inside"):
        one(value, support, factor)


# -- layout ----------------------------------------------------------------------------------------------------


def mixed_target(dtype=np.float64):
    init = {
        "mu": np.array([1.0, -2.0], dtype),
        "flag": np.array([0, 1, 1]),
        "tau": np.array(2.0, dtype),
        "kind": 4,
        "p": np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], dtype),
        "rate": np.array([0.5, 3.0], dtype),
        "other": np.array([1, 0]),
    }
    supports = {
        "flag": constraints.boolean,
        "tau": constraints.positive,
        "kind": constraints.integer_interval(2, 5),
        "p": constraints.simplex,
        "rate": constraints.positive,
        "other": constraints.boolean,
    }
    return make(init, supports)


def mixed():
    return MeanField(mixed_target(), {"rate": factors.LogNormal()})


def test_equal_factors_form_one_group():
    layout = mixed().layout
    assert layout.factors == (factors.Normal(), factors.Bernoulli(), factors.Categorical(4, 2), factors.LogNormal())
    assert layout.counts == (2 + 1 + 4, 3 + 2, 1, 2)
    places = {slot.latent.name: (slot.group, slot.start, slot.count) for slot in layout.slots}
    assert places == {
        "mu": (0, 0, 2),
        "flag": (1, 0, 3),
        "tau": (0, 2, 1),
        "kind": (2, 0, 1),
        "p": (0, 3, 4),
        "rate": (3, 0, 2),
        "other": (1, 3, 2),
    }


def test_parameters_and_their_slices():
    q = mixed()
    slices = q.parameter_slices()
    assert list(slices) == ["mu", "flag", "tau", "kind", "p", "rate", "other"]
    assert q.num_params == 7 * 2 + 5 + 3 + 2 * 2 and q.num_factors == 7 + 5 + 1 + 2
    covered = np.sort(np.concatenate([np.arange(q.num_params)[part] for part in slices.values()]))
    np.testing.assert_array_equal(covered, np.arange(q.num_params))
    np.testing.assert_allclose(q.params[slices["mu"]].reshape(2, 2)[:, 0], [1.0, -2.0])
    np.testing.assert_allclose(q.params[slices["tau"]][0], np.log(2.0))
    assert np.all(np.sign(q.params[slices["flag"]]) == [-1, 1, 1])
    np.testing.assert_allclose(q.params[slices["rate"]].reshape(2, 2)[:, 0], np.log([0.5, 3.0]))


def test_a_slice_moves_its_latent_alone():
    q = mixed()
    draw = quick_jit(lambda params: at_uniform(q.replace(params), 0.37))
    before = draw(q.params)
    for name, part in q.parameter_slices().items():
        after = draw(q.params.at[part].add(3.0))
        changed = {other for other in before if np.any(np.asarray(before[other]) != np.asarray(after[other]))}
        assert changed == {name}


def at_uniform(q, u):
    return q.to_model(q.from_uniform(jnp.full(q.noise_size, u)))[0]


def test_two_mean_fields_of_a_target_share_layout_and_programs():
    target = mixed_target()
    first, second = MeanField(target), MeanField(target)
    assert isinstance(first.layout, Layout)
    assert first.layout == second.layout and hash(first.layout) == hash(second.layout)
    assert MeanField(mixed_target()).layout != first.layout
    traces = []

    @eqx.filter_jit
    def entropy(q):
        traces.append(1)
        return q.entropy()

    entropy(first), entropy(second), entropy(second.replace(second.params + 1))
    assert len(traces) == 1


def test_the_middle_of_the_start_is_init():
    target = make(
        {"mu": [1.0, -2.0], "tau": 2.0, "p": [0.2, 0.3, 0.5]}, {"tau": constraints.positive, "p": constraints.simplex}
    )
    q = MeanField(target)
    theta, _ = q.to_model(q.from_normal(jnp.zeros(q.num_factors)))
    for name, value in target.init.items():
        np.testing.assert_allclose(theta[name], value, rtol=1e-12)


# -- bijections ------------------------------------------------------------------------------------------------

LOWER = np.tril_indices(2)

# The coordinates with respect to which a density on the support is written.
BIJECTED = {
    "positive": (np.array([0.5, 2.0]), constraints.positive, lambda x: x),
    "unit interval": (np.array([0.5, 0.9]), constraints.unit_interval, lambda x: x),
    "interval": (np.array([-0.5, 2.0]), constraints.interval(-1.0, np.array([3.0, 2.5])), lambda x: x),
    "simplex": (np.array([0.2, 0.3, 0.1, 0.4]), constraints.simplex, lambda x: x[:-1]),
    "ordered": (np.array([-1.0, 0.5, 0.7]), constraints.ordered_vector, lambda x: x),
    "correlation": (CORRELATION, constraints.corr_cholesky, lambda x: x[np.tril_indices(3, -1)]),
    "covariance": (COVARIANCE, constraints.positive_definite, lambda x: x[LOWER]),
    "cholesky": (np.linalg.cholesky(COVARIANCE), constraints.lower_cholesky, lambda x: x[LOWER]),
}


@pytest.mark.parametrize("name", BIJECTED)
def test_log_jacobian_is_that_of_dense_autodiff(name):
    value, support, coordinates = BIJECTED[name]
    q = one(value, support)

    def outwards(working):
        theta, log_det = q.to_model((working,))
        return coordinates(theta["x"]), (theta["x"], log_det)

    working = 0.5 * jax.random.normal(jax.random.key(1), (q.num_factors,)) + q.params.reshape(-1, 2)[:, 0]
    jacobian, (x, log_det) = quick_jit(jax.jacfwd(outwards, has_aux=True))(working)
    assert x.shape == value.shape and np.all(support(x))
    assert jacobian.shape == (q.num_factors, q.num_factors)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(jacobian)[1], rtol=1e-9, atol=1e-9)


def log_jacobian(q, noise):
    return quick_jit(lambda noise: q.to_model(q.from_normal(noise))[1])(noise)


def test_log_jacobians_of_several_latents_and_events_add_up():
    names = ["positive", "simplex", "interval"]
    init = {name: np.stack([BIJECTED[name][0]] * 2) for name in names}
    supports = {name: BIJECTED[name][1] for name in names}
    together = MeanField(make(init, supports))
    noise = jax.random.normal(jax.random.key(2), (together.num_factors,))
    log_det = log_jacobian(together, noise)
    parts, start = [], 0
    for name in names:
        q = one(init[name], supports[name])
        parts.append(log_jacobian(q, noise[start : start + q.num_factors]))
        start += q.num_factors
    np.testing.assert_allclose(log_det, sum(parts), rtol=1e-12)


@pytest.mark.parametrize(
    "value, support, grid",
    [
        (2.0, constraints.positive, np.linspace(0.2, 12.0, 20001)),
        (0.6, constraints.unit_interval, np.linspace(0.05, 0.99, 20001)),
        (-0.5, constraints.interval(-1.0, 3.0), np.linspace(-0.99, 2.9, 20001)),
    ],
)
def test_densities_on_the_support_integrate_to_one(value, support, grid):
    q = one(value, support)

    @quick_jit
    def density(theta):
        x = (biject_to(support).inv(theta)[None],)
        return jnp.exp(q.log_prob(x) - q.to_model(x)[1])

    total = np.trapezoid(jax.vmap(density)(jnp.asarray(grid)), grid)
    np.testing.assert_allclose(total, 1.0, rtol=1e-6)


# -- densities and draws ---------------------------------------------------------------------------------------


def test_densities_are_sums_over_factors_and_derivatives_are_autodiffs():
    q = mixed()
    parts = q.parameter_slices()

    def log_prob(params, x):
        return q.replace(params).log_prob(x)

    def entropy(params):
        return q.replace(params).entropy()

    @quick_jit
    def run(params, key):
        r, x = q.replace(params), q.sample(key)
        own = [r.log_prob(x), r.score(x), r.hessian(x).dense(), r.entropy_gradient(), r.entropy_hessian().dense()]
        flags = jnp.concatenate([params[parts["flag"]], params[parts["other"]]])[:, None]
        terms = [
            factors.Normal().log_prob(params[parts["mu"]].reshape(-1, 2), x[0][:2]),
            factors.Normal().log_prob(params[parts["tau"]].reshape(-1, 2), x[0][2:3]),
            factors.Normal().log_prob(params[parts["p"]].reshape(-1, 2), x[0][3:]),
            factors.Bernoulli().log_prob(flags, x[1]),
            factors.Categorical(4, 2).log_prob(params[parts["kind"]][None], x[2]),
            factors.LogNormal().log_prob(params[parts["rate"]].reshape(2, 2), x[3]),
        ]
        expected = [
            sum(term.sum() for term in terms),
            jax.grad(log_prob)(params, x),
            jax.hessian(log_prob)(params, x),
            jax.grad(entropy)(params),
            jax.hessian(entropy)(params),
        ]
        return own, expected

    for own, expected in zip(*run(q.params, jax.random.key(3))):
        np.testing.assert_allclose(own, expected, rtol=1e-8, atol=1e-8)


def test_discrete_and_continuous_latents_mix():
    q, target = mixed(), mixed_target()

    @quick_jit
    def draw(key):
        return jax.vmap(lambda k: q.to_model(q.sample(k)))(jax.random.split(key, 200))

    theta, log_det = draw(jax.random.key(4))
    assert log_det.shape == (200,)
    for latent in target.latents:
        assert theta[latent.name].shape == (200, *latent.shape)
        assert theta[latent.name].dtype == latent.dtype
        assert np.all(latent.support(theta[latent.name]))
    assert set(np.unique(theta["kind"])) == {2, 3, 4, 5}
    assert not q.reparameterised
    with pytest.raises(NotImplementedError):
        q.from_normal(jnp.zeros(q.num_factors))


def test_draws_repeat_with_their_key_and_differ_between_latents():
    q = MeanField(make({"a": np.zeros(3), "b": np.zeros(3)}))
    first, again, other = (q.sample(jax.random.key(seed))[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(np.concatenate([first, other]))) == 12


def test_uniform_and_normal_draws_agree_where_both_exist():
    q = MeanField(
        make({"a": np.zeros(3), "tau": np.ones(2)}, {"tau": constraints.positive}), {"tau": factors.LogNormal()}
    )
    assert q.reparameterised and q.noise_size == q.num_factors == 5
    u = jnp.linspace(0.1, 0.9, 5)
    for a, b in zip(q.from_uniform(u), q.from_normal(jax.scipy.special.ndtri(u))):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    q = one(np.full((2, 3), 1 / 3), constraints.simplex, factors.Dirichlet())
    assert q.noise_size == 6 and q.num_factors == 2
    assert jax.eval_shape(q.from_uniform, jnp.full(6, 0.5))[0].shape == (2, 3)


# -- dtypes ----------------------------------------------------------------------------------------------------


def test_float32_stays_float32():
    q = MeanField(mixed_target(np.float32), {"rate": factors.LogNormal()})
    assert q.params.dtype == jnp.float32

    def everything(q, key):
        x = q.sample(key)
        theta, log_det = q.to_model(x)
        more = (q.from_uniform(jnp.full(q.noise_size, 0.3, jnp.float32)), q.score(x), q.hessian(x), q.fisher())
        return x, theta, log_det, q.log_prob(x), q.entropy(), q.entropy_gradient(), q.entropy_hessian(), more

    for leaf in jax.tree.leaves(eqx.filter_eval_shape(everything, q, jax.random.key(0))):
        assert jnp.issubdtype(leaf.dtype, jnp.integer) or leaf.dtype == jnp.float32


def test_each_latent_keeps_its_dtype():
    """The bounds of the support are float64, the other latent too; the traced log density takes what init had."""
    init = {"a": np.float32(0.5), "b": np.ones(2)}
    target = make(init, {"a": constraints.interval(np.float64(0.0), np.float64(2.0)), "b": constraints.positive})
    q = MeanField(target)
    assert target.dtype == q.params.dtype == jnp.float64
    theta, _ = q.to_model(q.sample(jax.random.key(0)))
    assert theta["a"].dtype == jnp.float32 and theta["b"].dtype == jnp.float64
    target.full()(theta)
