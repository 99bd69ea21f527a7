"""The Hessian H0 of ln p at the mean of a q of normal factors: a control variate, and a metric.

Under mirrored noise e, a quadratic form with Hessian H0 averages over the draws to its expectation plus

    sigma' K sigma / 2,    K = H0 * (mean e e' - I),

for any expansion point. Subtracting that is the second-order control variate (Miller, Foti, D'Amour and Adams 2017):
the number of draws then need not grow with the dimension. It is unbiased for any matrix in place of H0. -H0 also
contains the correlations of the means; as their metric it preconditions conjugate gradients well.
"""

import numpy as np
from scipy.linalg import get_lapack_funcs

(dtrtrs,) = get_lapack_funcs(("trtrs",), dtype=np.float64)

_LEAST = 1e-6
_LARGEST_STORED = 2048  # dimensions up to which K is stored


class Expansion:
    """H0 and its uses; `sigma` is the spread of the q at whose mean it was taken."""

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

    def excess(self, noise: np.ndarray) -> "Excess":
        """K of this noise."""
        return Excess(self.hessian, noise)

    def part_excess(self, parts: np.ndarray, sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """sigma' K sigma / 2 and its gradient in ln sigma for each part (parts, draws, dimension) of the noise."""
        scaled = parts * sigma
        pulled = scaled * (scaled @ self.hessian)
        gradient = pulled.mean(1) - np.diag(self.hessian) * sigma**2
        return gradient.sum(-1) / 2, gradient

    def whiten(self, v: np.ndarray) -> np.ndarray:
        """L^-1 v with -H0 = L L' approximately."""
        # Faster than SciPy's solve_triangular, whose checks dominate for small systems.
        return dtrtrs(self.lower, v, lower=1)[0]

    def unwhiten(self, v: np.ndarray) -> np.ndarray:
        """L^-T v."""
        return dtrtrs(self.lower, v, lower=1, trans=1)[0]


class Excess:
    """K = H0 * (mean e e' - I), given by its products; not stored where it is large."""

    def __init__(self, hessian: np.ndarray, noise: np.ndarray):
        self.hessian, self.noise, self.matrix = hessian, noise, None
        if noise.shape[-1] <= _LARGEST_STORED:
            self.matrix = hessian * (noise.T @ noise / len(noise) - np.eye(noise.shape[-1]))

    def __matmul__(self, v: np.ndarray) -> np.ndarray:
        if self.matrix is not None:
            return self.matrix @ v
        half = self.noise[::2]  # both draws of a mirrored pair contribute equally
        return np.mean(half * ((half * v) @ self.hessian), 0) - np.diag(self.hessian) * v
