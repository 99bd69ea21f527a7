"""The full-rank normal q(x) = N(m, L L') in working coordinates, L lower triangular.

Parameters are the mean, the logarithms of L's diagonal, and its strict lower triangle row by row. Steps are measured in
the coordinates x = m + L (delta + (I + A) e), A lower triangular, in which the Fisher information is diagonal:

    KL = |delta|^2 / 2 + sum_i A_ii^2 + sum_{i>j} A_ij^2 / 2.

A step (delta, A) moves m by L delta and L by L A, which is lower triangular again.

Discrete latents, if there are any, stand beside the normal distribution as the independent factors of a mean field,
the `rest`: its parameters, noise and draws come after those of the normal.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag, solve_triangular
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float

from curvi.curvature.blocks import BlockDiagonal
from curvi.family.base import Family
from curvi.family.continuous import Normal
from curvi.family.layout import Layout, lay_out
from curvi.family.mean_field import Draw, MeanField
from curvi.family.path import DirectPath, Path
from curvi.family.triangular_path import TriangularPath
from curvi.family.widening import full_rank_params, widened
from curvi.model.latents import Latent
from curvi.model.target import AbstractTarget
from curvi.record.plain import register

_LOG_2PI = float(np.log(2 * np.pi))


@register
class FullRank(Family[Draw]):
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

    def __init__(self, target: AbstractTarget, max_params: int | None = None):
        normal = {latent.name: Normal() for latent in target.latents if not latent.discrete}
        self.layout, params = widened(*lay_out(target, normal), max_params)
        self.params = jax.device_put(params)

    @classmethod
    def of(cls, q: MeanField, max_params: int | None = None) -> "FullRank":
        """The full-rank q equal to a mean field whose continuous factors are all Normal.

        Means and scales are those of its factors, in their order; the factors of discrete latents are kept.
        """
        layout, params = widened(q.layout, np.asarray(q.params), max_params)
        made = object.__new__(cls)
        object.__setattr__(made, "params", jax.device_put(params))
        object.__setattr__(made, "layout", layout)
        return made

    def with_moments(self, mean: np.ndarray, factor: np.ndarray) -> "FullRank":
        """q with another mean and lower triangular factor L of the covariance L L', in working coordinates."""
        normal = TriangularPath(self.dimension).from_moments(np.asarray(mean), np.asarray(factor))
        return self._with(jnp.asarray(normal.astype(self.params.dtype)), self.params[self.num_normal_params :])

    def why_not_full_rank(self, max_params: int | None = None) -> str | None:
        return "q is a FullRank already"

    # -- parts --------------------------------------------------------------------------------------------------------

    @property
    def latents(self) -> tuple[Latent, ...]:
        return self.layout.latents

    @property
    def dimension(self) -> int:
        """Number of coordinates of the normal distribution."""
        return self.layout.counts[0]

    @property
    def num_normal_params(self) -> int:
        """Number of parameters of the normal distribution, which come first."""
        return full_rank_params(self.dimension)

    @property
    def _normal_params(self):
        return self.params[: self.num_normal_params]

    @property
    def reparameterised(self) -> bool:
        return len(self.layout.factors) == 1

    @property
    def rest(self) -> MeanField | None:
        """The q of the discrete latents; None without any."""
        if self.reparameterised:
            return None
        names = {slot.latent.name for slot in self.layout.slots if slot.group}
        return MeanField.assemble(self.params[self.num_normal_params :], self.layout.subset(names))

    def _rest_at(self, q: Family[Draw]) -> MeanField:
        """The q of the discrete latents with the parameters that they have in another q of this structure."""
        assert self.rest is not None
        return self.rest.replace(q.params[self.num_normal_params :])

    def _with(self, normal, rest) -> "FullRank":
        """q with parameters of the normal distribution and of the rest."""
        return self.replace(jnp.concatenate([normal, rest]))

    @property
    def noise_size(self) -> int:
        return self.dimension + (0 if self.rest is None else self.rest.noise_size)

    @property
    def min_draws(self) -> int:
        """As many mirrored pairs as dimensions: with fewer, the ELBO of fixed draws has no maximum."""
        return 2 * self.dimension

    @property
    def path(self) -> Path:
        return TriangularPath(self.dimension) if self.reparameterised else DirectPath(self.num_params)

    def mean(self) -> Float[Array, " n"]:
        """m."""
        return self.params[: self.dimension]

    def factor(self) -> Float[Array, "n n"]:
        """L."""
        size = self.dimension
        rows, columns = np.tril_indices(size, -1)
        below = self.params[2 * size : self.num_normal_params]
        lower = jnp.zeros((size, size), self.params.dtype).at[rows, columns].set(below)
        return lower + jnp.diag(jnp.exp(self.params[size : 2 * size]))

    # -- draws and densities ------------------------------------------------------------------------------------------

    def from_normal(self, noise):
        size, rest = self.dimension, self.rest
        normal = self.mean() + self.factor() @ noise[:size]
        return (normal,) if rest is None else (normal, *rest.from_uniform(ndtr(noise[size:])))

    def from_uniform(self, u):
        size, rest = self.dimension, self.rest
        normal = self.mean() + self.factor() @ ndtri(u[:size])
        return (normal,) if rest is None else (normal, *rest.from_uniform(u[size:]))

    def to_model(self, x):
        return self.layout.to_model(x, self.params.dtype)

    def moments(self):
        return self.params[: self.noise_size], self.factor() @ self.factor().T

    def log_prob(self, x):
        return self._normal_log_prob(x[0]) + self.weighed_log_prob(x)

    def _normal_log_prob(self, x):
        e = solve_triangular(self.factor(), x - self.mean(), lower=True)
        return -0.5 * jnp.sum(e**2) - self._log_det() - 0.5 * self.dimension * _LOG_2PI

    def entropy(self):
        return self._normal_entropy() if self.rest is None else self._normal_entropy() + self.rest.entropy()

    def _normal_entropy(self):
        return self._log_det() + 0.5 * self.dimension * (1 + _LOG_2PI)

    def _log_det(self):
        return jnp.sum(self.params[self.dimension : 2 * self.dimension])

    # -- derivatives --------------------------------------------------------------------------------------------------

    def fisher(self) -> BlockDiagonal:
        """A dense block of the normal distribution: for small dimensions; the default method never forms it where all
        latents are continuous.
        """
        size, factor = self.dimension, self.factor()
        inverse = solve_triangular(factor, jnp.eye(size, dtype=factor.dtype), lower=True)
        precision = inverse.T @ inverse
        below = np.tril_indices(size, -1)
        rows, columns = (np.concatenate([np.arange(size), at]) for at in below)
        # Entries of one column of L share the precision of their rows; those of two columns share nothing.
        shared = precision[rows[:, None], rows] * (columns[:, None] == columns)
        scale = jnp.ones(len(rows), factor.dtype).at[:size].set(jnp.diag(factor))  # the parameters are logarithms
        own = jnp.diag(jnp.asarray(np.arange(len(rows)) < size, factor.dtype))
        return self._blocks(block_diag(precision, scale[:, None] * shared * scale + own), lambda rest: rest.fisher())

    def hessian(self, x) -> BlockDiagonal:
        bent = jax.hessian(lambda p: self._moved(p)._normal_log_prob(x[0]))(self._normal_params)
        return self._blocks(bent, lambda rest: rest.hessian(x[1:]))

    def entropy_hessian(self) -> BlockDiagonal:
        size = self.num_normal_params
        return self._blocks(jnp.zeros((size, size), self.params.dtype), lambda rest: rest.entropy_hessian())

    def _moved(self, normal_params):
        return self._with(normal_params, self.params[self.num_normal_params :])

    def _blocks(self, normal, of_rest) -> BlockDiagonal:
        return BlockDiagonal((normal[None], *(() if self.rest is None else of_rest(self.rest).blocks)))

    # -- discrete latents, with importance weights --------------------------------------------------------------------

    @property
    def pathwise_columns(self) -> np.ndarray:
        return np.arange(self.noise_size) < self.dimension

    @property
    def pathwise_params(self) -> np.ndarray:
        return np.arange(self.num_params) < self.num_normal_params

    def follow(self, drawn, noise):
        size, rest = self.dimension, self.rest
        normal = self.mean() + self.factor() @ noise[:size]
        return (normal,) if rest is None else (normal, *rest.follow(self._rest_at(drawn), noise[size:]))

    def weighed_log_prob(self, x):
        return jnp.zeros((), self.params.dtype) if self.rest is None else self.rest.log_prob(x[1:])

    def exact_part(self, before):
        own = self._normal_entropy()
        return own if self.rest is None else own + self.rest.exact_part(self._rest_at(before))

    def with_min_probability(self):
        return self if self.rest is None else self._with(self._normal_params, self.rest.with_min_probability().params)

    @property
    def max_abs_params(self) -> np.ndarray:
        largest = np.full(self.num_normal_params, np.inf)
        return largest if self.rest is None else np.concatenate([largest, self.rest.max_abs_params])

    @property
    def latents_without_path(self) -> tuple[str, ...]:
        return () if self.rest is None else self.rest.latents_without_path

    @property
    def latents_without_kl(self) -> tuple[str, ...]:
        return () if self.rest is None else self.rest.latents_without_kl

    @property
    def factor_of_param(self) -> np.ndarray:
        own = np.zeros(self.num_normal_params, int)
        return own if self.rest is None else np.concatenate([own, 1 + self.rest.factor_of_param])

    def flattened(self):
        return self if self.rest is None else self._with(self._normal_params, self.rest.flattened().params)

    @property
    def num_rare_draws(self) -> int:
        return 0 if self.rest is None else self.rest.num_rare_draws

    def every_value(self, x):
        found = None if self.rest is None else self.rest.every_value(x[1:])
        if found is None:
            return None
        parts, owner = found
        return (np.repeat(np.asarray(x[0])[None], len(owner), 0), *parts), 1 + owner

    # -- names --------------------------------------------------------------------------------------------------------

    def elements(self) -> list[str]:
        names, rest = self._cut(self.layout.elements())
        rows, _ = np.tril_indices(self.dimension, -1)
        return [*names, *names, *(names[row] for row in rows), *rest]

    def parameter_labels(self) -> list[str]:
        names, rest = self._cut(self.layout.parameter_labels())
        pairs = zip(*np.tril_indices(self.dimension, -1))
        return [*names, *(f"spread of {n}" for n in names), *(f"{names[i]} with {names[j]}" for i, j in pairs), *rest]

    def _cut(self, names: list[str]) -> tuple[list[str], list[str]]:
        """Names of a factorised q's parameters: one for each coordinate of the normal, and those of the rest."""
        return names[: 2 * self.dimension : 2], names[2 * self.dimension :]

    def location_params(self) -> np.ndarray:
        moves = np.arange(self.num_normal_params) < self.dimension
        return moves if self.rest is None else np.concatenate([moves, self.rest.location_params()])

    def largest_exponent(self) -> float:
        params, size = np.asarray(self.params, np.float64), self.dimension
        spread = TriangularPath(size).sds(params[: self.num_normal_params])
        reached = np.abs(params[:size]) + 3 * spread
        pushed = [reached[slot.start : slot.start + slot.count].max() for slot in self.layout.slots if slot.pushed]
        return float(max([params[size : 2 * size].max(), *pushed]))
