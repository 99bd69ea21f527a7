"""Fits whose memory is planned: by name, a target of a given size and a method."""

import jax.numpy as jnp
import numpy as np

from curvi import Target
from curvi.methods import BBVI, Algorithm0, GrowingDraws, HessianFree, SchemeI, SchemeII, StreamedNewton
from curvi.solve import Woodbury


def tied(size: int, dtype: type = np.float32) -> Target:
    """A Gaussian whose neighbours are tied."""

    def log_density(t):
        x = t["x"]
        return -jnp.sum(x**2) / 2 - jnp.sum((x[1:] - x[:-1]) ** 2) / 8

    return Target(log_density, {"x": np.zeros(size, dtype)})


# The method and two sizes, the second of which takes more memory.
PLANNED = {
    "streamed": (StreamedNewton(), 4_000, 400_000),
    "stored draws": (GrowingDraws(), 100, 40_000),
    "as many stored draws as asked for": (GrowingDraws(max_draws=1024), 100, 40_000),
    "scores": (SchemeI(), 500, 200_000),
    "scores, all of them solved at once": (SchemeI(solver=Woodbury()), 500, 200_000),
    "scores, drawn anew for every product": (SchemeII(), 500, 200_000),
    "a whole Hessian": (Algorithm0(), 100, 3_000),
    "products": (HessianFree(), 500, 20_000),
    "first order": (BBVI(), 500, 200_000),
}
