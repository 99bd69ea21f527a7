"""A joint distribution of all continuous latents, and the discrete ones beside it.

Parameters of the joint distribution come first. Discrete latents stand beside it as the independent factors of a mean
field, the `rest`: theirs come last.
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
from curvi.family.centering import Centering
from curvi.family.layout import Layout
from curvi.family.mean_field import Draw, MeanField
from curvi.family.path import DirectPath, HostPath, Path
from curvi.model.latents import Latent
from curvi.solve.truncated_cg import Array as AnyArray


class Joint(Family[Draw]):
    """A joint distribution of the continuous latents, the first group of the layout, beside discrete ones."""

    layout: eqx.AbstractVar[Layout]
    centering: eqx.AbstractVar[Centering | None]

    @property
    @abstractmethod
    def num_joint_params(self) -> int:
        """Number of parameters of the joint distribution, which come first."""

    @property
    @abstractmethod
    def joint_path(self) -> HostPath:
        """How its draws alone depend on its parameters."""

    @property
    @abstractmethod
    def joint_noise_size(self) -> int:
        """Number of standard normal numbers that a draw of it is made from."""

    @abstractmethod
    def joint_draw(self, noise: Float[Array, " n"]) -> Float[Array, " d"]:
        """Its draw from this noise."""

    @abstractmethod
    def joint_log_prob(self, x: Float[AnyArray, " d"]) -> Float[Array, ""]:
        """Its log density."""

    @abstractmethod
    def joint_entropy(self) -> Float[Array, ""]:
        """Its entropy."""

    @abstractmethod
    def joint_fisher(self) -> Float[Array, "p p"]:
        """Its Fisher information, dense: not used by the default method where all latents are continuous."""

    @abstractmethod
    def joint_entropy_hessian(self) -> Float[Array, "p p"]:
        """The Hessian of its entropy."""

    @property
    @abstractmethod
    def max_joint_params(self) -> np.ndarray:
        """The largest useful absolute value of each of its parameters."""

    @property
    def latents(self) -> tuple[Latent, ...]:
        return self.layout.latents

    @property
    def dimension(self) -> int:
        """Number of coordinates of the joint distribution."""
        return self.layout.counts[0]

    @property
    def joint_params(self) -> Float[Array, " p"]:
        return self.params[: self.num_joint_params]

    @property
    def reparameterised(self) -> bool:
        return len(self.layout.factors) == 1

    @property
    def rest(self) -> MeanField | None:
        """The q of the discrete latents; None without any."""
        if self.reparameterised:
            return None
        names = {slot.latent.name for slot in self.layout.slots if slot.group}
        return MeanField.assemble(self.params[self.num_joint_params :], self.layout.subset(names))

    def _rest_at(self, q: Family[Draw]) -> MeanField:
        """The q of the discrete latents with the parameters that they have in another q of this structure."""
        assert self.rest is not None
        return self.rest.replace(q.params[self.num_joint_params :])

    def _with(self, joint, rest) -> Self:
        """q with parameters of the joint distribution and of the rest."""
        return self.replace(jnp.concatenate([joint, rest]))

    @property
    def noise_size(self) -> int:
        return self.joint_noise_size + (0 if self.rest is None else self.rest.noise_size)

    @property
    def min_draws(self) -> int:
        """As many mirrored pairs as coordinates that are tied: with fewer, the ELBO of fixed draws has no maximum."""
        return 2 * self.joint_path.moment_size

    @property
    def path(self) -> Path:
        return self.joint_path if self.reparameterised else DirectPath(self.num_params)

    # -- draws and densities ------------------------------------------------------------------------------------------

    def from_normal(self, noise):
        size, rest = self.joint_noise_size, self.rest
        normal = self.joint_draw(noise[:size])
        return (normal,) if rest is None else (normal, *rest.from_uniform(ndtr(noise[size:])))

    def from_uniform(self, u):
        size, rest = self.joint_noise_size, self.rest
        normal = self.joint_draw(ndtri(u[:size]))
        return (normal,) if rest is None else (normal, *rest.from_uniform(u[size:]))

    def to_model(self, x):
        return self.layout.to_model(x, self.params.dtype, self.centering)

    def log_prob(self, x):
        return self.joint_log_prob(x[0]) + self.weighed_log_prob(x)

    def entropy(self):
        return self.joint_entropy() if self.rest is None else self.joint_entropy() + self.rest.entropy()

    # -- derivatives --------------------------------------------------------------------------------------------------

    def fisher(self) -> BlockDiagonal:
        return self._blocks(self.joint_fisher(), lambda rest: rest.fisher())

    def hessian(self, x) -> BlockDiagonal:
        bent = jax.hessian(lambda p: self._moved(p).joint_log_prob(x[0]))(self.joint_params)
        return self._blocks(bent, lambda rest: rest.hessian(x[1:]))

    def entropy_hessian(self) -> BlockDiagonal:
        return self._blocks(self.joint_entropy_hessian(), lambda rest: rest.entropy_hessian())

    def _moved(self, joint_params):
        """q with other parameters of the joint distribution, or of the first part of it."""
        return self._with(joint_params, self.params[len(joint_params) :])

    def _blocks(self, normal, of_rest) -> BlockDiagonal:
        return BlockDiagonal((normal[None], *(() if self.rest is None else of_rest(self.rest).blocks)))

    # -- discrete latents, with importance weights --------------------------------------------------------------------

    @property
    def pathwise_columns(self) -> np.ndarray:
        return np.arange(self.noise_size) < self.joint_noise_size

    @property
    def pathwise_params(self) -> np.ndarray:
        return np.arange(self.num_params) < self.num_joint_params

    def follow(self, drawn, noise):
        size, rest = self.joint_noise_size, self.rest
        normal = self.joint_draw(noise[:size])
        return (normal,) if rest is None else (normal, *rest.follow(self._rest_at(drawn), noise[size:]))

    def weighed_log_prob(self, x):
        return jnp.zeros((), self.params.dtype) if self.rest is None else self.rest.log_prob(x[1:])

    def exact_part(self, before):
        own = self.joint_entropy()
        return own if self.rest is None else own + self.rest.exact_part(self._rest_at(before))

    def with_min_probability(self):
        return self if self.rest is None else self._with(self.joint_params, self.rest.with_min_probability().params)

    @property
    def max_abs_params(self) -> np.ndarray:
        largest = self.max_joint_params
        return largest if self.rest is None else np.concatenate([largest, self.rest.max_abs_params])

    @property
    def latents_without_path(self) -> tuple[str, ...]:
        return () if self.rest is None else self.rest.latents_without_path

    @property
    def latents_without_kl(self) -> tuple[str, ...]:
        return () if self.rest is None else self.rest.latents_without_kl

    @property
    def factor_of_param(self) -> np.ndarray:
        own = np.zeros(self.num_joint_params, int)
        return own if self.rest is None else np.concatenate([own, 1 + self.rest.factor_of_param])

    def flattened(self):
        return self if self.rest is None else self._with(self.joint_params, self.rest.flattened().params)

    @property
    def num_rare_draws(self) -> int:
        return 0 if self.rest is None else self.rest.num_rare_draws

    def every_value(self, x):
        found = None if self.rest is None else self.rest.every_value(x[1:])
        if found is None:
            return None
        parts, owner = found
        return (np.repeat(np.asarray(x[0])[None], len(owner), 0), *parts), 1 + owner
