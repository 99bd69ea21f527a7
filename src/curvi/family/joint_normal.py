"""A normal distribution of all continuous latents, and the discrete ones beside it: what its families share.

Parameters of the normal distribution come first, its mean before what a family needs for the covariance. Discrete
latents stand beside it as the independent factors of a mean field, the `rest`: theirs come after those of the normal.
"""

from abc import abstractmethod
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float

from curvi.curvature.blocks import BlockDiagonal
from curvi.family.base import Family
from curvi.family.centering import Centering, centered_columns, recentered_columns, with_amounts
from curvi.family.layout import Layout
from curvi.family.mean_field import Draw, MeanField
from curvi.family.path import DirectPath, HostPath, Path
from curvi.model.latents import Latent
from curvi.solve.truncated_cg import Array as AnyArray

LARGEST_DENSE = 5_000  # coordinates up to which the covariance of a sparse family is formed


class JointNormal(Family[Draw]):
    """A normal distribution of the continuous latents, the first group of the layout; its covariance is abstract."""

    layout: eqx.AbstractVar[Layout]
    centering: eqx.AbstractVar[Centering | None]

    @property
    @abstractmethod
    def num_normal_params(self) -> int:
        """Number of parameters of the normal distribution, which come first."""

    @property
    @abstractmethod
    def normal_path(self) -> HostPath:
        """How draws of the normal distribution alone depend on its parameters."""

    @property
    @abstractmethod
    def normal_noise_size(self) -> int:
        """Number of standard normal numbers that a draw of it is made from."""

    @abstractmethod
    def normal_draw(self, noise: Float[Array, " n"]) -> Float[Array, " d"]:
        """Its draw from this noise."""

    @abstractmethod
    def normal_log_prob(self, x: Float[AnyArray, " d"]) -> Float[Array, ""]:
        """Its log density."""

    @abstractmethod
    def normal_entropy(self) -> Float[Array, ""]:
        """Its entropy."""

    @abstractmethod
    def normal_fisher(self) -> Float[Array, "p p"]:
        """Its Fisher information, dense: not used by the default method where all latents are continuous."""

    @abstractmethod
    def normal_entropy_hessian(self) -> Float[Array, "p p"]:
        """The Hessian of its entropy."""

    @abstractmethod
    def covariance(self) -> Float[Array, "d d"]:
        """Its covariance."""

    @abstractmethod
    def stretched(self, others: np.ndarray, logs: np.ndarray) -> np.ndarray:
        """The parameters after the mean where coordinates are stretched by the exponentials of `logs`."""

    @abstractmethod
    def other_labels(self, names: list[str]) -> tuple[list[str], list[str]]:
        """Labels and elements of the parameters after mean and scales, given names of coordinates."""

    def recentered(self, amounts: Float[np.ndarray, " E"]) -> Self:
        params, size, moved = np.array(self.params), self.dimension, np.zeros(self.dimension)
        at = centered_columns(self)
        params[at], moved[at] = recentered_columns(self, amounts)
        params[size : self.num_normal_params] = self.stretched(params[size : self.num_normal_params], moved)
        return with_amounts(self.replace(jax.device_put(params)), amounts)

    # -- parts --------------------------------------------------------------------------------------------------------

    @property
    def latents(self) -> tuple[Latent, ...]:
        return self.layout.latents

    @property
    def dimension(self) -> int:
        """Number of coordinates of the normal distribution."""
        return self.layout.counts[0]

    @property
    def normal_params(self) -> Float[Array, " p"]:
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

    def _with(self, normal, rest) -> Self:
        """q with parameters of the normal distribution and of the rest."""
        return self.replace(jnp.concatenate([normal, rest]))

    @property
    def noise_size(self) -> int:
        return self.normal_noise_size + (0 if self.rest is None else self.rest.noise_size)

    @property
    def min_draws(self) -> int:
        """As many mirrored pairs as coordinates that are tied: with fewer, the ELBO of fixed draws has no maximum."""
        return 2 * self.normal_path.moment_size

    @property
    def path(self) -> Path:
        return self.normal_path if self.reparameterised else DirectPath(self.num_params)

    def mean(self) -> Float[Array, " n"]:
        """m."""
        return self.params[: self.dimension]

    # -- draws and densities ------------------------------------------------------------------------------------------

    def from_normal(self, noise):
        size, rest = self.normal_noise_size, self.rest
        normal = self.normal_draw(noise[:size])
        return (normal,) if rest is None else (normal, *rest.from_uniform(ndtr(noise[size:])))

    def from_uniform(self, u):
        size, rest = self.normal_noise_size, self.rest
        normal = self.normal_draw(ndtri(u[:size]))
        return (normal,) if rest is None else (normal, *rest.from_uniform(u[size:]))

    def to_model(self, x):
        return self.layout.to_model(x, self.params.dtype, self.centering)

    def moments(self):
        return self.mean(), self.covariance() if self.dimension <= LARGEST_DENSE else self.sds() ** 2

    def sds(self) -> Float[Array, " n"]:
        """The marginal sds in working coordinates."""
        found = self.normal_path.sds(np.asarray(self.normal_params, np.float64))
        return jnp.asarray(found.astype(self.params.dtype))

    def log_prob(self, x):
        return self.normal_log_prob(x[0]) + self.weighed_log_prob(x)

    def entropy(self):
        return self.normal_entropy() if self.rest is None else self.normal_entropy() + self.rest.entropy()

    # -- derivatives --------------------------------------------------------------------------------------------------

    def fisher(self) -> BlockDiagonal:
        return self._blocks(self.normal_fisher(), lambda rest: rest.fisher())

    def hessian(self, x) -> BlockDiagonal:
        bent = jax.hessian(lambda p: self._moved(p).normal_log_prob(x[0]))(self.normal_params)
        return self._blocks(bent, lambda rest: rest.hessian(x[1:]))

    def entropy_hessian(self) -> BlockDiagonal:
        return self._blocks(self.normal_entropy_hessian(), lambda rest: rest.entropy_hessian())

    def _moved(self, normal_params):
        return self._with(normal_params, self.params[self.num_normal_params :])

    def _blocks(self, normal, of_rest) -> BlockDiagonal:
        return BlockDiagonal((normal[None], *(() if self.rest is None else of_rest(self.rest).blocks)))

    # -- discrete latents, with importance weights --------------------------------------------------------------------

    @property
    def pathwise_columns(self) -> np.ndarray:
        return np.arange(self.noise_size) < self.normal_noise_size

    @property
    def pathwise_params(self) -> np.ndarray:
        return np.arange(self.num_params) < self.num_normal_params

    def follow(self, drawn, noise):
        size, rest = self.normal_noise_size, self.rest
        normal = self.normal_draw(noise[:size])
        return (normal,) if rest is None else (normal, *rest.follow(self._rest_at(drawn), noise[size:]))

    def weighed_log_prob(self, x):
        return jnp.zeros((), self.params.dtype) if self.rest is None else self.rest.log_prob(x[1:])

    def exact_part(self, before):
        own = self.normal_entropy()
        return own if self.rest is None else own + self.rest.exact_part(self._rest_at(before))

    def with_min_probability(self):
        return self if self.rest is None else self._with(self.normal_params, self.rest.with_min_probability().params)

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
        return self if self.rest is None else self._with(self.normal_params, self.rest.flattened().params)

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
        return [*names, *names, *self.other_labels(names)[1], *rest]

    def parameter_labels(self) -> list[str]:
        names, rest = self._cut(self.layout.parameter_labels())
        return [*names, *(f"spread of {n}" for n in names), *self.other_labels(names)[0], *rest]

    def _cut(self, names: list[str]) -> tuple[list[str], list[str]]:
        """Names of a factorised q's parameters: one for each coordinate of the normal, and those of the rest."""
        return names[: 2 * self.dimension : 2], names[2 * self.dimension :]

    def location_params(self) -> np.ndarray:
        moves = np.arange(self.num_normal_params) < self.dimension
        return moves if self.rest is None else np.concatenate([moves, self.rest.location_params()])

    def largest_exponent(self) -> float:
        params, size = np.asarray(self.params, np.float64), self.dimension
        spread = self.normal_path.sds(params[: self.num_normal_params])
        reached = np.abs(params[:size]) + 3 * spread
        pushed = [reached[slot.start : slot.start + slot.count].max() for slot in self.layout.slots if slot.pushed]
        return float(max([np.log(spread).max(), *pushed]))


def check_dense(dimension: int) -> None:
    """Raise ValueError where a covariance would be too large."""
    if dimension > LARGEST_DENSE:
        raise ValueError(f"the covariance of {dimension:,} coordinates is not formed; draw from q, or use `q.sds()`")


def stretched_scale(others: np.ndarray, logs: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Logarithms of the diagonal of a scale and its other entries, in these rows, where coordinates are stretched."""
    return np.concatenate([others[: len(logs)] + logs, others[len(logs) :] * np.exp(logs[rows])])
