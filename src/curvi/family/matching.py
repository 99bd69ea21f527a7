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


def windowed_columns(half: np.ndarray, num_shared: int) -> np.ndarray:
    """Noise whose first columns are whitened, and the others freed of these and, in runs of a third of what is left of
    the pairs, of the run before, and whitened: exact second moments with all columns a run back.
    """
    num_pairs, run = len(half), max((len(half) - num_shared) // 3, 1)
    shared = whitened_columns(half[:, :num_shared])
    out, known = [shared], shared
    for start in range(num_shared, half.shape[1], run):
        part = half[:, start : start + run]
        own = whitened_columns(part - known @ (known.T @ part / num_pairs))
        out.append(own)
        known = np.concatenate([shared, own], 1)
    return np.concatenate(out, 1)
