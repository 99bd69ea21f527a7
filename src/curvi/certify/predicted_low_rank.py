"""The low rank beside a diagonal that suits a mean field's curvature best: its gain, and the V and D to begin with.

From the whole expected Hessian it is the solution of the Gaussian problem (`curvi.certify.predicted_shapes`). With more
latents the smallest eigenvalues of P come from a few products, by Lanczos' method, D stays as it is, and the gain is at
least what is said.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from curvi.certify.predicted_shapes import best_low_rank, best_of_rank
from curvi.family.widening import ledermann_bound

MOST_FACTORS = 10
_WORTH = 0.05  # nats: gain of a factor


class Start(NamedTuple):
    """Gain in nats over a mean field, V and D."""

    nats: float
    factors: np.ndarray
    scale: np.ndarray

    @property
    def wider(self) -> float:
        """The largest factor by which an sd exceeds D."""
        return float(np.sqrt(1 + np.max(np.sum((self.factors / self.scale[:, None]) ** 2, 1))))


def most_factors(size: int) -> int:
    """The largest rank that is tried."""
    return min(MOST_FACTORS, ledermann_bound(size))


def from_hessian(hessian: np.ndarray, rank: int | None = None) -> Start | None:
    """The best q of this rank, or of the one that is worth it; None where the expected Hessian is not negative
    definite.
    """
    diagonal = -np.diag(hessian)
    if not np.all(diagonal > 0):
        return None
    scale = diagonal**-0.5
    P = -hessian * scale * scale[:, None]
    wanted = best_low_rank(P, most_factors(len(P)))[0] if rank is None else rank
    try:
        np.linalg.cholesky(P)
    except np.linalg.LinAlgError:
        return None
    nats, log_scale, factors = best_of_rank(P, max(wanted, 1))
    return Start(nats, scale[:, None] * factors, scale * np.exp(log_scale))


def from_products(
    product: Callable[[np.ndarray], np.ndarray], sds: np.ndarray, most_products: int, rank: int | None = None
) -> Start | None:
    """The same from products with the expected Hessian at a mean field with these sds; None where it is seen not to be
    negative definite, or no factor is worth it.
    """
    values, vectors = lanczos(lambda v: -sds * product(sds * v), len(sds), min(most_products, len(sds)))
    if not values[0] > 0:
        return None
    # With C = 1 + W W', column k of W along an eigenvector of length (1/l - 1)^(1/2).
    gains = (np.minimum(values, 1.0) - 1 - np.log(np.minimum(values, 1.0))) / 2
    worth = int(np.sum(gains[: most_factors(len(sds))] > _WORTH)) if rank is None else rank
    if not worth:
        return None
    lengths = np.sqrt(np.maximum(1 / values[:worth] - 1, 1e-4))
    return Start(float(gains[:worth].sum()), sds[:, None] * vectors[:, :worth] * lengths, sds)


def lanczos(multiply: Callable[[np.ndarray], np.ndarray], size: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Ritz values in increasing order, and vectors, of a symmetric matrix after so many products."""
    basis, own, beside = [np.random.default_rng(0).standard_normal(size)], [], []
    basis[0] /= np.linalg.norm(basis[0])
    for _ in range(steps):
        image = multiply(basis[-1])
        own.append(image @ basis[-1])
        known = np.stack(basis)
        for _ in range(2):  # twice is enough to keep the basis orthogonal
            image = image - known.T @ (known @ image)
        length = np.linalg.norm(image)
        if len(own) == steps or not length > 1e-8 * max(abs(own[0]), 1e-300):
            break
        beside.append(length)
        basis.append(image / length)
    number = len(own)
    matrix = np.diag(own) + np.diag(beside[: number - 1], 1) + np.diag(beside[: number - 1], -1)
    values, vectors = np.linalg.eigh(matrix)
    return values, np.stack(basis[:number], 1) @ vectors
