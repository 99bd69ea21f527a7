"""What paths share whose parameters are a mean, the logarithms of the diagonal of a triangular matrix, and its rest."""

import numpy as np

from curvi.family.path import HostPath

_LOG_2PI = float(np.log(2 * np.pi))


class LogScalePath(HostPath):
    """Normal draws whose entropy is the sum of the logarithms, `params[size : 2 * size]`, up to a constant."""

    _entropy_gradient: np.ndarray

    def product(self, params, direction, gradient, by_coordinates):
        """Of an exponential scale, the second derivative adds the first."""
        out = self.gradient(params, by_coordinates)
        scales = slice(self.size, 2 * self.size)
        out[scales] += direction[scales] * gradient[scales]
        return out

    def entropy(self, params):
        return float(params[self.size : 2 * self.size].sum()) + 0.5 * self.size * (1 + _LOG_2PI)

    def entropy_gradient(self, params):
        return self._entropy_gradient
