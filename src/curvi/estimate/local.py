"""The local quadratic model of the ELBO: returned by every estimator, used by every descent.

    L(Gamma + p) ~ value + grad' p + p' curvature p / 2

It is the interface between estimators on one side and solvers, descents and controls on the other, on the host (numpy)
or inside a program (JAX).

Noise in g biases the Newton decrement: with g = mean + noise, C the covariance of the noise and B = (-H)^-1,

    E[g'Bg] = (mean)'B(mean) + tr(BC),     Var(g'Bg / 2) = x'Cx + tr((BC)^2) / 2,     x = B g.

C is a sample covariance over groups of independent draws, or the closed form of a regression.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Int, PRNGKeyArray

from curvi.curvature import BlockDiagonal, Operator
from curvi.family import Family
from curvi.model.target import AbstractTarget
from curvi.record.plain import register
from curvi.record.pytree import pytree, static
from curvi.solve.truncated_cg import ArrayT, Scalar, Truth

# -- noise ------------------------------------------------------------------------------------------------------------


@runtime_checkable
class Noise(Protocol[ArrayT]):
    """The noise of a gradient."""

    def variance_along(self, x: ArrayT) -> Scalar:
        """x'Cx, the variance of the slope along x."""
        ...

    def through(self, solve: Callable[[ArrayT], ArrayT]) -> tuple[Scalar, Scalar]:
        """tr(BC), and the sum of tr((BC)^2) / 2 and the variance of half the first number; `solve` is the map B."""
        ...


@register
@pytree
class GroupNoise(Generic[ArrayT]):
    """Noise estimated from K independent estimates of the gradient, whose mean is the gradient; unknown for K = 1."""

    groups: ArrayT  # (K, P)

    def variance_along(self, x: ArrayT) -> Scalar:
        return variance_of_mean(self.groups @ x)

    def copy(self) -> ArrayT:
        """A vector with mean zero and covariance C: half the difference of two half-sample gradients."""
        count = self.groups.shape[0]
        half = count // 2
        if half == 0:
            return float("nan") * self.groups[0]  # pyright: ignore[reportReturnType]  numpy does not say
        # One half, or a little less for an odd number of groups, where the difference of unequal halves is noisier.
        share = (half * (count - half)) ** 0.5 / count
        return share * (self.groups[:half].mean(0) - self.groups[half:].mean(0))

    def through(self, solve: Callable[[ArrayT], ArrayT]) -> tuple[Scalar, Scalar]:
        """Estimates from one copy e of the noise: e'Be has mean tr(BC), and e'BCBe estimates the sum of variances."""
        e = self.copy()
        x = solve(e)
        return e @ x, self.variance_along(x)


@register
@pytree
class CovarianceNoise(Generic[ArrayT]):
    """Noise given by its covariance."""

    covariance: ArrayT  # (P, P)

    def variance_along(self, x: ArrayT) -> Scalar:
        return x @ self.covariance @ x

    def through(self, solve: Callable[[ArrayT], ArrayT]) -> tuple[Scalar, Scalar]:
        m = solve(self.covariance)
        return m.trace(), (m * m.T).sum() / 2


def variance_of_mean(values: ArrayT) -> Scalar:
    """Variance of the mean of K independent values, infinite for K = 1."""
    count = values.shape[0]
    return values.var(ddof=1) / count if count > 1 else values.sum() * 0 + float("inf")


def num_groups(num_units: int) -> int:
    """Number of equal groups that independent units are gathered into for standard errors."""
    return next(k for k in (8, 6, 5, 4, 3, 2, 1) if num_units % k == 0)


# -- the model --------------------------------------------------------------------------------------------------------


@register
class Counts(eqx.Module):
    """Evaluations of the model, counted per draw."""

    log_density: Int[jax.Array, ""] | int = 0
    gradient: Int[jax.Array, ""] | int = 0
    hvp: Int[jax.Array, ""] | int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return jax.tree.map(lambda a, b: a + b, self, other)

    def __radd__(self, other: object) -> "Counts":
        return self if isinstance(other, int) and other == 0 else NotImplemented


@runtime_checkable
class Root(Protocol[ArrayT]):
    """The root L of a metric L L' of the parameters: |L'p|^2 / 2 is the size of a step p in nats."""

    def solve(self, v: ArrayT) -> ArrayT:
        """L^-1 v: maps a gradient to whitened coordinates."""
        ...

    def solve_transpose(self, v: ArrayT) -> ArrayT:
        """L^-T v: maps a step back from whitened coordinates."""
        ...


@runtime_checkable
class Products(Protocol[ArrayT]):
    """A symmetric matrix given by its matrix-vector products."""

    def mv(self, v: ArrayT) -> ArrayT: ...


@runtime_checkable
class Metric(Protocol[ArrayT]):
    """A positive definite metric of the parameters: the Fisher information of q, or a substitute."""

    def factorise(self) -> Root[ArrayT]: ...


CurvatureT = TypeVar("CurvatureT", covariant=True)  # a kind of `Products`
MetricT = TypeVar("MetricT", covariant=True)  # a kind of `Metric`; else the model has a `root` of its own


@register
@pytree
class LocalModel(Generic[ArrayT, CurvatureT, MetricT]):
    """Value, gradient and curvature of the ELBO at one q, with the noise of each.

    Attributes
    ----------
    value, value_se
        ELBO estimate and its standard error.
    grad
        Gradient in the flat parameters.
    curvature
        Hessian of the ELBO, given by its Hessian-vector products.
    fisher
        Fisher information of q: metric, preconditioner, fallback.
    noise
        Noise of `grad`.
    draw_values
        One number per draw, whose mean is `value` up to terms in closed form: ln p - ln q, or ln p.
    curvature_halves
        Two independent estimates of the curvature from half the draws each, or None where its noise is negligible or
        cannot be estimated.
    counts
        Evaluations spent on this model.
    calls_per_product
        Hessian-vector products of the log density per product with `curvature` (0 where the curvature is stored).
    shrinkage
        The share of -H less the metric that is believed, since the draws of the curvature are few.
    """

    value: Scalar
    value_se: Scalar
    grad: ArrayT
    curvature: CurvatureT
    fisher: MetricT
    noise: Noise[ArrayT]
    draw_values: ArrayT
    counts: Counts
    curvature_halves: tuple[Operator, Operator] | None = None
    calls_per_product: int = static(default=0)
    shrinkage: float = static(default=1.0)

    def minus_curvature(self, root: Root[ArrayT], d: ArrayT) -> ArrayT:
        """-H d in the coordinates of the metric's root, shrunk towards the metric."""
        product = -root.solve(self.curvature.mv(root.solve_transpose(d)))  # pyright: ignore[reportAttributeAccessIssue]
        return product if self.shrinkage == 1 else self.shrinkage * product + (1 - self.shrinkage) * d

    def root(self) -> Root[ArrayT]:
        """The root of the metric in which steps are measured."""
        # The type of metric is declared by subclasses.
        return self.fisher.factorise()  # pyright: ignore[reportAttributeAccessIssue]

    def decrement(self, solve: Callable[[ArrayT], ArrayT], x: ArrayT | None = None) -> tuple[Scalar, Scalar]:
        """The remaining gain if the model holds, g'(-H)^-1 g / 2 less the bias from the noise of g, and its standard
        error; `solve` is the map (-H)^-1, `x` its value at the gradient where that is known already.
        """
        x = solve(self.grad) if x is None else x
        added, variance = self.noise.through(solve)
        return (self.grad @ x - added) / 2, (self.noise.variance_along(x) + variance) ** 0.5

    def finite(self) -> Truth:
        """Whether value and gradient are finite."""
        return jnp.isfinite(self.value) & jnp.all(jnp.isfinite(self.grad))


Estimated = LocalModel[jax.Array, Operator, BlockDiagonal]  # the local model of estimators inside programs


@runtime_checkable
class Estimator(Protocol):
    """Makes a local model of the ELBO of a target around q."""

    def __call__(self, target: AbstractTarget, q: Family, key: PRNGKeyArray) -> Estimated: ...
