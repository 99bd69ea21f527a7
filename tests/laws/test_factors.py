"""Laws that every factor obeys: exact, by quadrature or enumeration, where they can be; else by z-scores."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factor_registry import ROWS, Row
from jax.scipy.special import ndtri
from law_statistics import assert_zero_mean
from scipy import special, stats

from curvi import factors
from curvi.family import student_t

NUM_DRAWS = 20_000

rows = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
continuous_line = pytest.mark.parametrize(
    "row", [row for row in ROWS if not row.discrete and row.name != "Dirichlet"], ids=lambda row: row.name
)
discrete = pytest.mark.parametrize("row", [row for row in ROWS if row.discrete], ids=lambda row: row.name)


# -- the laws, as functions of a row, so that wrong factors can be put through them ----------------------------


def expectation(row: Row, terms):
    """E_q[terms] by the rule of the row, and the size of the terms against which its error is measured."""
    weights = row.weights.reshape(row.weights.shape + (1,) * (terms.ndim - 2))
    terms = np.asarray(terms)
    # A node of no weight may lie where ln q is minus infinity.
    products = np.where(weights > 0, weights * np.where(weights > 0, terms, 0), 0)
    return products.sum(0), np.abs(products).sum(0).max()


def assert_expectation(row: Row, terms, expected):
    mean, size = expectation(row, terms)
    np.testing.assert_allclose(mean, expected, rtol=0, atol=row.tolerance * max(size, 1.0))


def scores(row: Row):
    return jax.vmap(row.factor.score, (None, 0))(row.params, row.nodes)


def hessians(row: Row):
    return jax.vmap(row.factor.hessian, (None, 0))(row.params, row.nodes)


def outer(s):
    return s[..., :, None] * s[..., None, :]


def law_scores_have_mean_zero(row: Row):
    assert_expectation(row, scores(row), 0.0)


def law_second_bartlett_identity(row: Row):
    assert_expectation(row, outer(scores(row)) + hessians(row), 0.0)


def law_fisher_is_minus_mean_hessian(row: Row):
    assert_expectation(row, -hessians(row), np.asarray(row.factor.fisher(row.params)))


def law_fisher_is_covariance_of_scores(row: Row):
    assert_expectation(row, outer(scores(row)), np.asarray(row.factor.fisher(row.params)))


def law_draws_have_mean_zero_scores(row: Row):
    keys = jax.random.split(jax.random.key(7), NUM_DRAWS)

    def terms(key):
        x = row.factor.sample(key, row.params)
        s = row.factor.score(row.params, x)
        return s, outer(s) + row.factor.hessian(row.params, x)

    s, m = jax.jit(jax.vmap(terms))(keys)
    assert_zero_mean(s)
    assert_zero_mean(m)


EXACT_LAWS = [
    law_scores_have_mean_zero,
    law_second_bartlett_identity,
    law_fisher_is_minus_mean_hessian,
    law_fisher_is_covariance_of_scores,
]


@rows
def test_rule_of_the_registry_sums_to_one(row):
    np.testing.assert_allclose(row.weights.sum(0), 1.0, rtol=1e-10)


@rows
@pytest.mark.parametrize("law", [*EXACT_LAWS, law_draws_have_mean_zero_scores], ids=lambda law: law.__name__)
def test_law(row, law):
    law(row)


# -- deliberately wrong factors --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class WrongFisher(factors.Normal):
    """A Normal with 1.1 times its Fisher information."""

    def fisher(self, params):
        return 1.1 * factors.Normal().fisher(params)


@dataclasses.dataclass(frozen=True)
class WrongScore(factors.Normal):
    """A Normal whose score in log sigma lacks its -1."""

    def score(self, params, x):
        return factors.Normal().score(params, x) + jnp.array([0.0, 1.0])


@dataclasses.dataclass(frozen=True)
class WrongHessian(factors.Normal):
    """A Normal whose Hessian lacks the factor 2 of its cross terms."""

    def hessian(self, params, x):
        return factors.Normal().hessian(params, x) * jnp.array([[1.0, 0.5], [0.5, 0.98]])


@dataclasses.dataclass(frozen=True)
class WrongSampler(factors.Normal):
    """A Normal that samples with 3 % too large a scale."""

    def sample(self, key, params):
        return factors.Normal().sample(key, params + jnp.array([0.0, 0.03]))


@pytest.mark.parametrize(
    "wrong, failing",
    [
        (WrongFisher(), [law_fisher_is_minus_mean_hessian, law_fisher_is_covariance_of_scores]),
        (
            WrongScore(),
            [law_scores_have_mean_zero, law_second_bartlett_identity, law_draws_have_mean_zero_scores],
        ),
        (WrongHessian(), [law_second_bartlett_identity, law_fisher_is_minus_mean_hessian]),
        (WrongSampler(), [law_draws_have_mean_zero_scores]),
    ],
    ids=lambda case: type(case).__name__,
)
def test_wrong_factors_fail(wrong, failing):
    row = dataclasses.replace(ROWS[0], factor=wrong)
    assert ROWS[0].name == "Normal"
    for law in [*EXACT_LAWS, law_draws_have_mean_zero_scores]:
        if law in failing:
            with pytest.raises(AssertionError):
                law(row)


def test_zero_mean_helper_sees_a_tenth_of_a_deviation():
    noise = np.random.default_rng(0).normal(size=(4000, 3))
    assert_zero_mean(noise)
    with pytest.raises(AssertionError, match="standard errors"):
        assert_zero_mean(noise + np.array([0.0, 0.1, 0.0]))
    assert_zero_mean(np.zeros((10, 2)))
    with pytest.raises(AssertionError):
        assert_zero_mean(np.full((10, 2), 1e-3))


# -- closed forms against autodiff, scipy and finite differences -----------------------------------------------


@rows
def test_log_prob_is_scipys(row):
    nodes = np.asarray(row.nodes)[:: max(1, len(row.nodes) // 40)]
    own = np.asarray(jax.vmap(row.factor.log_prob, (None, 0))(row.params, jnp.asarray(nodes)))
    for column, oracle in enumerate(row.oracles):
        if row.name == "Dirichlet":
            constant = special.gammaln(oracle.alpha.sum()) - special.gammaln(oracle.alpha).sum()
            expected = np.log(nodes[:, column]) @ (oracle.alpha - 1) + constant
        else:
            expected = (oracle.logpmf if row.discrete else oracle.logpdf)(nodes[:, column])
        np.testing.assert_allclose(own[:, column], expected, rtol=1e-9, atol=1e-9)


@rows
def test_score_and_hessian_are_derivatives_of_log_prob(row):
    keys = jax.random.split(jax.random.key(3), 5)
    x = jax.vmap(row.factor.sample, (0, None))(keys, row.params)

    def one(params, value):
        return row.factor.log_prob(params[None], value[None])[0]

    score = jax.vmap(jax.vmap(jax.jacfwd(one)), (None, 0))(row.params, x)
    hessian = jax.vmap(jax.vmap(jax.jacfwd(jax.jacfwd(one))), (None, 0))(row.params, x)
    own_score = jax.vmap(row.factor.score, (None, 0))(row.params, x)
    own_hessian = jax.vmap(row.factor.hessian, (None, 0))(row.params, x)
    k = row.factor.num_params
    assert own_score.shape == (5, len(row.values), k)
    assert own_hessian.shape == (5, len(row.values), k, k)
    np.testing.assert_allclose(own_score, score, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(own_hessian, hessian, rtol=1e-9, atol=1e-9)


@rows
def test_fisher_is_positive_definite(row):
    fisher = np.asarray(row.factor.fisher(row.params))
    np.testing.assert_array_equal(fisher, np.swapaxes(fisher, -1, -2))
    assert np.linalg.eigvalsh(fisher).min() > 0


@rows
def test_entropy(row):
    own = row.factor.entropy(row.params)
    log_q = jax.vmap(row.factor.log_prob, (None, 0))(row.params, row.nodes)
    assert_expectation(row, -log_q, np.asarray(own))
    np.testing.assert_allclose(own, [float(oracle.entropy()) for oracle in row.oracles], rtol=1e-7, atol=1e-7)
    keys = jax.random.split(jax.random.key(11), NUM_DRAWS)

    def surprise(key):
        return -row.factor.log_prob(row.params, row.factor.sample(key, row.params))

    assert_zero_mean(jax.jit(jax.vmap(surprise))(keys) - own)


@rows
def test_gradient_of_the_entropy(row):
    """Against finite differences, and against the identity grad H = -E[s ln q]."""

    def entropy(params):
        return row.factor.entropy(params)

    gradient = jax.grad(lambda params: entropy(params).sum())(row.params)
    step = 1e-5
    for i in range(row.factor.num_params):
        shift = jnp.zeros(row.factor.num_params).at[i].set(step)
        slope = (entropy(row.params + shift) - entropy(row.params - shift)) / (2 * step)
        np.testing.assert_allclose(gradient[:, i], slope, rtol=1e-6, atol=1e-7)
    log_q = jax.vmap(row.factor.log_prob, (None, 0))(row.params, row.nodes)
    assert_expectation(row, -scores(row) * log_q[..., None], np.asarray(gradient))


@rows
def test_mean_and_variance(row):
    mean = [np.asarray(oracle.mean()) for oracle in row.oracles]
    variance = [np.asarray(oracle.var()) for oracle in row.oracles]
    np.testing.assert_allclose(row.factor.mean(row.params), mean, rtol=1e-10)
    np.testing.assert_allclose(row.factor.variance(row.params), variance, rtol=1e-10)


# -- draws -----------------------------------------------------------------------------------------------------


@rows
def test_sample_has_mean_and_variance(row):
    keys = jax.random.split(jax.random.key(5), NUM_DRAWS)
    x = np.asarray(jax.jit(jax.vmap(row.factor.sample, (0, None)))(keys, row.params), np.float64)
    mean, variance = np.asarray(row.factor.mean(row.params)), np.asarray(row.factor.variance(row.params))
    assert_zero_mean(x - mean)
    assert_zero_mean((x - mean) ** 2 - variance)


@continuous_line
def test_from_uniform_is_the_quantile_function(row):
    u = np.concatenate([[1e-6, 1e-3], np.linspace(0.02, 0.98, 25), [1 - 1e-3, 1 - 1e-6]])
    own = jax.vmap(lambda v: row.factor.from_uniform(row.params, jnp.full((len(row.values), 1), v)))(
        jnp.asarray(u)
    )
    expected = np.stack([oracle.ppf(u) for oracle in row.oracles], -1)
    np.testing.assert_allclose(own, expected, rtol=1e-6, atol=1e-8)


@discrete
def test_from_uniform_is_the_quantile_function_of_counts(row):
    u = np.random.default_rng(2).uniform(size=500)
    own = jax.vmap(lambda v: row.factor.from_uniform(row.params, jnp.full((len(row.values), 1), v)))(
        jnp.asarray(u)
    )
    expected = np.stack([oracle.ppf(u) for oracle in row.oracles], -1)
    np.testing.assert_array_equal(own, expected)
    assert jnp.issubdtype(own.dtype, jnp.integer)


def test_from_uniform_of_a_dirichlet_has_beta_margins():
    row = next(row for row in ROWS if row.name == "Dirichlet")
    shape = (4000, len(row.values), row.factor.num_uniforms)
    u = jax.random.uniform(jax.random.key(1), shape)
    x = np.asarray(jax.jit(jax.vmap(row.factor.from_uniform, (None, 0)))(row.params, u))
    np.testing.assert_allclose(x.sum(-1), 1.0, rtol=1e-12)
    for column, oracle in enumerate(row.oracles):
        alpha = oracle.alpha
        for i in range(3):
            margin = stats.beta(alpha[i], alpha.sum() - alpha[i])
            assert stats.kstest(x[:, column, i], margin.cdf).pvalue > 1e-3


@rows
def test_from_normal_where_reparameterised(row):
    n = len(row.values)
    if not row.factor.reparameterised:
        with pytest.raises(NotImplementedError, match=type(row.factor).__name__):
            row.factor.from_normal(row.params, jnp.zeros(n))
        return
    u = jnp.asarray(np.random.default_rng(4).uniform(size=(n, 1)))
    noise = ndtri(u[:, 0])
    np.testing.assert_allclose(
        row.factor.from_normal(row.params, noise), row.factor.from_uniform(row.params, u), rtol=1e-12
    )
    # The pathwise and the score form of the gradient of E[ln x^2 + x] agree: derivatives pass through the draw.
    noise = jax.random.normal(jax.random.key(8), (NUM_DRAWS, n))

    def both(params, e):
        x = row.factor.from_normal(params, e)
        value = jnp.sin(x / 3)
        path = jax.grad(lambda p: jnp.sum(jnp.sin(row.factor.from_normal(p, e) / 3)))(params)
        return path - value[:, None] * row.factor.score(params, x)

    assert_zero_mean(jax.jit(jax.vmap(both, (None, 0)))(row.params, noise))
    second = jax.jacfwd(jax.jacfwd(lambda p: row.factor.from_normal(p, noise[0])))(row.params)
    assert np.all(np.isfinite(second))


@rows
def test_start_is_near_the_value(row):
    value = np.asarray(row.factor.mean(row.params))
    start = row.factor.start(jnp.asarray(np.round(value).astype(np.int32) if row.discrete else value))
    assert start.shape == row.params.shape
    deviation = np.sqrt(np.asarray(row.factor.variance(start)))
    assert np.all(np.abs(np.asarray(row.factor.mean(start)) - value) <= 2 * deviation)


# -- dtypes and extremes ---------------------------------------------------------------------------------------


@rows
def test_float32_stays_float32(row):
    params = row.params.astype(jnp.float32)
    n = len(row.values)
    x = row.factor.sample(jax.random.key(0), params)
    drawn = row.factor.from_uniform(params, jnp.full((n, row.factor.num_uniforms), 0.3, jnp.float32))
    if row.discrete:
        assert jnp.issubdtype(x.dtype, jnp.integer) and jnp.issubdtype(drawn.dtype, jnp.integer)
    else:
        assert x.dtype == drawn.dtype == jnp.float32
        assert row.factor.start(x).dtype == jnp.float32
    if row.factor.reparameterised:
        assert row.factor.from_normal(params, jnp.ones(n, jnp.float32)).dtype == jnp.float32
    wide = row.params.astype(jnp.float32).astype(jnp.float64)
    for name, args, tolerance in [
        ("log_prob", (x,), 1e-4),
        ("score", (x,), 1e-3),
        ("hessian", (x,), 1e-3),
        ("entropy", (), 1e-4),
        ("fisher", (), 1e-4),
        ("mean", (), 1e-5),
        ("variance", (), 1e-4),
    ]:
        own = getattr(row.factor, name)(params, *args)
        assert own.dtype == jnp.float32, name
        exact = getattr(row.factor, name)(wide, *(a if row.discrete else a.astype(jnp.float64) for a in args))
        scale = float(jnp.abs(exact).max())
        np.testing.assert_allclose(own, exact, rtol=tolerance, atol=tolerance * scale, err_msg=name)


def poisson_entropy(rate):
    """The entropy as a sum over 4,000 counts."""
    counts = np.arange(4000)
    log_p = stats.poisson(rate).logpmf(counts)
    return -np.sum(np.exp(log_p) * log_p)


@pytest.mark.parametrize("rate", [1e-4, 0.3, 5.0, 20.0, 29.999, 30.0, 30.001, 60.0, 500.0, 1900.0])
def test_entropy_of_a_poisson_on_both_sides_of_its_switch(rate):
    own = float(factors.Poisson().entropy(jnp.log(jnp.array([[rate]])))[0])
    # Below, a sum to rounding; above, an asymptotic series whose first term left out is 1.4 / rate^6.
    bound = 2e-13 if rate < 30.0 else 3.0 * rate**-6 + 2e-13
    assert bound < 1e-8
    assert abs(own - poisson_entropy(rate)) <= bound


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("log_rate", [-800.0, -90.0, -20.0, 3.4011973816621555, 20.0, 80.0])
def test_derivatives_of_the_entropy_of_a_poisson_are_finite(log_rate, dtype):
    params = jnp.array([[log_rate]], dtype)
    value, gradient = jax.value_and_grad(lambda p: factors.Poisson().entropy(p).sum())(params)
    second = jax.hessian(lambda p: factors.Poisson().entropy(p).sum())(params)
    assert np.isfinite(value) and np.all(np.isfinite(gradient)) and np.all(np.isfinite(second))
    if log_rate > 3:
        # ln of the rate adds one half of itself to the entropy: the slope is 1/2 + 1/(12 rate) + ...
        np.testing.assert_allclose(gradient, 0.5 + np.exp(-log_rate) / 12, rtol=1e-3)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("log_above", [-4.0, 2.0, 3.2, 3.3, 6.0, 10.0, 14.0, 18.0])
def test_student_t_keeps_its_digits_as_it_becomes_normal(log_above, dtype):
    params = jnp.array([[0.3, -0.5, log_above]], dtype)
    fisher = np.asarray(factors.StudentT().fisher(params), np.float64)[0]
    assert np.linalg.eigvalsh(fisher).min() > 0
    df = 4 + np.exp(log_above)
    if df > 300:
        # Leading terms in 1/df: entropy 1/df above the normal's, information 7/(2 df^4) on df itself.
        entropy = float(factors.StudentT().entropy(params)[0])
        normal = 0.5 * np.log(2 * np.pi * np.e) - 0.5
        np.testing.assert_allclose(entropy, normal + 1 / df, atol=float(jnp.finfo(dtype).eps) * 8 + df**-2)
        np.testing.assert_allclose(fisher[2, 2], 3.5 * (df - 4) ** 2 / df**4, rtol=0.02)


@pytest.mark.parametrize(
    "function", [student_t.log_normaliser, student_t.standard_entropy, student_t.tail_information]
)
def test_student_t_series_meet_the_exact_forms(function, monkeypatch):
    def derivatives(df):
        return [
            float(f(jnp.asarray(df))) for f in (function, jax.grad(function), jax.grad(jax.grad(function)))
        ]

    for df in (30.0, 45.0):
        series = derivatives(df)
        with monkeypatch.context() as patch:
            patch.setattr(student_t, "_LARGE", 1e3)
            exact = derivatives(df)
        np.testing.assert_allclose(series, exact, rtol=2e-11)


def test_normalisers_do_not_lean_on_betaln():
    """JAX's betaln is off by 5e-7 in float64 where one argument passes 8; entropies must not inherit it."""
    a, b = 8.0, 0.5
    params = jnp.log(jnp.array([[a, b]]))
    np.testing.assert_allclose(factors.Beta().entropy(params)[0], stats.beta(a, b).entropy(), rtol=1e-12)
    df = 16.0
    own = student_t.log_normaliser(jnp.asarray(df))
    expected = 0.5 * np.log(df) + special.betaln(df / 2, 0.5)
    np.testing.assert_allclose(own, expected, rtol=1e-14)


def test_equal_factors_are_equal_and_hash_alike():
    assert factors.Normal() == factors.Normal() and hash(factors.Normal()) == hash(factors.Normal())
    assert factors.Categorical(3, 1) == factors.Categorical(3, 1) != factors.Categorical(3, 0)
    assert factors.Normal() != factors.LogNormal()
    with pytest.raises(ValueError, match="size"):
        _ = factors.Dirichlet().num_params
