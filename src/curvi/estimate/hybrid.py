"""Draws for q with both kinds of factor: some are reparameterised, the others use importance weights.

The draw of a reparameterised factor moves with its parameters (pathwise). Any other factor, such as that of a discrete
latent, keeps the value z drawn from some r(z), with importance weight w = q(z) / r(z); the derivative of ln w is q's
score. With earlier parameters `before` and f = ln p(x, z) - ln q_before(z), the ELBO is

    E_r[w f] - KL(q_z || q_before) + H(q_x),

smooth in all parameters, also for fixed draws. ln q_before(z) is a control variate: near the optimum little of ln p
remains that correlates with the score, and nothing if the posterior lies in the family. r is q_before with a minimum
probability for rare values: draws that miss a value say nothing about its probability.

The mean over the draws is self-normalised, N / D with D the mean weight.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from curvi.family import Family


def weighed(density, q: Family, before):
    """A function of noise e, then of the parameters: for the draw from e, ln p - ln q of the weighted factors, its
    importance weight, and the gradients of both.
    """
    before = q.replace(before)
    r = before.with_min_probability()

    def at(e):
        def there(params):
            x = q.replace(params).follow(r, e)

            def log_p(p):
                moved = q.replace(p)
                return moved.log_joint(density, moved.follow(r, e))

            value, path = jax.value_and_grad(log_p)(params)
            value = value - before.weighed_log_prob(x)
            log_q, score = jax.value_and_grad(lambda p: q.replace(p).weighed_log_prob(x))(params)
            weight = jnp.exp(log_q - r.weighed_log_prob(x))
            found = value, weight, weight * (path + value * score), weight * score
            return tuple(part.astype(params.dtype) for part in found)  # log densities of integers may be wider

        return there

    return at


@dataclasses.dataclass(frozen=True)
class Weighted:
    """A self-normalised mean N / D of weighted draws, with what its second derivatives need."""

    mean: float  # N / D
    total: float  # D
    slope: np.ndarray  # gradient of D
    grad: np.ndarray  # gradient of N / D
    weights: np.ndarray

    @classmethod
    def make(cls, values, weights, part_grads, part_slopes) -> tuple[np.ndarray, "Weighted"]:
        """Gradients of the weighted mean of `values` on each part of the draws, and that mean on all of them."""
        num_parts = len(part_grads)
        share, total = weights.reshape(num_parts, -1), weights.mean()
        means = (share * values.reshape(num_parts, -1)).mean(1)[:, None] / share.mean(1)[:, None]
        mean, slope = weights @ values / weights.sum(), part_slopes.mean(0)
        grad = (part_grads.mean(0) - mean * slope) / total
        of_parts = (part_grads - means * part_slopes) / share.mean(1)[:, None]
        return of_parts, cls(float(mean), float(total), slope, grad, weights)

    @property
    def effective(self) -> float:
        """Effective sample size as a share of the draws."""
        return float(self.total**2 / np.mean(self.weights**2))

    def product(self, bent: np.ndarray, turned: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """The Hessian-vector product of N / D with `direction`, from those of N (`bent`) and D (`turned`)."""
        across = self.slope * (self.grad @ direction) + self.grad * (self.slope @ direction)
        return (bent - self.mean * turned - across) / self.total

    def terms(self, values: np.ndarray) -> np.ndarray:
        """One number per draw whose mean is N / D to first order, so that means over small parts are meaningful."""
        return self.mean + self.weights * (values - self.mean) / self.total
