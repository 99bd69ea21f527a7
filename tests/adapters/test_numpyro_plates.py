"""Local latents that from_numpyro finds in plates: against NumPyro's densities, enumeration and models by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import init_to_value, util

import curvi
import reference_models as examples
from curvi import FactoredTarget, MeanField, Target
from curvi.adapters import from_numpyro
from curvi.methods import GrowingDraws, PlateRegression
from curvi.methods.base import Problem
from curvi.methods.defaults import default_method
from curvi.model.factored import check_rows, num_values
from reference_models.exact import basin, enumerated_elbo

N = 6
RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=N)
COUNTS = np.array([0, 3, 0, 1, 2, 0])
SEEN = np.array([True, False, True, True, False, True])
GROUPS = np.array([0, 0, 1, 2, 2, 2, 5])


def run(target, **settings):
    return curvi.fit(target, **{"key": jax.random.key(0), "progress": False, **settings})


# -- models with local latents -------------------------------------------------------------------------------


def mixture(values=VALUES):
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0).expand([3]))
    with numpyro.plate("rows", len(values)):
        part = numpyro.sample("part", dist.Categorical(share))
        numpyro.sample("value", dist.Normal(mean[part], 1.0), obs=values)


def mixture_of_vectors():
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0).expand([3, 2]).to_event(2))
    with numpyro.plate("rows", N):
        part = numpyro.sample("part", dist.Categorical(logits=jnp.arange(3.0)))
        numpyro.sample("value", dist.MultivariateNormal(mean[part], 2 * jnp.eye(2)), obs=np.outer(VALUES, [1, 2]))
        numpyro.sample("kind", dist.Categorical(logits=mean[part]), obs=np.arange(N) % 2)


def zero_inflated(counts=COUNTS):
    """Rows of positive counts cannot be structural zeros: their log density is -inf there."""
    zero = numpyro.sample("zero", dist.Beta(1.0, 1.0))
    rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
    numpyro.deterministic("mean_count", (1 - zero) * rate)
    with numpyro.plate("rows", len(counts)):
        absent = numpyro.sample("absent", dist.Bernoulli(zero))
        seen = numpyro.deterministic("seen", jnp.where(absent == 1, 0.0, rate))
        numpyro.sample("count", dist.Poisson(seen), obs=counts)


def masked_and_scaled():
    chance = numpyro.sample("chance", dist.Beta(2.0, 2.0))
    with handlers.scale(scale=0.5), numpyro.plate("rows", N):
        bit = numpyro.sample("bit", dist.Bernoulli(chance))
        with handlers.mask(mask=SEEN), handlers.scale(scale=np.arange(1.0, N + 1)):
            numpyro.sample("value", dist.Normal(chance * bit, 1.0), obs=VALUES)
        with handlers.mask(mask=bit == 1):
            numpyro.sample("other", dist.Normal(chance, 2.0), obs=VALUES)
        numpyro.factor("pull", jnp.where(bit == 1, VALUES, chance))
    numpyro.factor("outside", -(chance**2))


def two_plates():
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", N):
        bit = numpyro.sample("bit", dist.Bernoulli(0.3))
        numpyro.sample("value", dist.Normal(bit, scale), obs=VALUES)
    with numpyro.plate("columns", 4):
        number = numpyro.sample("number", dist.DiscreteUniform(-1, 2))
        numpyro.sample("other", dist.Normal(number, scale), obs=VALUES[:4])


def two_latents_apart():
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", N):
        bit = numpyro.sample("bit", dist.Bernoulli(0.3))
        trials = numpyro.sample("trials", dist.Binomial(3, 0.4))
        numpyro.sample("value", dist.Normal(bit, scale), obs=VALUES)
        numpyro.sample("other", dist.Normal(trials, scale), obs=VALUES)


def continuous_rows():
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("rows", N):
        bit = numpyro.sample("bit", dist.Bernoulli(0.3))
        effect = numpyro.sample("effect", dist.Normal(2.0 * bit, spread))
        numpyro.sample("value", dist.Normal(effect, 1.0), obs=VALUES)


def several_values_a_row():
    """Rows on the last axis, and another plate before it for the observations only."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([2]))
    with numpyro.plate("rows", N, dim=-1):
        bit = numpyro.sample("bit", dist.Bernoulli(0.3))
        with numpyro.plate("times", 3, dim=-2):
            numpyro.sample("value", dist.Normal(mean[bit], 1.0), obs=np.stack([VALUES, VALUES**2, COUNTS]))


def some_meet():
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", N):
        first = numpyro.sample("first", dist.Bernoulli(0.3))
        second = numpyro.sample("second", dist.Bernoulli(0.4))
        numpyro.sample("value", dist.Normal(first + second, scale), obs=VALUES)
    with numpyro.plate("columns", 4):
        bit = numpyro.sample("bit", dist.Bernoulli(0.3))
        numpyro.sample("other", dist.Normal(bit, scale), obs=VALUES[:4])


def beside_a_mixing_latent():
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", N):
        first = numpyro.sample("first", dist.Bernoulli(0.3))
        second = numpyro.sample("second", dist.Bernoulli(0.4))
        numpyro.sample("value", dist.Normal(first + second[::-1], scale), obs=VALUES)


def support_from_a_latent():
    """NumPyro's own validation is part of this density."""
    lowest = numpyro.sample("lowest", dist.Normal(-5.0, 0.1))
    with numpyro.plate("rows", N):
        bit = numpyro.sample("bit", dist.Bernoulli(0.3))
        numpyro.sample("value", dist.Uniform(lowest, 5.0 + bit), obs=jnp.asarray(VALUES))


FACTORED = {
    mixture: {"part": {"part", "value"}},
    mixture_of_vectors: {"part": {"part", "value", "kind"}},
    zero_inflated: {"absent": {"absent", "count"}},
    masked_and_scaled: {"bit": {"bit", "value", "other", "pull"}},
    # The density of a uniform is the same everywhere: its site does not depend on it.
    two_plates: {"bit": {"bit", "value"}, "number": {"other"}},
    two_latents_apart: {"bit": {"bit", "value"}, "trials": {"trials", "other"}},
    continuous_rows: {"bit": {"bit", "effect"}},
    several_values_a_row: {"bit": {"bit", "value"}},
    some_meet: {"bit": {"bit", "other"}},
    beside_a_mixing_latent: {"first": {"first", "value"}},
    support_from_a_latent: {"bit": {"bit", "value"}},
}
models = pytest.mark.parametrize("model", FACTORED, ids=lambda model: model.__name__)


def random_point(target, key):
    theta = {}
    for latent, k in zip(target.latents, jax.random.split(key, len(target.latents))):
        if latent.discrete:
            low, count = num_values(latent)
            theta[latent.name] = jax.random.randint(k, latent.shape, low, low + count, latent.dtype)
        else:
            transform = biject_to(latent.support)
            theta[latent.name] = transform(jax.random.normal(k, transform.inverse_shape(latent.shape)))
    return theta


@models
def test_structure_is_found(model):
    target = from_numpyro(model)
    assert isinstance(target, FactoredTarget)
    assert {name: set(sites) for name, sites in target.local} == FACTORED[model]
    assert target.order == 2
    assert check_rows(target) == 1 + len(target.local)


@models
def test_density_is_numpyros(model):
    target = from_numpyro(model)
    density = jax.jit(target.full())
    reference = jax.jit(lambda theta: util.log_density(model, (), {}, theta)[0])
    finite = 0
    for key in jax.random.split(jax.random.key(0), 20):
        theta = random_point(target, key)
        np.testing.assert_allclose(density(theta), reference(theta), rtol=1e-12)
        finite += np.isfinite(density(theta))
    assert finite > 0


@models
def test_model_runs_as_often_as_before(model):
    """Once for the sites, once for the densities, and once for deterministic sites."""
    count = 0

    def counted():
        nonlocal count
        count += 1
        model()

    target = from_numpyro(counted)
    assert count == 2 + (target.outputs is not None)
    jax.jit(target.full())(target.init)
    assert count == 2 + (target.outputs is not None)


# -- models without --------------------------------------------------------------------------------------------


def used_outside():
    bit = mixture_rows()
    numpyro.sample("total", dist.Normal(jnp.sum(bit), 1.0), obs=2.0)


def mixture_rows():
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", N):
        bit = numpyro.sample("bit", dist.Bernoulli(0.3))
        numpyro.sample("value", dist.Normal(bit, scale), obs=VALUES)
    return bit


def turned_round():
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", N):
        bit = numpyro.sample("bit", dist.Bernoulli(0.3))
        numpyro.sample("value", dist.Normal(bit[::-1], scale), obs=VALUES)


def neighbours():
    bit = mixture_rows()
    numpyro.factor("smooth", 0.3 * jnp.sum(bit[1:] == bit[:-1]))


def scanned_rows():
    bit = mixture_rows()
    numpyro.factor("smooth", 0.1 * lax.scan(lambda carry, b: (0.5 * carry + b, None), 0.0, bit)[0])


def grouped():
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("groups", N):
        bit = numpyro.sample("bit", dist.Bernoulli(0.3))
    with numpyro.plate("rows", len(GROUPS)):
        numpyro.sample("value", dist.Normal(bit[GROUPS], scale), obs=np.arange(7.0))


def chain():
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", N):
        first = numpyro.sample("first", dist.Bernoulli(0.3))
        second = numpyro.sample("second", dist.Bernoulli(jnp.array([0.2, 0.7])[first]))
        numpyro.sample("value", dist.Normal(second, scale), obs=VALUES)


def no_globals():
    with numpyro.plate("rows", N):
        bit = numpyro.sample("bit", dist.Bernoulli(0.3))
        numpyro.sample("value", dist.Normal(bit, 1.0), obs=VALUES)


def rows_on_another_axis():
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", N, dim=-2):
        bit = numpyro.sample("bit", dist.Bernoulli(0.3))
        numpyro.sample("value", dist.Normal(bit, scale), obs=VALUES[:, None])


def nested():
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", N), numpyro.plate("columns", 2):
        bit = numpyro.sample("bit", dist.Bernoulli(0.3))
        numpyro.sample("value", dist.Normal(bit, scale), obs=np.stack([VALUES, VALUES]))


def unbounded():
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", N):
        number = numpyro.sample("number", dist.Poisson(1.5))
        numpyro.sample("value", dist.Normal(number, scale), obs=VALUES)


def no_plate():
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    bit = numpyro.sample("bit", dist.Bernoulli(0.3).expand([N]))
    numpyro.sample("value", dist.Normal(bit, scale), obs=VALUES)


def one_row():
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", 1):
        bit = numpyro.sample("bit", dist.Bernoulli(0.3))
        numpyro.sample("value", dist.Normal(bit, scale), obs=VALUES[:1])


def untouched():
    numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", N), handlers.mask(mask=False):
        numpyro.sample("bit", dist.Bernoulli(0.3))


PLAIN = (used_outside, turned_round, neighbours, scanned_rows, grouped, chain, no_globals, rows_on_another_axis)
PLAIN += (nested, unbounded, no_plate, one_row, untouched)


@pytest.mark.parametrize("model", PLAIN, ids=lambda model: model.__name__)
def test_what_is_not_shown_is_not_claimed(model):
    target = from_numpyro(model)
    assert isinstance(target, Target)
    reference = util.log_density(model, (), {}, target.init)[0]
    np.testing.assert_allclose(target.full()(target.init), reference, rtol=1e-12)


# -- fits ------------------------------------------------------------------------------------------------------


def test_small_mixture_is_that_by_hand():
    values = examples.mixture_data(200)
    by_hand = examples.mixture(values)
    start = {name: by_hand.init[name] for name in ("mean", "share")}
    fit = run(from_numpyro(mixture, values, init_strategy=init_to_value(values=start)), tolerance=0.01)
    other = run(by_hand, tolerance=0.01)
    assert isinstance(fit.method, PlateRegression) and fit.converged and other.converged
    # The model by hand leaves out the constants of its priors.
    constants = -3 * np.log(5 * np.sqrt(2 * np.pi)) + np.log(2)
    assert abs(fit.elbo - other.elbo - constants) < 0.02 + 4 * np.hypot(fit.elbo_se, other.elbo_se)
    for name, atol in {"mean": 0.03, "share": 0.01, "part": 0.04}.items():
        np.testing.assert_allclose(fit.mean()[name], other.mean()[name], atol=atol)


def test_fit_against_enumeration():
    coupling = RNG.normal(size=(N, 3, 3))

    def model():
        bits = numpyro.sample("bits", dist.Bernoulli(np.array([0.3, 0.6, 0.5])))
        with numpyro.plate("rows", N):
            part = numpyro.sample("part", dist.Categorical(np.array([0.2, 0.3, 0.5])))
            logits = jnp.asarray(coupling) @ bits.astype(float)
            numpyro.factor("fits", jnp.take_along_axis(logits, part[:, None], 1)[:, 0])

    target = from_numpyro(model)
    elbo = enumerated_elbo(target)
    fit = run(target, tolerance=1e-3)
    assert isinstance(target, FactoredTarget) and fit.converged
    assert basin(elbo, fit.q.params)[1] - float(elbo(fit.q.params)) < 0.01
    assert abs(fit.elbo - float(elbo(fit.q.params))) < 5 * fit.elbo_se + 0.01


def test_impossible_values_of_a_row():
    counts = np.where(np.arange(60) % 3 == 0, 0, np.random.default_rng(1).poisson(3.0, 60))
    fit = run(from_numpyro(zero_inflated, counts), tolerance=0.01)
    assert fit.converged and np.isfinite(fit.elbo)
    absent = fit.mean()["absent"]
    assert np.all(absent[counts > 0] < 1e-6) and np.all(absent[counts == 0] > 0.5)
    # Rows of count zero have one probability, that of Bayes' rule at the means of the logarithms.
    draws = fit.sample(jax.random.key(1), 4000)
    odds = np.mean(np.log(draws["zero"]) - np.log1p(-draws["zero"])) + np.mean(draws["rate"])
    np.testing.assert_allclose(np.mean(absent[counts == 0]), 1 / (1 + np.exp(-odds)), atol=0.03)


def test_values_that_are_impossible_only_sometimes_are_told():
    def model():
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", N):
            bit = numpyro.sample("bit", dist.Bernoulli(0.3))
            numpyro.factor("odd", jnp.where((bit == 1) & (mean > 0), -jnp.inf, 0.0))

    with pytest.raises(ValueError, match="-inf at all draws"):
        run(from_numpyro(model))


def test_predictions_and_outputs():
    fit = run(from_numpyro(zero_inflated))
    groups = fit.predictive(jax.random.key(0), 8)
    assert set(groups["posterior"]) >= {"zero", "rate", "absent", "mean_count", "seen"}
    assert groups["posterior_predictive"]["count"].shape == groups["log_likelihood"]["count"].shape == (8, N)
    draws = groups["posterior"]
    np.testing.assert_allclose(draws["mean_count"], (1 - draws["zero"]) * draws["rate"])
    np.testing.assert_array_equal(fit.target.origin.observed_data["count"], COUNTS)


def test_many_globals_are_fitted_as_without_structure():
    """Least squares on more than 512 parameters needs more draws than there are."""

    def model():
        with numpyro.plate("rows", 300):
            bit = numpyro.sample("bit", dist.Bernoulli(0.3))
            numpyro.sample("effect", dist.Normal(2.0 * bit, 1.0))

    target = from_numpyro(model)
    assert isinstance(target, FactoredTarget)
    assert isinstance(default_method(Problem(target, MeanField(target)))[0], GrowingDraws)


def test_ten_thousand_assignments():
    values = examples.mixture_data(10_000)
    fit = run(from_numpyro(mixture, values))
    assert fit.converged
    order = np.argsort(fit.mean()["mean"])
    np.testing.assert_allclose(fit.mean()["mean"][order], [-3, 0, 4], atol=0.08)
    np.testing.assert_allclose(fit.mean()["share"][order], [0.3, 0.5, 0.2], atol=0.02)
