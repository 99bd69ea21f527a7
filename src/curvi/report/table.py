"""The posterior as a table: one row per scalar, with the sds of q and of linear response side by side."""

import dataclasses
import functools
from typing import TYPE_CHECKING

import numpy as np

from curvi.diagnostics.elements import chosen_elements, label_of
from curvi.diagnostics.kinds import errors_of
from curvi.diagnostics.response import affordable_response
from curvi.report import answers

if TYPE_CHECKING:
    from curvi.results import Fit

_SHOWN = 60
_MOST_ROWS, _MOST_EACH = 100_000, 1000  # scalars that all have a row; rows of each quantity where there are more

MEAN, SD, RESPONSE_SD = "mean", "sd (q)", "sd (linear response)"
WEIGHTED_SD = "sd (reweighted)"
ERROR, SD_ERROR = "error of mean", "error of sd"


@dataclasses.dataclass(frozen=True)
class Summary:
    """A table of posterior summaries, printed to fit a terminal.

    Attributes
    ----------
    labels
        One name per row: "beta[3]".
    columns
        Arrays by heading, in the order in which they are shown.
    notes
        Remarks on the columns, and the reasons for missing ones.
    unknown
        What is printed for numbers that are not known.
    counts
        The number of rows of each quantity by name, where that is known.
    """

    labels: tuple[str, ...]
    columns: dict[str, np.ndarray]
    notes: tuple[str, ...] = ()
    unknown: str = "nan"
    counts: dict[str, int] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, label: str) -> dict[str, float]:
        """One row by its label."""
        if label not in self.labels:
            raise KeyError(f"no row named {label!r}; there are {', '.join(self.labels[:10])} ...")
        row = self.labels.index(label)
        return {heading: float(column[row]) for heading, column in self.columns.items()}

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Rows by label, each a dict of numbers by heading."""
        rows = zip(*(column.tolist() for column in self.columns.values()), strict=True)
        return {label: dict(zip(self.columns, row)) for label, row in zip(self.labels, rows, strict=True)}

    def to_pandas(self):
        """A pandas DataFrame with the labels as its index."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError(f"to_pandas needs pandas ({error}): pip install pandas") from error
        return pandas.DataFrame(self.columns, index=list(self.labels))

    def __str__(self) -> str:
        shown = range(len(self)) if len(self) <= _SHOWN else [*range(_SHOWN // 2), *range(-_SHOWN // 2, 0)]
        cells = [["", *self.columns]]
        cells += [[self.labels[i], *(self._cell(column[i]) for column in self.columns.values())] for i in shown]
        if len(self) > _SHOWN:
            cells.insert(_SHOWN // 2 + 1, ["..."] * len(cells[0]))
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = [
            row[0].ljust(widths[0]) + "".join("  " + cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))
            for row in cells
        ]
        if len(self) > _SHOWN:
            lines.append(f"{len(self)} rows; to_dict() or to_pandas() has them all")
        return "\n".join([*(line.rstrip() for line in lines), *self.notes])

    def _cell(self, value: float) -> str:
        return self.unknown if np.isnan(value) else number(value)

    __repr__ = __str__


def summarise(fit: "Fit", probabilities=(0.05, 0.5, 0.95), kind: str = "q", names=None) -> Summary:
    """The summary of a fit, or of the named quantities and elements alone. If linear response is not available, its
    column is left out, and a note says why.
    """
    mean, sd, quantiles = fit.mean(kind), fit.sd("q"), fit.quantiles(probabilities, kind)
    shapes = {name: value.shape for name, value in mean.items()}
    num_scalars = sum(value.size for value in mean.values())
    chosen = chosen_elements(shapes, names, _MOST_EACH if num_scalars > _MOST_ROWS else None)
    _flat = functools.partial(_columns, chosen)
    columns, notes = {MEAN: _flat(mean)}, []
    if kind == "reweighted":
        columns[WEIGHTED_SD] = _flat(fit.sd(kind))
    columns[SD] = _flat(sd)
    try:
        columns[RESPONSE_SD] = _flat(affordable_response(fit))
    except ValueError as error:
        notes.append(f"No sd by linear response: {error}.")
    for row, probability in enumerate(np.atleast_1d(probabilities)):
        columns[f"{100 * probability:g}%"] = _flat({name: value[row] for name, value in quantiles.items()})
    errors, of_sd = errors_of(fit, kind)
    if errors:
        unit = fit.sd(kind) if kind == "reweighted" else sd
        columns[ERROR] = _flat({name: errors[name] * unit[name] for name in mean})
        columns[SD_ERROR] = _flat({name: of_sd[name] * unit[name] for name in mean})
        notes.append(f'"{ERROR}", "{SD_ERROR}": one standard error, from the finite number of draws behind the fit.')
    if kind == "linear_response":
        notes.append("Means and quantiles are those of the normal with the covariance of linear response.")
    if kind == "reweighted":
        notes.append("Means and quantiles are those of draws under importance weights (fit.kind).")
    notes += [_first_of(name, index, shapes[name]) for name, index in chosen.items() if names is None]
    labels = tuple(label_of(name, shapes[name], i) for name, index in chosen.items() for i in index)
    counts = {name: len(index) for name, index in chosen.items()}
    return Summary(labels, columns, (*filter(None, notes), *answers.notes(fit)), counts=counts)


def _first_of(name: str, index: np.ndarray, shape: tuple[int, ...]) -> str:
    size = int(np.prod(shape))
    return f"{name}: the first {len(index):,} of {size:,} elements; names= chooses." if len(index) < size else ""


def _columns(chosen: dict[str, np.ndarray], values: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(values[name])[index].astype(float) for name, index in chosen.items()])


def number(value: float) -> str:
    """The value with four significant digits, in fixed-point notation if that is short."""
    if not np.isfinite(value) or value == 0:
        return f"{value:g}"
    size = int(np.floor(np.log10(abs(value))))
    return f"{value:.{min(max(3 - size, 0), 6)}f}" if -4 <= size < 7 else f"{value:.3e}"
