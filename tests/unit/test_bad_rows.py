"""Rows that are wrong from the beginning are refused; rows that go wrong under a run end it with the fit so far."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import curvi
from curvi import MinibatchTarget, Rows, RowsError
from curvi.methods import GrowingRows

KEY = jax.random.key(0)
COUNT = 3000


def write(path, count=COUNT, seed=0, **other):
    rng = np.random.default_rng(seed)
    columns = {"x": rng.standard_normal(count), "y": rng.standard_normal(count) + 2, **other}
    parquet.write_table(pyarrow.table(columns), path, row_group_size=500)
    return path


def target_of(data, scale=1.0):
    log_row = lambda t, row: -scale * (row["y"] - t["a"] - t["b"] * row["x"]) ** 2 / 2  # noqa: E731
    return MinibatchTarget(lambda t: -(t["a"] ** 2) / 2, log_row, data, 64, {"a": np.zeros(()), "b": np.zeros(())})


# -- from the beginning -----------------------------------------------------------------------------------------------


def damaged(path, keep=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])


def other_columns(folder):
    write(folder / "b.parquet", z=np.zeros(COUNT))


def fewer_columns(folder):
    parquet.write_table(pyarrow.table({"x": np.zeros(3)}), folder / "b.parquet")


def other_types(folder):
    write(folder / "b.parquet", y=np.arange(COUNT))


def words(folder):
    write(folder / "a.parquet", y=["yes"] * COUNT)


def two_kinds(folder):
    (folder / "b.csv").write_text("x,y\n1,2\n")


BAD_FILES = {
    "a truncated file": (lambda folder: damaged(folder / "a.parquet"), r"a\.parquet is truncated or no Parquet file"),
    "no Parquet file": (lambda folder: (folder / "a.parquet").write_text("x"), "truncated or no Parquet file"),
    "one column more": (other_columns, r"a\.parquet has no column 'z', which .*b\.parquet has"),
    "one column less": (fewer_columns, r"b\.parquet has no column 'y', which .*a\.parquet has"),
    "another type": (other_types, r"column 'y' is int64, but float64 in .*a\.parquet; write all files alike"),
    "words": (words, r"column 'y' is string, no number"),
    "files of two kinds": (two_kinds, r"files of several kinds, .csv, .parquet; give a glob"),
    "an empty directory": (lambda folder: (folder / "a.parquet").unlink(), r"has no .parquet, .csv, .npy file"),
    "no row": (lambda folder: write(folder / "a.parquet", 0), "but no row"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused(name, tmp_path):
    write(tmp_path / "a.parquet")
    assert Rows(tmp_path).num_rows == COUNT
    spoil, said = BAD_FILES[name]
    spoil(tmp_path)
    with pytest.raises(ValueError, match=said):
        Rows(tmp_path)


class Other:
    """A loader of these batches."""

    def __init__(self, *batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


ONE = {"x": np.zeros(2), "y": np.zeros(2)}
BAD_SOURCES = {
    "a generator": (lambda: (batch for batch in [ONE]), {}, r"can be read once; give an object whose iter\(\) starts"),
    "an empty loader": (lambda: Other(), {}, "its first pass gave no batch"),
    "no dicts": (lambda: Other(np.zeros(2)), {}, "dicts of arrays by name; got ndarray"),
    "columns that differ": (lambda: Other({"x": np.zeros(2), "y": np.zeros(3)}), {}, "differ in their rows"),
    "arrays that differ": (lambda: {"x": np.zeros(2), "y": np.zeros(3)}, {}, "rows by column: 'x' 2, 'y' 3"),
    "a loader that changes": (
        lambda: Other(ONE, {"x": np.zeros((2, 2)), "y": np.zeros(2)}),
        {},
        r"became float64\[2\]",
    ),
    "no column": (lambda: ONE, {"columns": ["z"]}, "no column 'z'; they have x, y"),
    "a string of columns": (lambda: ONE, {"columns": "x"}, r"Write \['x'\]"),
    "no chunk": (lambda: ONE, {"chunk_rows": 0}, "chunk_rows must be a positive integer"),
    "a count of files": (lambda: ONE, {"num_rows": 2}, "num_rows is for loaders"),
    "a number": (lambda: 3, {}, "rows come from a path or glob"),
    "no file": (lambda: "/nowhere/*.parquet", {}, "no file matches /nowhere"),
    "objects": (lambda: {"x": np.array(["a", "b"])}, {}, "no number"),
}


@pytest.mark.parametrize("name", BAD_SOURCES)
def test_bad_sources_are_refused(name):
    source, options, said = BAD_SOURCES[name]
    with pytest.raises(ValueError, match=said):
        Rows(source(), **options)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x,y\n1,2\n3,blue\n", r"line 3: 'blue' in column 'y'"),
        ("x,y\n1,2\n3\n", "line 3: 1 fields for 2"),
        ("x,x\n", "distinct"),
    ],
)
def test_a_line_of_csv_that_is_no_number_is_named(text, said, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=said):
        list(Rows(tmp_path).chunks())


def test_missing_values_are_told(tmp_path):
    parquet.write_table(pyarrow.table({"x": [1.0, None]}), tmp_path / "a.parquet")
    with pytest.raises(RowsError, match="column 'x' has missing values"):
        list(Rows(tmp_path).chunks())
    with pytest.raises(RowsError, match="not finite; leave these rows out"):
        list(Rows({"x": np.array([1.0, np.nan])}).chunks())


def test_methods_that_need_all_rows_at_once_say_so():
    data = Rows({"x": np.zeros(90), "y": np.ones(90)}, chunk_rows=30)
    target = target_of(data)
    with pytest.raises(ValueError, match=r"GrowingDraws needs all rows in memory.*use GrowingRows"):
        curvi.fit(target, key=KEY, method=curvi.methods.GrowingDraws(), progress=False)
    with pytest.raises(ValueError, match="read a chunk at a time"):
        target.full()


def test_a_check_takes_the_first_rows():
    data = Rows({"x": np.linspace(0, 1, 9000), "y": np.ones(9000)})
    assert curvi.check(target_of(data), key=KEY).ok
    steep = MinibatchTarget(lambda t: 0.0, lambda t, row: jnp.log(row["x"] - t["a"]), data, 64, {"a": np.zeros(())})
    assert "finite at the start" in str(curvi.check(steep, key=KEY)) and not curvi.check(steep, key=KEY).ok


# -- under a run ------------------------------------------------------------------------------------------------------


def fit(target, **options):
    settings = {"key": KEY, "method": GrowingRows(sample_rows=300), "progress": False, "family": "mean_field"}
    return curvi.fit(target, **{**settings, **options})


def removed(path):
    path.unlink()


def rewritten(path):
    write(path, seed=1)


def cut_off(path):
    """Damaged, with size and time as they were: what a bad disk does."""
    before, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:200] + bytes(len(content) // 2) + content[200 + len(content) // 2 :])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def other_numbers(path):
    """Other rows in a file of the same size and time: only their bits tell."""
    table = parquet.read_table(path)
    before, y = path.stat(), table["y"].to_numpy().copy()
    content = path.read_bytes()
    place = content.index(y[:50].tobytes())
    y[3] = 1.25
    path.write_bytes(content[:place] + y[:50].tobytes() + content[place + 400 :])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES = {
    "removed": (removed, r"a\.parquet cannot be read any more .*restore it"),
    "rewritten": (rewritten, r"a\.parquet has changed since its rows were counted"),
    "damaged": (cut_off, r"a\.parquet is truncated or damaged"),
    "other numbers": (other_numbers, r"rows have changed between two passes, in y"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_source_that_changes_under_a_run_ends_it_with_the_fit_so_far(name, tmp_path, monkeypatch):
    path, kept = tmp_path / "a.parquet", tmp_path / "run.curvi"
    plain = {"x": np.random.default_rng(0).standard_normal(COUNT), "y": np.random.default_rng(1).standard_normal(COUNT)}
    parquet.write_table(pyarrow.table(plain), path, row_group_size=500, use_dictionary=False, compression="none")
    content, times = path.read_bytes(), path.stat()
    target = target_of(Rows(path, chunk_rows=500))
    whole = fit(target)
    original, calls = GrowingRows.advance, []

    def changed(self, problem, state, key, budget):
        if state.known and not calls:
            calls.append(1)
            CHANGES[name][0](path)
        return original(self, problem, state, key, budget)

    monkeypatch.setattr(GrowingRows, "advance", changed)
    with pytest.raises(RowsError, match=CHANGES[name][1]) as caught:
        fit(target, checkpoint=kept)
    monkeypatch.undo()
    assert calls and len(caught.value.fit.history) and np.all(np.isfinite(caught.value.fit.q.params))
    # The source is mended, and the fit goes on from the error or from its file.
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    for start in (caught.value.fit, kept):
        found = curvi.fit(target, start=start, progress=False)
        np.testing.assert_array_equal(found.q.params, whole.q.params)
        assert found.elbo == whole.elbo


def test_a_checkpoint_of_other_rows_or_another_model_is_refused(tmp_path):
    path, kept = write(tmp_path / "a.parquet"), tmp_path / "run.curvi"
    part = fit(target_of(Rows(path, chunk_rows=500)), num_steps=4, checkpoint=kept, tolerance=1e-4)
    assert not part.converged
    more = target_of(Rows(write(tmp_path / "b.parquet", COUNT + 1), chunk_rows=500))
    with pytest.raises(RowsError, match=r"begun on 3,000 rows; this source has 3,001"):
        curvi.fit(more, start=kept, progress=False)
    others = target_of(Rows(write(tmp_path / "c.parquet", seed=1), chunk_rows=500))
    with pytest.raises(RowsError, match="rows have changed between two passes, in x, y"):
        curvi.fit(others, start=kept, progress=False)
    other = curvi.Target(lambda t: -jnp.sum(t["c"] ** 2), {"c": np.zeros(2)})
    with pytest.raises(ValueError, match="belongs to another model"):
        curvi.fit(other, start=kept, progress=False)
