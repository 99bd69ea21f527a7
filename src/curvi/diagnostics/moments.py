"""Means, sds and quantiles of a q on the model's supports, from fixed quasi-random draws."""

import jax
import numpy as np

from curvi.diagnostics.streamed_moments import streamed_mean_and_sd, streamed_quantiles
from curvi.estimate.draws import Sobol
from curvi.estimate.sampling import to_outputs
from curvi.family import Family
from curvi.model.target import AbstractTarget

_DRAWS = 4096
MOST_LATENTS = 2**14  # numbers behind a draw up to which draws are stored for moments: half a gigabyte


def even_draws(target: AbstractTarget, q: Family) -> dict[str, np.ndarray]:
    """4,096 fixed draws by name: closed forms exist on working coordinates only.

    Drawn outside a compiled program, where the points would be a constant.
    """
    draws = to_outputs(target, q, Sobol().sample(q, jax.random.key(0), _DRAWS))
    return {name: np.asarray(draw) for name, draw in draws.items()}


def mean_and_sd(target: AbstractTarget, q: Family) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean and sd by name."""
    if q.noise_size > MOST_LATENTS:
        return streamed_mean_and_sd(target, q)
    draws = even_draws(target, q)
    return {name: (v.mean(0, dtype=np.float64), v.std(0, dtype=np.float64)) for name, v in draws.items()}


def check_probabilities(probabilities) -> np.ndarray:
    """Probabilities as a vector; ValueError unless they lie between 0 and 1."""
    wanted = np.atleast_1d(np.asarray(probabilities, dtype=float))
    if wanted.size == 0 or not np.all((wanted > 0) & (wanted < 1)):
        raise ValueError(f"probabilities must lie between 0 and 1; got {probabilities!r}")
    return wanted


def quantiles(target: AbstractTarget, q: Family, probabilities) -> dict[str, np.ndarray]:
    """Quantiles by name, with a first axis for the probabilities."""
    wanted = check_probabilities(probabilities)
    if q.noise_size > MOST_LATENTS:
        return streamed_quantiles(target, q, wanted)
    return {name: np.quantile(draws, wanted, axis=0) for name, draws in even_draws(target, q).items()}
