"""Newton's method (paper, equation 8) with the exact Hessian: how fast the error falls."""

import time

import jax
import jax.numpy as jnp
import numpy as np

from curvi.curvature import DenseMatrix
from curvi.solve import Dense
from problems import gauss_hermite, maximise


def two_dimensional_elbo():
    """The ELBO of a mean field for a logistic regression with two coefficients, by quadrature; and a start."""
    rows = jnp.asarray([[1.0, 0.5], [1.5, 1.0], [-0.5, 1.0], [2.0, 1.5], [1.0, -1.0], [0.3, 2.0]])
    signs = jnp.asarray([1.0, -1.0, 1.0, 1.0, 1.0, -1.0])
    nodes, weights = gauss_hermite(60)
    first, second = jnp.meshgrid(nodes, nodes, indexing="ij")
    weight = weights[:, None] * weights

    def log_density(x, y):
        logits = signs * (rows[:, 0] * x[..., None] + rows[:, 1] * y[..., None])
        return -jnp.sum(jnp.logaddexp(0.0, -logits), -1) - (x**2 + y**2) / 8

    def elbo(params):
        (mu_x, log_x), (mu_y, log_y) = params.reshape(2, 2)
        values = log_density(mu_x + jnp.exp(log_x) * first, mu_y + jnp.exp(log_y) * second)
        return jnp.sum(weight * values) + log_x + log_y

    return elbo, jnp.asarray([0.5, 0.0, -0.5, 0.0])


def newton_errors(objective, params, num_steps: int):
    """Distance to the maximum and gap in nats after each full Newton step, and the seconds of all."""
    best = maximise(objective, params)
    top = objective(best)

    @jax.jit
    def step(params):
        solution = Dense()(DenseMatrix(jax.hessian(objective)(params)), jax.grad(objective)(params))
        return params - solution.x

    began = time.perf_counter()
    errors, gaps = [], []
    for k in range(num_steps + 1):
        errors.append(float(jnp.linalg.norm(params - best)))
        gaps.append(float(top - objective(params)))
        if k < num_steps:
            params = step(params)
    return np.asarray(errors), np.asarray(gaps), time.perf_counter() - began
