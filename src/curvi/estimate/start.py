"""A start with a finite log density: the given one, or the nearest found."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.family import Family
from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget

_DRAWS = 8
_SCALES = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
_TRIES_PER_SCALE = 8
_LARGE = 2**26  # numbers in all draws of all candidates


@eqx.filter_jit
def _log_densities(target: AbstractTarget, q: Family, candidates, keys):
    """ln p at draws of q under each row of candidate parameters: (candidates, draws)."""
    density = target.batch(keys[0])

    def one(params, key):
        moved = q.replace(params)
        return moved.log_joint(density, moved.sample(key))

    each = over_draws(target, len(candidates) * len(keys))
    return each(lambda params: each(lambda key: one(params, key))(keys))(candidates)


def find_start(target: AbstractTarget, q: Family, key) -> tuple[Family, int]:
    """q, or a nearby one from which every draw has a finite log density, and the number of evaluations.

    Raises ValueError, naming the latents, where none is found.
    """
    key_draw, key_move = jax.random.split(key)
    keys = jax.random.split(key_draw, _DRAWS)
    rows = len(_SCALES) * _TRIES_PER_SCALE
    if rows * _DRAWS * q.num_params > _LARGE:
        # One candidate at a time, and no other where the given start will do.
        values = np.array([_log_densities(target, q, q.params[None], keys[i : i + 1]) for i in range(_DRAWS)])
        if np.all(np.isfinite(values)):
            return q, values.size
    spread = jnp.repeat(jnp.asarray(_SCALES, q.params.dtype), _TRIES_PER_SCALE)[:, None]
    candidates = q.params + spread * jax.random.normal(key_move, (rows, q.num_params), q.params.dtype)
    values = np.asarray(_log_densities(target, q, candidates, keys))
    good = np.isfinite(values).mean(1)
    if good.max() == 0:
        shown = "NaN" if np.isnan(values).all() else "-inf" if np.isneginf(values).all() else "not finite"
        names = ", ".join(latent.name for latent in target.latents)
        raise ValueError(
            f"the log density is {shown} at init and at {rows * _DRAWS - _DRAWS} points around it (latents {names}); "
            "give an init where it is finite, check supports, and check the data for missing values"
        )
    best = int(np.argmax(good))  # the first of the best: the given start wins ties
    return (q if best < _TRIES_PER_SCALE else q.replace(candidates[best])), values.size
