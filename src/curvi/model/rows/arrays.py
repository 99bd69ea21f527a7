"""Rows in arrays, in `.npy` files mapped into memory, and from loaders."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import jax
import numpy as np

from curvi.model.rows.source import Kind, Piece, RowsError, Source, Stamp, check_number


class Arrays(Source):
    """Columns that are arrays, or paths of `.npy` files; those are mapped, not read."""

    def __init__(self, columns: Mapping):
        if not columns:
            raise ValueError("rows need at least one column; got an empty dict")
        self._stamps, self._arrays = [], {}
        for name, column in columns.items():
            self._arrays[str(name)] = self._opened(str(name), column)
        self.in_memory = not self._stamps
        counts = {name: array.shape[0] if array.ndim else None for name, array in self._arrays.items()}
        if len(set(counts.values())) != 1 or None in counts.values():
            said = ", ".join(f"'{name}' {count}" for name, count in counts.items())
            raise ValueError(f"columns must share their first axis, the rows; rows by column: {said}")
        self.num_rows = next(iter(self._arrays.values())).shape[0]
        self.kinds = {name: Kind(array.shape[1:], np.dtype(array.dtype)) for name, array in self._arrays.items()}

    def _opened(self, name: str, column):
        if isinstance(column, str | Path):
            path = Path(column)
            try:
                array = np.load(path, mmap_mode="r", allow_pickle=False)
            except FileNotFoundError:
                raise ValueError(f"column '{name}': there is no file {path}") from None
            except (ValueError, OSError, EOFError) as error:
                raise ValueError(f"column '{name}': {path} is no whole .npy file ({error}); write it again") from error
            self._stamps.append(Stamp.of(path))
        else:
            array = column if isinstance(column, jax.Array) else np.asarray(column)
        check_number("rows", name, Kind(array.shape[1:], np.dtype(array.dtype)))
        return array

    def pieces(self, start: int, names: tuple[str, ...], most: int) -> Iterator[Piece]:
        for begin in range(start, self.num_rows, most):
            rows = slice(begin, min(begin + most, self.num_rows))
            yield Piece("the arrays", {name: np.asarray(self._arrays[name][rows]) for name in names})

    def take(self, rows: np.ndarray, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        """These rows, by their index."""
        return {name: np.asarray(self._arrays[name][rows]) for name in names}

    def check(self) -> None:
        for stamp in self._stamps:
            stamp.check()


class Loader(Source):
    """Batches of rows from any object that gives a fresh iterator of dicts of arrays each time.

    Its batches may come in another order in every pass. Rows are counted by one pass where `num_rows` is not given.
    """

    ordered = False

    def __init__(self, source: Iterable, num_rows: int | None):
        if iter(source) is source:
            raise ValueError(
                "rows are read several times, but this iterator can be read once; give an object whose iter() starts "
                "anew, such as a list, a PyTorch or Grain loader, or a class with __iter__"
            )
        self._source = source
        first = next(iter(source), None)
        if first is None:
            raise ValueError("the loader of rows is empty: its first pass gave no batch")
        self.kinds = {name: Kind(c.shape[1:], c.dtype) for name, c in self._columns(first, None).items()}
        for name, kind in self.kinds.items():
            check_number("the loader", name, kind)
        self.counted = num_rows is None
        self.num_rows = num_rows if num_rows is not None else sum(map(len, self._pieces(tuple(self.kinds))))

    def pieces(self, start: int, names: tuple[str, ...], most: int) -> Iterator[Piece]:
        for piece in self._pieces(names):
            if start < len(piece):
                yield Piece(piece.where, {name: column[start:] for name, column in piece.items()})
            start = max(start - len(piece), 0)

    def check(self) -> None:
        pass  # only a pass can tell

    def _pieces(self, names: tuple[str, ...]) -> Iterator[Piece]:
        try:
            for batch in self._source:
                found = self._columns(batch, names)
                for name, column in found.items():
                    if (kind := Kind(column.shape[1:], column.dtype)) != self.kinds[name]:
                        raise RowsError(f"the loader: column '{name}' became {kind}; it was {self.kinds[name]}")
                yield Piece("the loader", found)
        except (OSError, EOFError) as error:
            raise RowsError(f"the loader of rows failed ({error}); mend it and go on") from error

    def _columns(self, batch, names: tuple[str, ...] | None) -> dict[str, np.ndarray]:
        failure = ValueError if names is None else RowsError
        if not isinstance(batch, Mapping):
            raise failure(f"batches of rows are dicts of arrays by name; got {type(batch).__name__}")
        if missing := [name for name in names or () if name not in batch]:
            raise failure(f"the loader: column '{missing[0]}' is missing in a batch that has {', '.join(batch)}")
        found = {str(name): np.asarray(batch[name]) for name in (batch if names is None else names)}
        if any(c.ndim == 0 for c in found.values()) or len({len(c) for c in found.values()}) != 1:
            raise failure(
                f"the loader: columns of a batch differ in their rows: { {n: c.shape for n, c in found.items()} }"
            )
        return found
