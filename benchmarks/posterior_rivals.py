"""The rivals that answer with a Gaussian or with draws of one, each on the same flat log density as its `Run`."""

import copy
import importlib
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from peer_methods import (
    Calls,
    Draws,
    Gaussian,
    OutOfTimeError,
    Point,
    Run,
    Task,
    pathfinder,
    rates,
    score_matching,
    typical,
)

RATES = (0.03, 0.01, 0.003)
MAX_STEPS = 200_000
MAX_NEWTON = 50
NUM_PATHS, DRAWS_PER_PATH = 8, 500


def auto_multivariate_normal(task: Task) -> Iterator[Run]:
    """NumPyro's full-rank guide and Adam, a run for every rate of the grid, which share the budget."""
    import numpyro
    from numpyro.distributions import ImproperUniform, constraints
    from numpyro.infer import SVI, Trace_ELBO, init_to_value
    from numpyro.infer.autoguide import AutoMultivariateNormal

    size, flat = task.flat.size, task.flat

    def model(data):
        z = numpyro.sample("z", ImproperUniform(constraints.real, (), (size,)))
        numpyro.factor("log_density", flat(data, z))

    guide = AutoMultivariateNormal(model, init_loc_fn=init_to_value(values={"z": jnp.zeros(size)}))
    base = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO())

    def read(state):
        params = base.get_params(state)
        return Gaussian(np.asarray(params["auto_loc"]), np.asarray(params["auto_scale_tril"]))

    def init():
        return base.init(jax.random.key(task.seed), flat.data)

    def step(data, state, rate, key):
        # A copy that knows the guide's parameters as `base` does, so that one program serves all rates.
        svi = copy.copy(base)
        svi.optim = numpyro.optim.Adam(rate)
        return svi.update(state, data)[0]

    name = "NumPyro AutoMultivariateNormal"
    yield from rates(task, name, {}, 1, MAX_STEPS, init, step, read, RATES)


def multi_pathfinder(task: Task) -> Iterator[Run]:
    """Paths from uniform starts in [-2, 2], resampled with smoothed importance weights."""
    algorithm = importlib.import_module("blackjax.vi.multipathfinder")

    def approximate(data, key, starts):
        def path(key_and_start):
            key, start = key_and_start
            return algorithm.multi_approximate(key, lambda z: task.flat(data, z), start[None], DRAWS_PER_PATH)

        # One path after the other: the draws of all at once, times the rows of the data, can exhaust the memory.
        state, info = jax.lax.map(path, (jax.random.split(key, NUM_PATHS), starts))
        return state.samples, info.path.elbo, algorithm.psis_weights(state)[0]

    began = time.perf_counter()
    key_start, key_path = jax.random.split(jax.random.key(task.seed))
    starts = jax.random.uniform(key_start, (NUM_PATHS, task.flat.size), minval=-2.0, maxval=2.0)
    program = jax.jit(approximate).lower(task.flat.data, key_path, starts).compile()
    compiling = time.perf_counter() - began
    began = time.perf_counter()
    samples, elbos, log_weights = jax.block_until_ready(program(task.flat.data, key_path, starts))
    seconds = time.perf_counter() - began
    weights = np.exp(np.asarray(log_weights, float))
    length = int(np.isfinite(np.asarray(elbos)).sum())
    calls = Calls(log_density=DRAWS_PER_PATH * (length + NUM_PATHS) + length, gradient=length)
    pool = np.asarray(samples).reshape(-1, task.flat.size)
    outcome = "done"
    if not np.isfinite(weights).all() or not weights.sum() > 0:
        weights, outcome = np.ones(len(pool)), "weights not finite"
    chosen = np.random.default_rng(5).choice(len(pool), 8_192, p=weights / weights.sum())
    points = [Point(seconds, calls, Draws(pool[chosen], np.full(8_192, np.nan)))]
    setting = {"num_paths": NUM_PATHS, "num_draws": DRAWS_PER_PATH}
    yield Run("BlackJAX multi-path Pathfinder", setting, compiling, seconds, calls, points, outcome)


def laplace(task: Task) -> Iterator[Run]:
    """Mode by L-BFGS from zero, then Newton's method with halved steps; covariance from the Hessian there."""
    size, flat = task.flat.size, task.flat
    start = jnp.zeros(size)
    began = time.perf_counter()
    both = jax.jit(jax.value_and_grad(lambda z, data: -flat(data, z))).lower(start, flat.data).compile()
    dense = jax.jit(jax.hessian(lambda z, data: -flat(data, z))).lower(start, flat.data).compile()
    compiling = time.perf_counter() - began

    def once() -> Run:
        began = time.perf_counter()
        num_gradients = num_hessians = 0

        def objective(z):
            nonlocal num_gradients
            if time.perf_counter() - began > task.budget:
                raise OutOfTimeError
            num_gradients += 1
            value, gradient = both(jnp.asarray(z), flat.data)
            return float(value), np.asarray(gradient)

        approximation, outcome = None, "no maximum found"
        try:
            z = scipy.optimize.minimize(objective, np.zeros(size), jac=True, method="L-BFGS-B").x
            value, gradient = objective(z)
            for _ in range(MAX_NEWTON):
                values, vectors = np.linalg.eigh(np.asarray(dense(jnp.asarray(z), flat.data)))
                num_hessians += 1
                # Along directions that curve the wrong way it goes down all the same.
                step = vectors @ (vectors.T @ gradient / np.maximum(np.abs(values), 1e-8 * values[-1]))
                if step @ gradient < 1e-5 and values[0] > 0:
                    approximation = Gaussian(z, np.linalg.cholesky((vectors / values) @ vectors.T))
                    outcome = "done"
                    break
                share = 1.0
                while not (following := objective(z - share * step))[0] < value and share > 1e-4:
                    share /= 2
                z, (value, gradient) = z - share * step, following
        except OutOfTimeError:
            outcome = "out of time"
        except (np.linalg.LinAlgError, ValueError) as error:
            outcome = f"no maximum found: {error}"
        seconds = time.perf_counter() - began
        calls = Calls(num_gradients, num_gradients, num_hessians * size)
        points = [] if approximation is None else [Point(seconds, calls, approximation)]
        return Run("Laplace", {}, compiling, seconds, calls, points, outcome)

    yield typical(once)


# What the command line calls them.
RIVALS = {
    "pathfinder": pathfinder,
    "multipath": multi_pathfinder,
    "auto_mvn": auto_multivariate_normal,
    "gsm": score_matching,
    "laplace": laplace,
}
