"""The normal q(x) = N(m, D^2 + V V') with a diagonal and a low rank: x = m + D e + V f, with `rank` common factors f.

Rotations of the factors change nothing, so that V is lower trapezoidal in an order in which `rank` coordinates, the
pivots, come first (`curvi.family.factors_matrix`). V = 0 is a saddle, where the gradient in V vanishes: fits by name
begin with a mean field and go on with the V that is best for its curvature as a Gaussian problem.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi.curvature.blocks import BlockDiagonal
from curvi.family.centering import Centering
from curvi.family.continuous import Normal
from curvi.family.factors_matrix import LEAST, NEGLIGIBLE, Factors, pivoted
from curvi.family.joint_normal import JointNormal, check_dense
from curvi.family.layout import Layout, lay_out
from curvi.family.low_rank_path import LowRankPath, low_rank_path
from curvi.family.mean_field import MeanField
from curvi.family.shapes import NORMAL, check_marginals
from curvi.family.widening import ledermann_bound, normal_first, over_budget, why_not_joint, with_zeros
from curvi.model.target import AbstractTarget
from curvi.record.plain import register

_LOG_2PI = float(np.log(2 * np.pi))
_SHORT = 0.5  # length of the entries of V at a start, in sds


@register
class LowRank(JointNormal):
    """A normal distribution whose covariance is a diagonal matrix plus one of low rank.

    Discrete latents are independent of it and of each other, with the factors that they have in a `MeanField`.

    Parameters
    ----------
    target
        Gives names, shapes, supports and the start; at least three coordinates must be continuous.
    rank
        Number of common factors, from 1 to the Ledermann bound, beyond which a diagonal and a low rank have more
        parameters than a covariance: 2 in 5 dimensions, 6 in 10. Where None, `curvi.fit` takes the smallest rank within
        0.2 nats of what the curvature at the best mean field promises; other methods than the default take 1.
    """

    params: Float[Array, " P"]
    layout: Layout = eqx.field(static=True)
    pattern: Factors = eqx.field(static=True)
    asked: int | None = eqx.field(static=True)
    centering: Centering | None = None
    marginals: str = eqx.field(static=True, default=NORMAL)

    def __init__(self, target: AbstractTarget, rank: int | None = None, marginals: str = NORMAL):
        normal = {latent.name: Normal() for latent in target.latents if not latent.discrete}
        layout, params = lay_out(target, normal)
        self.layout, parts = _split(layout, params)
        size = self.layout.counts[0]
        check_rank(size, 1 if rank is None else rank)
        self.pattern, self.asked, self.centering = Factors(size, tuple(range(rank or 1))), rank, None
        parts[1], self.marginals = np.exp(parts[1]), check_marginals(marginals)
        self.params = self._with_shape(_joined(self.layout, self.pattern, parts, _start(self.pattern, parts[1])))

    @classmethod
    def of(cls, q: MeanField, factors: Float[np.ndarray, "d r"], scale: np.ndarray | None = None) -> "LowRank":
        """A low-rank q around the means of a mean field whose continuous factors are all Normal, with this V up to a
        rotation, and this D, by default its sds.
        """
        layout, parts = _split(q.layout, np.asarray(q.params))
        if factors.ndim != 2 or len(factors) != layout.counts[0]:
            raise ValueError(f"expected factors of shape ({layout.counts[0]}, rank); got {factors.shape}")
        check_rank(*factors.shape)
        parts[1] = np.exp(parts[1]) if scale is None else np.asarray(scale, parts[1].dtype)
        pivots, turned = pivoted(np.asarray(factors, float))
        made, pattern = object.__new__(cls), Factors(len(factors), pivots)
        fields = (_joined(layout, pattern, parts, turned), layout, pattern, len(pivots), q.centering, NORMAL)
        for name, value in zip(("params", "layout", "pattern", "asked", "centering", "marginals"), fields):
            object.__setattr__(made, name, value)
        return made

    @classmethod
    def begun_from(cls, q: MeanField, rank: int = 1) -> "LowRank":
        """One near a mean field, with short factors in all coordinates."""
        layout, parts = _split(q.layout, np.asarray(q.params))
        return cls.of(q, _start(Factors(layout.counts[0], tuple(range(rank))), np.exp(parts[1])))

    @property
    def begun(self) -> bool:
        """Whether V is no longer that of the constructor, which stands for none."""
        size, normal = self.dimension, np.asarray(self.normal_params)
        start = _start(self.pattern, normal[size : 2 * size])[self.pattern.free()]
        return not np.array_equal(normal[2 * size :], start.astype(normal.dtype))

    # -- the covariance -----------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Number of factors."""
        return self.pattern.rank

    @property
    def num_normal_params(self) -> int:
        return 2 * self.pattern.size + self.pattern.num_entries

    @property
    def normal_path(self) -> LowRankPath:
        return low_rank_path(self.pattern)

    @property
    def normal_noise_size(self) -> int:
        return self.dimension + self.rank

    def _parts(self):
        """m, D and V."""
        return self.normal_path.split(self.normal_params)

    def _density_parts(self):
        """m, D where it matters, and D^-1 V."""
        mean, scale, factors = self._parts()
        scale = jnp.maximum(jnp.abs(scale), NEGLIGIBLE * jnp.sqrt(jnp.sum(factors**2, 1)))
        return mean, scale, factors / scale[:, None]

    def factors(self) -> Float[Array, "n r"]:
        """V."""
        return self._parts()[2]

    def covariance(self):
        check_dense(self.dimension)
        _, scale, factors = self._parts()
        return jnp.diag(scale**2) + factors @ factors.T

    def normal_draw(self, noise):
        mean, scale, factors = self._parts()
        return mean + scale * noise[: self.dimension] + factors @ noise[self.dimension :]

    def normal_sds(self):
        _, scale, factors = self._parts()
        return jnp.sqrt(scale**2 + jnp.sum(factors**2, 1))

    def normal_log_prob(self, x):
        mean, scale, white = self._density_parts()
        away = (x - mean) / scale
        inner = jnp.linalg.solve(self._capacitance(), white.T @ away)
        square = jnp.sum(away**2) - (white.T @ away) @ inner
        return -0.5 * square - self._half_log_det() - 0.5 * self.dimension * _LOG_2PI

    def normal_entropy(self):
        return self._half_log_det() + 0.5 * self.dimension * (1 + _LOG_2PI)

    def _capacitance(self):
        white = self._density_parts()[2]
        return jnp.eye(self.rank, dtype=white.dtype) + white.T @ white

    def _half_log_det(self):
        return jnp.sum(jnp.log(self._density_parts()[1])) + 0.5 * jnp.linalg.slogdet(self._capacitance())[1]

    def normal_fisher(self):
        inverse = jnp.linalg.inv(self.covariance())
        by_params = jax.jacfwd(lambda p: self._moved(p).covariance())(self.normal_params)
        bent = jnp.einsum("ij,jkp->pik", inverse, by_params)
        found = 0.5 * jnp.einsum("pij,qji->pq", bent, bent)
        return found.at[: self.dimension, : self.dimension].add(inverse)

    def metric(self):
        """Turns of short factors, and a D_i that factors replace, hardly change q: these are held back a little."""
        first, *rest = self.fisher().blocks
        inverse = jnp.diag(jnp.linalg.inv(self.covariance()))
        more = jnp.concatenate([0 * inverse, 2 * inverse, inverse[self._rows()]])
        more = jnp.concatenate([more, jnp.zeros(self.num_joint_params - len(more), more.dtype)])
        return BlockDiagonal((first + LEAST * jnp.diag(more), *rest))

    def normal_entropy_hessian(self):
        return jax.hessian(lambda p: self._moved(p).normal_entropy())(self.normal_params)

    def _rows(self) -> np.ndarray:
        return np.nonzero(self.pattern.free())[0]

    def stretched(self, others, logs):
        return others * np.exp(np.concatenate([logs, logs[self._rows()]]))

    def other_labels(self, names):
        rows, columns = np.nonzero(self.pattern.free())
        return [f"{names[i]} by factor {k + 1}" for i, k in zip(rows, columns)], [names[i] for i in rows]


def check_rank(size: int, rank: int) -> None:
    """Raise ValueError unless a rank is between 1 and the Ledermann bound."""
    if not isinstance(rank, int | np.integer) or isinstance(rank, bool) or rank < 1:
        raise ValueError(f"rank must be a positive integer or None; got {rank!r}")
    bound = ledermann_bound(size)
    if rank > bound:
        remedy = f"take rank at most {bound}, or FullRank" if bound else "use FullRank"
        raise ValueError(
            f"rank {rank} is above the Ledermann bound of {bound} in {size} dimensions, beyond which a diagonal and a "
            f"low rank have more parameters than a covariance: {remedy}"
        )


def why_not_low_rank(q) -> str | None:
    """Why a q cannot become one with a low rank, as a sentence; None if it can."""
    if not isinstance(q, MeanField):
        return f"LowRank continues from a MeanField of normal factors; got {type(q).__name__}"
    if (why := why_not_joint(q.layout, "LowRank")) is not None:
        return why
    size = normal_first(q.layout, np.zeros(q.num_params))[0].counts[0]
    return None if ledermann_bound(size) else f"LowRank needs at least 3 dimensions, and here are {size}: use FullRank"


def _split(layout: Layout, params: np.ndarray) -> tuple[Layout, list[np.ndarray]]:
    if (why := why_not_joint(layout, "LowRank")) is not None:
        raise ValueError(why)
    return normal_first(layout, params)


def _start(pattern: Factors, scale: np.ndarray) -> np.ndarray:
    """Short factors in all coordinates, off the saddle where there are none."""
    angles = np.outer(np.arange(pattern.size) + 0.3, np.arange(1, pattern.rank + 1)) * np.pi / pattern.size
    return _SHORT * scale[:, None] * np.cos(angles) * pattern.free()


def _joined(layout: Layout, pattern: Factors, parts: list[np.ndarray], factors: np.ndarray) -> jax.Array:
    what = f"LowRank of rank {pattern.rank}"
    if (why := over_budget(layout, 2 * pattern.size + pattern.num_entries, what, "take a smaller rank")) is not None:
        raise ValueError(why)
    params = with_zeros(parts, pattern.num_entries)
    params[2 * pattern.size : 2 * pattern.size + pattern.num_entries] = factors[pattern.free()]
    return jax.device_put(params)
