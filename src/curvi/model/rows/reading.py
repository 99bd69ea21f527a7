"""From the pieces that a source gives to chunks of one size, checked, and read ahead in a thread."""

import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator

import numpy as np

from curvi.model.rows.source import Kind, Piece, RowsError, Source


@dataclasses.dataclass(frozen=True)
class Field:
    """A column as the model gets it: one column of the source, or several single numbers joined to a vector."""

    parts: tuple[str, ...]
    joined: bool
    kind: Kind

    def of(self, name: str, piece: Piece) -> np.ndarray:
        columns = [piece[part] for part in self.parts]
        found = np.stack(columns, 1) if self.joined else columns[0]
        cast = np.ascontiguousarray(found, self.kind.dtype)
        if found.dtype.kind in "iu" and found.dtype != cast.dtype and not np.array_equal(found, cast):
            raise RowsError(
                f"{piece.where}: column '{name}' has integers that {cast.dtype} cannot hold; call "
                "jax.config.update('jax_enable_x64', True) first, or write smaller ones"
            )
        if cast.dtype.kind == "f" and not np.all(np.isfinite(cast)):
            raise RowsError(f"{piece.where}: column '{name}' has values that are not finite; leave these rows out")
        return cast


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Consecutive rows, and a number by column that tells whether they are the same in the next pass.

    The number is the sum of the bits of all entries, so that rows may come in another order.
    """

    columns: dict[str, np.ndarray]
    fingerprint: np.ndarray

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def padded(self, size: int) -> dict[str, np.ndarray]:
        """The columns with copies of the last row up to `size` rows, whose weight is to be zero."""
        more = size - self.num_rows
        if not more:
            return self.columns
        return {name: np.concatenate([c, np.repeat(c[-1:], more, 0)]) for name, c in self.columns.items()}


def read_columns(fields: dict[str, Field], piece: Piece) -> dict[str, np.ndarray]:
    """The columns of the model from a piece of the source."""
    return {name: field.of(name, piece) for name, field in fields.items()}


def read_chunks(source: Source, fields: dict[str, Field], start: int, size: int) -> Iterator[Chunk]:
    """The rows from `start` on in chunks of `size`, the last one shorter; RowsError where their number has changed."""
    source.check()
    names = tuple(dict.fromkeys(part for field in fields.values() for part in field.parts))
    held: list[dict[str, np.ndarray]] = []
    count, seen = 0, start
    for piece in source.pieces(start, names, size):
        columns, begin = read_columns(fields, piece), 0
        seen += len(piece)
        while begin < len(piece):
            end = min(begin + size - count, len(piece))
            held.append({name: column[begin:end] for name, column in columns.items()})
            count, begin = count + end - begin, end
            if count == size:
                yield _joined(held)
                held, count = [], 0
    if held:
        yield _joined(held)
    if seen != source.num_rows:
        raise RowsError(
            f"this pass gave {seen:,} rows, where {source.num_rows:,} were counted; restore the source, or begin a new "
            "fit"
        )


def _joined(held: list[dict[str, np.ndarray]]) -> Chunk:
    columns = held[0] if len(held) == 1 else {name: np.concatenate([part[name] for part in held]) for name in held[0]}
    return Chunk(columns, np.array([_bits(column) for column in columns.values()], np.uint64))


def _bits(column: np.ndarray) -> np.uint64:
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[column.dtype.itemsize]
    return np.ascontiguousarray(column).view(kind).sum(dtype=np.uint64)


_AHEAD = 2  # chunks that wait
_DONE = object()


def read_ahead(make: Callable[[], Iterator[Chunk]]) -> Iterator[Chunk]:
    """The chunks of an iterator that a thread runs ahead of their use; it ends where they are no longer wanted."""
    waiting: queue.Queue = queue.Queue(_AHEAD)
    stopped = threading.Event()

    def put(item) -> bool:
        while not stopped.is_set():
            try:
                waiting.put(item, timeout=0.1)
                return True
            except queue.Full:
                pass
        return False

    def read():
        chunks = make()
        try:
            for chunk in chunks:
                if not put((chunk, None)):
                    return
            put((_DONE, None))
        except BaseException as error:  # raised again where the chunk was wanted
            put((_DONE, error))

    thread = threading.Thread(target=read, daemon=True, name="curvi rows")
    thread.start()
    try:
        while True:
            chunk, error = waiting.get()
            if error is not None:
                raise error
            if chunk is _DONE:
                return
            yield chunk
    finally:
        stopped.set()
        thread.join()
