"""The state of a fit on growing rows: that on the sample, and what the passes have found."""

import dataclasses

import numpy as np

from curvi.estimate.fixed_draws.local import Difference
from curvi.estimate.rows.passes import RowSums
from curvi.family import Family
from curvi.methods.growing_draws.state import GrowingState
from curvi.record.plain import register
from curvi.record.pytree import pytree, static


@register
@pytree
class RowsState:
    """The state of `GrowingRows`.

    Attributes
    ----------
    growing
        The state of the fit on the sample.
    num_rows
        The rows in all: a file of another source is refused.
    sums
        What the current pass has summed so far; None between passes.
    num_passes
        Passes that were begun: the index of the random stream of the next one.
    params, index
        The parameters at which the last passes were made, and the correction that they are for.
    values, slopes
        The differences that these passes found, summed over them, by part.
    num_here
        How many passes that were.
    moves, bends
        Half the difference of two mirrored draws, and of the gradients there of what all rows add to the sample; one
        row per pair of all passes.
    reference
        The point that all rows are relative to, as one vector; empty before there is one.
    fingerprint
        What identifies the rows; empty before the first pass.
    sample
        The columns of the sample where every pass has another order of the rows; else empty.
    last
        ELBO, its standard error and the predicted gain of the last correction; empty before one.
    stage
        "climb" on the sample, or "passes".
    counted
        Whether the pass that chose the sample is counted.
    """

    growing: GrowingState
    num_rows: int
    sums: RowSums | None
    num_passes: int
    params: np.ndarray
    index: int
    values: np.ndarray
    slopes: np.ndarray
    num_here: int
    moves: np.ndarray
    bends: np.ndarray
    reference: np.ndarray
    fingerprint: np.ndarray
    sample: dict[str, np.ndarray]
    last: np.ndarray
    stage: str = static(default="climb")
    counted: bool = static(default=False)

    @classmethod
    def at(cls, growing: GrowingState, num_rows: int, sample: dict[str, np.ndarray]) -> "RowsState":
        none = np.zeros(0)
        passed = none, -1, none, none, 0, none, none, none, np.zeros(0, np.uint64)
        return cls(growing, num_rows, None, 0, *passed, sample, none)

    @property
    def q(self) -> Family:
        return self.growing.q

    @property
    def start_elbos(self) -> np.ndarray:
        return self.growing.start_elbos

    def but(self, **changes) -> "RowsState":
        """This state with some fields changed."""
        return dataclasses.replace(self, **changes)

    @property
    def stays(self) -> bool:
        """Whether the last passes were made at the current q."""
        return self.params.shape == self.growing.params.shape and bool(np.all(self.params == self.growing.params))

    @property
    def known(self) -> bool:
        """Whether all passes that the next correction takes have been made."""
        return self.sums is None and self.num_here > 0 and self.stays and self.index == self.growing.index

    def difference(self) -> Difference:
        """What all rows add to the sample at the current q, averaged over the passes."""
        parts = self.values / self.num_here
        error = float(np.std(parts, ddof=1) / len(parts) ** 0.5)
        return Difference(float(parts.mean()), error, self.slopes / self.num_here)
