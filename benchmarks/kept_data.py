"""Columns of data sets, read from their packages once and kept in `.bench-data/`, for machines without them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[1] / ".bench-data"


def kept(name: str, read: Callable[[], dict]) -> dict[str, np.ndarray]:
    """The columns in the file of this name; where there is none, those that `read` returns, which it then keeps."""
    path = FOLDER / f"{name}.npz"
    if not path.exists():
        columns = read()
        FOLDER.mkdir(parents=True, exist_ok=True)
        arrays = {key: np.asarray(column) for key, column in columns.items()}
        np.savez_compressed(path, allow_pickle=False, **arrays)
    with np.load(path) as found:
        return {key: found[key] for key in found.files}
