"""The banded normal: each element of a chain regressed on the elements just before it and on global latents.

    x_i = m_i + sum_j b_ij (x_j - m_j) + s_i e_i,        j global, or one of the `width` elements before i

The precision is banded, with a border, and so is the *inverse* of the scale: what time series and random walks ask for.
Elements that are not neighbours are independent given those between, but correlated over any distance; a banded scale
would forget after `width` elements. Memory and time are linear in the length of the chain.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi.family.base import Family
from curvi.family.centering import Centering
from curvi.family.chain import Chain
from curvi.family.chain_path import ChainPath, chain_path
from curvi.family.continuous import Normal
from curvi.family.joint_normal import JointNormal, check_dense
from curvi.family.layout import Layout, lay_out
from curvi.family.mean_field import MeanField
from curvi.family.series import Order, chain_of
from curvi.family.shapes import NORMAL, check_marginals
from curvi.family.widening import normal_first, over_budget, why_not_joint, with_zeros
from curvi.model.target import AbstractTarget
from curvi.record.plain import register


@register
class Banded(JointNormal):
    """A normal distribution whose precision is a band along a chain of latents, with a border of global latents.

    Discrete latents are independent of it and of each other, with the factors that they have in a `MeanField`.

    Parameters
    ----------
    target
        Gives names, shapes, supports and the start.
    order
        The latents of the chain, interleaved by their first axis: `["level", "slope"]` puts slope[t] after level[t];
        all other latents are global, tied to every element. None: latents of one element are global, and the others
        follow one after the other.
    width
        How many elements before it each element is regressed on.
    """

    params: Float[Array, " P"]
    layout: Layout = eqx.field(static=True)
    chain: Chain = eqx.field(static=True)
    centering: Centering | None = None
    marginals: str = eqx.field(static=True, default=NORMAL)

    def __init__(self, target: AbstractTarget, order: Order | None = None, width: int = 1, marginals: str = NORMAL):
        normal = {latent.name: Normal() for latent in target.latents if not latent.discrete}
        params, self.layout, self.chain = _joined(*lay_out(target, normal), order, width)
        self.centering, self.marginals = None, check_marginals(marginals)
        self.params = self._with_shape(params)

    @classmethod
    def of(cls, q: MeanField, order: Order | None = None, width: int = 1) -> "Banded":
        """The banded q equal to a mean field whose continuous factors are all Normal."""
        made = object.__new__(cls)
        found = _joined(q.layout, np.asarray(q.params), order, width)
        for name, value in zip(("params", "layout", "chain", "centering", "marginals"), (*found, q.centering, NORMAL)):
            object.__setattr__(made, name, value)
        return made

    # -- the covariance -----------------------------------------------------------------------------------------------

    @property
    def num_normal_params(self) -> int:
        return 2 * self.chain.size + self.chain.num_below

    @property
    def normal_path(self) -> ChainPath:
        return chain_path(self.chain)

    @property
    def normal_noise_size(self) -> int:
        return self.dimension

    def _regressions(self):
        return self.normal_path.regressions(self.normal_params)

    def factor(self) -> Float[Array, "n n"]:
        """L with covariance L L', dense: rows in the order of the latents, columns in that of the chain."""
        check_dense(self.dimension)
        place = self.normal_path.place
        return self._regressions().draws(jnp.eye(self.dimension, dtype=self.params.dtype)).T[place]

    def covariance(self):
        return self.factor() @ self.factor().T

    def normal_draw(self, noise):
        found = self._regressions()
        return (found.mean + found.draws(noise[None])[0])[self.normal_path.place]

    def normal_sds(self):
        return jnp.sqrt(jnp.sum(self.factor() ** 2, 1))

    def normal_log_prob(self, x):
        return self._regressions().log_prob(jnp.asarray(x)[self.normal_path.order])

    def normal_entropy(self):
        log_scales = self.params[self.dimension : 2 * self.dimension]
        return jnp.sum(log_scales) + 0.5 * self.dimension * (1 + float(np.log(2 * np.pi)))

    def normal_fisher(self):
        covariance, scale = self.covariance(), jnp.exp(self.params[self.dimension : 2 * self.dimension])
        rows, columns = self._entries()
        shared = (rows[:, None] == rows) * covariance[columns[:, None], columns] / scale[rows] ** 2
        two = 2 * jnp.eye(self.dimension, dtype=covariance.dtype)
        return jax.scipy.linalg.block_diag(jnp.linalg.inv(covariance), two, shared)

    def normal_entropy_hessian(self):
        return jnp.zeros((self.num_normal_params, self.num_normal_params), self.params.dtype)

    def _entries(self) -> tuple[np.ndarray, np.ndarray]:
        """The coordinates that each coefficient regresses, and on which."""
        order, (rows, columns) = self.normal_path.order, self.normal_path.entries
        return order[rows], order[columns]

    def stretched(self, others, logs):
        rows, columns = self._entries()
        return np.concatenate([others[: len(logs)] + logs, others[len(logs) :] * np.exp(logs[rows] - logs[columns])])

    def other_labels(self, names):
        rows, columns = self._entries()
        return [f"{names[i]} on {names[j]}" for i, j in zip(rows, columns)], [names[i] for i in rows]


def known_chain(q: Family, width: int = 1) -> Chain | str:
    """The pattern of a mean field in the order of its latents; why there is none, as a sentence."""
    if not isinstance(q, MeanField):
        return f"Banded continues from a MeanField of normal factors; got {type(q).__name__}"
    if (why := why_not_joint(q.layout, "Banded")) is not None:
        return why
    layout, _ = normal_first(q.layout, np.zeros(q.num_params))
    try:
        chain = chain_of(layout, None, width)
    except ValueError as error:
        return str(error)
    return _why_too_large(layout, chain) or chain


def _joined(layout: Layout, params: np.ndarray, order: Order | None, width: int) -> tuple[jax.Array, Layout, Chain]:
    """Parameters, layout and pattern of the banded q that equals a factorised one."""
    if (why := why_not_joint(layout, "Banded")) is not None:
        raise ValueError(why)
    layout, parts = normal_first(layout, params)
    chain = chain_of(layout, order, width)
    if (why := _why_too_large(layout, chain)) is not None:
        raise ValueError(why)
    return jax.device_put(with_zeros(parts, chain.num_below)), layout, chain


def _why_too_large(layout: Layout, chain: Chain) -> str | None:
    """Why a pattern is refused that has more parameters than memory should be asked for; None if it has not."""
    what = f"Banded with {chain.num_global:,} global coordinates and width {chain.width}"
    remedy = "put more of the latents into the order, or use MeanField"
    return over_budget(layout, 2 * chain.size + chain.num_below, what, remedy)
