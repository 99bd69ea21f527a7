"""What a scale in arrow form would gain over independent normal factors, from few products with the expected Hessian.

A product along each global coordinate has its whole column of the expected precision P; one along the same entry of
all blocks of a set has that column of every block, if blocks of one set do not meet. With A all local coordinates,

    gain = -ln det(P_GG - P_GA P_AA^-1 P_AG) / 2 - sum over blocks ln det(P_bb) / 2.

P_AA is not block diagonal where sets of blocks cross. The answer X of its blocks alone, in the place of P_AA^-1 P_AG,
is one of the family: what it gains, P_GG - X' P_AG - P_GA X + X' P_AA X in the determinant, takes one more product per
global, and is a lower bound. How far it is from the value for blocks that do not meet is given as its error.
"""

from collections.abc import Callable

import numpy as np

from curvi.certify.predicted import UNKNOWN_GAIN, PredictedGain
from curvi.family.arrow import Arrow, ArrowMatrix, root_of_inverse


def num_products(arrow: Arrow, most: int) -> int | None:
    """The number of products that a prediction takes; None where it would be more than `most`."""
    few = arrow.num_global + sum(blocks.size for blocks in arrow.sets)
    full = few + arrow.num_global
    return full if full <= most else few if few <= most else None


def predict_by_products(
    product: Callable[[np.ndarray], np.ndarray], sds: np.ndarray, arrow: Arrow, most: int
) -> PredictedGain:
    """The predicted gain of a scale in arrow form over a mean field at its optimum.

    `product` multiplies the expected Hessian of ln p with a vector of coordinates, of which q has these sds.
    """
    count = num_products(arrow, most)
    if count is None:
        return UNKNOWN_GAIN
    indices = [blocks.index() for blocks in arrow.sets]
    local = np.concatenate([np.zeros(0, int), *(index.ravel() for index in indices)])
    first = np.setdiff1d(np.arange(arrow.size), local)
    precision = lambda v: -sds * product(sds * v)  # noqa: E731
    columns = np.array([precision(_unit(arrow.size, j)) for j in first]).reshape(len(first), arrow.size).T
    own = [
        np.stack([precision(_unit(arrow.size, index[:, a]))[index] for a in range(index.shape[1])], -1)
        for index in indices
    ]
    diagonal = np.empty(arrow.size)
    diagonal[first] = columns[first, np.arange(len(first))]
    for index, block in zip(indices, own):
        diagonal[index] = np.diagonal(block, axis1=-2, axis2=-1)
    if not np.all(np.isfinite(diagonal)) or not np.all(diagonal > 0):
        return UNKNOWN_GAIN
    # Unit diagonal: a mean field at its optimum. The rough one is near it.
    scale = diagonal**-0.5
    columns = columns * scale[:, None] * scale[first]
    top = (columns[first] + columns[first].T) / 2
    blocks = [block * scale[index][:, :, None] * scale[index][:, None] for index, block in zip(indices, own)]
    blocks = [(block + block.swapaxes(-1, -2)) / 2 for block in blocks]
    sides = [columns[index] for index in indices]
    try:
        root, log_det = root_of_inverse(ArrowMatrix(top, tuple(sides), tuple(blocks)))
        apart, wider = -log_det / 2, float(np.sqrt(root.row_squares().max()))
        if count == len(first) + sum(blocks.size for blocks in arrow.sets):
            return PredictedGain(max(apart, 0.0), abs(apart) if len(indices) > 1 else 0.0, wider)
        tied = np.zeros((arrow.size, len(first)))
        tied[first, np.arange(len(first))] = 1.0
        for index, side, block in zip(indices, sides, blocks):
            tied[index] = -np.linalg.solve(block, side)
        bent = np.array([scale * precision(scale * column) for column in tied.T])
        met = bent @ tied
        nats = -np.log(np.diag(np.linalg.cholesky((met + met.T) / 2))).sum()
        for block in blocks:
            nats -= np.log(np.diagonal(np.linalg.cholesky(block), axis1=-2, axis2=-1)).sum()
    except np.linalg.LinAlgError:
        return UNKNOWN_GAIN
    return PredictedGain(max(float(nats), 0.0), float(abs(nats - apart)), wider)


def _unit(size: int, at) -> np.ndarray:
    v = np.zeros(size)
    v[at] = 1.0
    return v
