"""What is known of the noise of an estimated gradient, and what it does to a Newton decrement.

With g = mean gradient + noise, C the covariance of the noise and B = (-H)^-1,

    E[g'Bg] = (mean)'B(mean) + tr(BC),     Var(g'Bg / 2) = x'Cx + tr((BC)^2) / 2,     x = B g.

Groups of independent draws know C by a sample, a regression by a formula. Written for numpy and for JAX alike.
"""

from collections.abc import Callable
from typing import Generic, Protocol

from curvi.record.plain import register
from curvi.record.pytree import pytree
from curvi.solve.loops import ArrayT, Scalar


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
