"""Rows in Parquet and CSV files."""

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from curvi.model.rows.source import Kind, Piece, RowsError, Source, Stamp, check_number, check_same


class Parquet(Source):
    """Rows of Parquet files, in the order of the files; counted by their metadata."""

    def __init__(self, paths: list[Path], names: tuple[str, ...] | None):
        self._files, self.num_rows = [], 0
        first: dict[str, Kind] | None = None
        for path in paths:
            stamp, file = Stamp.of(path), _opened(path, ValueError)
            kinds = _kinds(path, file.schema_arrow, names)
            if first is None:
                first = kinds
            check_same(str(paths[0]), first, str(path), kinds)
            groups = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
            self._files.append((path, stamp, groups))
            self.num_rows += sum(groups)
            file.close()
        self.kinds = first or {}

    def pieces(self, start: int, names: tuple[str, ...], most: int) -> Iterator[Piece]:
        for path, stamp, groups in self._files:
            if start >= sum(groups):
                start -= sum(groups)
                continue
            stamp.check()
            skipped = 0
            while start >= groups[skipped]:
                start -= groups[skipped]
                skipped += 1
            file = _opened(path, RowsError)
            try:
                wanted = list(range(skipped, len(groups)))
                for batch in file.iter_batches(most, row_groups=wanted, columns=list(names), use_threads=False):
                    if start >= batch.num_rows:
                        start -= batch.num_rows
                        continue
                    rest, start = batch.slice(start), 0
                    yield Piece(str(path), {name: _as_array(path, name, rest.column(name)) for name in names})
            except (OSError, ValueError) as error:  # errors of Arrow are both
                raise RowsError(f"{path} is truncated or damaged ({_short(error)}); restore it") from error
            finally:
                file.close()

    def check(self) -> None:
        for _, stamp, _ in self._files:
            stamp.check()


def _opened(path: Path, failure: type[Exception]) -> Any:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(f'Parquet files need pyarrow ({error}): pip install "curvi[parquet]"') from error
    try:
        return parquet.ParquetFile(path, memory_map=True, pre_buffer=False)
    except FileNotFoundError as error:
        raise failure(f"there is no file {path}") from error
    except (OSError, pyarrow.ArrowException) as error:
        raise failure(f"{path} is truncated or no Parquet file ({_short(error)}); write it again") from error


def _short(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _kinds(path: Path, schema, names: tuple[str, ...] | None) -> dict[str, Kind]:
    import pyarrow

    found = {}
    for name in schema.names if names is None else names:
        if name not in schema.names:
            raise ValueError(f"{path} has no column '{name}'; it has {', '.join(schema.names)}")
        kind, shape = schema.field(name).type, ()
        if pyarrow.types.is_fixed_size_list(kind):
            kind, shape = kind.value_type, (kind.list_size,)
        try:
            number = np.dtype(kind.to_pandas_dtype())
        except (NotImplementedError, TypeError):
            number = np.dtype(object)
        if number.kind not in "biuf":
            raise ValueError(
                f"{path}: column '{name}' is {kind}, no number; code it as numbers, or leave it out of columns="
            )
        found[name] = Kind(shape, number)
    return found


def _as_array(path: Path, name: str, column) -> np.ndarray:
    if column.null_count:
        raise RowsError(f"{path}: column '{name}' has missing values; write the files without these rows")
    if hasattr(column.type, "list_size"):
        return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
    return column.to_numpy(zero_copy_only=False)


class Csv(Source):
    """Rows of CSV files with a line of names first; all columns are floating point. Counted by one pass."""

    counted = True

    def __init__(self, paths: list[Path], names: tuple[str, ...] | None):
        self._files, self.num_rows = [], 0
        header: list[str] | None = None
        for path in paths:
            found = _header(path)
            own = found if names is None else [name for name in names if name in found]
            if names is not None and len(own) < len(names):
                missing = next(name for name in names if name not in found)
                raise ValueError(f"{path} has no column '{missing}'; it has {', '.join(found)}")
            kinds = {name: Kind((), np.dtype(np.float64)) for name in own}
            if header is None:
                header, self.kinds = found, kinds
            check_same(str(paths[0]), self.kinds, str(path), kinds)
            with path.open(encoding="utf-8-sig") as file:
                count = sum(1 for line in file if line.strip()) - 1
            self._files.append((path, Stamp.of(path), found, count))
            self.num_rows += count
        first = next(self.pieces(0, tuple(self.kinds), 1000), None) if self.num_rows else None
        for name in first or {}:
            check_number(str(paths[0]), name, self.kinds[name])

    def pieces(self, start: int, names: tuple[str, ...], most: int) -> Iterator[Piece]:
        for path, stamp, header, count in self._files:
            if start >= count:
                start -= count
                continue
            stamp.check()
            at = [header.index(name) for name in names]
            with path.open(encoding="utf-8-sig") as file:
                lines = itertools.islice((line for line in file if line.strip()), 1 + start, None)
                line, start = 2 + start, 0
                while batch := list(itertools.islice(lines, most)):
                    yield Piece(str(path), dict(zip(names, _numbers(path, line, batch, at, names, len(header)).T)))
                    line += len(batch)

    def check(self) -> None:
        for _, stamp, _, _ in self._files:
            stamp.check()


def _header(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        names = [name.strip() for name in next(csv.reader(file), [])]
    if not names or len(set(names)) != len(names):
        raise ValueError(
            f"{path}: the first line must have distinct names of columns; got {', '.join(names) or 'none'}"
        )
    return names


def _numbers(path: Path, line: int, batch: list[str], at: list[int], names, width: int) -> np.ndarray:
    """The fields of these lines; RowsError that names line and column where one is no number."""
    try:
        found = np.loadtxt(batch, delimiter=",", usecols=at, ndmin=2, quotechar='"', comments=None)
    except ValueError:
        found = None
    if found is not None and np.all(np.isfinite(found)):
        return found
    for offset, fields in enumerate(csv.reader(batch)):
        if len(fields) != width:
            raise RowsError(f"{path}, line {line + offset}: {len(fields)} fields for {width} columns")
        for name, field in zip(names, (fields[i] for i in at)):
            try:
                finite = np.isfinite(float(field))
            except ValueError:
                finite = False
            if not finite:
                raise RowsError(
                    f"{path}, line {line + offset}: '{field}' in column '{name}' is no number; code it as a number, or "
                    "leave the row or the column out"
                )
    raise RowsError(f"{path}: lines {line} to {line + len(batch) - 1} cannot be read as numbers")
