"""Draws for q with factors of both kinds: some follow the parameters, the others stay and change their weights.

A reparameterised factor moves its draw with its parameters (pathwise). Any other factor, that of a discrete latent say,
keeps the value z that it drew from some r(z), and weighs it by w = q(z) / r(z); the derivative of w is q's score. With
`before`, earlier parameters, and f = ln p(x, z) - ln q_before(z) the ELBO is

    E_r[w f] - KL(q_z || q_before) + H(q_x),

smooth in all parameters, and so it is for fixed draws. ln q_before(z) is a control variate: near the optimum it leaves
little of ln p to be correlated with the score, and nothing where the posterior lies in the family. r is q_before with
rare values made less rare: a value that no draw has shown would seem to be right at whatever probability it has.

The mean over the draws is self-normalised, N / D with D the mean weight.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from curvi.family import Family


def weighed(density, q: Family, before):
    """Of the draw that noise e gives, as a function of e and then of the parameters: ln p - ln q of what is weighed,
    its weight, and the gradients of both.
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
    """A self-normalised mean N / D of weighted draws: what its second derivatives need."""

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
        """Effective share of the draws."""
        return float(self.total**2 / np.mean(self.weights**2))

    def product(self, bent: np.ndarray, turned: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """The Hessian of N / D times `direction`, of those of N and D."""
        across = self.slope * (self.grad @ direction) + self.grad * (self.slope @ direction)
        return (bent - self.mean * turned - across) / self.total

    def terms(self, values: np.ndarray) -> np.ndarray:
        """One number a draw whose mean is N / D to first order, so that means over small parts make sense."""
        return self.mean + self.weights * (values - self.mean) / self.total
