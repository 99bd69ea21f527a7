"""The factorised family q(theta | Gamma) = prod_i q_i(theta_i | gamma_i) (paper, equation 1).

An instance is its parameters: one flat vector Gamma plus a static layout. Equal factors of all latents form one
vectorised group. A draw x is a tuple with one array (n, *event) per group, in *working* coordinates: the factor's own
support, before any bijection. Methods take one draw; `vmap` gives many.
"""

import dataclasses
import itertools
from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import biject_to

from curvi.curvature.blocks import BlockDiagonal, join, split
from curvi.family.continuous import Normal
from curvi.family.discrete import Bernoulli, Categorical, Poisson
from curvi.family.factor import Factor
from curvi.model import support as supports
from curvi.model.latents import Latent
from curvi.model.target import AbstractTarget

Draw = tuple[Array, ...]


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where one latent lives: `count` factors of a group from `start` on; pushed through a bijection or not."""

    latent: Latent
    group: int
    start: int
    count: int
    pushed: bool


@dataclasses.dataclass(frozen=True)
class Layout:
    """Static structure of a mean field: a factor and a count per group, a slot per latent."""

    factors: tuple[Factor, ...]
    counts: tuple[int, ...]
    slots: tuple[Slot, ...]


class MeanField(eqx.Module):
    """A factorised variational distribution over the latents of a target.

    Parameters
    ----------
    target
        Gives names, shapes, supports and the start.
    factors
        `curvi.factors` by latent name. Default by support: a Normal pushed through numpyro's `biject_to` for
        continuous latents, Bernoulli, Categorical or Poisson for boolean, bounded integer and count latents.
    """

    params: Float[Array, " P"]
    layout: Layout = eqx.field(static=True)

    def __init__(self, target: AbstractTarget, factors: Mapping[str, Factor] | None = None):
        chosen = dict(factors or {})
        names = [latent.name for latent in target.latents]
        if unknown := sorted(set(chosen) - set(names)):
            raise ValueError(
                f"factors names latents that the target does not have: {', '.join(unknown)}; it has {', '.join(names)}"
            )
        grouped: dict[Factor, int] = {}
        counts: list[int] = []
        slots, starts = [], []
        for latent in target.latents:
            factor = _resolve(latent, chosen.get(latent.name))
            pushed = factor.real_line and not supports.is_real(latent.support)
            value = target.init[latent.name]
            working = supports.to_real(latent.support, value) if pushed else np.asarray(value)
            working = working.reshape(-1, *factor.event_shape)
            with np.errstate(all="ignore"):  # what is not finite is refused by name
                params = _inside(factor.start(working).astype(target.dtype), latent)
            group = grouped.setdefault(factor, len(grouped))
            if group == len(counts):
                counts.append(0)
                starts.append([])
            slots.append(Slot(latent, group, counts[group], working.shape[0], pushed))
            counts[group] += working.shape[0]
            starts[group].append(params)
        self.layout = Layout(tuple(grouped), tuple(counts), tuple(slots))
        self.params = jax.device_put(np.concatenate([part.ravel() for parts in starts for part in parts]))

    @classmethod
    def assemble(cls, params: Float[Array, " P"], layout: Layout) -> "MeanField":
        """The q with these parts, as a file holds them."""
        made = object.__new__(cls)
        object.__setattr__(made, "params", params)
        object.__setattr__(made, "layout", layout)
        return made

    # -- parameters ---------------------------------------------------------------------------------------------------

    @property
    def num_params(self) -> int:
        return self.params.shape[0]

    @property
    def num_uniforms(self) -> int:
        """Uniform numbers per draw: the dimension of quasi-random points."""
        return sum(f.num_uniforms * n for f, n in self._groups())

    @property
    def num_factors(self) -> int:
        return sum(self.layout.counts)

    @property
    def reparameterised(self) -> bool:
        return all(factor.reparameterised for factor in self.layout.factors)

    def replace(self, params: Float[Array, " P"]) -> "MeanField":
        return eqx.tree_at(lambda q: q.params, self, params)

    def onto(self, target: AbstractTarget) -> "MeanField":
        """The same q over the latents of another target with the same names, shapes, types and supports."""
        own = tuple(slot.latent for slot in self.layout.slots)
        if own == target.latents:
            return self
        for latent, other in itertools.zip_longest(own, target.latents):
            if latent is None or other is None or _describe(latent) != _describe(other):
                raise ValueError(
                    f"q has {_describe(latent)} where the target has {_describe(other)}: it belongs to another model"
                )
        factors = {slot.latent.name: self.layout.factors[slot.group] for slot in self.layout.slots}
        return MeanField(target, factors).replace(self.params)

    def _groups(self):
        return zip(self.layout.factors, self.layout.counts, strict=True)

    def split(self, v: Float[Array, " P"]) -> list[Float[Array, "n k"]]:
        """A vector like the parameters, cut into one array a group."""
        shapes = [jax.ShapeDtypeStruct((n, f.num_params, f.num_params), v.dtype) for f, n in self._groups()]
        return split(v, tuple(shapes))  # type: ignore[arg-type]

    def group_params(self) -> list[Float[Array, "n k"]]:
        """The parameters of each group of equal factors."""
        return self.split(self.params)

    # -- draws --------------------------------------------------------------------------------------------------------

    def sample(self, key) -> Draw:
        """One independent draw in working coordinates."""
        keys = jax.random.split(key, len(self.layout.factors))
        return tuple(f.sample(k, p) for f, p, k in zip(self.layout.factors, self.group_params(), keys))

    def from_uniform(self, u: Float[Array, " U"]) -> Draw:
        """The draw that these uniform numbers give, monotone in each of them."""
        out, start = [], 0
        for (factor, n), params in zip(self._groups(), self.group_params()):
            size = n * factor.num_uniforms
            out.append(factor.from_uniform(params, u[start : start + size].reshape(n, factor.num_uniforms)))
            start += size
        return tuple(out)

    def from_normal(self, noise: Float[Array, " n"]) -> Draw:
        """The draw that this standard normal noise gives, twice differentiable in the parameters."""
        out, start = [], 0
        for (factor, n), params in zip(self._groups(), self.group_params()):
            out.append(factor.from_normal(params, noise[start : start + n]))
            start += n
        return tuple(out)

    def to_model(self, x: Draw) -> tuple[dict[str, Array], Float[Array, ""]]:
        """The dict of latents on the model's supports, and the log Jacobian of the bijections."""
        theta, log_det = {}, jnp.zeros((), self.params.dtype)
        for slot in self.layout.slots:
            latent = slot.latent
            part = x[slot.group][slot.start : slot.start + slot.count]
            if slot.pushed:
                transform = biject_to(latent.support)
                part = part.reshape(transform.inverse_shape(latent.shape))
                value = transform(part)
                # Some of numpyro's bijections count in JAX's default floating-point type.
                log_det = log_det + jnp.sum(transform.log_abs_det_jacobian(part, value)).astype(log_det.dtype)
            else:
                value = part.reshape(latent.shape)
            theta[latent.name] = value.astype(latent.dtype)
        return theta, log_det

    # -- densities ----------------------------------------------------------------------------------------------------

    def log_prob(self, x: Draw) -> Float[Array, ""]:
        """ln q in working coordinates."""
        terms = [f.log_prob(p, v).sum() for f, p, v in zip(self.layout.factors, self.group_params(), x)]
        return sum(terms, jnp.zeros((), self.params.dtype))

    def score(self, x: Draw) -> Float[Array, " P"]:
        """s = grad_Gamma ln q(x)."""
        return join([f.score(p, v) for f, p, v in zip(self.layout.factors, self.group_params(), x)])

    def hessian(self, x: Draw) -> BlockDiagonal:
        """D = hess_Gamma ln q(x), block diagonal (paper, equation 11)."""
        return BlockDiagonal(tuple(f.hessian(p, v) for f, p, v in zip(self.layout.factors, self.group_params(), x)))

    def entropy(self) -> Float[Array, ""]:
        """H(q) in working coordinates."""
        terms = [f.entropy(p).sum() for f, p in zip(self.layout.factors, self.group_params())]
        return sum(terms, jnp.zeros((), self.params.dtype))

    def entropy_gradient(self) -> Float[Array, " P"]:
        return join(
            [jax.grad(lambda p, f=f: f.entropy(p).sum())(p) for f, p in zip(self.layout.factors, self.group_params())]
        )

    def entropy_hessian(self) -> BlockDiagonal:
        """hess_Gamma H(q), block diagonal (paper, equation 12)."""

        def block(factor):
            return jax.vmap(jax.hessian(lambda p: factor.entropy(p[None])[0]))

        return BlockDiagonal(tuple(block(f)(p) for f, p in zip(self.layout.factors, self.group_params())))

    def fisher(self) -> BlockDiagonal:
        """F = E[s s'], block diagonal and positive definite."""
        return BlockDiagonal(tuple(f.fisher(p) for f, p in zip(self.layout.factors, self.group_params())))

    # -- names --------------------------------------------------------------------------------------------------------

    def parameter_slices(self) -> dict[str, slice]:
        """Where in the flat vector the parameters of each latent stand."""
        offsets, start = [], 0
        for factor, n in self._groups():
            offsets.append(start)
            start += n * factor.num_params
        out = {}
        for slot in self.layout.slots:
            k = self.layout.factors[slot.group].num_params
            begin = offsets[slot.group] + slot.start * k
            out[slot.latent.name] = slice(begin, begin + slot.count * k)
        return out


def _describe(latent: Latent | None) -> str:
    if latent is None:
        return "no further latent"
    return f"'{latent.name}' of shape {latent.shape}, {latent.dtype}, {supports.describe(latent.support)}"


def _resolve(latent: Latent, factor: Factor | None) -> Factor:
    if factor is not None:
        if not isinstance(factor, Factor):
            raise ValueError(f"the factor of latent '{latent.name}' must be one of curvi.factors; got {factor!r}")
        resolved = factor.resolve(latent.support, latent.shape)
        if resolved is None:
            raise factor.misfit(latent.name, latent.support)
        return resolved
    defaults = (Bernoulli(), Categorical(), Poisson()) if latent.discrete else (Normal(),)
    for candidate in defaults:
        if (resolved := candidate.resolve(latent.support, latent.shape)) is not None:
            return resolved
    raise ValueError(
        f"latent '{latent.name}' has support {supports.describe(latent.support)}, for which there is no factor; "
        "use a boolean, bounded integer, count or continuous support, or marginalise the latent out of the model"
    )


def _inside(params, latent: Latent):
    """The start parameters, refused where `init` lies on the edge of its support (0 for a positive latent)."""
    # A host-side check: jnp's would compile two small programs per latent.
    if np.all(np.isfinite(np.asarray(params))):
        return params
    raise ValueError(
        f"init of latent '{latent.name}' lies on the edge of its support ({supports.describe(latent.support)}); "
        "give a start strictly inside"
    )
