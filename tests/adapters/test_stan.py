"""from_stan against PyStan itself and against the same model in NumPyro. Compiling a Stan program takes a minute."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import curvi

pytestmark = pytest.mark.slow

PROGRAM = """
data { int<lower=0> N; vector[N] x; vector[N] y; }
parameters { real slope; matrix[2, 3] table; real<lower=0> noise; simplex[3] share; }
transformed parameters { real log_noise = log(noise); }
model {
  target += normal_lpdf(slope | 0, 1) + normal_lpdf(to_vector(table) | 0, 1) + exponential_lpdf(noise | 1);
  target += dirichlet_lpdf(share | [2, 3, 4]');
  target += normal_lpdf(y | slope * x + table[2, 1] * share[1], noise);
  if (slope > 50) reject("too steep");
}
generated quantities { real guess = normal_rng(slope, noise); }
"""
X = np.linspace(-1, 1, 30)
Y = 0.7 * X + 0.3 * np.random.default_rng(0).normal(size=30)


def model(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    table = numpyro.sample("table", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    noise = numpyro.sample("noise", dist.Exponential(1.0))
    share = numpyro.sample("share", dist.Dirichlet(jnp.array([2.0, 3.0, 4.0])))
    numpyro.sample("y", dist.Normal(slope * x + table[1, 0] * share[0], noise), obs=y)


@pytest.fixture(scope="module")
def program():
    stan = pytest.importorskip("stan", reason="PyStan is not installed (an extra: stan)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of PyStan's server and of the libraries under it
        return stan.build(PROGRAM, data={"N": 30, "x": X, "y": Y}, random_seed=1)


def theta_at(target, seed):
    keys = jax.random.split(jax.random.key(seed), len(target.latents))
    return {one.name: 0.5 * jax.random.normal(key, one.shape) for one, key in zip(target.latents, keys)}


def test_names_shapes_and_outputs(program):
    target = curvi.from_stan(program)
    shapes = {"slope": (), "table": (2, 3), "noise_unconstrained": (1,), "share_unconstrained": (2,)}
    assert {latent.name: latent.shape for latent in target.latents} == shapes
    assert target.order == 1
    theta = theta_at(target, 0)
    out = target.outputs(theta)
    assert {name: value.shape for name, value in out.items()} == {"noise": (), "share": (3,), "log_noise": ()}
    np.testing.assert_allclose(out["log_noise"], theta["noise_unconstrained"][0])
    np.testing.assert_allclose(jnp.sum(out["share"]), 1.0)


def test_values_and_gradients_are_those_of_the_model(program):
    target, reference = curvi.from_stan(program), curvi.from_numpyro(model, X, Y)

    def expected(theta):
        out = target.outputs(theta)
        own = {"slope": theta["slope"], "table": theta["table"], "noise": out["noise"], "share": out["share"]}
        return reference.full()(own)

    theta = theta_at(target, 1)
    base = target.full()(theta) - expected(theta)  # the Jacobian at this point
    moved = {**theta, "slope": theta["slope"] + 0.3, "table": theta["table"] - 0.2}
    np.testing.assert_allclose(target.full()(moved) - expected(moved), base, rtol=1e-10)
    gradient = jax.jit(jax.grad(target.full()))(theta)
    flat, unravel = jax.flatten_util.ravel_pytree(theta)
    for direction in np.eye(len(flat)):
        ahead, behind = (target.full()(unravel(flat + side * 1e-5 * direction)) for side in (1, -1))
        slope = jnp.vdot(jax.flatten_util.ravel_pytree(gradient)[0], direction)
        np.testing.assert_allclose(slope, (ahead - behind) / 2e-5, atol=1e-6)
    many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 0.1]), theta)
    both = jax.vmap(jax.value_and_grad(target.full()))(many)
    np.testing.assert_allclose(both[0][0], target.full()(theta))


def test_rejected_points_have_no_density(program):
    target = curvi.from_stan(program)
    assert target.full()({**target.init, "slope": jnp.asarray(60.0)}) == -jnp.inf


def test_start_is_given_on_the_supports(program):
    start = {"slope": 0.5, "table": np.arange(6.0).reshape(2, 3), "noise": 2.0, "share": [0.2, 0.3, 0.5]}
    target = curvi.from_stan(program, init=start)
    np.testing.assert_allclose(target.init["table"], start["table"])
    out = target.outputs(target.init)
    np.testing.assert_allclose(out["share"], start["share"])
    np.testing.assert_allclose(out["noise"], 2.0)
    with pytest.raises(ValueError, match="init does not fit"):
        curvi.from_stan(program, init={"slope": 0.5})


def test_fit_agrees_with_numpyro(program):
    pathwise = curvi.methods.LBFGS(num_draws=128)
    ours = curvi.fit(curvi.from_stan(program), key=jax.random.key(0), method=pathwise, num_steps=30, progress=False)
    reference = curvi.fit(curvi.from_numpyro(model, X, Y), key=jax.random.key(0), progress=False)
    assert abs(ours.elbo - reference.elbo) < 0.2 + 3 * np.hypot(ours.elbo_se, reference.elbo_se)
    for name in ("slope", "noise", "share"):
        np.testing.assert_allclose(ours.mean()[name], reference.mean()[name], atol=0.05)


def test_other_things_are_refused():
    pytest.importorskip("stan", reason="PyStan is not installed (an extra: stan)")
    with pytest.raises(ValueError, match=r"stan\.build"):
        curvi.from_stan(PROGRAM)
