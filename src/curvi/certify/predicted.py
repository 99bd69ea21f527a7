"""What q's with a covariance would gain over independent normal factors, before they are fitted.

With P the expected precision at the mean-field optimum, scaled to unit diagonal, a q with factor L of its covariance
has an ELBO higher by max ln det(L) - (tr(L' P L) - d) / 2 if the posterior is Gaussian. Columns of L stand alone in
this: with R the rows of column j below its diagonal, it adds -ln(1 - P_jR P_RR^-1 P_Rj) / 2. For a full triangle these
make up -ln det(P) / 2, and the sds are those of a mean field times the roots of the diagonal of P^-1: the linear
response of a Gaussian. Where P is not positive definite nothing is known.

The expected Hessian of ln p comes from gradients at the draws of a normal q, by Stein's identity: E[grad e'] =
E[Hessian] L. With matched noise, or less the excess of a control variate, the average is exact where ln p is quadratic.
"""

import dataclasses

import numpy as np

from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.family.arrow import Arrow
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
    """The gain of a family over a mean field.

    Attributes
    ----------
    nats, error
        The predicted gain and its standard error; NaN where it is unknown.
    wider
        The largest factor by which an sd of linear response exceeds that of a mean field.
    """

    nats: float
    error: float
    wider: float

    @property
    def known(self) -> bool:
        return bool(np.isfinite(self.nats))


UNKNOWN_GAIN = PredictedGain(np.nan, np.nan, np.nan)


@dataclasses.dataclass(frozen=True)
class Precision:
    """P of unit diagonal, its noise, and the largest root of the diagonal of P^-1."""

    matrix: np.ndarray
    noise: np.ndarray
    wider: float


def precision_of(expected: ExpectedHessian | None) -> Precision | None:
    """The expected precision with unit diagonal; None where it is unknown or not positive definite."""
    if expected is None or not expected.finite():
        return None
    diagonal = -np.diag(expected.matrix)
    if not np.all(diagonal > 0):
        return None
    scale = diagonal**-0.5
    matrix = -expected.matrix * scale * scale[:, None]
    try:
        inverse = np.linalg.inv(np.linalg.cholesky(matrix))
    except np.linalg.LinAlgError:
        return None
    wider = float(np.sqrt(np.sum(inverse**2, 0).max()))
    return Precision(matrix, expected.noise * scale * scale[:, None], wider)


def predict_full_rank(precision: Precision | None) -> PredictedGain:
    """The predicted gain of full rank over a mean field at its optimum."""
    if precision is None:
        return UNKNOWN_GAIN
    return _gain(precision, [(1.0, slice(None))])


def predict_arrow(precision: Precision | None, arrow: Arrow) -> PredictedGain:
    """The predicted gain of a scale in arrow form.

    Columns of global latents reach all below them, those of local ones their own block: with B the blocks and A all
    locals, -ln(det P det B / det A) / 2.
    """
    if precision is None:
        return UNKNOWN_GAIN
    blocks = [block for one in arrow.sets for block in one.index()]
    every = np.concatenate([np.zeros(0, int), *blocks])
    # Blocks of one latent have nothing to gain.
    own = [(1.0, block) for block in blocks if len(block) > 1]
    return _gain(precision, [(1.0, slice(None)), (-1.0, every), *own])


def _gain(precision: Precision, terms) -> PredictedGain:
    """The sum of -ln det / 2 of parts of P with signs."""
    nats = error = 0.0
    for sign, part in terms:
        own, noise = ((m[part][:, part]) for m in (precision.matrix, precision.noise))
        root = np.linalg.cholesky(own)
        inverse = np.linalg.inv(root)
        noise = inverse @ noise @ inverse.T
        # -ln det is convex: noise N of P adds tr((P^-1 N)^2) / 4 on average.
        nats += sign * (-np.log(np.diag(root)).sum() - np.sum(noise**2) / 4)
        error += sign * (np.trace(noise) / 2 + np.sum(noise**2) / 4)
    return PredictedGain(max(float(nats), 0.0), abs(float(error)), precision.wider)
