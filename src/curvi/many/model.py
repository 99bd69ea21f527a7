"""One log density for many data sets of equal shapes."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from curvi.model.target import Target


@dataclasses.dataclass(frozen=True, eq=False)
class StackedModel:
    """A model whose data are arguments of its log density.

    Attributes
    ----------
    template
        The target of the first data set: names, shapes, supports, start.
    density
        The traced log density of latents and the data of one data set, a tuple of arrays.
    outputs
        The traced function of the same that returns further quantities by name; None without any.
    data
        The arrays of all data sets, stacked along a first axis.
    target_of
        The target of one data set by its position in the stack.
    """

    template: Target
    density: Any
    outputs: Any
    data: tuple[np.ndarray, ...]
    target_of: Callable[[int], Target]

    def at(self, chosen: np.ndarray) -> tuple[np.ndarray, ...]:
        """The arrays of some data sets."""
        return tuple(np.take(leaf, chosen, axis=0) for leaf in self.data)
