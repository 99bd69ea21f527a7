"""The trust-region step and the remaining gain of a small dense model, in Fisher-whitened coordinates, on the host.

    maximise  b' p - p' A p / 2   subject to  |p|^2 / 2 <= radius,        A = I - B symmetric, not always definite.

One eigendecomposition of A serves the step (More and Sorensen 1983, the hard case included) and the decrement.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class DenseModel:
    """Slope b with its covariance, and A by its eigenvalues and eigenvectors."""

    slope: np.ndarray
    covariance: np.ndarray
    values: np.ndarray
    vectors: np.ndarray

    @classmethod
    def make(cls, slope, covariance, pairs) -> "DenseModel":
        size = len(slope)
        if pairs is None:
            return cls(slope, covariance, np.ones(size), np.eye(size))
        return cls(slope, covariance, *np.linalg.eigh(np.eye(size) - pairs))

    @property
    def definite(self) -> bool:
        return bool(self.values[0] > 0)

    @property
    def _noise_known(self) -> bool:
        return bool(np.all(np.isfinite(self.covariance)))

    def solve(self, z):
        return self.vectors @ ((self.vectors.T @ z).T / self.values).T

    def remaining_gain(self) -> tuple[float, float]:
        """b' A^-1 b / 2 less what the noise of b adds to it on average, and its standard error.

        With b normal around its mean, Var(b' A^-1 b / 2) = b' A^-1 C A^-1 b + tr((A^-1 C)^2) / 2, C its covariance.
        Infinite where A is not definite, or nothing is known of the noise.
        """
        if not (self.definite and self._noise_known):
            return np.inf, np.inf
        newton, noise = self.solve(self.slope), self.solve(self.covariance)
        gain = (self.slope @ newton - np.trace(noise)) / 2
        variance = newton @ self.covariance @ newton + np.sum(noise * noise.T) / 2
        return float(gain), float(np.sqrt(max(variance, 0.0)))

    def noise_gain(self) -> float:
        """Nats that the noise of b costs on average when a whole step is taken: tr(A^-1 C) / 2."""
        known = self.definite and self._noise_known
        return float(np.trace(self.solve(self.covariance))) / 2 if known else np.inf

    def step(self, radius: float) -> np.ndarray:
        """The maximiser inside the ball."""
        slope = self.vectors.T @ self.slope
        length = np.sqrt(2 * radius)
        if self.definite and np.linalg.norm(slope / self.values) <= length:
            return self.vectors @ (slope / self.values)
        least = max(-self.values[0], 0.0)
        shift = self._edge_shift(slope, length, least)
        step = slope / (self.values + shift)
        short = length**2 - step @ step
        if short > 1e-6 * length**2 and self.values[0] <= 0:
            # Hard case: the slope has no part along the way up. Either sign will do.
            step[0] += np.sqrt(short)
        return self.vectors @ step

    def _edge_shift(self, slope, length, least) -> float:
        """The shift of A's spectrum beyond `least` at which the step has the given length, by bisection."""
        low = least * (1 + 1e-12) + 1e-12
        high = low + np.linalg.norm(slope) / length + 1.0
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if np.linalg.norm(slope / (self.values + middle)) > length else (low, middle)
        return high

    def predicted(self, step) -> float:
        """Gain in nats that the model expects of a step."""
        along = self.vectors.T @ step
        return float(self.slope @ step - along @ (self.values * along) / 2)
