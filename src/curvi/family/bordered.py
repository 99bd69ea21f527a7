"""The bordered normal q(x) = N(m, L L') with L in arrow form: global latents, and many small blocks tied to them.

    x_g = m_g + G e_g,        x_b = m_b + C_b e_g + B_b e_b

Given the globals, blocks are independent of each other: what a hierarchical model asks for, where groups meet in
their common parameters alone. Products of such L are of the same form, so that steps L -> L (I + A) stay in the family
and the Fisher information is diagonal in whitened coordinates, as for a full covariance. Memory and time are linear in
the number of blocks. A bordered scale, unlike a bordered precision, keeps the objective well behaved (Ko et al. 2024).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi.family.arrow import Arrow
from curvi.family.arrow_path import ArrowPath, arrow_path
from curvi.family.base import Family
from curvi.family.blocks import Blocks, arrow_of, blocks_of_plates, known_blocks, why_no_blocks
from curvi.family.centering import Centering
from curvi.family.continuous import Normal
from curvi.family.joint_normal import JointNormal, check_dense, stretched_scale
from curvi.family.layout import Layout, lay_out
from curvi.family.mean_field import MeanField
from curvi.family.scale_metric import scale_fisher
from curvi.family.shapes import NORMAL, check_marginals
from curvi.family.widening import normal_first, over_budget, why_not_joint, with_zeros
from curvi.model.origin import origin_of
from curvi.model.target import AbstractTarget
from curvi.record.plain import register

_LOG_2PI = float(np.log(2 * np.pi))


@register
class Bordered(JointNormal):
    """A normal distribution in which sets of small blocks of latents are tied to each other by global latents alone.

    Discrete latents are independent of it and of each other, with the factors that they have in a `MeanField`.

    Parameters
    ----------
    target
        Gives names, shapes, supports and the start; at least one of its latents must be continuous.
    blocks
        For each set of blocks, by any name, the latents with one entry per block: a name, a list of names (along their
        first axis), or a dict of axes by name. All other latents are global. Crossed effects are several sets:
        `{"student": "s", "lecturer": ["l", "slope"]}`. None takes the plates of a NumPyro model or the dims of a PyMC
        model; small sets are global then.
    """

    params: Float[Array, " P"]
    layout: Layout = eqx.field(static=True)
    arrow: Arrow = eqx.field(static=True)
    centering: Centering | None = None
    marginals: str = eqx.field(static=True, default=NORMAL)

    def __init__(self, target: AbstractTarget, blocks: Blocks | None = None, marginals: str = NORMAL):
        normal = {latent.name: Normal() for latent in target.latents if not latent.discrete}
        layout, params = lay_out(target, normal)
        if blocks is None:
            blocks = known_blocks(target, layout)
        params, self.layout, self.arrow = _joined(layout, params, blocks)
        self.centering, self.marginals = None, check_marginals(marginals)
        self.params = self._with_shape(params)

    @classmethod
    def of(cls, q: MeanField, blocks: Blocks) -> "Bordered":
        """The bordered q equal to a mean field whose continuous factors are all Normal."""
        made = object.__new__(cls)
        for name, value in zip(("params", "layout", "arrow"), _joined(q.layout, np.asarray(q.params), blocks)):
            object.__setattr__(made, name, value)
        object.__setattr__(made, "centering", q.centering)
        object.__setattr__(made, "marginals", NORMAL)
        return made

    @classmethod
    def from_plates(cls, target: AbstractTarget, q: MeanField) -> "Bordered":
        """The same with the blocks that the plates of the target make; ValueError where there are none."""
        return cls.of(q, known_blocks(target, q.layout))

    # -- the covariance -----------------------------------------------------------------------------------------------

    @property
    def num_normal_params(self) -> int:
        return 2 * self.arrow.size + self.arrow.num_below

    @property
    def normal_path(self) -> ArrowPath:
        return arrow_path(self.arrow)

    @property
    def normal_noise_size(self) -> int:
        return self.dimension

    def _parts(self):
        """Mean and factor in block order."""
        path = self.normal_path
        return path.unpack(path.at.coordinates(self.normal_params))

    def factor(self) -> Float[Array, "n n"]:
        """L as a dense matrix in the order of the latents, of which rows and columns are permuted alike."""
        path = self.normal_path
        check_dense(self.dimension)
        dense = self._parts()[1].mv(jnp.eye(self.dimension, dtype=self.params.dtype)).T
        return dense[path.at.place][:, path.at.place]

    def covariance(self):
        return self.factor() @ self.factor().T

    def normal_draw(self, noise):
        return self.normal_path.place_draws(*self._parts(), noise)

    def normal_sds(self):
        path = self.normal_path
        return jnp.sqrt(self._parts()[1].row_squares()[path.at.place])

    def normal_log_prob(self, x):
        mean, factor = self._parts()
        e = factor.solve(x[self.normal_path.at.order] - mean)
        return -0.5 * jnp.sum(e**2) - self._log_det() - 0.5 * self.dimension * _LOG_2PI

    def normal_entropy(self):
        return self._log_det() + 0.5 * self.dimension * (1 + _LOG_2PI)

    def _log_det(self):
        return jnp.sum(self.params[self.dimension : 2 * self.dimension])

    def normal_fisher(self):
        at, inverse = self.normal_path.at, jnp.linalg.inv(self.factor())
        scale = jnp.exp(self.params[self.dimension : 2 * self.dimension])
        return scale_fisher(inverse.T @ inverse, scale, at.order[at.rows], at.order[at.columns])

    def normal_entropy_hessian(self):
        return jnp.zeros((self.num_normal_params, self.num_normal_params), self.params.dtype)

    def stretched(self, others, logs):
        at = self.normal_path.at
        return stretched_scale(others, logs, at.order[at.rows])

    def other_labels(self, names):
        at = self.normal_path.at
        rows, columns = at.order[at.rows], at.order[at.columns]
        return [f"{names[i]} with {names[j]}" for i, j in zip(rows, columns)], [names[i] for i in rows]


def known_arrow(target: AbstractTarget, q: Family) -> Arrow | str:
    """The pattern of a mean field with the blocks of the target's plates; why there is none, as a sentence."""
    if not isinstance(q, MeanField):
        return f"Bordered continues from a MeanField of normal factors; got {type(q).__name__}"
    if (why := why_not_joint(q.layout, "Bordered")) is not None:
        return why
    layout, _ = normal_first(q.layout, np.zeros(q.num_params))
    blocks = blocks_of_plates(layout, origin_of(target).plates)
    if not blocks:
        return f"{why_no_blocks(target)}, which make blocks"
    arrow = arrow_of(layout, blocks)
    return _why_too_large(layout, arrow) or arrow


def _joined(layout: Layout, params: np.ndarray, blocks: Blocks) -> tuple[jax.Array, Layout, Arrow]:
    """Parameters, layout and pattern of the bordered q that equals a factorised one."""
    if (why := why_not_joint(layout, "Bordered")) is not None:
        raise ValueError(why)
    layout, parts = normal_first(layout, params)
    arrow = arrow_of(layout, blocks)
    if (why := _why_too_large(layout, arrow)) is not None:
        raise ValueError(why)
    return jax.device_put(with_zeros(parts, arrow.num_below)), layout, arrow


def _why_too_large(layout: Layout, arrow: Arrow) -> str | None:
    """Why a pattern is refused that has more parameters than memory should be asked for; None if it has not."""
    what = f"Bordered with {arrow.num_global:,} global coordinates"
    remedy = "put more of the latents into sets of blocks, or use MeanField"
    return over_budget(layout, 2 * arrow.size + arrow.num_below, what, remedy)
