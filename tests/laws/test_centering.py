"""Laws of centring: a lambda never changes the model, its derivative is the ELBO's, and learning it never loses."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compile_log import compilations
from law_statistics import assert_zero_mean
from numpyro.distributions import constraints

import curvi
from curvi import FullRank, MeanField, Target
from curvi.estimate.fixed_draws.objective import Objective
from curvi.family.centering import (
    Centering,
    centerable,
    centered_columns,
    slope_terms,
    with_amounts,
    with_centering,
)

KEY = jax.random.key(0)
LAMBDAS = {"as written": 1.0, "middle": 0.4, "non-centred": 0.0, "by element": np.array([0.1, 0.9, 0.5, 0.0])}


def groups(standardised=False, dtype=float) -> Target:
    """Three effects on a scale around a location, and a positive number around one of them; normalised."""

    def log_density(t):
        loc, tau, a = t["loc"], t["tau"], t["a"]
        own = dist.Normal(0.0, 1.0) if standardised else dist.Normal(loc, tau)
        known = loc + tau * a if standardised else a
        top = dist.Normal(0.0, 1.0).log_prob(loc) + dist.LogNormal(-0.3, 0.5).log_prob(tau)
        return top + own.log_prob(a).sum() + dist.LogNormal(known[1] / 2, 0.5).log_prob(t["b"])

    def around_a(t):
        return t["loc"], t["tau"]

    def around_b(t):
        return (t["loc"] + t["tau"] * t["a"][1] if standardised else t["a"][1]) / 2, 0.5

    init = {
        "loc": np.array(0.2, dtype),
        "tau": np.array(0.8, dtype),
        "a": np.zeros(3, dtype),
        "b": np.array(1.0, dtype),
    }
    around = {"a": (around_a, standardised), "b": around_b}
    positive = {"tau": constraints.positive, "b": constraints.positive}
    return Target(log_density, init, positive, location_scale=around)


def centred(target, amounts, family=MeanField):
    q = family(target)
    shapes = {latent.name: latent.shape for latent in target.latents}
    q = with_centering(q, Centering.as_written(centerable(q, target.location_scale), shapes, q.params.dtype))
    return q.recentered(np.broadcast_to(amounts, 4).astype(float))


# -- the model stays what it is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("standardised", [False, True])
@pytest.mark.parametrize("name", LAMBDAS)
def test_the_jacobian_is_that_of_the_map(name, standardised):
    target = groups(standardised)
    q = centred(target, LAMBDAS[name])

    def latents(v):
        theta, _ = q.to_model(q.from_vector(v)[0])
        return jnp.concatenate([jnp.ravel(theta[latent.name]) for latent in target.latents])

    for seed in range(3):
        v = jax.random.normal(jax.random.key(seed), (6,))
        exact = jnp.linalg.slogdet(jax.jacfwd(latents)(v))[1]
        np.testing.assert_allclose(q.to_model(q.from_vector(v)[0])[1], exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", LAMBDAS)
def test_the_density_of_mapped_draws_integrates_to_one(name):
    """Weights p / q of a wide q average to the evidence, one; they would not with another Jacobian or another map."""
    target = groups()
    q = centred(target, LAMBDAS[name])
    q = q.replace(q.params.at[1::2].set(0.3))

    @jax.jit
    def ratio(key):
        x = q.sample(key)
        found = q.log_joint(target.full(), x) - q.log_prob(x)
        return found, found - jnp.log(q.to_model(x)[0]["tau"])  # the Jacobian of one element forgotten

    right, wrong = jax.vmap(ratio)(jax.random.split(KEY, 20_000))
    assert_zero_mean(np.expm1(right)[:, None])
    with pytest.raises(AssertionError):
        assert_zero_mean(np.expm1(wrong)[:, None])


@pytest.mark.parametrize("family", [MeanField, FullRank])
def test_a_q_in_other_coordinates_has_the_same_medians(family):
    target = groups()
    q = centred(target, 0.7, family)
    q = q.replace(q.params + 0.2 * jnp.sin(jnp.arange(q.num_params)))
    again = q.recentered(np.array([0.0, 1.0, 0.2, 0.4])).recentered(np.full(4, 0.7))
    np.testing.assert_allclose(again.params, q.params, rtol=1e-6, atol=1e-7)
    middle = lambda q: q.to_model(q.from_uniform(jnp.full(q.noise_size, 0.5)))[0]  # noqa: E731
    moved = q.recentered(np.zeros(4))
    for name, value in middle(q).items():
        np.testing.assert_allclose(middle(moved)[name], value, rtol=1e-6)
    assert np.abs(moved.params - q.params).max() > 0.01


def test_both_forms_of_a_model_have_the_same_coordinates():
    """u at lambda is the same whether the model is written with the effect or with its distance in scales."""
    for amount in (0.0, 0.3, 1.0):
        one, other = (centred(groups(form), amount) for form in (False, True))
        x = one.sample(KEY)
        (as_effect, _), (as_distance, _) = one.to_model(x), other.to_model(x)
        effect = as_distance["loc"] + as_distance["tau"] * as_distance["a"]
        np.testing.assert_allclose(effect, as_effect["a"], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(as_distance["b"], as_effect["b"], rtol=1e-12)
        values = [q.log_joint(groups(form).full(), x) for q, form in ((one, False), (other, True))]
        np.testing.assert_allclose(*values, rtol=1e-12)


# -- the derivative in lambda -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("standardised", [False, True])
def test_the_derivative_is_that_of_differences(standardised):
    target = groups(standardised)
    q = centred(target, LAMBDAS["by element"] * 0.8 + 0.1)
    objective = Objective(target, q, KEY, 256)
    params = np.asarray(q.params)
    fixed = objective.noise(params, (1,), 64)

    def value(amounts):
        objective.follow(with_amounts(q, amounts))
        return objective(params, fixed)

    amounts = q.centering.vector()
    along, own = slope_terms(q, fixed.values)
    kept = value(amounts).kept()
    found = (kept[:, centered_columns(q)] * along + own).mean(0)
    step = 1e-5
    exact = [(value(amounts + e).value - value(amounts - e).value) / (2 * step) for e in step * np.eye(4)]
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-7)
    assert np.abs(found - own.mean(0)).min() > 1e-3  # each part matters


def test_lambdas_are_no_part_of_a_program():
    target = groups()
    q = centred(target, 0.5)
    objective = Objective(target, q, KEY, 64)
    fixed = objective.noise(np.asarray(q.params), (1,), 64)
    first = objective(np.asarray(q.params), fixed).value
    with compilations() as names:
        objective.follow(with_amounts(q, np.full(4, 0.9)))
        assert objective(np.asarray(q.params), fixed).value != first
        objective.follow(q)
        assert objective(np.asarray(q.params), fixed).value == first
        assert names == []


# -- learning never loses ---------------------------------------------------------------------------------------------


def schools(y, sigma):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([len(y)]).to_event(1))
    numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)


def several_schools():
    """Effects of ten schools that are known well, and of thirty that are not."""
    rng, errors = np.random.default_rng(1), np.where(np.arange(40) < 10, 3.0, 20.0)
    return 5.0 * rng.standard_normal(40) + errors * rng.standard_normal(40), errors


EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
MODELS = {
    "little known of each": curvi.from_numpyro(schools, EFFECTS, ERRORS),
    "much known of each": curvi.from_numpyro(schools, EFFECTS, ERRORS / 40),
    "much known of some": curvi.from_numpyro(schools, *several_schools()),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_elbo_is_never_below_that_of_either_end(name):
    options = {"key": KEY, "family": "mean_field", "progress": False}
    learned = curvi.fit(MODELS[name], **options)
    ends = [curvi.fit(MODELS[name], centering={"theta": amount}, **options) for amount in (0.0, 1.0)]
    assert learned.converged
    for end in ends:
        allowed = 3 * np.hypot(learned.elbo_se, end.elbo_se) + learned.remaining_gain
        assert learned.elbo >= end.elbo - allowed
    # One of the two ends is clearly worse: to have chosen it would not have passed.
    assert max(learned.elbo - end.elbo - 3 * np.hypot(learned.elbo_se, end.elbo_se) for end in ends) > 0.1
    amounts = learned.centering["theta"].amount
    if name == "much known of some":
        assert amounts[:10].min() > amounts[10:].max() + 0.1
