"""Large matrices in a log density: no standstill of jaxlib's thread pool, and the same numbers."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi.model.over_draws import over_draws

# A Gaussian process of 60 points: its derivatives call LAPACK several times at once.
PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, curvi
jax.config.update("jax_enable_x64", True)
x = np.linspace(0, 1, 60)
y = np.sin(6 * x)
squares = (x[:, None] - x) ** 2

def log_density(theta):
    kernel = jnp.exp(-squares * jnp.exp(theta["steepness"])) + jnp.exp(theta["noise"]) * jnp.eye(60)
    lower = jnp.linalg.cholesky(kernel)
    white = jax.scipy.linalg.solve_triangular(lower, y, lower=True)
    return -white @ white / 2 - jnp.log(jnp.diag(lower)).sum() - theta["steepness"] ** 2 - theta["noise"] ** 2

target = curvi.Target(log_density, {"steepness": 1.0, "noise": -1.0})
print(curvi.fit(target, key=jax.random.key(0), progress=False).outcome.name)
"""


def test_fit_of_large_matrices_on_two_threads_does_not_stand_still():
    environment = {**os.environ, "NPROC": "2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.strip() == "CONVERGED", done.stderr[-2000:]


def with_matrix(size, function):
    matrix = np.eye(size) + 0.01 * np.cos(np.arange(size**2)).reshape(size, size)
    return curvi.Target(lambda theta: function(matrix @ matrix.T * jnp.exp(theta["x"])), {"x": 0.0})


@pytest.mark.parametrize(
    "function",
    [
        lambda a: jnp.log(jnp.diag(jnp.linalg.cholesky(a))).sum(),
        lambda a: jnp.linalg.slogdet(a)[1],
        lambda a: jnp.log(jnp.linalg.eigvalsh(a)).sum(),
        lambda a: jax.lax.cond(a[0, 0] > 0, lambda: jnp.linalg.solve(a, a[0])[0], lambda: 0.0),
        lambda a: jax.lax.fori_loop(0, 2, lambda _, s: s + jnp.linalg.cholesky(a)[0, 0], 0.0),
    ],
)
def test_draws_of_large_matrices_go_one_by_one_with_the_same_result(function):
    large = with_matrix(60, function)
    each = over_draws(large, 8)
    assert each is not jax.vmap
    draws = {"x": jnp.linspace(-1.0, 1.0, 8)}
    np.testing.assert_allclose(each(large.full())(draws), jax.vmap(large.full())(draws), rtol=1e-12)
    assert over_draws(with_matrix(4, function), 8) is jax.vmap


def test_densities_without_matrices_are_vectorised_as_far_as_memory_is_near():
    target = curvi.Target(lambda theta: -jnp.sum(theta["x"] ** 2), {"x": np.zeros(1000)})
    assert over_draws(target, 10**3) is jax.vmap
    some = over_draws(target, 10**4)
    assert some is not jax.vmap
    draws = {"x": jnp.linspace(-1.0, 1.0, 10**7).reshape(10**4, 1000)}
    np.testing.assert_allclose(some(target.full())(draws), jax.vmap(target.full())(draws), rtol=1e-12)
