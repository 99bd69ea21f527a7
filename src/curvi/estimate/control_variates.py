"""Control variates for the score gradient: the terms f_i = w_i s_i are regressed on the scores, whose mean is zero.

    f_i - A s_i,      A = Cov(f, s) Var(s)^-1

with A a number (Paisley, Blei and Jordan 2012), one number per parameter (Ranganath, Gerrish and Blei 2014), or a
matrix (Wang, Chen, Smola and Xing 2013; here over all parameters, by least squares). A fitted on the draws it is
applied to would bias the gradient, so the draws are split into two halves, and each half uses the coefficients of
the other.
"""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi.record.plain import register


class ControlVariate(eqx.Module):
    """A method to fit the coefficients A."""

    @abstractmethod
    def fit(self, terms: Float[Array, "S P"], scores: Float[Array, "S P"]) -> Callable[[Array], Array]:
        """The coefficients A on these draws, as a function that maps scores to explained terms."""

    def reduce(self, terms: Float[Array, "S P"], scores: Float[Array, "S P"], unit: int) -> Float[Array, "S P"]:
        """Terms with the same mean and less noise; halves are split between independent units."""
        num_units = terms.shape[0] // unit
        if num_units < 2:
            return terms
        cut = unit * (num_units // 2)
        first, second = self.fit(terms[:cut], scores[:cut]), self.fit(terms[cut:], scores[cut:])
        return jnp.concatenate([terms[:cut] - second(scores[:cut]), terms[cut:] - first(scores[cut:])])


@register
class ScalarControl(ControlVariate):
    """One coefficient for the whole gradient (Paisley et al. 2012)."""

    def fit(self, terms, scores):
        coefficient = _ratio(jnp.sum(_centred(terms) * scores), jnp.sum(_centred(scores) ** 2))
        return lambda s: coefficient * s


@register
class ParameterControl(ControlVariate):
    """One coefficient per parameter (Ranganath et al. 2014, equation 9)."""

    def fit(self, terms, scores):
        coefficient = _ratio(jnp.sum(_centred(terms) * scores, 0), jnp.sum(_centred(scores) ** 2, 0))
        return lambda s: coefficient * s


@register
class MatrixControl(ControlVariate):
    """A full matrix of coefficients by ridge regression (Wang et al. 2013); needs more draws than parameters.

    Parameters
    ----------
    ridge
        Added to the scores' second moments, relative to their mean diagonal.
    """

    ridge: float = 1e-3

    def fit(self, terms, scores):
        moments = scores.T @ scores / scores.shape[0]
        size = moments.shape[0]
        damped = moments + self.ridge * jnp.trace(moments) / size * jnp.eye(size, dtype=moments.dtype)
        coefficients = jnp.linalg.solve(damped, scores.T @ _centred(terms) / scores.shape[0])
        return lambda s: s @ coefficients


def _centred(values):
    return values - values.mean(0)


def _ratio(above, below):
    return jnp.where(below > 0, above / jnp.where(below > 0, below, 1), 0)
