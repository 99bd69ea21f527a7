"""The local quadratic model of the ELBO: what every estimator returns and every descent reads.

    L(Gamma + p) ~ value + grad' p + p' curvature p / 2

It is the waist of the library: estimators on one side, solvers, descents and controls on the other, each written once,
on the host (numpy) or inside of a program (JAX).

What noise does to its Newton decrement: with g = mean gradient + noise, C the covariance of the noise and B = (-H)^-1,

    E[g'Bg] = (mean)'B(mean) + tr(BC),     Var(g'Bg / 2) = x'Cx + tr((BC)^2) / 2,     x = B g.

Groups of independent draws know C by a sample, a regression by a formula.
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
        """tr(BC), and what the second part of the variance above and the error of the first number add up to, with
        `solve` the map B.
        """
        ...


@register
@pytree
class GroupNoise(Generic[ArrayT]):
    """Noise known by K independent estimates of the gradient, whose mean is the gradient; K = 1 knows nothing."""

    groups: ArrayT  # (K, P)

    def variance_along(self, x: ArrayT) -> Scalar:
        return variance_of_mean(self.groups @ x)

    def copy(self) -> ArrayT:
        """A vector with mean zero and covariance C: half the difference of two half-sample gradients."""
        count = self.groups.shape[0]
        half = count // 2
        if half == 0:
            return float("nan") * self.groups[0]  # pyright: ignore[reportReturnType]  numpy does not say
        # One half, or a little less where an odd number of groups makes the halves unequal and their difference
        # noisier.
        share = (half * (count - half)) ** 0.5 / count
        return share * (self.groups[:half].mean(0) - self.groups[half:].mean(0))

    def through(self, solve: Callable[[ArrayT], ArrayT]) -> tuple[Scalar, Scalar]:
        """By one copy e of the noise: e'Be has mean tr(BC), and a variance of its own, tr((BC)^2) / 2 once more."""
        e = self.copy()
        x = solve(e)
        return e @ x, self.variance_along(x)


@register
@pytree
class CovarianceNoise(Generic[ArrayT]):
    """Noise known by its covariance."""

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
    """Calls of the model, each counted per draw."""

    log_density: Int[jax.Array, ""] | int = 0
    gradient: Int[jax.Array, ""] | int = 0
    hvp: Int[jax.Array, ""] | int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return jax.tree.map(lambda a, b: a + b, self, other)

    def __radd__(self, other: object) -> "Counts":
        return self if isinstance(other, int) and other == 0 else NotImplemented


@runtime_checkable
class Root(Protocol[ArrayT]):
    """L of a metric L L' of the parameters: |L'p|^2 / 2 is the length of a step p in nats."""

    def solve(self, v: ArrayT) -> ArrayT:
        """L^-1 v: takes a gradient to whitened coordinates."""
        ...

    def solve_transpose(self, v: ArrayT) -> ArrayT:
        """L^-T v: takes a step back from whitened coordinates."""
        ...


@runtime_checkable
class Products(Protocol[ArrayT]):
    """A symmetric matrix known by its products."""

    def mv(self, v: ArrayT) -> ArrayT: ...


@runtime_checkable
class Metric(Protocol[ArrayT]):
    """A positive definite metric of the parameters: the Fisher information of q, or what stands for it."""

    def factorise(self) -> Root[ArrayT]: ...


CurvatureT = TypeVar("CurvatureT", covariant=True)  # a kind of `Products`
MetricT = TypeVar("MetricT", covariant=True)  # a kind of `Metric`; else the model has a `root` of its own


@register
@pytree
class LocalModel(Generic[ArrayT, CurvatureT, MetricT]):
    """Value, gradient and curvature of the ELBO at one q, with what is needed to judge their noise.

    Attributes
    ----------
    value, value_se
        ELBO estimate and its standard error.
    grad
        Gradient in the flat parameters.
    curvature
        Hessian of the ELBO, by its products.
    fisher
        Fisher information of q: metric, preconditioner, fallback.
    noise
        What is known of the noise of `grad`.
    draw_values
        One number a draw, whose mean is `value` up to what is known exactly: ln p - ln q, or ln p.
    curvature_halves
        Two independent estimates of the curvature from half the draws each, or None where it has no noise worth the
        trouble.
    counts
        Calls spent on this model.
    calls_per_product
        Hessian-vector products of the log density per product with `curvature` (0 where the curvature is stored).
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

    def root(self) -> Root[ArrayT]:
        """The root of the metric in which steps are measured."""
        # What kind of metric the model has is for its subclasses to say.
        return self.fisher.factorise()  # pyright: ignore[reportAttributeAccessIssue]

    def decrement(self, solve: Callable[[ArrayT], ArrayT], x: ArrayT | None = None) -> tuple[Scalar, Scalar]:
        """What is left to gain if the model holds, g'(-H)^-1 g / 2 less what the noise of g adds to it, and its
        standard error; `solve` is the map (-H)^-1, `x` what it makes of the gradient, where that is known already.
        """
        x = solve(self.grad) if x is None else x
        added, variance = self.noise.through(solve)
        return (self.grad @ x - added) / 2, (self.noise.variance_along(x) + variance) ** 0.5

    def finite(self) -> Truth:
        """Whether value and gradient are finite."""
        return jnp.isfinite(self.value) & jnp.all(jnp.isfinite(self.grad))


Estimated = LocalModel[jax.Array, Operator, BlockDiagonal]  # what is estimated inside of programs


@runtime_checkable
class Estimator(Protocol):
    """What makes a local model of a target around q."""

    def __call__(self, target: AbstractTarget, q: Family, key: PRNGKeyArray) -> Estimated: ...
