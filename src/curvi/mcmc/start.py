"""What a sampler needs to begin from q: the log density over one vector, starts, and an inverse mass matrix."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi.family import Family
from curvi.model.over_draws import map_draws, over_draws
from curvi.model.target import AbstractTarget
from curvi.record.checkpoint import check_key

_CHUNK = 256
_MOST_TRIES = 20


@dataclasses.dataclass(frozen=True)
class NutsStart:
    """NUTS from q, in the unconstrained coordinates of q: for NumPyro, for BlackJAX, or any sampler of a vector.

    Attributes
    ----------
    starts
        Draws of q, one row per chain.
    inverse_mass_matrix
        The covariance of q: a matrix for a q with correlations, a vector of variances for a mean field.
    target, q
        What the starts belong to.
    num_tried
        Gradients that finding the starts took: one each, more where the log density was not finite.

    Examples
    --------
    With NumPyro, from q or with its usual warm-up from there:

    >>> start = fit.to_nuts(jax.random.key(1))
    >>> kernel = numpyro.infer.NUTS(**start.for_numpyro(), adapt_mass_matrix=False)
    >>> chains = numpyro.infer.MCMC(kernel, num_warmup=100, num_samples=1000, num_chains=4, chain_method="vectorized")
    >>> chains.run(jax.random.key(2), init_params=start.init_params)
    >>> draws = start.to_named(chains.get_samples(group_by_chain=True))

    With BlackJAX:

    >>> nuts = blackjax.nuts(start.logdensity_fn, step_size=0.5, inverse_mass_matrix=start.inverse_mass_matrix)
    >>> states = jax.vmap(nuts.init)(start.starts)
    """

    starts: Float[Array, "chains d"]
    inverse_mass_matrix: Float[Array, "d d"] | Float[Array, " d"]
    target: AbstractTarget = dataclasses.field(repr=False)
    q: Family = dataclasses.field(repr=False)
    num_tried: int = 0

    def logdensity_fn(self, position: Float[Array, " d"]) -> Float[Array, ""]:
        """ln p at one position, the Jacobian of the map to the model's supports included; on all data."""
        return log_density(self.target, self.q, position)

    def potential_fn(self, position: Float[Array, " d"]) -> Float[Array, ""]:
        """Minus `logdensity_fn`, as NumPyro takes it."""
        return -self.logdensity_fn(position)

    @property
    def dense_mass(self) -> bool:
        """Whether the inverse mass matrix is a matrix."""
        return self.inverse_mass_matrix.ndim == 2

    @property
    def init_params(self) -> Array:
        """The starts as `numpyro.infer.MCMC.run` takes them: for a single chain without the axis of chains."""
        return self.starts if len(self.starts) > 1 else self.starts[0]

    def for_numpyro(self) -> dict:
        """The arguments `potential_fn`, `inverse_mass_matrix` and `dense_mass` of `numpyro.infer.NUTS`."""
        names = ("potential_fn", "inverse_mass_matrix", "dense_mass")
        return {name: getattr(self, name) for name in names}

    def to_named(self, positions) -> dict[str, np.ndarray]:
        """Positions, with any leading axes, as latents and outputs by name on the model's supports."""
        positions = jnp.asarray(positions)
        leading, size = positions.shape[:-1], self.starts.shape[-1]
        if positions.ndim == 0 or positions.shape[-1] != size:
            raise ValueError(f"positions must have {size} numbers along their last axis; got shape {positions.shape}")
        named = _to_named(self.target, self.q, positions.reshape(-1, size))
        return {name: np.asarray(value).reshape(*leading, *value.shape[1:]) for name, value in named.items()}


def log_density(target: AbstractTarget, q: Family, position: Float[Array, " d"]) -> Float[Array, ""]:
    """ln p in the unconstrained coordinates of q, with the Jacobians of all maps from there.

    Computed in the precision of the target, returned in that of the position.
    """
    x, log_det = q.from_vector(position.astype(q.params.dtype))
    return (q.log_joint(target.full(), x) + log_det).astype(position.dtype)


def to_nuts(target: AbstractTarget, q: Family, key, num_chains: int = 4, widen: float = 1.0) -> NutsStart:
    """Where NUTS starts from q; the deviations of the starts from q's mean are multiplied by `widen`.

    Raises ValueError for targets that NUTS cannot sample, and if no finite starts are found.
    """
    check_key(key)
    check_count("num_chains", num_chains)
    if (why := why_not(target)) is not None:
        raise ValueError(why)
    # Samplers keep what is theirs in JAX's default type, and do not mix it with another one.
    mean, covariance = (moment.astype(jnp.result_type(float)) for moment in q.moments())
    starts, num_tried = _finite_starts(target, q, key, num_chains, mean, widen)
    return NutsStart(starts, covariance, target, q, num_tried)


def why_not(target: AbstractTarget) -> str | None:
    """Why NUTS cannot sample a target; None if it can."""
    if discrete := [latent.name for latent in target.latents if latent.discrete]:
        return (
            f"NUTS needs continuous latents; {', '.join(discrete)} are discrete: sum them out of the model, "
            "or draw from q with fit.sample"
        )
    if target.black_box or target.order == 0:
        what = "is a black box" if target.black_box else "was declared with order=0"
        return (
            f"NUTS needs the gradient of the log density, and this one {what}: write it in JAX and pass order=1 or 2 "
            "to Target, or weigh draws of q with fit.resample"
        )
    return None


def check_count(name: str, number) -> None:
    if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < 1:
        raise ValueError(f"{name} must be a positive integer; got {number!r}")


def _finite_starts(target, q, key, num_chains: int, mean, widen: float):
    """One start per chain at which value and gradient are finite, and the number of all that were tried."""
    starts, finite = _draw_starts(target, q, jax.random.split(key, num_chains), mean, widen)
    for attempt in range(_MOST_TRIES):
        if bool(finite.all()):
            return starts, num_chains * (attempt + 1)
        keys = jax.random.split(jax.random.fold_in(key, attempt), num_chains)
        others, good = _draw_starts(target, q, keys, mean, widen)
        starts, finite = jnp.where(finite[:, None], starts, others), finite | good
    raise ValueError(
        f"the log density or its gradient is not finite at {int((~finite).sum())} of {num_chains} starts, each drawn "
        f"{_MOST_TRIES} times from q: curvi.check(target, key=key) names the latent"
    )


@eqx.filter_jit
def _draw_starts(target, q, keys, mean, widen):
    def one(key):
        start = mean + widen * (q.to_vector(q.sample(key)) - mean)
        value, slope = jax.value_and_grad(lambda v: log_density(target, q, v))(start)
        return start, jnp.isfinite(value) & jnp.all(jnp.isfinite(slope))

    return over_draws(target, len(keys))(one)(keys)


@eqx.filter_jit
def _to_named(target, q, positions):
    def one(position):
        theta, _ = q.to_model(q.from_vector(position.astype(q.params.dtype))[0])
        return theta if target.outputs is None else {**theta, **target.outputs(theta)}

    return map_draws(target.outputs, one, positions, _CHUNK)
