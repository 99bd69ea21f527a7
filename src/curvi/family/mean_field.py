"""The factorised family q(theta | Gamma) = prod_i q_i(theta_i | gamma_i) (paper, equation 1).

An instance is its parameters: one flat vector Gamma plus a static layout. Equal factors of all latents form one
vectorised group. A draw x is a tuple with one array (n, *event) per group, in *working* coordinates: the factor's own
support, before any bijection.
"""

import dataclasses
from collections.abc import Iterable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from curvi.curvature.blocks import BlockDiagonal, join, split
from curvi.family.base import Family
from curvi.family.centering import Centering, recentered_columns, with_amounts, with_centering
from curvi.family.continuous import Normal
from curvi.family.discrete_values import every_value, num_rare_draws, uniform_share
from curvi.family.factor import Factor
from curvi.family.layout import Layout, lay_out
from curvi.family.normal_path import NormalPath
from curvi.family.parts import location_scale, with_parts
from curvi.family.path import DirectPath, Path
from curvi.family.shapes import NORMAL, check_marginals
from curvi.family.skewed_factor import SinhArcsinh, with_shape
from curvi.family.vector import join_slots, sampled_moments, split_slots
from curvi.family.widening import why_not_full_rank
from curvi.model.latents import Latent
from curvi.model.target import AbstractTarget
from curvi.record.plain import register
from curvi.solve.truncated_cg import Array as AnyArray

Draw = tuple[AnyArray, ...]
_RARE_DRAWS = 0.25  # share of all draws that the rarest values of all discrete factors may take together


@register
class MeanField(Family[Draw]):
    """A factorised variational distribution over the latents of a target.

    Parameters
    ----------
    target
        Gives names, shapes, supports and the start.
    factors
        `curvi.factors` by latent name. Default by support: a Normal pushed through numpyro's `biject_to` for
        continuous latents, Bernoulli, Categorical or Poisson for boolean, bounded integer and count latents.
    marginals
        "sinh_arcsinh" makes the default for continuous latents `curvi.factors.SinhArcsinh`, with a skewness and tails.
    """

    params: Float[Array, " P"]
    layout: Layout = eqx.field(static=True)
    centering: Centering | None = None

    def __init__(self, target: AbstractTarget, factors: Mapping[str, Factor] | None = None, marginals: str = NORMAL):
        given = dict(factors or {})
        if check_marginals(marginals) != NORMAL:
            given = {la.name: SinhArcsinh() for la in target.latents if not la.discrete} | given
        self.layout, params = lay_out(target, given)
        self.params, self.centering = jax.device_put(params), None

    @classmethod
    def assemble(cls, params: Float[Array, " P"], layout: Layout) -> "MeanField":
        """The q with these parameters and this layout."""
        made = object.__new__(cls)
        for name, value in (("params", params), ("layout", layout), ("centering", None)):
            object.__setattr__(made, name, value)
        return made

    @property
    def skewed(self) -> bool:
        """Whether a factor has a skewness and tails of its own."""
        return any(isinstance(factor, SinhArcsinh) for factor in self.layout.factors)

    def with_skew(self) -> "MeanField":
        """The same q with skewed factors in the place of normal ones."""
        factors, params = zip(*(with_shape(f, p) for f, p in self._with_params()))
        made = MeanField.assemble(join(params), dataclasses.replace(self.layout, factors=factors))
        return with_centering(made, self.centering)

    def recentered(self, amounts: Float[np.ndarray, " E"]) -> "MeanField":
        assert self.centering is not None
        at, scale_at = np.concatenate([location_scale(self.layout, name) for name in self.centering.names]).T
        params = np.array(self.params)
        params[at], log_factor = recentered_columns(self, amounts)
        params[scale_at] += log_factor
        return with_amounts(self.replace(jax.device_put(params)), amounts)

    @property
    def latents(self) -> tuple[Latent, ...]:
        return self.layout.latents

    @property
    def noise_size(self) -> int:
        return sum(f.num_uniforms * n for f, n in self.layout.groups)

    @property
    def num_factors(self) -> int:
        return sum(self.layout.counts)

    @property
    def reparameterised(self) -> bool:
        return all(factor.reparameterised for factor in self.layout.factors)

    def split(self, v: Float[Array, " P"]) -> list[Float[Array, "n k"]]:
        """A vector like the parameters, split into one array per group."""
        shapes = [jax.ShapeDtypeStruct((n, f.num_params, f.num_params), v.dtype) for f, n in self.layout.groups]
        return split(v, tuple(shapes))

    def group_params(self) -> list[Float[Array, "n k"]]:
        return self.split(self.params)

    def _with_params(self):
        return list(zip(self.layout.factors, self.group_params()))

    def move(self, whitened_step):
        """q moved along straight lines in natural parameters where that is valid (`Factor.moved`): a unit
        natural-gradient step ends at the best factor given the others, if that lies in the family.
        """
        direction = self.split(self.fisher().factorise().solve_transpose(whitened_step))
        return self.replace(join([f.moved(p, along) for (f, p), along in zip(self._with_params(), direction)]))

    def sample(self, key) -> Draw:
        keys = jax.random.split(key, len(self.layout.factors))
        return tuple(f.sample(k, p) for (f, p), k in zip(self._with_params(), keys))

    def _cut(self, noise):
        """Noise, or uniform numbers, of each group as (n, numbers of one factor)."""
        ends = np.cumsum([0, *(f.num_uniforms * n for f, n in self.layout.groups)])
        return [noise[a:b].reshape(n, -1) for a, b, n in zip(ends, ends[1:], self.layout.counts)]

    def from_uniform(self, u: Float[Array, " U"]) -> Draw:
        """The draw made from these uniform numbers, monotone in each of them."""
        return tuple(f.from_uniform(p, part) for (f, p), part in zip(self._with_params(), self._cut(u)))

    def from_normal(self, noise: Float[Array, " n"]) -> Draw:
        """The draw made from this standard normal noise, twice differentiable in the parameters."""
        return tuple(f.from_normal(p, part[:, 0]) for (f, p), part in zip(self._with_params(), self._cut(noise)))

    def to_model(self, x: Draw) -> tuple[dict[str, Array], Float[Array, ""]]:
        return self.layout.to_model(x, self.params.dtype, self.centering)

    @property
    def path(self) -> Path:
        normal = all(isinstance(factor, Normal) for factor in self.layout.factors)
        return NormalPath(self.noise_size) if normal else DirectPath(self.num_params)

    def to_vector(self, x: Draw) -> Float[Array, " d"]:
        return join_slots(self.layout, x)

    def from_vector(self, v: Float[Array, " d"]) -> tuple[Draw, Float[Array, ""]]:
        return split_slots(self.layout, v)

    def moments(self):
        if not isinstance(self.path, NormalPath):
            return sampled_moments(self, independent=True)
        mean, log_scale = self.params.reshape(-1, 2).T
        return mean, jnp.exp(2 * log_scale)

    # -- densities ----------------------------------------------------------------------------------------------------

    def log_prob(self, x: Draw) -> Float[Array, ""]:
        return self._sum(f.log_prob(p, v) for (f, p), v in zip(self._with_params(), x))

    def _sum(self, terms):
        return sum((term.sum() for term in terms), jnp.zeros((), self.params.dtype))

    def score(self, x: Draw) -> Float[Array, " P"]:
        return join([f.score(p, v) for (f, p), v in zip(self._with_params(), x)])

    def hessian(self, x: Draw) -> BlockDiagonal:
        """D = hess_Gamma ln q(x), block diagonal (paper, equation 11)."""
        return BlockDiagonal(tuple(f.hessian(p, v) for (f, p), v in zip(self._with_params(), x)))

    def entropy(self) -> Float[Array, ""]:
        return self._sum(f.entropy(p) for f, p in self._with_params())

    def entropy_gradient(self) -> Float[Array, " P"]:
        return join([jax.grad(lambda p, f=f: f.entropy(p).sum())(p) for f, p in self._with_params()])

    def entropy_hessian(self) -> BlockDiagonal:
        """hess_Gamma H(q), block diagonal (paper, equation 12)."""
        block = lambda f: jax.vmap(jax.hessian(lambda p: f.entropy(p[None])[0]))  # noqa: E731
        return BlockDiagonal(tuple(block(f)(p) for f, p in self._with_params()))

    def fisher(self) -> BlockDiagonal:
        return BlockDiagonal(tuple(f.fisher(p) for f, p in self._with_params()))

    @property
    def has_stein_blocks(self) -> bool:
        return self.reparameterised

    def stein_blocks(self, noise, slope) -> BlockDiagonal:
        groups = zip(self._with_params(), slope, self._cut(noise))
        blocks = (part[:, None, None] * jax.vmap(f.turning)(p, e[:, 0]) for (f, p), part, e in groups)
        return BlockDiagonal(tuple(map(jnp.asarray, blocks)))

    # -- partly reparameterised draws ---------------------------------------------------------------------------------

    @property
    def pathwise_columns(self) -> np.ndarray:
        return np.concatenate([np.full(n * f.num_uniforms, f.reparameterised) for f, n in self.layout.groups])

    @property
    def pathwise_params(self) -> np.ndarray:
        return self.layout.by_param(lambda factor: factor.reparameterised)

    def follow(self, drawn: Family[Draw], noise) -> Draw:
        groups = zip(self._with_params(), self.split(drawn.params), self._cut(noise))
        return tuple(
            f.from_normal(p, e[:, 0]) if f.reparameterised else jax.lax.stop_gradient(f.from_uniform(old, ndtr(e)))
            for (f, p), old, e in groups
        )

    def weighed_log_prob(self, x: Draw) -> Float[Array, ""]:
        return self._sum(f.log_prob(p, v) for (f, p), v in zip(self._with_params(), x) if not f.reparameterised)

    def exact_part(self, before: Family[Draw]) -> Float[Array, ""]:
        groups = zip(self._with_params(), self.split(before.params))
        return self._sum(f.entropy(p) if f.reparameterised else -f.kl(p, b) for (f, p), b in groups)

    def with_min_probability(self) -> "MeanField":
        # All rare values together take at most a fixed share of the draws, whatever their number.
        least = _RARE_DRAWS / max(self.num_score_params, 1)
        groups = self._with_params()
        return self.replace(join([p if f.reparameterised else f.with_min_probability(p, least) for f, p in groups]))

    @property
    def max_abs_params(self) -> np.ndarray:
        return self.layout.by_param(lambda factor: factor.max_abs_param(self.params.dtype))

    @property
    def latents_without_path(self) -> tuple[str, ...]:
        return tuple(sorted(n for n, f in self.layout.factors_by_name().items() if not f.reparameterised))

    @property
    def latents_without_kl(self) -> tuple[str, ...]:
        return tuple(n for n in self.latents_without_path if not self.layout.factors_by_name()[n].has_kl)

    # -- structure ----------------------------------------------------------------------------------------------------

    @property
    def factor_of_param(self) -> np.ndarray:
        owner, first = [], 0
        for factor, count in self.layout.groups:
            owner.append(first + np.repeat(np.arange(count), factor.num_params))
            first += count
        return np.concatenate(owner)

    def flattened(self) -> "MeanField":
        share = uniform_share(self.layout)
        return self.replace(join([f.flattened(p, share) for f, p in self._with_params()]))

    @property
    def num_rare_draws(self) -> int:
        return num_rare_draws(self.layout)

    def every_value(self, x: Draw) -> tuple[Draw, np.ndarray] | None:
        return every_value(self.layout, x)

    @property
    def separable(self) -> bool:
        return True

    def why_not_full_rank(self, max_params: int | None = None) -> str | None:
        return why_not_full_rank(self.layout, max_params)

    def part(self, names: Iterable[str]) -> "MeanField":
        layout = self.layout.subset(set(names))
        params = with_parts(layout, {latent.name: self.params_of(latent.name) for latent in layout.latents})
        return MeanField.assemble(params.astype(self.params.dtype), layout)

    def with_parts(self, params: dict[str, np.ndarray]) -> "MeanField":
        return self.replace(with_parts(self.layout, params, np.array(self.params)))

    def parameter_slices(self) -> dict[str, slice]:
        return self.layout.parameter_slices()

    def params_of(self, name: str) -> np.ndarray:
        return np.asarray(self.params)[self.parameter_slices()[name]]

    def elements(self) -> list[str]:
        return self.layout.elements()

    def parameter_labels(self) -> list[str]:
        return self.layout.parameter_labels()

    def by_noise_column(self, weights: np.ndarray) -> np.ndarray | None:
        return self.layout.by_noise_column(weights)

    def location_params(self) -> np.ndarray:
        return self.layout.location_params()

    def largest_exponent(self) -> float:
        return self.layout.largest_exponent(np.asarray(self.params, np.float64))
