"""Estimates of the ELBO around one q, from a pool of draws and from fresh draws."""

import dataclasses

import numpy as np

from curvi.certify.gain import Gain
from curvi.descent.dense import DenseModel
from curvi.estimate.pairs import PairFit, fit_pairs, pair_part
from curvi.estimate.pool import Batch, Pool, View
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
    """

    model: DenseModel
    control: np.ndarray | None
    shrinkage: float
    residual_variance: float
    complete: bool
    beyond: float
    beyond_se: float

    def gain(self) -> Gain:
        nats, error = self.model.remaining_gain()
        return Gain(nats + self.beyond, float(np.hypot(error, self.beyond_se)))


@dataclasses.dataclass(frozen=True)
class Regression:
    """The settings of the regression for one problem."""

    products: bool
    most_rows: int
    every_value: tuple | None  # rows with each value of each discrete factor, and that factor's index

    def estimate(self, view: View, q: Family) -> Estimate:
        """The estimate of a view of the pool."""
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
        if len(view.weights) > self.most_rows:
            response = view.ratios - _pair_part(view.scores, curvature.control)
            found = fit_pairs(view.scores, response, view.weights, layout, products=False)
        model = DenseModel.make(found.value, found.value_se, found.linear, found.covariance(), curvature.pairs)
        shrinkage, residual = curvature.shrinkage, float(found.residual_variance)
        return Estimate(model, curvature.control, shrinkage, residual, bool(found.complete), *self._beyond(q, found))

    def certify(self, batch: Batch, rare: Batch | None, before: Estimate) -> tuple[float, float, Gain]:
        """ELBO with its standard error, and remaining gain, of the q of a batch that no estimate has used.

        Products of scores have mean zero and no covariance with the scores, so that any fixed multiple of them may be
        subtracted from the response: the fit on earlier draws is used as control variate.
        """
        fresh = Pool().add(batch, scores_at, 2 * MAX_ROWS, 2)
        if rare is not None:
            fresh = fresh.add(rare, scores_at, 2 * MAX_ROWS, 2)
        _, view = fresh.view(batch.q, scores_at, 0.0)
        layout = pair_layout(batch.q)
        response = view.ratios - _pair_part(view.scores, before.control)
        found = fit_pairs(view.scores, response, view.weights, layout, products=False)
        curvature = before.model.curvature
        model = DenseModel.with_curvature(found.value, found.value_se, found.linear, found.covariance(), curvature)
        nats, error = model.remaining_gain()
        beyond, beyond_se = self._beyond(batch.q, found)
        gain = Gain(max(nats, 0.0) + beyond, float(np.hypot(error, beyond_se)))
        return float(found.value), float(found.value_se), gain

    def _beyond(self, q: Family, found: PairFit) -> tuple[float, float]:
        if self.every_value is None:
            return 0.0, 0.0
        x, owner = self.every_value
        scores = scores_at(q, x)[1]
        return gain_beyond(scores, owner, q.factor_of_param, found.linear, found.covariance())


def _pair_part(scores: np.ndarray, control: np.ndarray | None):
    """The part of the response explained by the products."""
    return 0.0 if control is None else pair_part(scores, control)
