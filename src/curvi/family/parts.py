"""The parameters of a factorised q by latent."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from curvi.family.layout import Layout


def with_parts(layout: Layout, params: dict[str, np.ndarray], whole: np.ndarray | None = None) -> Array:
    """Parameters with those of some latents replaced; of others zero without a `whole`."""
    whole, places = np.zeros(layout.num_params) if whole is None else whole, layout.parameter_slices()
    for name, values in params.items():
        whole[places[name]] = values
    return jnp.asarray(whole)


def location_scale(layout: Layout, name: str) -> np.ndarray:
    """The positions of locations and scales of one latent (elements, 2)."""
    places = np.r_[layout.parameter_slices()[name]]
    return places.reshape(-1, layout.factors_by_name()[name].num_params)[:, :2]
