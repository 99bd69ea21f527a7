"""The local model of the ELBO on fixed noise, in numpy on the host: a `LocalModel` like that of every estimator."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from curvi.curvature import BlockDiagonal
from curvi.estimate.fixed_draws.expansion import Expansion
from curvi.estimate.fixed_draws.noise import FixedNoise
from curvi.estimate.fixed_draws.sweep import rows_of
from curvi.estimate.hybrid import Weighted
from curvi.estimate.local import GroupNoise, LocalModel
from curvi.family.path import ExpandablePath, HostPath, HostRootLike
from curvi.record.pytree import pytree

if TYPE_CHECKING:
    from curvi.estimate.fixed_draws.objective import Objective


@dataclasses.dataclass(frozen=True)
class Difference:
    """What is to be added to the mean of ln p, estimated in independent parts.

    Attributes
    ----------
    value, value_se
        The mean and its standard error.
    part_slopes
        Its gradients in the coordinates of the path, one per part.
    hessian
        What is known of its expected Hessian in the draws; None where nothing is.
    """

    value: float
    value_se: float
    part_slopes: np.ndarray
    hessian: np.ndarray | None = None

    def parts(self, num_parts: int) -> np.ndarray:
        """The gradients in fewer parts."""
        return self.part_slopes.reshape(num_parts, -1, self.part_slopes.shape[-1]).mean(1)


@dataclasses.dataclass(frozen=True)
class FixedDrawsHessian:
    """The Hessian of the ELBO on fixed noise, given by its products, with the quantities at `params` that they need."""

    objective: "Objective"
    params: np.ndarray
    fixed: FixedNoise
    slope: np.ndarray  # gradient of the mean of ln p on this noise, in the coordinates of the path
    grad: np.ndarray  # of the ELBO on this noise
    raw_grad: np.ndarray  # gradient of the mean of ln p less the control variate
    spreads: np.ndarray  # steps of one sd of q in each parameter: the inverse root of the Fisher diagonal
    weighted: Weighted | None  # for a hybrid q
    more: np.ndarray | None = None  # the Hessian in the draws of what these draws do not know of

    def mv(self, v: np.ndarray) -> np.ndarray:
        return self.objective.product(self, v)

    def of_more(self, tangent: np.ndarray) -> np.ndarray | float:
        """The product of `more`, in the coordinates of the path, with a direction there."""
        path = self.objective.path
        if self.more is None or not isinstance(path, ExpandablePath):
            return 0.0
        # A quadratic form has no excess where the noise has the right moments, and its own negative without noise.
        product = -path.excess(self.more, np.zeros((2, path.size)))(tangent)
        product[: path.size] += self.more @ tangent[: path.size]
        return product

    def bend_of_more(self, direction: np.ndarray) -> float:
        """The second derivative of what is added, along a direction of the parameters."""
        tangent = self.objective.path.tangent(self.params, direction)
        return float(np.sum(tangent * self.of_more(tangent)))


class PartNoise(GroupNoise[np.ndarray]):
    """The gradients on the independent parts of the noise, each less its own excess; computed lazily."""

    def __init__(self, hessian: FixedDrawsHessian, part_slopes: np.ndarray, symmetric: bool = False):
        object.__setattr__(self, "hessian", hessian)
        object.__setattr__(self, "part_slopes", part_slopes)
        object.__setattr__(self, "symmetric", symmetric)

    def symmetrised(self) -> "PartNoise":
        """The noise of gradients whose expected Hessian is made symmetric."""
        return PartNoise(vars(self)["hessian"], vars(self)["part_slopes"], True)

    def plus(self, hessian: FixedDrawsHessian, part_slopes: np.ndarray) -> "PartNoise":
        """The noise of these gradients and as many independent ones, which they are added to."""
        return PartNoise(hessian, vars(self)["part_slopes"] + part_slopes, vars(self)["symmetric"])

    # Overrides a field: only some steps need it.
    @functools.cached_property
    def groups(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleVariableOverride]
        hessian: FixedDrawsHessian = vars(self)["hessian"]
        slopes: np.ndarray = vars(self)["part_slopes"]
        fixed, path = hessian.fixed, hessian.objective.path
        if fixed.excess is not None:
            slopes = slopes - fixed.excess.over(fixed.parts(fixed.num_parts), path.coordinates(hessian.params))[1]
        if vars(self)["symmetric"] and isinstance(path, HostPath):
            slopes = np.stack([path.symmetrised(hessian.params, slope) for slope in slopes])
        return path.gradient(hessian.params, slopes) + (hessian.grad - hessian.raw_grad)


class HostRoot:
    """L with L L' the Fisher information of q, or -H0 for the means of normal factors where it is known."""

    def __init__(self, path, spreads: np.ndarray | None, fisher: BlockDiagonal | None, expansion: Expansion | None):
        # For normal factors L is diagonal, which keeps the overhead of each product small.
        self.path, self.diagonal = path, spreads
        self.inverse = [] if fisher is None else [_inverse_root(np.asarray(block)) for block in fisher.blocks]
        self.expansion = expansion if expansion is not None and expansion.lower is not None else None

    def solve(self, v: np.ndarray) -> np.ndarray:
        out = self._blocks("nij,nj->ni", v)
        if self.expansion is not None:
            self.path.location(out)[:] = self.expansion.whiten(self.path.location(v))
        return out

    def solve_transpose(self, v: np.ndarray) -> np.ndarray:
        out = self._blocks("nji,nj->ni", v)
        if self.expansion is not None:
            self.path.location(out)[:] = self.expansion.unwhiten(self.path.location(v))
        return out

    def _blocks(self, product: str, v: np.ndarray) -> np.ndarray:
        if self.diagonal is not None:
            return v * self.diagonal
        out, start = [], 0
        for inverse in self.inverse:
            n, k, _ = inverse.shape
            out.append(np.einsum(product, inverse, v[start : start + n * k].reshape(n, k)).ravel())
            start += n * k
        return np.concatenate(out)


def _inverse_root(block: np.ndarray) -> np.ndarray:
    """L^-1; NaN where the block is not definite, so that the step is rejected."""
    try:
        return np.linalg.inv(np.linalg.cholesky(block))
    except np.linalg.LinAlgError:
        return np.full_like(block, np.nan)


@pytree
class FixedDrawsModel(LocalModel[np.ndarray, FixedDrawsHessian, BlockDiagonal | None]):
    """A `LocalModel` on fixed noise; `draw_values` are ln p, and `exact` is the entropy or the closed-form part.

    Its curvature may come from other, fewer draws (`bent`): a gradient decides what the answer is, a Hessian that is a
    tenth off only how many steps lead there.
    """

    value: float
    curvature: FixedDrawsHessian
    noise: PartNoise
    fixed: FixedNoise = None  # pyright: ignore[reportAssignmentType]  the parent's fields have defaults
    slope: np.ndarray = None  # pyright: ignore[reportAssignmentType]  in coordinates, less the control variate
    exact: float = 0.0
    kept_slopes: Any = None  # on the device

    def kept(self) -> np.ndarray | None:
        """The gradient of ln p at each of the first draws."""
        return None if self.kept_slopes is None else rows_of(self.kept_slopes)[: self.fixed.num_draws]

    def bent(self, few: "FixedDrawsModel") -> "FixedDrawsModel":
        """This model with the curvature on the draws of another one at the same parameters."""
        if few is self:
            return self
        # The gradient enters the Hessian where coordinates are no linear functions of the parameters: that of the many.
        curvature = dataclasses.replace(few.curvature, raw_grad=self.curvature.raw_grad, more=self.curvature.more)
        return dataclasses.replace(self, curvature=curvature)

    def plus(self, difference: "Difference") -> "FixedDrawsModel":
        """This model with what an independent estimate adds to ln p; products and draws stay what they are."""
        slope = self.slope + difference.part_slopes.mean(0)
        raw_grad = self.curvature.objective.path.gradient(self.params, slope)
        grad = raw_grad + (self.grad - self.curvature.raw_grad)
        curvature = dataclasses.replace(self.curvature, grad=grad, raw_grad=raw_grad, more=difference.hessian)
        noise = self.noise.plus(curvature, difference.parts(self.fixed.num_parts))
        value = self.value + difference.value
        return dataclasses.replace(self, value=value, slope=slope, grad=grad, curvature=curvature, noise=noise)

    def without_more(self) -> "FixedDrawsModel":
        """This model with the curvature of its own draws alone."""
        return dataclasses.replace(self, curvature=dataclasses.replace(self.curvature, more=None))

    def symmetrised(self) -> "FixedDrawsModel":
        """This model with both triangles of Stein's estimate of the expected Hessian averaged, which about halves its
        noise. No longer the gradient of one function, so not for climbs on the same draws.
        """
        path = self.curvature.objective.path
        if not isinstance(path, HostPath) or not path.has_fixed_point:
            return self
        slope = path.symmetrised(self.params, self.slope)
        raw_grad = path.gradient(self.params, slope)
        grad = raw_grad + path.entropy_gradient(self.params)
        curvature = dataclasses.replace(self.curvature, grad=grad, raw_grad=raw_grad)
        return dataclasses.replace(self, slope=slope, grad=grad, curvature=curvature, noise=self.noise.symmetrised())

    @property
    def params(self) -> np.ndarray:
        return self.curvature.params

    @property
    def spreads(self) -> np.ndarray:
        return self.curvature.spreads

    def root(self) -> HostRootLike:
        return self._root

    @functools.cached_property
    def _root(self) -> HostRootLike:
        objective = self.curvature.objective
        if isinstance(objective.path, HostPath) and (own := objective.path.root(self.params)) is not None:
            return own
        diagonal = self.spreads if objective.path.known_to_host else None
        return HostRoot(objective.path, diagonal, self.fisher, objective.expansion)

    def finite(self) -> bool:
        return bool(np.isfinite(self.value) and np.all(np.isfinite(self.grad)))

    @property
    def effective(self) -> float:
        """Effective sample size as a share of the draws: 1 unless they are weighted."""
        weighted = self.curvature.weighted
        return 1.0 if weighted is None else weighted.effective

    def part_means(self, num_parts: int) -> np.ndarray:
        """Means of ln p over parts of the draws."""
        weighted = self.curvature.weighted
        values = self.draw_values if weighted is None else weighted.terms(self.draw_values)
        parts = values.reshape(num_parts, -1)
        return parts.sum(1) / parts.shape[1]  # numpy's `mean` takes three times as long where draws are few

    def part_excess(self, num_parts: int, mirrored: bool = False) -> np.ndarray | None:
        """The excess of the control variate over parts of the draws; None without one. With `mirrored`, parts are
        mirrored pairs, of which both draws have the same excess.
        """
        if self.fixed.excess is None:
            return None
        parts = self.fixed.parts(num_parts)
        parts = parts[:, :1] if mirrored else parts
        return self.fixed.excess.over(parts, self.curvature.objective.path.coordinates(self.params))[0]
