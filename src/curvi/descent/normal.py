"""Steps of a normal q along a straight line in its natural parameters, given a quadratic model of ln p, on the host.

In the coordinates of x = m + L e, with q = N(0, I) there, let

    ln p - ln q = c + g' e + e' S e / 2 + residual.

The natural gradient of the ELBO adds g to the precision times the mean, and -S to the precision. A share t of it leads
to the precision I - t S and the mean t (I - t S)^-1 g: the q of the highest ELBO of the model at some KL(q_new || q)
from q (Abdolmaleki et al. 2015), and at t = 1 of all.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

_BISECTIONS = 60
_LEAST_PRECISION = 1e-12  # in units of that of q


@dataclasses.dataclass(frozen=True)
class NormalModel:
    """The model in the eigenvectors of S: its eigenvalues, and g."""

    bent: np.ndarray
    slope: np.ndarray

    @classmethod
    def of(cls, slope: np.ndarray, bent: np.ndarray) -> "NormalModel":
        """The model with the slope g and the matrix S."""
        values, vectors = np.linalg.eigh(bent)
        return cls(values, vectors.T @ slope)

    def largest_share(self, allowed: Callable[[float], bool]) -> float:
        """The largest share at which there is a normal distribution, and `allowed`, a function of it, holds."""
        most = min(1.0, (1 - _LEAST_PRECISION) / max(float(self.bent[-1]), 1e-300))
        if allowed(most):
            return most
        low, high = 0.0, most
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if allowed(middle) else (low, middle)
        return low

    def divergence(self, share: float) -> float:
        """KL(q_new || q)."""
        variance, mean = self._moments(share)
        return float(np.sum(variance + mean**2 - 1 - np.log(variance))) / 2

    def gain(self, share: float) -> float:
        """The gain in nats that the model predicts."""
        variance, mean = self._moments(share)
        bent = np.sum(self.bent * (variance - 1 + mean**2)) / 2
        return float(self.slope @ mean + bent) - self.divergence(share)

    def largest_step(self, radius: float, spread: float | None) -> float:
        """The largest share that the data bear: the divergence within the radius in nats, or, with the sd of the
        residual at draws of q, its error at draws of q_new at most half the predicted gain. Where ln p is smooth, its
        residual is of third order, and grows with the cube of the distance.
        """

        def borne(share: float) -> bool:
            if self.divergence(share) <= radius:
                return True
            return spread is not None and spread * max(self.reach(share), 1.0) ** 3 <= self.gain(share) / 2

        return self.largest_share(borne)

    def reach(self, share: float) -> float:
        """The root mean square distance of draws of q_new from the mean of q, in sds of q, a coordinate."""
        variance, mean = self._moments(share)
        return float(np.sqrt(np.mean(variance + mean**2)))

    def _moments(self, share: float) -> tuple[np.ndarray, np.ndarray]:
        variance = 1 / (1 - share * self.bent)
        return variance, variance * share * self.slope
