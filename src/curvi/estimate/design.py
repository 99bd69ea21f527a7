"""Fixed noise for a deterministic objective: scrambled Sobol points, mirrored, and matched to the normal's second
moments.

Antithetic mirroring makes every odd sample moment exactly zero. Where there are at least as many pairs as dimensions,
the noise is also whitened, so that its second moments are exactly those of the standard normal: the sample average
then integrates every quadratic exactly, which is the second-order control variate (Miller, Foti, D'Amour and Adams
2017) for every expansion point at once and at no cost. With fewer pairs, each coordinate is scaled to unit second
moment. Whitening changes fourth moments by a relative 2 / pairs, below their sampling noise.

The noise comes in `num_scrambles` independent parts: the spread between them is the noise of the whole.
"""

import numpy as np
from scipy.special import ndtri

from curvi.estimate.draws import SOBOL_DIMENSIONS, sobol_net


def matched_noise(
    rng, num_draws: int, dimension: int, num_scrambles: int = 2, match: bool | np.ndarray = True
) -> np.ndarray:
    """Standard normal noise (num_draws, dimension), float64, made of `num_scrambles` independent parts of equal size.

    `match` says which columns are matched in their moments. Where none is, the pairs are independent: what quasi-random
    points tell of their own error is too small more often than not where the integrand has a tail.

    `rng` is a numpy generator: the noise is made on the host, once a round, and handed to a compiled program.
    """
    size, odd = divmod(num_draws, 2 * num_scrambles)
    if odd or not size:
        raise ValueError(f"num_draws must be a multiple of {2 * num_scrambles}; got {num_draws}")
    columns = np.broadcast_to(match, dimension)
    return np.concatenate([_part(rng, size, dimension, columns) for _ in range(num_scrambles)])


def _part(rng, num_pairs: int, dimension: int, columns: np.ndarray) -> np.ndarray:
    if not columns.any():
        half = rng.standard_normal((num_pairs, dimension))
    else:
        half = _normal_points(rng, num_pairs, dimension)
        half[:, columns] = _match(half[:, columns])
    return np.stack([half, -half], 1).reshape(-1, dimension)


def _match(half: np.ndarray) -> np.ndarray:
    num_pairs, dimension = half.shape
    if num_pairs < dimension:
        return half / np.sqrt(np.mean(half**2, 0))
    # Whitening by the Cholesky factor of the Gram matrix: half' half / pairs becomes the identity.
    lower = np.linalg.cholesky(half.T @ half / num_pairs + 1e-14 * np.eye(dimension))
    return np.linalg.solve(lower, half.T).T


def _normal_points(rng, num_points: int, dimension: int) -> np.ndarray:
    if dimension > SOBOL_DIMENSIONS:
        return rng.standard_normal((num_points, dimension))
    # A net that is scrambled once, and shifted digitally: independent scrambles would take longer than small fits.
    shift = rng.integers(2**32, size=dimension, dtype=np.uint32)
    # Points lie on a grid of 2^-32 that contains zero; the middle of each cell does not.
    return ndtri(((sobol_net(num_points, dimension) ^ shift) + 0.5) * 2.0**-32)
