"""A normal distribution with q's means and another covariance, in q's own coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

from curvi.curvature.blocks import BlockDiagonal
from curvi.family.base import Family
from curvi.family.continuous import Normal
from curvi.family.path import HostPath
from curvi.model.latents import Latent

_LOG_2PI = float(np.log(2 * np.pi))


def not_normal(q: Family) -> tuple[str, ...]:
    """The names of latents whose coordinates are not normal under q, so that a covariance does not describe them."""
    if isinstance(q.path, HostPath):
        return () if q.path.gaussian else tuple(latent.name for latent in q.latents)
    layout = getattr(q, "layout", None)
    factors = {} if layout is None else layout.factors_by_name()
    return tuple(latent.name for latent in q.latents if not isinstance(factors.get(latent.name), Normal))


class NormalWithCovariance(Family):
    """The normal distribution around the means of a normal q, with another covariance; its parameters are the means.

    Coordinates, and the map from them to the model's supports, are those of q. Raises ValueError, naming the latents,
    where q is not normal.
    """

    params: Float[Array, " n"]
    q: Family
    factor: Float[Array, "n n"]

    def __init__(self, q: Family, covariance: np.ndarray):
        if names := not_normal(q):
            raise ValueError(
                f"draws with the covariance of linear response need normal factors; those of {', '.join(names)} are "
                'not Normal: use kind="q", or fit with normal marginals'
            )
        self.q = q
        self.params = jnp.asarray(_flat(q.from_normal(jnp.zeros(q.noise_size, q.params.dtype))))
        self.factor = jnp.asarray(np.linalg.cholesky(covariance), self.params.dtype)

    @property
    def latents(self) -> tuple[Latent, ...]:
        return self.q.latents

    @property
    def noise_size(self) -> int:
        return self.params.shape[0]

    @property
    def reparameterised(self) -> bool:
        return True

    def from_normal(self, noise):
        example = jax.eval_shape(self.q.from_normal, jax.ShapeDtypeStruct((self.q.noise_size,), self.params.dtype))
        leaves, tree = jax.tree.flatten(example)
        whole, ends = self.params + self.factor @ noise, np.cumsum([leaf.size for leaf in leaves])
        parts = jnp.split(whole, ends[:-1])
        return jax.tree.unflatten(tree, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves)])

    def from_uniform(self, u):
        return self.from_normal(ndtri(u))

    def to_model(self, x):
        return self.q.to_model(x)

    def log_prob(self, x):
        e = solve_triangular(self.factor, _flat(x) - self.params, lower=True)
        return -0.5 * jnp.sum(e**2) - self._log_det() - 0.5 * self.noise_size * _LOG_2PI

    def entropy(self):
        return self._log_det() + 0.5 * self.noise_size * (1 + _LOG_2PI)

    def _log_det(self):
        return jnp.sum(jnp.log(jnp.diag(self.factor)))

    def fisher(self) -> BlockDiagonal:
        inverse = solve_triangular(self.factor, jnp.eye(self.noise_size, dtype=self.params.dtype), lower=True)
        return BlockDiagonal(((inverse.T @ inverse)[None],))


def _flat(x) -> Float[Array, " n"]:
    return ravel_pytree(x)[0]
