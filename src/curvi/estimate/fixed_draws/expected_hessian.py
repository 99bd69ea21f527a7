"""E_q[Hessian of ln p] from gradients at draws of a normal q, by Stein's identity: E[grad e'] = E[Hessian] L.

With matched noise, or less the excess of a control variate, the average is exact where ln p is quadratic.
"""

import dataclasses

import numpy as np

from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.family.path import HostPath


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
    if slopes is None or not isinstance(path, HostPath):
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
