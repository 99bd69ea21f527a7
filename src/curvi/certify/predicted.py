"""What a q with a full covariance would gain over independent normal factors, before it is fitted.

With P the expected precision at the mean-field optimum, scaled to unit diagonal, the best full-rank q of a Gaussian has
an ELBO higher by -ln det(P) / 2, and its sds are those of q times the roots of the diagonal of P^-1: the linear
response of a Gaussian. Where P is not positive definite neither is known.

The expected Hessian of ln p comes from gradients at the draws of a normal q, by Stein's identity: E[grad e'] =
E[Hessian] L. With matched noise, or less the excess of a control variate, the average is exact where ln p is quadratic.
"""

import dataclasses

import numpy as np

from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.family.path import ExpandablePath


@dataclasses.dataclass(frozen=True)
class ExpectedHessian:
    """The d x d matrix, and its noise from the two halves of the draws."""

    matrix: np.ndarray
    noise: np.ndarray

    def finite(self) -> bool:
        return bool(np.all(np.isfinite(self.matrix)))


def expected_hessian(local: FixedDrawsModel) -> ExpectedHessian | None:
    """The expected Hessian at the q of a local model whose gradients at draws were kept, with as many pairs as it
    takes; None where there are too few.
    """
    path, fixed = local.curvature.objective.path, local.fixed
    slopes = local.kept()
    if slopes is None or not isinstance(path, ExpandablePath):
        return None
    count = len(slopes) // 4 * 4
    hessian = None if fixed.excess is None else fixed.excess.hessian
    if hessian is None and count < 4 * path.size:
        return None
    factor = path.scale_matrix(local.params)
    halves = []
    for part in np.split(np.arange(count), 2):
        e, slope = fixed.values[part], slopes[part]
        # About zero: the gradient at the mean is noise here.
        product = slope.T @ e / len(part)
        if hessian is not None:
            product -= hessian @ factor @ (e.T @ e / len(part) - np.eye(path.size))
        bent = np.linalg.solve(factor.T, product.T).T
        halves.append((bent + bent.T) / 2)
    return ExpectedHessian((halves[0] + halves[1]) / 2, (halves[0] - halves[1]) / 2)


@dataclasses.dataclass(frozen=True)
class PredictedGain:
    """The gain of a full covariance.

    Attributes
    ----------
    nats, error
        The predicted gain and its standard error; NaN where it is unknown.
    wider
        The largest factor by which an sd of linear response exceeds that of q.
    """

    nats: float
    error: float
    wider: float

    @property
    def known(self) -> bool:
        return bool(np.isfinite(self.nats))


UNKNOWN_GAIN = PredictedGain(np.nan, np.nan, np.nan)


def predict_full_rank(expected: ExpectedHessian | None) -> PredictedGain:
    """The predicted gain of full rank over a mean field at its optimum."""
    if expected is None or not expected.finite():
        return UNKNOWN_GAIN
    diagonal = -np.diag(expected.matrix)
    if not np.all(diagonal > 0):
        return UNKNOWN_GAIN
    scale = diagonal**-0.5
    precision = -expected.matrix * scale * scale[:, None]
    try:
        root = np.linalg.cholesky(precision)
    except np.linalg.LinAlgError:
        return UNKNOWN_GAIN
    inverse = np.linalg.inv(root)
    noise = inverse @ (expected.noise * scale * scale[:, None]) @ inverse.T
    # -ln det is convex: noise N of P adds tr((P^-1 N)^2) / 4 on average.
    nats = -np.log(np.diag(root)).sum() - np.sum(noise**2) / 4
    error = abs(np.trace(noise)) / 2 + np.sum(noise**2) / 4
    return PredictedGain(max(float(nats), 0.0), float(error), float(np.sqrt(np.sum(inverse**2, 0).max())))
