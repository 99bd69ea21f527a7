"""The interface of one factor of a factorised q.

A factor q_i(x | gamma_i) has k real, unconstrained parameters gamma_i, so that every Newton step is admissible. Its
author writes `distribution` (a numpyro distribution), `entropy`, `fisher` and the start; the score s and the Hessian
block D come by automatic differentiation of the log density unless a closed form is cheaper to compile. All methods
take parameters of shape (n, k) and one draw of shape (n, *event_shape), for n equal factors at once; use `vmap` for
many draws.
"""

import dataclasses
from abc import ABC, abstractmethod
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.distributions import Distribution, kl_divergence

from curvi.model.support import describe


@dataclasses.dataclass(frozen=True)
class Factor(ABC):
    """One kind of factor; instances hold no arrays and compare by value, so that equal factors share one vectorised
    group.
    """

    @property
    @abstractmethod
    def num_params(self) -> int:
        """Number of unconstrained parameters k."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one draw."""
        return ()

    @property
    def num_uniforms(self) -> int:
        """Number of uniform numbers that `from_uniform` needs for one draw."""
        return 1

    # Whether the support is the real line, so that draws may be mapped to a constrained latent by a bijection.
    real_line: ClassVar[bool] = False
    # Whether a draw is a twice differentiable function of the parameters and of standard normal noise (`from_normal`).
    reparameterised: ClassVar[bool] = False
    # Whether the first two parameters are a location and the logarithm of a scale, on the real line.
    location_scale: ClassVar[bool] = False
    # Whether `kl` has a closed form.
    has_kl: ClassVar[bool] = True

    @abstractmethod
    def resolve(self, support, shape: tuple[int, ...]) -> "Factor | None":
        """This factor for a latent with `support` and `shape` (a categorical gets its K); None if it does not fit."""

    @abstractmethod
    def distribution(self, params: Float[Array, "n k"]) -> Distribution:
        """The numpyro distribution with these parameters, batch shape (n,)."""

    @abstractmethod
    def entropy(self, params: Float[Array, "n k"]) -> Float[Array, " n"]:
        """Differential (or Shannon) entropy of each factor."""

    @abstractmethod
    def fisher(self, params: Float[Array, "n k"]) -> Float[Array, "n k k"]:
        """Fisher information of each factor in its unconstrained parameters, F = E[s s'] = -E[D]."""

    def kl(self, params: Float[Array, "n k"], other: Float[Array, "n k"]) -> Float[Array, " n"]:
        """KL(q || q_other) of each factor."""
        return kl_divergence(self.distribution(params), self.distribution(other))

    def max_abs_param(self, dtype) -> float | np.ndarray:
        """The largest useful absolute value of a parameter, or of each; beyond it, the factor hardly changes."""
        return np.inf

    def with_min_probability(self, params: Float[Array, "n k"], least: float) -> Float[Array, "n k"]:
        """Parameters with every value at about this probability or more; unchanged unless values are finitely many."""
        return params

    @abstractmethod
    def start(self, value: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n k"]:
        """Parameters of a moderately concentrated factor near `value`; numpy arrays, on the host."""

    @abstractmethod
    def from_uniform(self, params: Float[Array, "n k"], u: Float[Array, "n u"]) -> Array:
        """A draw from uniform numbers by inverse distribution functions (antithetic and quasi-random draws)."""

    def from_normal(self, params: Float[Array, "n k"], noise: Float[Array, " n"]) -> Float[Array, " n"]:
        """A draw as a smooth function of the parameters and standard normal noise; only where `reparameterised`."""
        raise NotImplementedError(f"{self} has no twice differentiable reparameterisation")

    def turning(self, params: Float[Array, " k"], e: Float[Array, ""]) -> Float[Array, "k k"]:
        """T_GG - T_Ge T_G' / T_e of one factor with draws T(e; G): the derivative of dT/dG in G at a fixed draw."""

        def path(p, u):
            return self.from_normal(p[None], u[None])[0]

        by_params, by_noise = jax.grad(path, (0, 1))(params, e)
        mixed = jax.jacfwd(jax.grad(path), 1)(params, e)
        return jax.hessian(path)(params, e) - jnp.outer(mixed, by_params) / by_noise

    def sample(self, key: PRNGKeyArray, params: Float[Array, "n k"]) -> Array:
        """One independent draw of each factor."""
        draw = jnp.asarray(self.distribution(params).sample(key))
        # numpyro draws in JAX's default floating-point type, not in that of the parameters.
        return draw.astype(params.dtype) if jnp.issubdtype(draw.dtype, jnp.floating) else draw

    def log_prob(self, params, x) -> Float[Array, " n"]:
        return jnp.asarray(self.distribution(params).log_prob(x))

    def score(self, params, x) -> Float[Array, "n k"]:
        """s = d ln q / d gamma. The factors are independent, so one reverse pass over their sum serves all."""
        return jax.grad(lambda p: jnp.sum(self.log_prob(p, x)))(params)

    def hessian(self, params, x) -> Float[Array, "n k k"]:
        """D = d^2 ln q / d gamma^2, one k x k block per factor, never a d x d array (paper, equation 11)."""

        def one(p, value):
            return self.log_prob(p[None], value[None])[0]

        return jax.vmap(jax.hessian(one))(params, x)

    def natural(self, params: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """Natural parameters, up to constants; the parameters themselves for other than exponential families."""
        return params

    def from_natural(self, natural: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """The inverse of `natural`; not finite where no distribution has these natural parameters."""
        return natural

    def moved(self, params: Float[Array, "n k"], along: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """Parameters after a step, along a straight line in the natural parameters where that is valid."""
        moved = self.from_natural(jnp.add(*jax.jvp(self.natural, (params,), (along,))))
        return jnp.where(jnp.all(jnp.isfinite(moved), -1, keepdims=True), moved, params + along)

    @property
    def values(self) -> range | None:
        """The possible values, if they are finitely many integers; else None."""
        return None

    def flattened(self, params: Float[Array, "n k"], share: float) -> Float[Array, "n k"]:
        """Parameters that draw rare values more often: a `share` of draws is uniform; only for finite `values`."""
        return params

    def mean(self, params) -> Array:
        return self.distribution(params).mean

    def variance(self, params) -> Array:
        return self.distribution(params).variance

    def misfit(self, name: str, support) -> ValueError:
        return ValueError(
            f"factor {type(self).__name__} does not fit latent '{name}', whose support is {describe(support)}; "
            f"leave it out of `factors` to get the default for that support, or choose another of curvi.factors"
        )
