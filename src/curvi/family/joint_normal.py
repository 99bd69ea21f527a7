"""A normal distribution of all continuous latents: what its families share.

Parameters of the normal distribution come first, its mean before what a family needs for the covariance, then those of
the shapes of its marginals where they are skewed (`curvi.family.skew`). Discrete latents stand beside it as the
independent factors of a mean field, the `rest`: theirs come last.
"""

from abc import abstractmethod
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi.family.centering import Centering, centered_columns, recentered_columns, replaced, with_amounts
from curvi.family.joint import Joint
from curvi.family.layout import Layout
from curvi.family.path import HostPath
from curvi.family.shapes import NORMAL, SKEWED
from curvi.family.skew import (
    label_shapes,
    largest_shape,
    skewed_covariance,
    skewed_draw,
    skewed_entropy,
    skewed_fisher,
    skewed_log_prob,
    with_shape,
)
from curvi.family.skewed_path import SkewedPath
from curvi.solve.truncated_cg import Array as AnyArray

LARGEST_DENSE = 5_000  # coordinates up to which the covariance of a sparse family is formed


class JointNormal(Joint):
    """A normal distribution of the continuous latents, the first group of the layout; its covariance is abstract."""

    layout: eqx.AbstractVar[Layout]
    centering: eqx.AbstractVar[Centering | None]
    marginals: eqx.AbstractVar[str]

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
        """Its covariance, before marginals are skewed."""

    @abstractmethod
    def normal_sds(self) -> Float[Array, " d"]:
        """Its marginal sds, which skewed marginals keep."""

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
    def skewed(self) -> bool:
        """Whether marginals have a skewness and tails of their own."""
        return self.marginals != NORMAL

    def with_skew(self) -> Self:
        """The same q with skewed marginals, of shapes that are normal yet."""
        if self.skewed:
            return self
        params = with_shape(self.params, self.num_normal_params, self.dimension)
        return replaced(self, params=params, marginals=SKEWED)

    def _with_shape(self, params) -> Float[Array, " P"]:
        """Parameters of a q with normal marginals as those of this one."""
        made = with_shape(params, self.num_normal_params, self.dimension) if self.skewed else params
        return jax.device_put(made)

    @property
    def num_joint_params(self) -> int:
        """Number of parameters of the normal distribution and of the shapes of its marginals."""
        return self.num_normal_params + (2 * self.dimension if self.skewed else 0)

    @property
    def normal_params(self) -> Float[Array, " p"]:
        return self.params[: self.num_normal_params]

    def mean(self) -> Float[Array, " n"]:
        """m."""
        return self.params[: self.dimension]

    def moments(self):
        if self.dimension > LARGEST_DENSE:
            return self.mean(), self.sds() ** 2
        return self.mean(), skewed_covariance(self) if self.skewed else self.covariance()

    def sds(self) -> Float[Array, " n"]:
        """The marginal sds in working coordinates."""
        found = self.normal_path.sds(np.asarray(self.normal_params, np.float64))
        return jnp.asarray(found.astype(self.params.dtype))

    # -- the joint distribution: the normal one, with skewed marginals or without -------------------------------------

    @property
    def joint_path(self) -> HostPath:
        return SkewedPath(self.normal_path, self.num_normal_params) if self.skewed else self.normal_path

    @property
    def joint_noise_size(self) -> int:
        return self.normal_noise_size

    def joint_draw(self, noise):
        x = self.normal_draw(noise)
        return skewed_draw(self, x) if self.skewed else x

    def joint_log_prob(self, x):
        return skewed_log_prob(self, jnp.asarray(x)) if self.skewed else self.normal_log_prob(x)

    def joint_entropy(self):
        return skewed_entropy(self) if self.skewed else self.normal_entropy()

    def joint_fisher(self):
        return skewed_fisher(self) if self.skewed else self.normal_fisher()

    def joint_entropy_hessian(self):
        if not self.skewed:
            return self.normal_entropy_hessian()
        return jax.hessian(lambda p: self._moved(p).joint_entropy())(self.joint_params)

    @property
    def max_joint_params(self) -> np.ndarray:
        largest = np.full(self.num_normal_params, np.inf)
        return np.concatenate([largest, largest_shape(self.dimension)]) if self.skewed else largest

    # -- names --------------------------------------------------------------------------------------------------------

    def elements(self) -> list[str]:
        names, rest = self._cut(self.layout.elements())
        return [*names, *names, *self.other_labels(names)[1], *([*names, *names] if self.skewed else []), *rest]

    def parameter_labels(self) -> list[str]:
        names, rest = self._cut(self.layout.parameter_labels())
        shapes = label_shapes(names) if self.skewed else []
        return [*names, *(f"spread of {n}" for n in names), *self.other_labels(names)[0], *shapes, *rest]

    def _cut(self, names: list[str]) -> tuple[list[str], list[str]]:
        """Names of a factorised q's parameters: one for each coordinate of the normal, and those of the rest."""
        return names[: 2 * self.dimension : 2], names[2 * self.dimension :]

    def location_params(self) -> np.ndarray:
        moves = np.arange(self.num_joint_params) < self.dimension
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
