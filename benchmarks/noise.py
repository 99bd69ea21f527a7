"""The error of the estimated Hessian at the optimum, in the spectral norm and in Fisher-whitened coordinates."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import lines
from curvi.estimate import AnchoredScore, PaperScore, Pathwise
from problems import Problem

NUM_DRAWS = (64, 256, 1024, 4096)
NUM_REPLICATES = 8


def run(path: Path, problem: Problem, quick: bool) -> None:
    """One line for each estimator and number of draws: the error in each of a few replicates."""
    assert problem.best is not None
    q = problem.start.replace(problem.best)
    factor = q.fisher().factorise()
    whiten = lambda matrix: jax.vmap(factor.solve)(jax.vmap(factor.solve)(matrix).T)  # noqa: E731
    exact = whiten(-jax.hessian(problem.gap)(problem.best))

    for make in (PaperScore, AnchoredScore, Pathwise):
        for num_draws in NUM_DRAWS[: 1 if quick else None]:
            estimator = make(num_draws)

            @eqx.filter_jit
            def error(target, key, estimator=estimator):
                found = whiten(estimator(target, q, key).curvature.dense())
                return jnp.linalg.norm(found - exact, 2) / jnp.linalg.norm(exact, 2)

            keys = jax.random.split(jax.random.key(1), NUM_REPLICATES)
            errors = [float(error(problem.target, key)) for key in keys]
            setting = {"num_draws": num_draws, "draws_per_parameter": round(num_draws / q.num_params, 2)}
            name = f"Hessian error, {make.__name__}"
            lines.append(path, problem.name, name, setting, 1, relative_error=errors, num_params=q.num_params)
            print(f"{problem.name}: {name}, {num_draws} draws: {np.median(errors):.3g}", flush=True)
