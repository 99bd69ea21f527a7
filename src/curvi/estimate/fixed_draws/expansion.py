"""The Hessian H0 of ln p near the mean of a normal q: a control variate, and a metric.

Under mirrored noise e, with draws m + L e, a quadratic form with Hessian H0 averages over the draws to its expectation
plus its *excess*

    tr(L' H0 L (mean e e' - I)) / 2,        for diagonal L    sigma' K sigma / 2,    K = H0 * (mean e e' - I),

for any expansion point. Subtracting that is the second-order control variate (Miller, Foti, D'Amour and Adams 2017):
the number of draws then need not grow with the dimension. It is unbiased for any matrix in place of H0. The family's
path computes it (`ExpandablePath.excess`). -H0 also contains the correlations of the means; as their metric it
preconditions conjugate gradients well.
"""

import numpy as np
from scipy.linalg import get_lapack_funcs

from curvi.family.path import ExpandablePath

(dtrtrs,) = get_lapack_funcs(("trtrs",), dtype=np.float64)

_LEAST = 1e-6


class Expansion:
    """H0 and its uses; `sigma` has the sds of the q at whose mean it was taken."""

    def __init__(self, hessian: np.ndarray, sigma: np.ndarray):
        self.sigma = sigma
        # Zero where the Hessian is not finite at the mean of q.
        self.hessian = (hessian + hessian.T) / 2 if np.all(np.isfinite(hessian)) else np.zeros_like(hessian)
        self.lower = self._metric() if self.hessian.any() else None

    def _metric(self) -> np.ndarray | None:
        """Cholesky factor of -H0, None where that is not definite."""
        try:
            # Add a little of the Fisher information, so that flat directions do not make the metric singular.
            # Fortran order avoids a copy at every LAPACK call.
            return np.asfortranarray(np.linalg.cholesky(np.diag(_LEAST / self.sigma**2) - self.hessian))
        except np.linalg.LinAlgError:
            return None

    def whiten(self, v: np.ndarray) -> np.ndarray:
        """L^-1 v with -H0 = L L' approximately."""
        # Faster than SciPy's solve_triangular, whose checks dominate for small systems.
        return dtrtrs(self.lower, v, lower=1)[0]

    def unwhiten(self, v: np.ndarray) -> np.ndarray:
        """L^-T v."""
        return dtrtrs(self.lower, v, lower=1, trans=1)[0]


class Excess:
    """The excess of H0 over the draws of some noise, which is subtracted from value and gradient."""

    def __init__(self, path: ExpandablePath, hessian: np.ndarray, noise: np.ndarray):
        self.path, self.hessian = path, hessian
        self.gradient = path.excess(hessian, noise)

    def over(self, parts: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The excess over each part of the noise at coordinates c, and its gradients."""
        return self.path.part_excess(self.hessian, parts, c)
