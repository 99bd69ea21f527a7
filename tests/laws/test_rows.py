"""Rows read in chunks give what the same rows give in memory: sums of a pass, fits, and fits that were cut anywhere."""

import functools
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import curvi
from curvi import FullRank, MeanField, MinibatchTarget, Outcome, Rows, RowsError
from curvi.estimate.fixed_draws.sweep import split_structure
from curvi.estimate.rows import passes
from curvi.estimate.rows.passes import ChunkProgram, pass_noise
from curvi.methods import GrowingRows
from curvi.methods.growing_rows import work
from curvi.model.row_sample import RowSample
from curvi.model.rows.arrays import Arrays

KEY = jax.random.key(2)
COUNT, SIZE = 5003, 3


@lru_cache
def columns():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((COUNT, SIZE))
    return {"x": x, "y": (rng.random(COUNT) < 1 / (1 + np.exp(-x @ [1.0, -0.5, 0.2]))).astype(float)}


def log_row(t, row):
    logit = row["x"] @ t["w"]
    return row["y"] * logit - jax.nn.softplus(logit)


def target_of(data, batch_size=64):
    return MinibatchTarget(lambda t: -jnp.sum(t["w"] ** 2) / 2, log_row, data, batch_size, {"w": np.zeros(SIZE)})


# -- the sums of a pass -----------------------------------------------------------------------------------------------


class Dropping(Arrays):
    """Loses the first row of every piece but the first."""

    def pieces(self, start, names, most):
        for number, piece in enumerate(Arrays.pieces(self, start, names, most)):
            yield type(piece)(piece.where, {name: column[number > 0 :] for name, column in piece.items()})


class Doubling(Arrays):
    """Has the last row of a piece twice, in place of the first of the next."""

    def pieces(self, start, names, most):
        before = None
        for piece in Arrays.pieces(self, start, names, most):
            if before is not None:
                for name, column in piece.items():
                    piece[name] = np.concatenate([before[name][-1:], column[1:]])
            yield piece
            before = piece


def made_of(source, chunk_rows):
    rows = Rows(columns(), chunk_rows=chunk_rows)
    rows.source = source(columns())
    return rows


def sums_of_pass(rows, q, c, noise, reference):
    """Values, slopes, slopes of each draw, and the value at the reference, summed over the chunks of a pass."""
    target = target_of(rows)
    sample = RowSample.of(target, {name: column[:10] for name, column in columns().items()})
    program = ChunkProgram(target, split_structure(sample, q), rows.chunk_rows, 64)
    sums = passes.RowSums.none(c.size, 2, SIZE)
    for chunk in rows.chunks():
        sums = sums.plus(chunk.num_rows, program(c, noise, reference, chunk), chunk.fingerprint)
    return sums


def check_sums(rows, family):
    """A pass against sums in memory, in numpy where q is a mean field."""
    q = family(target_of(columns()))
    q = eqx.tree_at(lambda q: q.params, q, q.params + 0.3 * np.random.default_rng(1).standard_normal(q.params.shape))
    c, noise = q.path.coordinates(np.asarray(q.params)), pass_noise(np.random.default_rng(2), SIZE)
    reference = {"w": np.array([0.5, -0.2, 0.1])}
    found = sums_of_pass(rows, q, c, noise, reference)
    data = {name: jnp.asarray(column) for name, column in columns().items()}
    log_all = lambda w: jnp.sum(jax.vmap(lambda x, y: log_row({"w": w}, {"x": x, "y": y}))(data["x"], data["y"]))  # noqa: E731
    draws = jax.vmap(jax.vmap(lambda e: q.to_model(q.from_normal(e))[0]["w"]))(noise)
    values, slopes = jax.vmap(jax.vmap(jax.value_and_grad(log_all)))(draws)
    there = float(log_all(reference["w"]))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9 * COUNT)
    assert found.num_rows == COUNT
    close(found.constant, there)
    close(found.values, values - there)
    close(found.draw_slopes, slopes)
    close(found.slopes[:, :SIZE], slopes.mean(1))
    if family is MeanField:
        close(found.slopes[:, SIZE:], (slopes * noise).mean(1))


@pytest.mark.parametrize("family", [MeanField, FullRank])
@pytest.mark.parametrize("chunk_rows", [COUNT, 1000, 77])
def test_the_sums_of_a_pass_are_those_in_memory(chunk_rows, family):
    check_sums(made_of(Arrays, chunk_rows), family)


def test_a_source_that_doubles_a_row_is_seen_in_the_sums():
    with pytest.raises(AssertionError):
        check_sums(made_of(Doubling, 1000), MeanField)


def test_a_source_that_drops_rows_is_an_error():
    with pytest.raises(RowsError, match=r"gave 4,998 rows, where 5,003 were counted"):
        check_sums(made_of(Dropping, 1000), MeanField)


# -- fits -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    data = columns()
    for number, at in enumerate((slice(0, 2000), slice(2000, 2001), slice(2001, COUNT))):
        x = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(data["x"][at].ravel()), SIZE)
        parquet.write_table(pyarrow.table({"x": x, "y": data["y"][at]}), tmp_path / f"{number}.parquet", 500)
    return tmp_path


class Loader:
    """A loader that shuffles anew in every pass."""

    def __init__(self):
        self.rng = np.random.default_rng(3)

    def __iter__(self):
        order = self.rng.permutation(COUNT)
        for begin in range(0, COUNT, 256):
            yield {name: column[order[begin : begin + 256]] for name, column in columns().items()}


SOURCES = {
    "Parquet": lambda folder: Rows(folder, chunk_rows=700),
    "arrays": lambda folder: Rows(columns(), chunk_rows=COUNT),
    "a loader that shuffles": lambda folder: Rows(Loader(), chunk_rows=700),
}
FEW = GrowingRows(sample_rows=500)


@lru_cache
def in_memory():
    """All rows in every evaluation, by another method."""
    return curvi.fit(
        curvi.Target(target_of(columns()).full(), {"w": np.zeros(SIZE)}), key=KEY, family="mean_field", progress=False
    )


def fit(rows, **options):
    target = target_of(rows) if isinstance(rows, Rows) else rows
    return curvi.fit(target, **{"key": KEY, "method": FEW, "progress": False, **options})


@pytest.mark.parametrize("name", SOURCES)
def test_a_fit_of_rows_ends_where_one_in_memory_does(name, folder):
    found, whole = fit(SOURCES[name](folder), family="mean_field"), in_memory()
    assert found.converged and whole.converged and 2 <= found.counts.passes <= 10
    assert abs(found.elbo - whole.elbo) < 0.05 + 4 * np.hypot(found.elbo_se, whole.elbo_se)
    for one, other in ((found.mean(), whole.mean()), (found.sd(), whole.sd())):
        np.testing.assert_allclose(one["w"], other["w"], atol=0.2 * whole.sd()["w"].min())


def test_a_fit_on_a_tenth_of_the_rows_would_not_end_there(folder):
    """What passes are for: the sample alone is off by more than the law above allows."""
    part = {name: column[: COUNT // 10] for name, column in columns().items()}
    apart = np.abs(fit(Rows(part)).mean()["w"] - in_memory().mean()["w"])
    assert np.max(apart) > 0.2 * in_memory().sd()["w"].min()


def test_rows_that_fit_in_the_sample_take_no_pass():
    found = fit(Rows(columns(), chunk_rows=300), method=None)
    assert type(found.method) is GrowingRows and found.converged and found.counts.passes == 0


@pytest.mark.parametrize("name", SOURCES)
def test_the_same_key_gives_the_same_bits(name, folder):
    one, other = fit(SOURCES[name](folder)), fit(SOURCES[name](folder))
    np.testing.assert_array_equal(one.q.params, other.q.params)
    assert one.elbo == other.elbo and one.counts == other.counts


# -- cut in the middle of a pass --------------------------------------------------------------------------------------

CUTS = [
    (name, how, moment, name == "Parquet" and (how, moment) in (("interrupted", 6), ("killed", 14)))
    for name in SOURCES
    for how in ("interrupted", "killed")
    for moment in ((3,) if name == "arrays" else (3, 6, 14))
]


@pytest.mark.parametrize(
    ("name", "how", "moment"),
    [
        pytest.param(name, how, moment, marks=() if fast or (moment == 3 and how == "killed") else pytest.mark.slow)
        for name, how, moment, fast in CUTS
    ],
)
def test_cut_in_the_middle_of_a_pass_a_fit_goes_on_with_the_same_bits(name, how, moment, folder, monkeypatch, tmp_path):
    """Interrupted, the fit is what was returned; killed, it is what the last checkpoint has."""
    shuffles = name == "a loader that shuffles"
    target = target_of(SOURCES[name](folder))
    whole = fit(target_of(SOURCES[name](folder)) if shuffles else target)
    path, calls, original = tmp_path / "run.curvi", [], ChunkProgram.__call__

    def stopped(self, *args):
        calls.append(1)
        if len(calls) == moment:
            raise KeyboardInterrupt if how == "interrupted" else MemoryError
        return original(self, *args)

    monkeypatch.setattr(work, "_ADVANCE_SECONDS", 0.0)
    monkeypatch.setattr(ChunkProgram, "__call__", stopped)
    if how == "interrupted":
        part = fit(target)
        assert part.outcome is Outcome.INTERRUPTED
        part.save(path)
    else:
        with pytest.raises(MemoryError):
            fit(target, checkpoint=path, checkpoint_seconds=0)
    monkeypatch.undo()
    anew = target_of(SOURCES[name](folder)) if moment == 14 or shuffles else target
    loaded = curvi.load(path, anew)
    assert loaded.checkpoint is not None
    sums = loaded.checkpoint.state.sums
    if name == "Parquet":
        assert sums.num_rows == {3: 1400, 6: 3500, 14: 2800}[moment], "the position is in the file"
    found = curvi.fit(anew, start=loaded, progress=False)
    assert found.outcome is whole.outcome
    if shuffles:  # it begins its pass anew, and sums in another order
        np.testing.assert_allclose(found.q.params, whole.q.params, rtol=1e-6)
        return
    np.testing.assert_array_equal(found.q.params, whole.q.params)
    assert (found.elbo, found.remaining_gain) == (whole.elbo, whole.remaining_gain)
    assert found.counts.passes == whole.counts.passes
