"""Rows from files, arrays and loaders: each row once, in one order of columns, in chunks of one size."""

import gc
import threading
import time
import warnings

import jax
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from curvi import Rows
from curvi.model.rows.reading import Chunk, read_ahead

COUNT = 1000


def columns(count=COUNT, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "id": np.arange(count, dtype=np.int32),
        "x": rng.standard_normal((count, 2)).astype(np.float32),
        "y": rng.standard_normal(count),
    }


def parts(count, *ends):
    """Slices of rows that end at these rows and at the last."""
    return [slice(begin, end) for begin, end in zip((0, *ends), (*ends, count))]


def write_parquet(path, data, group=97):
    arrays = {}
    for name, column in data.items():
        if column.ndim == 1:
            arrays[name] = pyarrow.array(column)
        else:
            arrays[name] = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(column.ravel()), column.shape[1])
    parquet.write_table(pyarrow.table(arrays), path, row_group_size=group)


def some(data, at):
    return {name: column[at] for name, column in data.items()}


class Batches:
    """Like PyTorch's DataLoader: no sequence, and every iter() begins anew, in another order where it shuffles."""

    def __init__(self, data, size, shuffle=False):
        self.data, self.size, self.rng = data, size, np.random.default_rng(0) if shuffle else None
        self.times = 0

    def __iter__(self):
        self.times += 1
        count = len(self.data["id"])
        order = np.arange(count) if self.rng is None else self.rng.permutation(count)
        for begin in range(0, count, self.size):
            yield some(self.data, order[begin : begin + self.size])


def parquet_folder(folder, data):
    for number, at in enumerate(parts(COUNT, 300, 301, 640)):
        write_parquet(folder / f"{number}.parquet", some(data, at))
    return folder


def parquet_glob(folder, data):
    write_parquet(folder / "other.parquet", {"z": np.zeros(3)})
    for number, at in enumerate(parts(COUNT, 500)):
        write_parquet(folder / f"part-{number}.parquet", some(data, at))
    return str(folder / "part-*.parquet")


def csv_folder(folder, data):
    for number, at in enumerate(parts(COUNT, 400)):
        own = some(data, at)
        lines = [f"{i},{a!r},{b!r},{y!r}" for i, (a, b), y in zip(*(own[name].tolist() for name in own))]
        (folder / f"{number}.csv").write_text("\n".join(["id,x0,x1,y", *lines, ""]))
    return folder


def npy_folder(folder, data):
    for name, column in data.items():
        np.save(folder / f"{name}.npy", column)
    return folder


SOURCES = {
    "a directory of Parquet": parquet_folder,
    "a glob of Parquet": parquet_glob,
    "CSV": csv_folder,
    "a directory of .npy": npy_folder,
    "paths of .npy": lambda folder, data: {name: npy_folder(folder, data) / f"{name}.npy" for name in data},
    "arrays": lambda folder, data: data,
    "arrays of JAX": lambda folder, data: {name: jax.numpy.asarray(column) for name, column in data.items()},
    "a loader": lambda folder, data: Batches(data, 128),
    "a loader that shuffles": lambda folder, data: Batches(data, 128, shuffle=True),
    "a list of batches": lambda folder, data: [some(data, at) for at in parts(COUNT, 1, 999)],
}
JOINED = {"CSV": {"id": "id", "x": ["x0", "x1"], "y": "y"}}


def opened(name, folder, data=None, **options):
    return Rows(SOURCES[name](folder, columns() if data is None else data), JOINED.get(name), **options)


def all_of(chunks):
    chunks = list(chunks)
    return {name: np.concatenate([chunk.columns[name] for chunk in chunks]) for name in chunks[0].columns}


@pytest.mark.parametrize("chunk_rows", [1, 64, 333, COUNT, 10 * COUNT])
@pytest.mark.parametrize("name", SOURCES)
def test_a_pass_has_every_row_once(name, chunk_rows, tmp_path):
    data = columns()
    rows = opened(name, tmp_path, chunk_rows=chunk_rows)
    assert len(rows) == rows.num_rows == COUNT and rows.chunk_rows == min(chunk_rows, COUNT)
    sizes = [chunk.num_rows for chunk in rows.chunks()]
    assert sum(sizes) == COUNT and all(size == rows.chunk_rows for size in sizes[:-1])
    for _ in range(2):
        found = all_of(rows.chunks())
        order = np.argsort(found["id"])
        assert rows.source.ordered <= np.array_equal(found["id"], data["id"])
        for column, values in data.items():
            np.testing.assert_array_equal(found[column][order], values, column)


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "a loader that shuffles"])
@pytest.mark.parametrize("start", [0, 1, 96, 97, 301, 640, 999, 1000])
def test_a_pass_may_begin_at_any_row(name, start, tmp_path):
    rows = opened(name, tmp_path, chunk_rows=70)
    found = [chunk.columns["id"] for chunk in rows.chunks(start)]
    np.testing.assert_array_equal(np.concatenate([np.zeros(0, int), *found]), np.arange(start, COUNT))


@pytest.mark.parametrize("name", SOURCES)
def test_rows_are_taken_by_index(name, tmp_path):
    rows, data = opened(name, tmp_path, chunk_rows=110), columns()
    at = np.array([0, 5, 109, 110, 640, 999])
    found, fingerprint = rows.take(at)
    assert fingerprint.shape == ((0,) if rows.source.in_memory or "npy" in name else (3,))
    if name != "a loader that shuffles":
        for column, values in data.items():
            np.testing.assert_array_equal(found[column], values[at])
    assert len(set(found["id"])) == len(at)


def test_metadata_count_parquet_rows_and_one_pass_counts_others(tmp_path, monkeypatch):
    data = columns()
    loader = Batches(data, 100)
    assert Rows(loader).source.counted and loader.times == 2  # the first batch, and the count
    known = Batches(data, 100)
    assert not Rows(known, num_rows=COUNT).source.counted and known.times == 1
    parquet_folder(tmp_path, data)
    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", None)
    rows = Rows(tmp_path)
    assert rows.num_rows == COUNT and not rows.source.counted


def test_the_order_of_columns_is_that_of_the_first_file(tmp_path):
    data = columns()
    write_parquet(tmp_path / "a.parquet", some(data, slice(0, 600)))
    write_parquet(tmp_path / "b.parquet", {name: data[name][600:] for name in ("y", "x", "id")})
    rows = Rows(tmp_path)
    assert rows.columns == ("id", "x", "y") == tuple(next(rows.chunks()).columns)
    np.testing.assert_array_equal(all_of(rows.chunks())["y"], data["y"])
    named = Rows(tmp_path, ["y", "id"])
    assert named.columns == ("y", "id") and all_of(named.chunks())["y"][7] == data["y"][7]
    renamed = Rows(tmp_path, {"pair": ["y", "id"], "z": "y"}, chunk_rows=64)
    np.testing.assert_array_equal(all_of(renamed.chunks())["pair"], np.stack([data["y"], data["id"]], 1))
    assert renamed.row["pair"].shape == (2,) and renamed["z"].shape == (COUNT,)


@pytest.mark.parametrize("shift", [0, 1, -1])
def test_a_fingerprint_tells_other_rows_and_not_another_order(shift):
    data = columns()
    total = lambda data: sum(chunk.fingerprint for chunk in Rows(data, chunk_rows=77).chunks())  # noqa: E731
    other = some(data, np.random.default_rng(1).permutation(COUNT))
    other["id"] = other["id"] + (np.arange(COUNT) == 3) * np.int32(shift)
    np.testing.assert_array_equal(total(data) == total(other), [shift == 0, True, True])


def test_the_last_chunk_is_padded_to_one_shape():
    last = list(Rows(columns(), chunk_rows=300).chunks())[-1]
    padded = last.padded(300)
    assert last.num_rows == 100 and all(len(column) == 300 for column in padded.values())
    np.testing.assert_array_equal(padded["id"], [*range(900, 1000), *[999] * 200])


# -- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:rows look sorted")
@pytest.mark.parametrize(("size", "buffer_rows"), [(32, None), (100, 250), (7, 40), (300, 10), (COUNT, None)])
def test_batches_have_every_row_once_from_a_bounded_buffer(size, buffer_rows):
    rows = Rows(columns(), chunk_rows=50)
    batches = [batch["id"] for batch in rows.batches(3, size, buffer_rows)]
    assert all(len(batch) == size for batch in batches[:-1])
    ids = np.concatenate(batches)
    np.testing.assert_array_equal(np.sort(ids), np.arange(COUNT))
    assert not np.array_equal(ids, np.arange(COUNT))
    # Nothing comes before it could have been read: the buffer, a batch and a chunk ahead of it at most.
    most = max(200 if buffer_rows is None else buffer_rows, size)
    assert np.all(ids - np.arange(COUNT) < most + size + 50)
    np.testing.assert_array_equal(ids, np.concatenate([batch["id"] for batch in rows.batches(3, size, buffer_rows)]))
    assert size == COUNT or not np.array_equal(ids, np.concatenate([b["id"] for b in rows.batches(4, size)]))


def test_files_that_look_sorted_are_told():
    with pytest.warns(UserWarning, match=r"sorted by id: batches from a buffer of 200 rows"):
        list(Rows(columns(), chunk_rows=50).batches(0, 10))
    shuffled = some(columns(), np.random.default_rng(5).permutation(COUNT))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(Rows(shuffled, chunk_rows=50).batches(0, 10))
        list(Rows(columns(), chunk_rows=50).batches(0, 10, COUNT))


# -- reading ahead ----------------------------------------------------------------------------------------------------


def numbered(count, read):
    for number in range(count):
        read.append(number)
        yield Chunk({"id": np.array([number])}, np.zeros(1, np.uint64))


def test_the_next_chunks_are_read_while_the_last_is_used_and_no_more():
    read = []
    chunks = read_ahead(lambda: numbered(10, read))
    assert next(chunks).columns["id"][0] == 0
    for _ in range(500):
        if len(read) == 4:
            break
        time.sleep(0.01)
    time.sleep(0.05)
    assert read == [0, 1, 2, 3]  # the one in use, two that wait, and one in the hand of the reader
    assert [int(chunk.columns["id"][0]) for chunk in chunks] == list(range(1, 10))


def test_a_reader_that_is_no_longer_wanted_ends():
    before = threading.active_count()
    chunks = read_ahead(lambda: numbered(10**9, []))
    next(chunks)
    del chunks
    gc.collect()
    assert threading.active_count() == before


def test_an_error_of_the_reader_is_raised_where_its_chunk_was_wanted():
    def broken():
        yield from numbered(2, [])
        raise OSError("gone")

    chunks = read_ahead(broken)
    assert [int(next(chunks).columns["id"][0]) for _ in range(2)] == [0, 1]
    with pytest.raises(OSError, match="gone"):
        next(chunks)
