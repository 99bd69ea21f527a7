"""Estimates of the ELBO around one q, from a pool of draws."""

import dataclasses

import numpy as np

from curvi.certify.gain import Gain
from curvi.descent.dense import DenseModel
from curvi.estimate.left_out_parts import with_left_out_parts
from curvi.estimate.pairs import PairFit, fit_pairs, pair_part
from curvi.estimate.pool import View
from curvi.estimate.regression import pair_layout
from curvi.estimate.shrunk_pairs import NO_CURVATURE, shrunk_curvature
from curvi.estimate.single_values import gain_beyond
from curvi.family import Family
from curvi.methods.pooled_regression.programs import scores_at
from curvi.record.plain import register
from curvi.record.pytree import pytree

MAX_PRODUCTS = 512  # beyond, products are fitted on a subset of the draws, by their kernel
MAX_ROWS = 8192
KERNEL_ROWS = 768  # time of eigendecompositions is cubic


@register
@pytree
class Estimate:
    """The ELBO around one q, estimated from a pool of draws.

    Attributes
    ----------
    model
        Value, gradient and curvature.
    control
        The coefficients of products of scores that are subtracted from a response as control variates; None for none.
    shrinkage
        The share of the regressed curvature that was used.
    residual_variance, complete
        Of the regression (`PairFit`).
    beyond, beyond_se
        Gain in nats from single values of discrete factors beyond the model (`single_values`), and its standard error.
    effective_size
        The effective number of draws at q.
    """

    model: DenseModel
    control: np.ndarray | None
    shrinkage: float
    residual_variance: float
    complete: bool
    beyond: float
    beyond_se: float
    effective_size: float = 0.0

    def gain(self) -> Gain:
        """What is left to gain, as far as the draws show it."""
        return self._with_single_values(*self.model.remaining_gain())

    def verdict(self) -> Gain:
        """What is left to gain where the draws of the estimate also led to its q (`DenseModel.posterior_gain`)."""
        return self._with_single_values(*self.model.posterior_gain())

    def elbo(self) -> tuple[float, float]:
        """The ELBO and its standard error where the draws of the estimate also led to its q.

        The highest point of the estimated ELBO is too high by tr(A^-1 C): half of it because it is the highest of a
        noisy surface, half because the true surface is lower there than at its own highest point.
        """
        bias = 2 * self.model.noise_gain()
        bias = bias if np.isfinite(bias) else 0.0
        return self.model.value - bias, float(np.hypot(self.model.value_se, bias))

    def _with_single_values(self, nats: float, error: float) -> Gain:
        return Gain(nats + self.beyond, float(np.hypot(error, self.beyond_se)))


@dataclasses.dataclass(frozen=True)
class Regression:
    """The settings of the regression for one problem."""

    products: bool
    most_rows: int
    every_value: tuple | None  # rows with each value of each discrete factor, and that factor's index

    def estimate(self, view: View, q: Family, unseen: bool = False) -> Estimate:
        """The estimate of a view of the pool; with `unseen`, its noise is that at draws unlike all others, too
        (`left_out_parts`).
        """
        layout = pair_layout(q)
        rows, curvature = slice(None), NO_CURVATURE
        if len(view.weights) > self.most_rows:
            # Too many draws for the products: fit these on a subset, and the scores on all draws, with the fitted
            # products subtracted from the response.
            rows = np.linspace(0, len(view.weights) - 1, self.most_rows).astype(int)
        part = view.scores[rows], view.ratios[rows], view.weights[rows]
        found = fit_pairs(*part, layout, products=self.products)
        if self.products:
            curvature = shrunk_curvature(found, *part, layout)
        if unseen and len(view.weights) <= self.most_rows:
            found = with_left_out_parts(found, *part, layout)
        if len(view.weights) > self.most_rows:
            response = view.ratios - _pair_part(view.scores, curvature.control)
            found = fit_pairs(view.scores, response, view.weights, layout, products=False)
        model = DenseModel.make(found.value, found.value_se, found.linear, found.covariance(), curvature.pairs)
        shrinkage, residual, complete = curvature.shrinkage, float(found.residual_variance), bool(found.complete)
        beyond = self._beyond(q, found)
        return Estimate(model, curvature.control, shrinkage, residual, complete, *beyond, view.effective_size)

    def _beyond(self, q: Family, found: PairFit) -> tuple[float, float]:
        if self.every_value is None:
            return 0.0, 0.0
        x, owner = self.every_value
        scores = scores_at(q, x)[1]
        return gain_beyond(scores, owner, q.factor_of_param, found.linear, found.covariance())


def _pair_part(scores: np.ndarray, control: np.ndarray | None):
    """The part of the response explained by the products."""
    return 0.0 if control is None else pair_part(scores, control)
