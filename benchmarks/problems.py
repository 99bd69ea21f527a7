"""The problems: a separable density of any size, a rotated Gaussian, and breast-cancer logistic regression."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import curvi
from curvi.cli.race import breast_cancer_target
from curvi.model.target import AbstractTarget


@dataclasses.dataclass(frozen=True)
class Problem:
    """A target, its start, and the exact gap of any parameters to the best mean field, in nats."""

    name: str
    target: AbstractTarget
    start: curvi.MeanField
    gap: Callable
    best: jax.Array | None  # the parameters of that, where they are known
    best_elbo: float


def separable(num_latents: int) -> curvi.Target:
    """Student-t latents with different locations and scales, O(d) to evaluate and without any interaction."""
    location = jnp.asarray(np.sin(np.arange(num_latents)))
    inverse_scale = jnp.asarray(np.exp(np.cos(0.7 * np.arange(num_latents))))

    def log_density(theta):
        z = (theta["x"] - location) * inverse_scale
        return -4.5 * jnp.sum(jnp.log1p(z * z / 8)) + jnp.sum(jnp.log(inverse_scale))

    return curvi.Target(log_density, {"x": jnp.zeros(num_latents)})


def rotated_gaussian(size: int = 10, condition: float = 100.0) -> Problem:
    """Normal(m, Lambda^-1) with eigenvalues of Lambda from 1 to `condition`, turned by three Householder reflections.

    The best mean field is known: means m, variances 1 / Lambda_ii; and so is the gap of any other,
    ((mu - m)' Lambda (mu - m) + sum_i v_i - 1 - ln v_i) / 2 with v_i = Lambda_ii sigma_i^2.
    """
    rng = np.random.default_rng(0)
    turn = np.eye(size)
    for _ in range(3):
        v = rng.normal(size=size)
        turn = turn - 2 * np.outer(turn @ v, v) / (v @ v)
    precision = jnp.asarray((turn * np.geomspace(1, condition, size)) @ turn.T)
    mean = jnp.asarray(rng.normal(size=size))
    log_det = jnp.linalg.slogdet(precision)[1]
    constant = 0.5 * (log_det - size * np.log(2 * np.pi))
    target = curvi.Target(
        lambda theta: constant - 0.5 * (theta["x"] - mean) @ precision @ (theta["x"] - mean), {"x": jnp.zeros(size)}
    )
    diagonal = jnp.diag(precision)

    def gap(params):
        mu, log_sigma = params.reshape(size, 2).T
        v = diagonal * jnp.exp(2 * log_sigma)
        return 0.5 * ((mu - mean) @ precision @ (mu - mean) + jnp.sum(v - 1 - jnp.log(v)))

    best = jnp.stack([mean, -0.5 * jnp.log(diagonal)], -1).reshape(-1)
    best_elbo = 0.5 * float(log_det - jnp.sum(jnp.log(diagonal)))
    return Problem("rotated Gaussian", target, curvi.MeanField(target), gap, best, best_elbo)


def breast_cancer() -> Problem:
    """Logistic regression of 569 tumours on 30 standardised features and an intercept, coefficients Normal(0, 1).

    Under a mean field of Normals each logit is Normal, so the ELBO is a sum of integrals over the real line:
    Gauss-Hermite quadrature gives it, and with it the best mean field and every gap, free of Monte Carlo noise.
    """
    target = breast_cancer_target()
    x, sign = _breast_cancer_data()
    size = x.shape[1]
    start = curvi.MeanField(target)
    nodes, weights = gauss_hermite(64)

    def elbo(params):
        mu, log_sigma = params.reshape(size, 2).T
        variance = jnp.exp(2 * log_sigma)
        mean, spread = x @ mu, jnp.sqrt(x**2 @ variance)
        log_likelihood = jax.nn.log_sigmoid(sign[:, None] * mean[:, None] + spread[:, None] * nodes) @ weights
        prior = -0.5 * jnp.sum(mu**2 + variance) - 0.5 * size * np.log(2 * np.pi)
        return jnp.sum(log_likelihood) + prior + start.replace(params).entropy()

    # A q of no width: the ELBO less the entropy is the log density itself, so the two must be of the same model.
    point = jnp.linspace(-0.5, 0.5, size)
    narrow = jnp.stack([point, jnp.full(size, -12.0)], -1).reshape(-1)
    assert abs(elbo(narrow) - start.replace(narrow).entropy() - target.full()({"beta": point})) < 1e-6

    best = maximise(elbo, start.params)
    best_elbo = float(elbo(best))
    return Problem("breast cancer", target, start, lambda params: best_elbo - elbo(params), best, best_elbo)


def _breast_cancer_data():
    from sklearn.datasets import load_breast_cancer

    raw, benign = map(np.asarray, load_breast_cancer(return_X_y=True))
    x = np.column_stack([np.ones(len(raw)), (raw - raw.mean(0)) / raw.std(0)])
    return jnp.asarray(x), jnp.asarray(2.0 * benign - 1)


def gauss_hermite(num_nodes: int):
    """Nodes and weights for expectations under a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    return jnp.asarray(nodes), jnp.asarray(weights / weights.sum())


def maximise(objective, params):
    """The maximum of a smooth function: SciPy's L-BFGS, then Newton's method until the decrement is rounding."""
    both = jax.jit(jax.value_and_grad(lambda p: -objective(p)))
    found = scipy.optimize.minimize(lambda p: [np.asarray(v) for v in both(jnp.asarray(p))], params, jac=True)
    gradient, hessian = jax.jit(jax.grad(objective)), jax.jit(jax.hessian(objective))
    params = jnp.asarray(found.x)
    decrement = np.inf
    for _ in range(10):
        g = gradient(params)
        step = jnp.linalg.solve(-hessian(params), g)
        params, decrement = params + step, float(g @ step) / 2
        if abs(2 * decrement) < 1e-12:
            return params
    raise RuntimeError(f"Newton's method did not settle: decrement {decrement:.3g} nats")
