"""What every source of rows offers, and the error where one fails under a run."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np


class RowsError(RuntimeError):
    """Rows could not be read again as they were: a source disappeared, changed, or holds what is no number.

    Attributes
    ----------
    fit
        The fit so far, to go on from by `start=` once the source is mended.
    """

    fit: Any = None


@dataclasses.dataclass(frozen=True)
class Kind:
    """Shape and type of one row of a column."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape) if self.shape else ''}"


class Piece(dict[str, np.ndarray]):
    """Consecutive rows of every column, and where they come from."""

    def __init__(self, where: str, columns: dict[str, np.ndarray]):
        super().__init__(columns)
        self.where = where

    def __len__(self) -> int:
        return len(next(iter(self.values())))


class Source(ABC):
    """Rows that can be read from the beginning any number of times."""

    ordered: ClassVar[bool] = True  # whether every pass gives the rows in the same order
    in_memory: bool = False
    num_rows: int
    counted: bool = False  # whether that took a pass
    kinds: dict[str, Kind]

    @abstractmethod
    def pieces(self, start: int, names: tuple[str, ...], most: int) -> Iterator[Piece]:
        """The rows from `start` on, in pieces of at most `most` rows where the source can choose."""

    @abstractmethod
    def check(self) -> None:
        """Raise RowsError where the source is no longer what it was, as far as that is seen without reading it."""


@dataclasses.dataclass(frozen=True)
class Stamp:
    """Size and time of change of a file."""

    path: Path
    size: int
    changed: int

    @classmethod
    def of(cls, path: Path) -> "Stamp":
        found = path.stat()
        return cls(path, found.st_size, found.st_mtime_ns)

    def check(self) -> None:
        try:
            now = Stamp.of(self.path)
        except OSError as error:
            raise RowsError(f"{self.path} cannot be read any more ({error.strerror}); restore it") from error
        if now != self:
            raise RowsError(f"{self.path} has changed since its rows were counted; restore it, or begin a new fit")


def check_same(first: str, kinds: dict[str, Kind], where: str, others: dict[str, Kind]) -> None:
    """Raise ValueError unless another file has the same columns of the same types, in any order."""
    for name in kinds.keys() | others.keys():
        own, other = kinds.get(name), others.get(name)
        if own is None or other is None:
            lacks, has = (where, first) if other is None else (first, where)
            raise ValueError(f"{lacks} has no column '{name}', which {has} has; all files need the same columns")
        if own != other:
            raise ValueError(f"{where}: column '{name}' is {other}, but {own} in {first}; write all files alike")


def check_number(where: str, name: str, kind: Kind) -> None:
    """Raise ValueError unless a column holds numbers."""
    if kind.dtype.kind not in "biuf":
        raise ValueError(
            f"{where}: column '{name}' is {kind.dtype}, no number; code it as numbers, or leave it out of columns="
        )
