"""Laws of the objective for q with reparameterised and other factors: right on average, and its own derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from law_statistics import assert_zero_mean
from numpyro.distributions import constraints

import curvi
from curvi import MeanField
from curvi.estimate.fixed_draws.objective import Objective

NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()


def log_density(theta):
    """Two bits and one of three values, each with a say in where x is."""
    centre = theta["bits"] @ jnp.array([1.0, -0.5]) + 0.4 * theta["kind"]
    agree = 0.7 * theta["bits"][0] * theta["bits"][1] - 0.3 * theta["kind"] * theta["bits"][1]
    return -jnp.square(theta["x"] - centre) / 0.5 - 0.05 * theta["x"] ** 4 + agree


TARGET = curvi.Target(
    log_density,
    {"bits": np.zeros(2, int), "kind": 0, "x": 0.3},
    {"bits": constraints.boolean, "kind": constraints.integer_interval(0, 2)},
)
Q = MeanField(TARGET)


def exact_elbo(params):
    """By enumeration and quadrature."""
    params = jnp.asarray(params)
    q = Q.replace(params)
    states = jnp.asarray([(a, b, k) for a in (0, 1) for b in (0, 1) for k in (0, 1, 2)])
    names = [slot.latent.name for slot in Q.layout.slots]
    mean, log_sd = params[Q.parameter_slices()["x"]]
    total = q.entropy()
    for state in states:
        values = {"bits": state[:2], "kind": state[2:]}
        x = [None] * len(Q.layout.factors)
        for name, slot in zip(names, Q.layout.slots):
            x[slot.group] = jnp.zeros(1) if name == "x" else values[name]
        log_q = sum(
            factor.log_prob(p, value).sum()
            for factor, p, value in zip(Q.layout.factors, q.group_params(), x)
            if not factor.reparameterised
        )
        points = mean + jnp.exp(log_sd) * NODES
        at = jax.vmap(lambda v, s=state: log_density({"bits": s[:2], "kind": s[2], "x": v}))(points)
        total = total + jnp.exp(log_q) * (NODE_WEIGHTS @ at)
    return total


BEFORE = np.asarray(Q.params) + 0.3 * np.cos(np.arange(Q.num_params))
MOVED = BEFORE + 0.15 * np.sin(3.0 * np.arange(Q.num_params))
DIRECTION = np.cos(2.0 * np.arange(Q.num_params))


def replicates(params, num_draws=256, count=300):
    objective = Objective(TARGET, Q, jax.random.key(0), num_draws)
    objective.exact_products = True
    found = []
    for index in range(count):
        noise = objective.noise(BEFORE, (index,), num_draws)
        local = objective(params, noise)
        found.append((local.value, local.grad, local.curvature.mv(DIRECTION), local.noise.groups))
    return [np.stack(column) for column in zip(*found)]


@pytest.mark.parametrize("params", [BEFORE, MOVED], ids=["where drawn", "elsewhere"])
def test_value_gradient_and_product_are_right_on_average(params):
    value, grad, product, part_grads = replicates(params)
    exact_grad = jax.grad(exact_elbo)(params)
    exact_product = jax.jvp(jax.grad(exact_elbo), (params,), (DIRECTION,))[1]
    # A ratio of means is off by the order of 1 / draws, which is far below these standard errors.
    assert_zero_mean(value - exact_elbo(params))
    assert_zero_mean(grad - np.asarray(exact_grad))
    assert_zero_mean(product - np.asarray(exact_product))
    assert_zero_mean(part_grads.mean(1) - np.asarray(exact_grad))


def test_a_gradient_without_scores_fails_the_law(monkeypatch):
    def without_score(q, x):
        return jax.lax.stop_gradient(weighed_log_prob(q, x))

    weighed_log_prob = MeanField.weighed_log_prob
    monkeypatch.setattr(MeanField, "weighed_log_prob", without_score)
    jax.clear_caches()
    _, grad, _, _ = replicates(BEFORE, count=60)
    jax.clear_caches()
    with pytest.raises(AssertionError):
        assert_zero_mean(grad - np.asarray(jax.grad(exact_elbo)(BEFORE)))


def test_gradient_and_product_are_derivatives_on_fixed_draws():
    objective = Objective(TARGET, Q, jax.random.key(1), 256)
    objective.exact_products = True
    noise = objective.noise(BEFORE, (0,), 256)
    look = objective(MOVED, noise)
    product = look.curvature.mv(DIRECTION)
    ahead, behind = (objective(MOVED + side * 1e-5 * DIRECTION, noise) for side in (1, -1))
    np.testing.assert_allclose((ahead.value - behind.value) / 2e-5, look.grad @ DIRECTION, rtol=1e-6)
    np.testing.assert_allclose((ahead.grad - behind.grad) / 2e-5, product, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("order", [1, 2])
def test_fit_ends_at_the_optimum(order):
    target = curvi.Target(log_density, TARGET.init, {l.name: l.support for l in TARGET.latents}, order)
    fit = curvi.fit(target, key=jax.random.key(2), progress=False, tolerance=0.01)
    assert isinstance(fit.method, curvi.methods.GrowingDraws)
    assert fit.converged
    best = max(
        -minimum(np.asarray(start)).fun for start in (fit.q.params, *np.random.default_rng(0).normal(size=(3, 6)))
    )
    own = -minimum(np.asarray(fit.q.params)).fun
    gap = own - float(exact_elbo(fit.q.params))
    assert gap < 0.01 and best - own < 2.0
    assert abs(fit.elbo - float(exact_elbo(fit.q.params))) < 5 * fit.elbo_se
    assert set(fit.draws_error) == {"bits", "kind", "x"}


def minimum(start):
    from scipy.optimize import minimize

    value = jax.jit(jax.value_and_grad(lambda p: -exact_elbo(p)))
    return minimize(lambda p: tuple(np.asarray(v, float) for v in value(p)), start, jac=True)


def test_single_precision_where_integers_would_widen_it():
    """Where double precision is on, an integer times a float32 is a float64: the fit stays what its latents are."""
    target = curvi.Target(
        lambda t: -jnp.square(t["x"] - 0.8 * t["z"]) - 0.2 * t["z"],
        {"x": np.float32(0.3), "z": np.array(0)},
        {"z": constraints.boolean},
    )
    fit = curvi.fit(target, key=jax.random.key(0), progress=False)
    assert jax.config.jax_enable_x64 and fit.converged
    assert fit.q.params.dtype == np.float32
