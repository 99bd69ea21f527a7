"""The interface of a variational distribution q(theta | Gamma) to the rest of the package.

A family is a module whose parameters Gamma are one flat vector; an instance is a distribution. Everything outside
`curvi.family` uses the methods below, so that a new family is one new file. An author writes

    latents, noise_size, from_uniform, to_model, log_prob, entropy, fisher

and, where draws are smooth functions of the parameters, `from_normal` with `reparameterised = True`. All other methods
have defaults, which a closed form may replace.

A draw x is a pytree of arrays in *working* coordinates: those of q, before any bijection to the model's supports. The
map between the two (a bijection, a centring, a rotation) belongs to the family (`to_model`). Methods take one draw; use
`vmap` for many. Noise is one row of `noise_size` standard normal numbers per draw.
"""

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Generic, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Float, PRNGKeyArray

from curvi.curvature import BlockDiagonal
from curvi.family.centering import centering_of, with_centering
from curvi.family.path import DirectPath, Path
from curvi.family.rebound import rebound
from curvi.family.vector import join_leaves, sampled_moments, split_leaves
from curvi.model.latents import Latent
from curvi.model.target import AbstractTarget, LogDensity
from curvi.solve.truncated_cg import Array as AnyArray

DrawT = TypeVar("DrawT")  # a pytree of arrays, such as one entry per group of coordinates


class Family(eqx.Module, Generic[DrawT]):
    """A variational distribution over the latents of a target."""

    params: eqx.AbstractVar[Float[Array, " P"]]

    # -- to be written by an author -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def latents(self) -> tuple[Latent, ...]:
        """The latents of the target, in its order."""

    @property
    @abstractmethod
    def noise_size(self) -> int:
        """Number of standard normal (or uniform) numbers that one draw is made from."""

    @abstractmethod
    def from_uniform(self, u: Float[Array, " n"]) -> DrawT:
        """The draw made from these uniform numbers."""

    @abstractmethod
    def to_model(self, x: DrawT) -> tuple[dict[str, Array], Float[Array, ""]]:
        """The dict of latents on the model's supports, and the log Jacobian of the map to them."""

    @abstractmethod
    def log_prob(self, x: DrawT) -> Float[Array, ""]:
        """ln q in working coordinates."""

    @abstractmethod
    def entropy(self) -> Float[Array, ""]:
        """H(q) in working coordinates."""

    @abstractmethod
    def fisher(self) -> BlockDiagonal:
        """F = E[s s'], positive definite: the metric of the parameters."""

    # -- latents of the target ---------------------------------------------------------------------------------------

    def onto(self, target: AbstractTarget) -> Self:
        """The same q over the latents of another target; ValueError where names, shapes or supports differ."""
        for own, other in itertools.zip_longest(self.latents, target.latents):
            if own is None or other is None or own.describe() != other.describe():
                words = [latent.describe() if latent else "no further latent" for latent in (own, other)]
                raise ValueError(f"q has {words[0]} where the target has {words[1]}: it belongs to another model")
        return self.rebound_to(target)

    def rebound_to(self, target: AbstractTarget) -> Self:
        """The same q, of all latents or of some, with latents and centring of this target, throughout its structure."""
        made = self.rebound({latent.name: latent for latent in target.latents})
        return made if (of := centering_of(made)) is None else with_centering(made, of.onto(target))

    def recentered(self, amounts: Float[np.ndarray, " E"]) -> Self:
        """About the same q with other lambdas: equal to it where locations and scales are certain."""
        raise NotImplementedError(f"a {type(self).__name__} has no centring")

    def rebound(self, latents: Mapping[str, Latent]) -> Self:
        """The same q with its latents replaced by those of the same names, throughout its structure."""
        return rebound(self, latents)

    # -- parameters ---------------------------------------------------------------------------------------------------

    @property
    def num_params(self) -> int:
        return self.params.shape[0]

    def replace(self, params: Float[AnyArray, " P"]) -> Self:
        """The distribution of this family with other parameters."""
        return eqx.tree_at(lambda q: q.params, self, params)

    def metric(self) -> BlockDiagonal:
        """The metric that steps on fixed noise are measured in: F, or more than that where F is almost singular."""
        return self.fisher()

    def move(self, whitened_step: Float[Array, " P"]) -> Self:
        """q moved by the step p with L'p = `whitened_step`, where F = L L'; |L'p|^2 / 2 is in nats."""
        return self.replace(self.params + self.fisher().factorise().solve_transpose(whitened_step))

    # -- draws --------------------------------------------------------------------------------------------------------

    @property
    def reparameterised(self) -> bool:
        """Whether `from_normal` is a twice differentiable function of the parameters."""
        return False

    def from_normal(self, noise: Float[Array, " n"]) -> DrawT:
        """The draw made from this standard normal noise."""
        return self.from_uniform(ndtr(noise))

    def sample(self, key: PRNGKeyArray) -> DrawT:
        """One independent draw."""
        return self.from_normal(jax.random.normal(key, (self.noise_size,), self.params.dtype))

    def log_joint(self, density: LogDensity, x: DrawT) -> Float[Array, ""]:
        """ln p(T(x)) + ln |dT/dx|, where T maps working coordinates to the model's latents."""
        theta, log_det = self.to_model(x)
        return density(theta) + log_det

    @property
    def min_draws(self) -> int:
        """Fixed draws below which the ELBO on them need not have a maximum."""
        return 0

    @property
    def path(self) -> Path:
        """How draws on fixed noise depend on the parameters (`curvi.family.path`)."""
        return DirectPath(self.num_params)

    # -- all latents as one vector of unconstrained real numbers (`curvi.mcmc`) ---------------------------------------

    def to_vector(self, x: DrawT) -> Float[Array, " d"]:
        """The draw of continuous latents as one unconstrained vector."""
        return join_leaves(x)

    def from_vector(self, v: Float[Array, " d"]) -> tuple[DrawT, Float[Array, ""]]:
        """The draw of this vector, and the log Jacobian of the map to it."""
        noise = jax.ShapeDtypeStruct((self.noise_size,), self.params.dtype)
        return split_leaves(v, jax.eval_shape(self.from_normal, noise)), jnp.zeros((), v.dtype)

    def moments(self) -> tuple[Float[Array, " d"], Float[Array, "d d"] | Float[Array, " d"]]:
        """Mean and covariance of the vectors of draws; variances alone where the coordinates are independent."""
        return sampled_moments(self)

    # -- derivatives --------------------------------------------------------------------------------------------------

    def score(self, x: DrawT) -> Float[Array, " P"]:
        """s = grad_Gamma ln q(x)."""
        return jax.grad(lambda params: self.replace(params).log_prob(x))(self.params)

    def hessian(self, x: DrawT) -> BlockDiagonal:
        """D = hess_Gamma ln q(x), with the blocks of `fisher`; by default a single block."""
        return BlockDiagonal((jax.hessian(lambda params: self.replace(params).log_prob(x))(self.params)[None],))

    def entropy_gradient(self) -> Float[Array, " P"]:
        return jax.grad(lambda params: self.replace(params).entropy())(self.params)

    def entropy_hessian(self) -> BlockDiagonal:
        return BlockDiagonal((jax.hessian(lambda params: self.replace(params).entropy())(self.params)[None],))

    @property
    def has_stein_blocks(self) -> bool:
        return False

    def stein_blocks(self, noise: Float[Array, " n"], slope: DrawT) -> BlockDiagonal:
        """The derivative of J' slope in the parameters at a fixed draw x, J = dx/dGamma (`curvi.estimate.stein`)."""
        raise NotImplementedError(f"{type(self).__name__} has no closed form of the change of its draws at a fixed x")

    # -- partly reparameterised draws, the rest with importance weights (`curvi.estimate.hybrid`) ---------------------

    @property
    def pathwise_columns(self) -> np.ndarray:
        """One entry per column of the noise: whether its factor is reparameterised."""
        return np.full(self.noise_size, self.reparameterised)

    @property
    def pathwise_params(self) -> np.ndarray:
        """One entry per parameter: whether its gradient is pathwise."""
        return np.full(self.num_params, self.reparameterised)

    @property
    def num_score_params(self) -> int:
        """Number of parameters with a score gradient: for discrete latents, the number of values that may be rare."""
        return int(np.sum(~self.pathwise_params))

    def follow(self, drawn: "Family[DrawT]", noise: Float[Array, " n"]) -> DrawT:
        """The draw from this noise; in the part that is not reparameterised, the draw of `drawn`."""
        return self.from_normal(noise) if self.reparameterised else jax.lax.stop_gradient(drawn.from_normal(noise))

    def weighed_log_prob(self, x: DrawT) -> Float[Array, ""]:
        """ln q of the part that is not reparameterised."""
        return jnp.zeros((), self.params.dtype) if self.reparameterised else self.log_prob(x)

    def exact_part(self, before: "Family[DrawT]") -> Float[Array, ""]:
        """The part of the ELBO in closed form: H of the reparameterised part, less KL(q || before) of the rest."""
        if not self.reparameterised:
            raise NotImplementedError(f"{type(self).__name__} has no closed form of its Kullback-Leibler divergences")
        return self.entropy()

    def with_min_probability(self) -> Self:
        """q with no value of a discrete latent much rarer than the number of such values allows."""
        return self

    @property
    def max_abs_params(self) -> np.ndarray:
        """The largest useful absolute value of each parameter; beyond it, q hardly changes."""
        return np.full(self.num_params, np.inf)

    @property
    def latents_without_path(self) -> tuple[str, ...]:
        """Names of the latents whose draws are not reparameterised."""
        return () if self.reparameterised else tuple(latent.name for latent in self.latents)

    @property
    def latents_without_kl(self) -> tuple[str, ...]:
        """Those among them without a closed form of the Kullback-Leibler divergence."""
        return self.latents_without_path

    # -- structure used by regression ---------------------------------------------------------------------------------

    @property
    def factor_of_param(self) -> np.ndarray:
        """The index of the independent factor that each parameter belongs to; by default a single factor."""
        return np.zeros(self.num_params, int)

    def flattened(self) -> Self:
        """q with flatter discrete factors: in each draw, about one of them is drawn uniformly."""
        return self

    @property
    def num_rare_draws(self) -> int:
        """Draws of the flattened q in which each value of each discrete factor occurs about once; 0 without any."""
        return 0

    def every_value(self, x: DrawT) -> tuple[DrawT, np.ndarray] | None:
        """Copies of the draw x, one per value of each discrete factor, and that factor's index; None without any."""
        return None

    @property
    def separable(self) -> bool:
        """Whether latents are independent under q, so that `part` and `with_parts` exist."""
        return False

    def part(self, names: Iterable[str]) -> Self:
        """The q of some of the latents."""
        raise NotImplementedError(f"the latents of a {type(self).__name__} are not independent of each other")

    def with_parts(self, params: dict[str, np.ndarray]) -> Self:
        """q with the parameters of some latents replaced."""
        raise NotImplementedError(f"the latents of a {type(self).__name__} are not independent of each other")

    def why_not_full_rank(self, max_params: int | None = None) -> str | None:
        """Why `FullRank.of` cannot continue from q, as a sentence for the user; None if it can."""
        return f"FullRank continues from a MeanField of normal factors; got {type(self).__name__}"

    # -- names --------------------------------------------------------------------------------------------------------

    def params_of(self, name: str) -> np.ndarray:
        """The parameters of one latent, if it has its own."""
        raise NotImplementedError(f"the latents of a {type(self).__name__} share their parameters")

    def parameter_labels(self) -> list[str]:
        """A name for every parameter."""
        return [f"parameter[{i}]" for i in range(self.num_params)]

    def elements(self) -> list[str]:
        """For every parameter, the name of the element of a latent that it belongs to."""
        return self.parameter_labels()

    def by_noise_column(self, weights: np.ndarray) -> np.ndarray | None:
        """Weights of the parameters from weights of the columns of the noise; None where columns have no own ones."""
        return None

    def location_params(self) -> np.ndarray:
        """One entry per parameter: whether random starts move it."""
        return np.ones(self.num_params, bool)

    def largest_exponent(self) -> float:
        """The largest exponent likely for draws of q, in scales or in the map to the model's supports; a large value
        means that q has diverged.
        """
        return -np.inf
