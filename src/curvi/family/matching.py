"""One half of mirrored noise, with the second moments of the standard normal."""

import numpy as np


def scaled_columns(half: np.ndarray) -> np.ndarray:
    """Noise (pairs, columns) whose columns have unit second moments."""
    return half / np.sqrt(np.mean(half**2, 0))


def whitened_columns(half: np.ndarray) -> np.ndarray:
    """Noise with half' half / pairs the identity, by the Cholesky factor of the Gram matrix."""
    num_pairs, dimension = half.shape
    lower = np.linalg.cholesky(half.T @ half / num_pairs + 1e-14 * np.eye(dimension))
    return np.linalg.solve(lower, half.T).T


def matched_columns(half: np.ndarray) -> np.ndarray:
    """Noise whitened where there are as many pairs as columns, and scaled else."""
    return whitened_columns(half) if len(half) >= half.shape[1] else scaled_columns(half)
