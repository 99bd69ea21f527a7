"""`Rows`: data that need not fit in memory, as columns by name."""

import glob
import itertools
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from curvi.model.rows.arrays import Arrays, Loader
from curvi.model.rows.files import Csv, Parquet
from curvi.model.rows.reading import Chunk, Field, read_ahead, read_chunks, read_columns
from curvi.model.rows.source import Kind, Piece, RowsError, Source

_CHUNK_ROWS, _CHUNK_BYTES = 65_536, 2**26
_SORTED_CHUNKS = 8  # chunks whose means rise or fall throughout, from which a column counts as sorted
_FILES = (".parquet", ".csv", ".npy")


class Rows:
    """Rows of data in files, arrays or a loader, read in chunks whenever they are needed.

    Give it to `MinibatchTarget(..., data=rows)`, or to a NumPyro model as an argument: there it is a dict of columns,
    to be indexed by the plate that subsamples them.

    Parameters
    ----------
    source
        A directory or glob of Parquet, CSV or `.npy` files, or one such file; a dict of arrays, or of paths of `.npy`
        files, by name; or any object whose iter() gives dicts of arrays anew each time (PyTorch's and Grain's loaders).
    columns
        Names of the columns to read, by default all; or a dict from a new name to a column, or to a list of columns
        that become one vector.
    chunk_rows
        Rows held at a time; by default 65,536, less where that would be more than 64 MB.
    num_rows
        For a loader: its number of rows, if known. Otherwise one pass counts them, as it does for CSV files.
    """

    def __init__(
        self,
        source,
        columns: Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
        chunk_rows: int | None = None,
        num_rows: int | None = None,
    ):
        if num_rows is not None and isinstance(source, str | os.PathLike | Mapping):
            raise ValueError("num_rows is for loaders; files and arrays are counted")
        for name, number in {"chunk_rows": chunk_rows, "num_rows": num_rows}.items():
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
                raise ValueError(f"{name} must be a positive integer or None; got {number!r}")
        named = _named(columns)
        wanted = (
            None if named is None else tuple(dict.fromkeys(itertools.chain.from_iterable(map(_parts, named.values()))))
        )
        try:
            self.source = _opened(source, wanted, num_rows)
        except RowsError as error:
            raise ValueError(str(error)) from None
        named = {name: name for name in self.source.kinds} if named is None else named
        self.fields = {name: _field(self.source, name, parts) for name, parts in named.items()}
        self.num_rows = self.source.num_rows
        if not self.num_rows:
            raise ValueError(f"{_words(source)} has columns {', '.join(self.fields)}, but no row")
        usual = int(np.clip(_CHUNK_BYTES // max(self.row_bytes, 1), 1024, _CHUNK_ROWS))
        self.chunk_rows = min(usual if chunk_rows is None else chunk_rows, self.num_rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in the order that was fixed when they were opened."""
        return tuple(self.fields)

    @property
    def row(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape and type of each column in one row."""
        return {name: jax.ShapeDtypeStruct(field.kind.shape, field.kind.dtype) for name, field in self.fields.items()}

    @property
    def row_bytes(self) -> int:
        """What a row takes in memory."""
        kinds = [field.kind for field in self.fields.values()]
        return sum(int(np.prod(kind.shape, dtype=int)) * kind.dtype.itemsize for kind in kinds)

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, name: str) -> "Column":
        if name not in self.fields:
            raise KeyError(f"there is no column '{name}'; there are {', '.join(self.columns)}")
        return Column(self, name)

    def __iter__(self):
        raise TypeError("Rows are no sequence: rows.chunks() reads them in order, rows.batches(seed, size) at random")

    def __repr__(self) -> str:
        counted = ", counted by reading them once" if self.source.counted else ""
        named = ", ".join(f"{name} {field.kind}" for name, field in self.fields.items())
        return f"Rows({self.num_rows:,} rows{counted}: {named})"

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """The rows from `start` on in chunks of `chunk_rows`, the last one shorter; read in a thread ahead of use."""
        return read_ahead(lambda: read_chunks(self.source, self.fields, start, self.chunk_rows))

    def take(self, rows: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Some rows by their index, which ascends, and the fingerprint of all; empty where no pass was needed."""
        if isinstance(self.source, Arrays):
            names = tuple(dict.fromkeys(part for field in self.fields.values() for part in field.parts))
            piece = Piece("the arrays", self.source.take(rows, names))
            return read_columns(self.fields, piece), np.zeros(0, np.uint64)
        found, first, fingerprint = [], 0, np.zeros(len(self.fields), np.uint64)
        for chunk in self.chunks():
            own = rows[(rows >= first) & (rows < first + chunk.num_rows)] - first
            found.append({name: column[own] for name, column in chunk.columns.items()})
            first += chunk.num_rows
            fingerprint += chunk.fingerprint
        return {name: np.concatenate([part[name] for part in found]) for name in self.columns}, fingerprint

    def batches(self, seed: int, batch_size: int, buffer_rows: int | None = None) -> Iterator[dict[str, np.ndarray]]:
        """Random batches of one pass, from a buffer of `buffer_rows` rows, by default four chunks, that is shuffled
        whenever it is refilled. Each row comes once; the last batch may be shorter.

        Warns where a column looks sorted over chunks: such batches each see one part of the rows.
        """
        rng = np.random.default_rng(seed)
        most = max(4 * self.chunk_rows if buffer_rows is None else buffer_rows, batch_size)
        held: dict[str, np.ndarray] = {}
        means: list[list[float]] = []
        for chunk in self.chunks():
            means.append([float(column.mean()) for column in chunk.columns.values()])
            if len(means) == _SORTED_CHUNKS and most < self.num_rows:
                self._warn_if_sorted(np.array(means), most)
            held = {name: np.concatenate([held[name], c]) if held else c for name, c in chunk.columns.items()}
            count = len(next(iter(held.values())))
            if count >= most:
                ready = (count - most // 2) // batch_size * batch_size
                order = rng.permutation(count)
                yield from _batches(held, order[:ready], batch_size)
                held = {name: column[order[ready:]] for name, column in held.items()}
        yield from _batches(held, rng.permutation(len(next(iter(held.values())))), batch_size)

    def _warn_if_sorted(self, means: np.ndarray, most: int) -> None:
        change = np.diff(means, axis=0)
        sorted_by = [n for n, one in zip(self.columns, change.T) if np.all(one > 0) or np.all(one < 0)]
        if sorted_by:
            warnings.warn(
                f"rows look sorted by {', '.join(sorted_by)}: batches from a buffer of {most:,} rows each see one part "
                "of them. Shuffle the files, or raise buffer_rows",
                stacklevel=3,
            )


class Column:
    """One column of `Rows`: has the shape of an array whose first axis is the rows, but is never read as a whole."""

    def __init__(self, rows: Rows, name: str):
        kind = rows.fields[name].kind
        self.rows, self.name = rows, name
        self.shape, self.dtype = (rows.num_rows, *kind.shape), kind.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]


def _batches(columns: dict[str, np.ndarray], order: np.ndarray, size: int) -> Iterator[dict[str, np.ndarray]]:
    for begin in range(0, len(order), size):
        yield {name: column[order[begin : begin + size]] for name, column in columns.items()}


# -- what the user gave -----------------------------------------------------------------------------------------------


def _named(columns) -> dict[str, str | tuple[str, ...]] | None:
    """The columns that are asked for, by the name that the model gets."""
    if columns is None:
        return None
    if isinstance(columns, Mapping):
        named = {str(name): part if isinstance(part, str) else tuple(part) for name, part in columns.items()}
    elif isinstance(columns, str):
        raise ValueError(f"columns is a list of names or a dict; got the string {columns!r}. Write [{columns!r}]")
    else:
        named = {name: name for name in columns}
    if not named or not all(parts and all(isinstance(part, str) for part in _parts(parts)) for parts in named.values()):
        raise ValueError(f"columns is a list of names, or a dict of names or lists of names; got {columns!r}")
    return named


def _parts(parts: str | tuple[str, ...]) -> tuple[str, ...]:
    return (parts,) if isinstance(parts, str) else parts


def _field(source: Source, name: str, parts: str | tuple[str, ...]) -> Field:
    kinds = []
    for part in _parts(parts):
        if part not in source.kinds:
            raise ValueError(f"rows have no column '{part}'; they have {', '.join(source.kinds)}")
        kinds.append(source.kinds[part])
    joined = not isinstance(parts, str)
    if joined and any(kind.shape for kind in kinds):
        raise ValueError(f"columns: '{name}' joins {', '.join(parts)}, which must be single numbers and not vectors")
    shape = (len(kinds),) if joined else kinds[0].shape
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(np.result_type(*(kind.dtype for kind in kinds))))
    return Field(_parts(parts), joined, Kind(shape, dtype))


def _opened(source, wanted: tuple[str, ...] | None, num_rows: int | None) -> Source:
    if isinstance(source, str | os.PathLike):
        found = _files_of(os.fspath(source))
        if found[0].suffix == ".parquet":
            return Parquet(found, wanted)
        if found[0].suffix == ".csv":
            return Csv(found, wanted)
        return Arrays({path.stem: path for path in found})
    if isinstance(source, Mapping):
        return Arrays(source)
    if isinstance(source, Iterable):
        return Loader(source, num_rows)
    raise ValueError(
        "rows come from a path or glob, a dict of arrays, or an object with __iter__ that gives dicts of arrays; got "
        f"{type(source).__name__}"
    )


def _files_of(path: str) -> list[Path]:
    """The files of a directory, a glob or a path, by name; all of one kind."""
    if os.path.isdir(path):
        found = sorted(one for one in Path(path).iterdir() if one.suffix in _FILES and not one.name.startswith("."))
        if not found:
            raise ValueError(f"the directory {path} has no {', '.join(_FILES)} file")
    else:
        found = sorted(map(Path, glob.glob(path)))
        if not found:
            raise ValueError(f"no file matches {path}")
    kinds = sorted({one.suffix for one in found})
    if len(kinds) > 1:
        listed = ", ".join(kinds)
        raise ValueError(f"{path} has files of several kinds, {listed}; give a glob of one, such as *{kinds[0]}")
    if kinds[0] not in _FILES:
        raise ValueError(f"{found[0]}: rows are read from {', '.join(_FILES)} files; got '{kinds[0]}'")
    return found


def _words(source) -> str:
    return os.fspath(source) if isinstance(source, str | os.PathLike) else f"the {type(source).__name__}"
