"""Steps of many normal q at a time as whitened vectors.

In the coordinates x = m + L (delta + (I + A) e) of each q, A lower triangular, or diagonal for independent factors,
gradient and Hessian of the ELBO follow from gradients and Hessians of ln p at single draws. With the entries of A's
diagonal divided by the root of two, the Fisher information of (delta, A) is the identity.
"""

import numpy as np

from curvi.many.steps import symmetric

_HALF = 2**-0.5
_STORED = 2**22  # numbers in the Hessians of a block


def hessian_draws(size: int) -> int:
    """As many mirrored pairs as dimensions, and no fewer than eight."""
    return 16 * -(-2 * size // 16)


class Entries:
    """The parameters (delta, A) of a step as one vector: rows and columns of the entries of A."""

    def __init__(self, size: int, independent: bool):
        self.size = size
        self.rows, self.columns = np.diag_indices(size) if independent else np.tril_indices(size)
        self.scale = np.where(self.rows == self.columns, _HALF, 1.0)
        # A gradient in m + L (delta + A e) is a product with (1, e): which entry of it, for each parameter.
        self.at = np.concatenate([np.arange(size), self.rows])
        self.by = np.concatenate([np.zeros(size, int), 1 + self.columns])
        self.weights = np.concatenate([np.ones(size), self.scale])

    def __len__(self) -> int:
        return len(self.at)

    def blocks(self, count: int) -> list[slice]:
        """Positions of so many fits, some at a time, so that their Hessians fit in memory."""
        size = max(1, _STORED // len(self) ** 2)
        return [slice(begin, begin + size) for begin in range(0, count, size)]

    def join(self, mean: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """The whitened vector of a gradient in delta and A."""
        return np.concatenate([mean, matrix[..., self.rows, self.columns] * self.scale], -1)

    def split(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """delta and A of a whitened step."""
        matrix = np.zeros((*vector.shape[:-1], self.size, self.size))
        matrix[..., self.rows, self.columns] = vector[..., self.size :] * self.scale
        return vector[..., : self.size], matrix

    def minus_hessian(self, bent: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Minus the whitened Hessian of the ELBO, from L'HL at each draw (fits, draws, d, d)."""
        count, draws = bent.shape[:2]
        known = np.concatenate([np.ones((draws, 1)), noise], 1)
        products = (known[:, :, None] * known[:, None, :]).reshape(draws, -1) / draws
        flat = np.swapaxes(bent.reshape(count, draws, -1), 1, 2)
        whole = (flat @ products).reshape(count, self.size, self.size, self.size + 1, self.size + 1)
        at, by = np.ix_(self.at, self.at), np.ix_(self.by, self.by)
        made = -whole[:, at[0], at[1], by[0], by[1]] * np.outer(self.weights, self.weights)
        on_diagonal = np.flatnonzero(self.weights == _HALF)
        made[:, on_diagonal, on_diagonal] += 0.5  # of ln(1 + A_ii)
        return symmetric(made)

    def moved(self, mean: np.ndarray, factor: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and factor after whitened steps."""
        shift, matrix = self.split(step)
        diagonal = np.diagonal(matrix, axis1=-2, axis2=-1)
        turned = matrix - diagonal[..., None] * np.eye(self.size) + np.exp(diagonal)[..., None] * np.eye(self.size)
        return mean + np.einsum("nij,nj->ni", factor, shift), factor @ turned

    def in_sds(self, factor: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Moves of means and of ln sds, in sds of q, for whitened steps with any axes between fits and entries."""
        shift, matrix = self.split(step)
        lifted = factor.reshape(len(factor), *[1] * (step.ndim - 2), self.size, self.size)
        variances = np.sum(lifted**2, -1)
        means = (lifted @ shift[..., None])[..., 0] / np.sqrt(variances)
        return np.concatenate([means, np.sum((lifted @ matrix) * lifted, -1) / variances], -1)
