"""The full-rank normal q(x) = N(m, L L') in working coordinates, L lower triangular.

Parameters are the mean, the logarithms of L's diagonal, and its strict lower triangle row by row. Steps are measured in
the coordinates x = m + L (delta + (I + A) e), A lower triangular, in which the Fisher information is diagonal:

    KL = |delta|^2 / 2 + sum_i A_ii^2 + sum_{i>j} A_ij^2 / 2.

A step (delta, A) moves m by L delta and L by L A, which is lower triangular again.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from curvi.curvature.blocks import BlockDiagonal
from curvi.family.centering import Centering
from curvi.family.continuous import Normal
from curvi.family.joint_normal import JointNormal, stretched_scale
from curvi.family.layout import Layout, lay_out
from curvi.family.mean_field import MeanField
from curvi.family.scale_metric import scale_fisher
from curvi.family.shapes import NORMAL, check_marginals
from curvi.family.triangular_path import TriangularPath
from curvi.family.widening import full_rank_params, widened
from curvi.model.target import AbstractTarget
from curvi.record.plain import register

_LOG_2PI = float(np.log(2 * np.pi))


@register
class FullRank(JointNormal):
    """A normal distribution with a full covariance, over the unconstrained coordinates of continuous latents.

    Discrete latents are independent of it and of each other, with the factors that they have in a `MeanField`.

    Parameters
    ----------
    target
        Gives names, shapes, supports and the start; at least one of its latents must be continuous.
    max_params
        The largest number of parameters of the normal distribution, d (d + 3) / 2 in d dimensions; None takes 525,824
        (d = 1,024), or 2,144 (d = 64) beside discrete latents, where the metric is a dense matrix. More are refused.
    """

    params: Float[Array, " P"]
    layout: Layout = eqx.field(static=True)
    centering: Centering | None = None
    marginals: str = eqx.field(static=True, default=NORMAL)

    def __init__(self, target: AbstractTarget, max_params: int | None = None, marginals: str = NORMAL):
        normal = {latent.name: Normal() for latent in target.latents if not latent.discrete}
        self.layout, params = widened(*lay_out(target, normal), max_params)
        self.centering, self.marginals = None, check_marginals(marginals)
        self.params = self._with_shape(params)

    @classmethod
    def of(cls, q: MeanField, max_params: int | None = None) -> "FullRank":
        """The full-rank q equal to a mean field whose continuous factors are all Normal.

        Means and scales are those of its factors, in their order; the factors of discrete latents are kept.
        """
        layout, params = widened(q.layout, np.asarray(q.params), max_params)
        made = object.__new__(cls)
        object.__setattr__(made, "params", jax.device_put(params))
        object.__setattr__(made, "layout", layout)
        object.__setattr__(made, "centering", q.centering)
        object.__setattr__(made, "marginals", NORMAL)
        return made

    def with_moments(self, mean: np.ndarray, factor: np.ndarray) -> "FullRank":
        """q with another mean and lower triangular factor L of the covariance L L', in working coordinates."""
        normal = TriangularPath(self.dimension).from_moments(np.asarray(mean), np.asarray(factor))
        return self._with(jnp.asarray(normal.astype(self.params.dtype)), self.params[self.num_normal_params :])

    def why_not_full_rank(self, max_params: int | None = None) -> str | None:
        return "q is a FullRank already"

    def move(self, whitened_step):
        """q moved along a straight line in natural parameters where that is valid, as the factors of a `MeanField` are:
        a unit natural-gradient step ends at the best q where ln p is quadratic.
        """
        if self.skewed:
            return self.replace(self.params + self.fisher().factorise().solve_transpose(whitened_step))
        size, rest = self.num_normal_params, self.rest
        step = BlockDiagonal(self.fisher().blocks[:1]).factorise().solve_transpose(whitened_step[:size])
        moved = natural_step(self.factor(), self.normal_params, step)
        return self._with(moved, self.params[size:] if rest is None else rest.move(whitened_step[size:]).params)

    # -- the covariance -----------------------------------------------------------------------------------------------

    @property
    def num_normal_params(self) -> int:
        return full_rank_params(self.dimension)

    @property
    def normal_path(self) -> TriangularPath:
        return TriangularPath(self.dimension)

    @property
    def normal_noise_size(self) -> int:
        return self.dimension

    def factor(self) -> Float[Array, "n n"]:
        """L."""
        size = self.dimension
        rows, columns = np.tril_indices(size, -1)
        below = self.params[2 * size : self.num_normal_params]
        lower = jnp.zeros((size, size), self.params.dtype).at[rows, columns].set(below)
        return lower + jnp.diag(jnp.exp(self.params[size : 2 * size]))

    def covariance(self):
        return self.factor() @ self.factor().T

    def normal_draw(self, noise):
        return self.mean() + self.factor() @ noise

    def normal_sds(self):
        return jnp.sqrt(jnp.sum(self.factor() ** 2, 1))

    def normal_log_prob(self, x):
        e = solve_triangular(self.factor(), x - self.mean(), lower=True)
        return -0.5 * jnp.sum(e**2) - self._log_det() - 0.5 * self.dimension * _LOG_2PI

    def normal_entropy(self):
        return self._log_det() + 0.5 * self.dimension * (1 + _LOG_2PI)

    def _log_det(self):
        return jnp.sum(self.params[self.dimension : 2 * self.dimension])

    def normal_fisher(self):
        factor = self.factor()
        inverse = solve_triangular(factor, jnp.eye(self.dimension, dtype=factor.dtype), lower=True)
        return scale_fisher(inverse.T @ inverse, jnp.diag(factor), *np.tril_indices(self.dimension, -1))

    def normal_entropy_hessian(self):
        return jnp.zeros((self.num_normal_params, self.num_normal_params), self.params.dtype)

    def stretched(self, others, logs):
        return stretched_scale(others, logs, np.tril_indices(self.dimension, -1)[0])

    def other_labels(self, names):
        rows, columns = np.tril_indices(self.dimension, -1)
        return [f"{names[i]} with {names[j]}" for i, j in zip(rows, columns)], [names[i] for i in rows]


def natural_step(factor: Float[Array, "n n"], params: Float[Array, " p"], step: Float[Array, " p"]):
    """The parameters of N(m, L L') after a step that is straight in the natural parameters, or, where no normal
    distribution has these, straight in the parameters themselves.

    In the coordinates of x = m + L e the step is (delta, A), which adds delta to the precision times the mean, and
    -(A + A') to the precision, which is I.
    """
    size = factor.shape[0]
    below = jnp.tril_indices(size, -1)
    slope = jnp.zeros_like(factor).at[below].set(step[2 * size :]) + jnp.diag(jnp.diag(factor) * step[size : 2 * size])
    bent = solve_triangular(factor, slope, lower=True)
    precision = jnp.eye(size, dtype=factor.dtype) - bent - bent.T
    # With K K' = precision^-1, K lower triangular: from the Cholesky factor of the precision read backwards.
    root = jnp.linalg.cholesky(precision[::-1, ::-1])[::-1, ::-1]
    spread = solve_triangular(root, jnp.eye(size, dtype=factor.dtype), lower=False).T
    shift = spread @ (spread.T @ solve_triangular(factor, step[:size], lower=True))
    lower = factor @ spread
    moved = jnp.concatenate([params[:size] + factor @ shift, jnp.log(jnp.diag(lower)), lower[below]])
    return jnp.where(jnp.all(jnp.isfinite(moved)), moved, params + step)
