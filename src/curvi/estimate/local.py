"""The local quadratic model of the ELBO: what every estimator returns and every descent reads.

    L(Gamma + p) ~ value + grad' p + p' curvature p / 2

It is the waist of the library: estimators on one side, solvers, descents and controls on the other, each written once.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from curvi.curvature import BlockDiagonal, Operator


class Counts(eqx.Module):
    """Calls of the model, each counted per draw."""

    log_density: Int[Array, ""] | int = 0
    gradient: Int[Array, ""] | int = 0
    hvp: Int[Array, ""] | int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return jax.tree.map(lambda a, b: a + b, self, other)

    def __radd__(self, other):
        return self if isinstance(other, int) and other == 0 else NotImplemented


class LocalModel(eqx.Module):
    """Value, gradient and curvature of the ELBO at one q, with what is needed to judge their noise.

    Attributes
    ----------
    value, value_se
        ELBO estimate and its standard error.
    grad
        Gradient in the flat parameters.
    curvature
        Hessian of the ELBO as an operator (`mv`, `dense`).
    fisher
        Fisher information of q: metric, preconditioner, fallback.
    group_grads
        K independent estimates of the gradient whose mean is `grad`; their spread is its noise. K = 1 says that the
        noise is not known.
    log_ratios
        ln p - ln q of the draws behind `value`.
    curvature_halves
        Two independent estimates of the curvature from half the draws each, or None where it has no noise worth the
        trouble.
    counts
        Calls spent on this model.
    calls_per_product
        Hessian-vector products of the log density per product with `curvature` (0 where the curvature is stored).
    """

    value: Float[Array, ""]
    value_se: Float[Array, ""]
    grad: Float[Array, " P"]
    curvature: Operator
    fisher: BlockDiagonal
    group_grads: Float[Array, "K P"]
    log_ratios: Float[Array, " S"]
    counts: Counts
    curvature_halves: tuple[Operator, Operator] | None = None
    calls_per_product: int = eqx.field(static=True, default=0)

    def finite(self):
        """Whether value and gradient are finite."""
        return jnp.isfinite(self.value) & jnp.all(jnp.isfinite(self.grad))

    def slope_variance(self, direction: Float[Array, " P"]) -> Float[Array, ""]:
        """Estimated variance of grad' direction; infinite where one group of draws cannot tell."""
        return variance_of_mean(self.group_grads @ direction)

    def half_difference(self) -> Float[Array, " P"]:
        """A vector with mean zero and the covariance of `grad`: half the difference of two half-sample gradients."""
        count = self.group_grads.shape[0]
        half = count // 2
        if half == 0:
            return jnp.full_like(self.grad, jnp.nan)
        # One half, or a little less where an odd number of groups makes the halves unequal and their difference
        # noisier.
        share = (half * (count - half)) ** 0.5 / count
        return share * (self.group_grads[:half].mean(0) - self.group_grads[half:].mean(0))


def variance_of_mean(values: Float[Array, " K"]) -> Float[Array, ""]:
    """Variance of the mean of K independent values, infinite for K = 1."""
    count = values.shape[0]
    if count < 2:
        return jnp.full((), jnp.inf, values.dtype)
    return jnp.var(values, ddof=1) / count


def num_groups(num_units: int) -> int:
    """Number of equal groups that independent units are gathered into for standard errors."""
    return next(k for k in (8, 6, 5, 4, 3, 2, 1) if num_units % k == 0)
