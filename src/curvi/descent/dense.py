"""The trust-region step and the remaining gain of a small dense model, in Fisher-whitened coordinates, on the host.

    maximise  b' p - p' A p / 2   subject to  |p|^2 / 2 <= radius,        A = I - B symmetric, possibly indefinite.

One eigendecomposition of A serves the step (More and Sorensen 1983, the hard case included) and the decrement.
"""

import numpy as np

from curvi.estimate.local import Counts, CovarianceNoise, LocalModel
from curvi.record.plain import register
from curvi.record.pytree import pytree


@register
@pytree
class Eigen:
    """H = -A in whitened coordinates, given by the eigenvalues and eigenvectors of A."""

    values: np.ndarray
    vectors: np.ndarray

    def mv(self, v: np.ndarray) -> np.ndarray:
        return -(self.vectors @ (self.values * (self.vectors.T @ v)))

    def solve(self, z: np.ndarray) -> np.ndarray:
        """A^-1 z."""
        return self.vectors @ ((self.vectors.T @ z).T / self.values).T

    @property
    def definite(self) -> bool:
        return bool(self.values[0] > 0)


@register
@pytree
class Whitened:
    """The metric of whitened coordinates: the identity."""

    def factorise(self) -> "Whitened":
        return self

    def solve(self, v: np.ndarray) -> np.ndarray:
        return v

    def solve_transpose(self, v: np.ndarray) -> np.ndarray:
        return v


@register
@pytree
class DenseModel(LocalModel[np.ndarray, Eigen, Whitened]):
    """A `LocalModel` in whitened coordinates, small enough for an eigendecomposition."""

    value: float
    value_se: float
    curvature: Eigen
    noise: CovarianceNoise[np.ndarray]

    @classmethod
    def make(cls, value: float, value_se: float, slope, covariance, pairs) -> "DenseModel":
        """The model with the slope b, its covariance, and B (`pairs`; None for zero)."""
        size = len(slope)
        eigen = Eigen(np.ones(size), np.eye(size)) if pairs is None else Eigen(*np.linalg.eigh(np.eye(size) - pairs))
        return cls.with_curvature(value, value_se, slope, covariance, eigen)

    @classmethod
    def with_curvature(cls, value, value_se, slope, covariance, eigen: Eigen) -> "DenseModel":
        noise = CovarianceNoise(covariance)
        return cls(float(value), float(value_se), slope, eigen, Whitened(), noise, np.zeros(0), Counts())

    @property
    def definite(self) -> bool:
        return self.curvature.definite

    @property
    def _noise_known(self) -> bool:
        return bool(np.all(np.isfinite(self.noise.covariance)))

    def remaining_gain(self) -> tuple[float, float]:
        """The Newton decrement and its standard error; infinite where A is not definite or the noise is
        unknown.
        """
        if not (self.definite and self._noise_known):
            return np.inf, np.inf
        gain, error = self.decrement(self.curvature.solve)
        return float(gain), float(error)

    def posterior_gain(self) -> tuple[float, float]:
        """The gain that is left if the same draws led to this q, and its standard error; infinite where A is not
        definite or the noise is unknown.

        Draws that moved q leave no slope of their own, whatever is left to gain: the noise C of the slope then is not
        to be taken off the decrement but added to it. Given the slope b of all draws and a flat prior, the true slope
        has mean b and covariance C wherever q is, and the gain the mean b'A^-1 b / 2 + tr(A^-1 C) / 2.
        """
        gain, error = self.remaining_gain()
        return gain + 2 * self.noise_gain(), error

    def noise_gain(self) -> float:
        """Expected loss in nats from the noise of b if a full Newton step is taken: tr(A^-1 C) / 2."""
        if not (self.definite and self._noise_known):
            return np.inf
        return float(self.noise.through(self.curvature.solve)[0]) / 2

    def step(self, radius: float) -> np.ndarray:
        """The maximiser of the model inside the ball."""
        slope = self.curvature.vectors.T @ self.grad
        length = np.sqrt(2 * radius)
        if self.definite and np.linalg.norm(slope / self.curvature.values) <= length:
            return self.curvature.vectors @ (slope / self.curvature.values)
        least = max(-self.curvature.values[0], 0.0)
        shift = self._edge_shift(slope, length, least)
        step = slope / (self.curvature.values + shift)
        short = length**2 - step @ step
        if short > 1e-6 * length**2 and self.curvature.values[0] <= 0:
            # Hard case: the slope is orthogonal to the direction of negative curvature. Either sign is valid.
            step[0] += np.sqrt(short)
        return self.curvature.vectors @ step

    def _edge_shift(self, slope, length, least) -> float:
        """The shift of A's spectrum beyond `least` at which the step has the given length, by bisection."""
        low = least * (1 + 1e-12) + 1e-12
        high = low + np.linalg.norm(slope) / length + 1.0
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if np.linalg.norm(slope / (self.curvature.values + middle)) > length else (low, middle)
            )
        return high

    def predicted(self, step) -> float:
        """Gain in nats that the model predicts for a step."""
        along = self.curvature.vectors.T @ step
        return float(self.grad @ step - along @ (self.curvature.values * along) / 2)
