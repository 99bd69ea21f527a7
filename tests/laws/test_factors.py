"""Laws that every factor obeys: exact, by quadrature or enumeration, where they can be; else by z-scores."""

import dataclasses
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factor_registry import ROWS, Row
from jax.scipy.special import ndtri
from law_statistics import assert_zero_mean
from scipy import special, stats

from curvi import factors
from curvi.family import Factor
from curvi.family import student_t_functions as student_t

NUM_DRAWS = 8_000
BY_NAME = {row.name: row for row in ROWS}

rows = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
lines = pytest.mark.parametrize(
    "row", [row for row in ROWS if not row.discrete and row.name != "Dirichlet"], ids=lambda row: row.name
)
discrete = pytest.mark.parametrize("row", [row for row in ROWS if row.discrete], ids=lambda row: row.name)


# What is compiled here runs once: time spent on optimising it is lost.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def outer(s):
    return s[..., :, None] * s[..., None, :]


@lru_cache
def evaluate(name: str, factor: Factor) -> dict:
    """What the laws speak of, at the parameters of a row of the registry, as numpy arrays."""
    row = BY_NAME[name]

    def at(params, x):
        return {
            "log_prob": factor.log_prob(params, x),
            "score": factor.score(params, x),
            "hessian": factor.hessian(params, x),
        }

    def entropy_sum(params):
        return factor.entropy(params).sum()

    @quick_jit
    def run(params, nodes, keys):
        draws = jax.vmap(factor.sample, (0, None))(keys, params)
        # One map over both, which is half the code to compile.
        everywhere = jax.vmap(at, (None, 0))(params, jnp.concatenate([nodes, draws.astype(nodes.dtype)]))
        return {
            "at_nodes": jax.tree.map(lambda leaf: leaf[: len(nodes)], everywhere),
            "at_draws": jax.tree.map(lambda leaf: leaf[len(nodes) :], everywhere),
            "draws": draws,
            "fisher": factor.fisher(params),
            "entropy": factor.entropy(params),
            "entropy_gradient": jax.grad(entropy_sum)(params),
            "mean": factor.mean(params),
            "variance": factor.variance(params),
        }

    keys = jax.random.split(jax.random.key(7), NUM_DRAWS)
    return jax.tree.map(np.asarray, run(row.params, row.nodes, keys))


# -- the laws, as functions of a row and a factor, so that wrong factors can be put through them ------------


def assert_expectation(row: Row, terms, expected):
    """E_q[terms] by the rule of the row against `expected`, to the tolerance of the rule."""
    weights = row.weights.reshape(row.weights.shape + (1,) * (terms.ndim - 2))
    # A node of no weight may lie where ln q is minus infinity.
    products = weights * np.where(weights > 0, terms, 0)
    size = max(np.abs(products).sum(0).max(), 1.0)
    np.testing.assert_allclose(products.sum(0), expected, rtol=0, atol=row.tolerance * size)


def law_scores_have_mean_zero(row: Row, factor: Factor):
    assert_expectation(row, evaluate(row.name, factor)["at_nodes"]["score"], 0.0)


def law_second_bartlett_identity(row: Row, factor: Factor):
    at = evaluate(row.name, factor)["at_nodes"]
    assert_expectation(row, outer(at["score"]) + at["hessian"], 0.0)


def law_fisher_is_minus_mean_hessian(row: Row, factor: Factor):
    of = evaluate(row.name, factor)
    assert_expectation(row, -of["at_nodes"]["hessian"], of["fisher"])


def law_fisher_is_covariance_of_scores(row: Row, factor: Factor):
    of = evaluate(row.name, factor)
    assert_expectation(row, outer(of["at_nodes"]["score"]), of["fisher"])


def law_draws_have_mean_zero_scores(row: Row, factor: Factor):
    at = evaluate(row.name, factor)["at_draws"]
    assert_zero_mean(at["score"])
    assert_zero_mean(outer(at["score"]) + at["hessian"])


LAWS = [
    law_scores_have_mean_zero,
    law_second_bartlett_identity,
    law_fisher_is_minus_mean_hessian,
    law_fisher_is_covariance_of_scores,
    law_draws_have_mean_zero_scores,
]


@rows
def test_rule_of_the_registry_sums_to_one(row):
    np.testing.assert_allclose(row.weights.sum(0), 1.0, rtol=1e-10)


@rows
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(row, law):
    law(row, row.factor)


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
    """A Normal whose Hessian lacks the factor 2 of its entry for log sigma."""

    def hessian(self, params, x):
        return factors.Normal().hessian(params, x) * jnp.array([[1.0, 1.0], [1.0, 0.5]])


@dataclasses.dataclass(frozen=True)
class WrongSampler(factors.Normal):
    """A Normal that samples with 6 % too large a scale."""

    def sample(self, key, params):
        return factors.Normal().sample(key, params + jnp.array([0.0, 0.06]))


@pytest.mark.parametrize(
    "wrong, failing",
    [
        (WrongFisher(), {law_fisher_is_minus_mean_hessian, law_fisher_is_covariance_of_scores}),
        (WrongScore(), {*LAWS} - {law_fisher_is_minus_mean_hessian}),
        (WrongHessian(), {*LAWS} - {law_scores_have_mean_zero, law_fisher_is_covariance_of_scores}),
        (WrongSampler(), {law_draws_have_mean_zero_scores}),
    ],
    ids=lambda case: type(case).__name__,
)
def test_wrong_factors_fail_the_laws_that_they_break(wrong, failing):
    for law in LAWS:
        if law in failing:
            with pytest.raises(AssertionError):
                law(BY_NAME["Normal"], wrong)
        else:
            law(BY_NAME["Normal"], wrong)


def test_zero_mean_helper_sees_a_tenth_of_a_deviation():
    noise = np.random.default_rng(0).normal(size=(4000, 3))
    assert_zero_mean(noise)
    with pytest.raises(AssertionError, match="standard errors"):
        assert_zero_mean(noise + np.array([0.0, 0.1, 0.0]))
    assert_zero_mean(np.zeros((10, 2)))
    with pytest.raises(AssertionError):
        assert_zero_mean(np.full((10, 2), 1e-3))


# -- closed forms against autodiff, scipy and finite differences -------------------------------------------


@rows
def test_log_prob_is_scipys(row):
    some = slice(None, None, max(1, len(row.nodes) // 40))
    own = evaluate(row.name, row.factor)["at_nodes"]["log_prob"][some]
    for column, oracle in enumerate(row.oracles):
        nodes = np.asarray(row.nodes)[some, column]
        if row.name == "Dirichlet":
            constant = special.gammaln(oracle.alpha.sum()) - special.gammaln(oracle.alpha).sum()
            expected = np.log(nodes) @ (oracle.alpha - 1) + constant
        else:
            expected = (oracle.logpmf if row.discrete else oracle.logpdf)(nodes)
        np.testing.assert_allclose(own[:, column], expected, rtol=1e-9, atol=1e-9)


@rows
def test_score_and_hessian_are_derivatives_of_log_prob(row):
    of = evaluate(row.name, row.factor)

    def one(params, value):
        return row.factor.log_prob(params[None], value[None])[0]

    @quick_jit
    def by_autodiff(params, x):
        both = jax.vmap(lambda p, v: (jax.grad(one)(p, v), jax.hessian(one)(p, v)))
        return jax.vmap(both, (None, 0))(params, x)

    score, hessian = by_autodiff(row.params, of["draws"][:5])
    n, k = row.params.shape
    assert of["at_draws"]["score"].shape == (NUM_DRAWS, n, k)
    assert of["at_draws"]["hessian"].shape == (NUM_DRAWS, n, k, k)
    np.testing.assert_allclose(of["at_draws"]["score"][:5], score, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(of["at_draws"]["hessian"][:5], hessian, rtol=1e-9, atol=1e-9)


@rows
def test_fisher_is_positive_definite(row):
    fisher = evaluate(row.name, row.factor)["fisher"]
    np.testing.assert_array_equal(fisher, np.swapaxes(fisher, -1, -2))
    assert np.linalg.eigvalsh(fisher).min() > 0


@rows
def test_entropy(row):
    of = evaluate(row.name, row.factor)
    assert_expectation(row, -of["at_nodes"]["log_prob"], of["entropy"])
    expected = [float(oracle.entropy()) for oracle in row.oracles]
    np.testing.assert_allclose(of["entropy"], expected, rtol=1e-7, atol=1e-7)
    assert_zero_mean(-of["at_draws"]["log_prob"] - of["entropy"])


@pytest.mark.parametrize("row", [row for row in ROWS if row.factor.has_kl], ids=lambda row: row.name)
def test_kl(row):
    log_prob = evaluate(row.name, row.factor)["at_nodes"]["log_prob"]
    other = row.params + 0.05 * jnp.cos(jnp.arange(row.params.size)).reshape(row.params.shape)
    divergence, elsewhere = quick_jit(
        lambda p, x: (row.factor.kl(row.params, p), jax.vmap(row.factor.log_prob, (None, 0))(p, x))
    )(other, row.nodes)
    assert np.all(divergence > 0)
    # Both are minus infinity only where a node has no weight.
    with np.errstate(invalid="ignore"):
        assert_expectation(row, log_prob - np.asarray(elsewhere), divergence)


@pytest.mark.parametrize("name", ["Bernoulli", "Categorical"])
def test_raised_factors_have_no_rare_value(name):
    row = BY_NAME[name]
    floored = row.factor.with_min_probability(50 * row.params, 0.01)
    probability = np.exp(jax.vmap(row.factor.log_prob, (None, 0))(floored, row.nodes))
    assert 0.009 < probability.min() < 0.011
    np.testing.assert_allclose(row.factor.with_min_probability(floored, 0.001), floored, rtol=1e-12)


@rows
def test_gradient_of_the_entropy(row):
    """Against finite differences, and against the identity grad H = -E[s ln q]."""
    of = evaluate(row.name, row.factor)
    step, entropy = 1e-5, quick_jit(row.factor.entropy)
    for i, shift in enumerate(step * jnp.eye(row.factor.num_params)):
        slope = (entropy(row.params + shift) - entropy(row.params - shift)) / (2 * step)
        np.testing.assert_allclose(of["entropy_gradient"][:, i], slope, rtol=1e-6, atol=1e-7)
    at = of["at_nodes"]
    log_q = np.where(np.isfinite(at["log_prob"]), at["log_prob"], 0)
    assert_expectation(row, -at["score"] * log_q[..., None], of["entropy_gradient"])


@rows
def test_mean_and_variance(row):
    of = evaluate(row.name, row.factor)
    np.testing.assert_allclose(of["mean"], [np.asarray(o.mean()) for o in row.oracles], rtol=1e-10)
    np.testing.assert_allclose(of["variance"], [np.asarray(o.var()) for o in row.oracles], rtol=1e-10)


# -- draws ---------------------------------------------------------------------------------------------------


@rows
def test_sample_has_mean_and_variance(row):
    of = evaluate(row.name, row.factor)
    off = of["draws"].astype(np.float64) - of["mean"]
    assert_zero_mean(off)
    assert_zero_mean(off**2 - of["variance"])


def at_quantiles(row, u):
    """Draws (len(u), n) that all factors of a row make of the same uniform numbers."""
    spread = jnp.broadcast_to(jnp.asarray(u)[:, None, None], (len(u), len(row.values), 1))
    return quick_jit(jax.vmap(row.factor.from_uniform, (None, 0)))(row.params, spread)


@lines
def test_from_uniform_is_the_quantile_function(row):
    u = np.concatenate([[1e-6, 1e-3], np.linspace(0.02, 0.98, 25), [1 - 1e-3, 1 - 1e-6]])
    expected = np.stack([oracle.ppf(u) for oracle in row.oracles], -1)
    np.testing.assert_allclose(at_quantiles(row, u), expected, rtol=1e-9, atol=1e-11)


@discrete
def test_from_uniform_is_the_quantile_function_of_counts(row):
    u = np.random.default_rng(2).uniform(size=500)
    own = at_quantiles(row, u)
    np.testing.assert_array_equal(own, np.stack([oracle.ppf(u) for oracle in row.oracles], -1))
    assert jnp.issubdtype(own.dtype, jnp.integer)


def test_from_uniform_of_a_dirichlet_has_beta_margins():
    row = BY_NAME["Dirichlet"]
    u = jax.random.uniform(jax.random.key(1), (600, len(row.values), row.factor.num_uniforms))
    x = np.asarray(quick_jit(jax.vmap(row.factor.from_uniform, (None, 0)))(row.params, u))
    np.testing.assert_allclose(x.sum(-1), 1.0, rtol=1e-12)
    for column, oracle in enumerate(row.oracles):
        for i, a in enumerate(oracle.alpha):
            margin = stats.beta(a, oracle.alpha.sum() - a)
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
    noise = jax.random.normal(jax.random.key(8), (NUM_DRAWS, n))

    def difference(params, e):
        """Pathwise less score-function estimate of the gradient of E[sin(x / 3)]."""

        def value(params):
            return jnp.sin(row.factor.from_normal(params, e) / 3)

        path = jax.grad(lambda params: value(params).sum())(params)
        return path - value(params)[:, None] * row.factor.score(params, row.factor.from_normal(params, e))

    assert_zero_mean(quick_jit(jax.vmap(difference, (None, 0)))(row.params, noise))
    second = quick_jit(jax.hessian(lambda params: row.factor.from_normal(params, noise[0]).sum()))(row.params)
    assert np.all(np.isfinite(second)) and np.any(second != 0)


@rows
def test_start_is_near_the_value(row):
    value = evaluate(row.name, row.factor)["mean"]
    start = row.factor.start(np.asarray(np.round(value).astype(np.int32) if row.discrete else value))
    assert start.shape == row.params.shape
    deviation = np.sqrt(np.asarray(row.factor.variance(start)))
    assert np.all(np.abs(np.asarray(row.factor.mean(start)) - value) <= 2 * deviation)


# -- dtypes and extremes -------------------------------------------------------------------------------------


@rows
def test_float32_stays_float32(row):
    """Under x64, where anything that forgets its dtype turns into float64."""
    factor, n = row.factor, len(row.values)
    of = evaluate(row.name, factor)

    def closed_forms(params, x):
        return {
            "log_prob": factor.log_prob(params, x),
            "fisher": factor.fisher(params),
            "entropy": factor.entropy(params),
            "mean": factor.mean(params),
            "variance": factor.variance(params),
        }

    def derivatives(params, x):
        return factor.score(params, x), factor.hessian(params, x), jax.grad(lambda p: factor.entropy(p).sum())(params)

    def draws(params, key):
        u = jnp.full((n, factor.num_uniforms), 0.3, jnp.float32)
        path = [factor.from_normal(params, u[:, 0])] if factor.reparameterised else []
        return [factor.sample(key, params), factor.from_uniform(params, u), *path]

    x = jnp.asarray(of["draws"][0])
    x = x if row.discrete else x.astype(jnp.float32)
    params = row.params.astype(jnp.float32)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(jax.eval_shape(derivatives, params, x)))
    for draw in jax.eval_shape(draws, params, jax.random.key(0)):
        assert jnp.issubdtype(draw.dtype, jnp.integer) if row.discrete else draw.dtype == jnp.float32
    assert row.discrete or factor.start(np.asarray(x)).dtype == np.float32
    for name, own in quick_jit(closed_forms)(params, x).items():
        assert own.dtype == jnp.float32, name
        exact = of[name] if name in of else of["at_draws"][name][0]
        np.testing.assert_allclose(own, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max(), err_msg=name)


def poisson_entropy(rate):
    """The entropy as a sum over 4,000 counts."""
    counts = np.arange(4000)
    log_p = stats.poisson(rate).logpmf(counts)
    return -np.sum(np.exp(log_p) * log_p)


@pytest.mark.parametrize("rate", [1e-4, 0.3, 5.0, 20.0, 29.999, 30.0, 30.001, 60.0, 500.0, 1900.0])
def test_entropy_of_a_poisson_on_both_sides_of_its_switch(rate):
    own = float(factors.Poisson().entropy(jnp.log(jnp.array([[rate]])))[0])
    # Below, a sum to rounding; above, an asymptotic series whose first term left out is 1.4 / rate^6.
    left_out = 0.0 if rate < 30.0 else 3.0 * rate**-6
    assert left_out < 1e-8
    rounding = 1e-14 * max(rate, 30.0)
    assert abs(own - poisson_entropy(rate)) <= left_out + rounding


POISSON_SLOPE = quick_jit(jax.value_and_grad(lambda p: factors.Poisson().entropy(p).sum()))
POISSON_CURVATURE = quick_jit(jax.hessian(lambda p: factors.Poisson().entropy(p).sum()))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("log_rate", [-800.0, -90.0, -20.0, 3.4011973816621555, 20.0, 80.0])
def test_derivatives_of_the_entropy_of_a_poisson_are_finite(log_rate, dtype):
    params = jnp.array([[log_rate]], dtype)
    value, gradient = POISSON_SLOPE(params)
    second = POISSON_CURVATURE(params)
    assert np.isfinite(value) and np.all(np.isfinite(gradient)) and np.all(np.isfinite(second))
    if log_rate > 3:
        # ln of the rate adds one half of itself to the entropy: the slope is 1/2 + 1/(12 rate) + ...
        np.testing.assert_allclose(gradient, 0.5 + np.exp(-log_rate) / 12, rtol=1e-3)


STUDENT_FISHER, STUDENT_ENTROPY = quick_jit(factors.StudentT().fisher), quick_jit(factors.StudentT().entropy)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("log_above", [-4.0, 2.0, 3.2, 3.3, 6.0, 10.0, 14.0, 18.0])
def test_student_t_keeps_its_digits_as_it_becomes_normal(log_above, dtype):
    params = jnp.array([[0.3, -0.5, log_above]], dtype)
    fisher = np.asarray(STUDENT_FISHER(params), np.float64)[0]
    assert np.linalg.eigvalsh(fisher).min() > 0
    df = 4 + np.exp(log_above)
    if df > 300:
        # Leading terms in 1/df: entropy 1/df above the normal's, information 7/(2 df^4) on df itself.
        entropy = float(STUDENT_ENTROPY(params)[0])
        normal = 0.5 * np.log(2 * np.pi * np.e) - 0.5
        np.testing.assert_allclose(entropy, normal + 1 / df, atol=float(jnp.finfo(dtype).eps) * 8 + df**-2)
        np.testing.assert_allclose(fisher[2, 2], 3.5 * (df - 4) ** 2 / df**4, rtol=0.02)


@pytest.mark.parametrize("function", [student_t.log_normaliser, student_t.standard_entropy, student_t.tail_information])
def test_student_t_series_meet_the_exact_forms(function, monkeypatch):
    def derivatives(df):
        return [float(f(jnp.asarray(df))) for f in (function, jax.grad(function), jax.grad(jax.grad(function)))]

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


@pytest.mark.parametrize("share", [0.5, 0.1])
@pytest.mark.parametrize("row", [row for row in ROWS if row.factor.values is not None], ids=lambda row: row.name)
def test_flattened_factors_are_flatter_and_never_exclude_a_value(row, share):
    count = len(row.factor.values)
    values = jnp.repeat(jnp.asarray(row.factor.values)[:, None], len(row.params), 1)
    own = np.exp(jax.vmap(row.factor.log_prob, (None, 0))(row.params, values))
    wide = np.exp(jax.vmap(row.factor.log_prob, (None, 0))(row.factor.flattened(row.params, share), values))
    np.testing.assert_allclose(wide.sum(0), 1, atol=1e-12)
    flat = np.sqrt(own) / np.sqrt(own).sum(0)
    np.testing.assert_allclose(wide, (1 - share) * flat + share / count, atol=1e-12)
