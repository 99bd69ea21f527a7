"""A fit that is killed at any moment goes on from its checkpoint with the same bits; no file is ever half written."""

import errno
import json
import os
import resource
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi

KILLS = Path(__file__).parents[2] / "benchmarks" / "kills.py"


def log_density(theta):
    x = theta["x"]
    return -0.5 * jnp.sum(jnp.exp(0.3 * x) ** 2) - 0.5 * jnp.sum((x - jnp.roll(x, 1)) ** 2) - jnp.sum(x**4) / 50


@lru_cache
def target():
    return curvi.Target(log_density, {"x": jnp.zeros(6)})


def fit(**options):
    options = {"tolerance": 1e-9, "progress": False, **options}
    return curvi.fit(target(), **options)


@pytest.mark.parametrize(
    "counts",
    [
        ("2", "1", "--only", "growing rows"),
        pytest.param(("100", "30"), marks=pytest.mark.slow),
    ],
    ids=["three", "a hundred and thirty"],
)
def test_a_process_killed_at_any_moment_goes_on_with_the_same_bits(counts):
    """Killed at random moments, and by itself while it writes a file."""
    random, injected, *rest = counts
    command = [sys.executable, str(KILLS), "--random", random, "--injected", injected, *rest, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)
    assert sum(record["kills"] for record in records) == int(random) + int(injected)
    assert all(record["same"] == record["kills"] for record in records), records


def test_the_first_call_begins_and_later_ones_go_on(tmp_path):
    path = tmp_path / "run.curvi"
    options = {"start": path, "checkpoint": path, "checkpoint_seconds": 0, "progress": False}
    first = curvi.fit(target(), key=jax.random.key(0), num_steps=1, **options)
    assert path.exists() and not first.converged
    second = curvi.fit(target(), key=jax.random.key(0), **options)
    assert second.converged and len(second.history) > len(first.history)
    assert curvi.load(path, target()).converged
    with pytest.raises(ValueError, match=r"no file .*elsewhere"):
        curvi.fit(target(), start=tmp_path / "elsewhere", checkpoint=path, progress=False)


def test_the_default_goes_on_across_a_change_of_family(tmp_path):
    path, key = tmp_path / "run.curvi", jax.random.key(3)
    whole = curvi.fit(target(), key=key, progress=False)
    assert not isinstance(whole.q, curvi.MeanField)
    for steps in (1, len(whole.history) - 2):
        curvi.fit(target(), key=key, checkpoint=path, num_steps=steps, progress=False)
        found = curvi.fit(target(), start=path, progress=False)
        np.testing.assert_array_equal(np.asarray(found.q.params), np.asarray(whole.q.params))


def test_a_full_disk_is_an_error_that_holds_the_fit(tmp_path, monkeypatch):
    path = tmp_path / "run.curvi"
    fit(key=jax.random.key(1), family="mean_field", num_steps=5, checkpoint=path)
    before, real = path.read_bytes(), os.fsync

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(curvi.CheckpointError, match=r"No space left.*start=error.fit") as caught:
        fit(start=path, num_steps=5, checkpoint=path, checkpoint_seconds=0)
    monkeypatch.setattr(os, "fsync", real)
    assert path.read_bytes() == before and [entry.name for entry in tmp_path.iterdir()] == ["run.curvi"]
    steps = len(caught.value.fit.history)
    assert 5 < steps <= 10
    resumed = fit(start=caught.value.fit, num_steps=10 - steps)
    whole = fit(key=jax.random.key(1), family="mean_field", num_steps=10)
    np.testing.assert_array_equal(np.asarray(resumed.q.params), np.asarray(whole.q.params))


def test_a_file_that_outgrows_its_limit_leaves_the_last_one(tmp_path):
    """The kernel's own refusal to write on, as on a full disk."""
    path = tmp_path / "run.curvi"
    before = fit(key=jax.random.key(1), family="mean_field", num_steps=5, checkpoint=path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size // 2, limits[1]))
    try:
        with pytest.raises(curvi.CheckpointError, match=r"File too large.*start=error.fit") as caught:
            fit(start=path, num_steps=5, checkpoint=path, checkpoint_seconds=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.curvi"]
    np.testing.assert_array_equal(curvi.load(path).q.params, before.q.params)
    assert len(caught.value.fit.history) > 5


def test_a_folder_that_is_removed_under_a_run_is_an_error_that_holds_the_fit(tmp_path, monkeypatch):
    path = tmp_path / "runs" / "run.curvi"
    path.parent.mkdir()
    original, calls = curvi.methods.GrowingDraws.advance, []

    def removed(self, *arguments):
        calls.append(1)
        if len(calls) == 4:
            path.unlink()
            path.parent.rmdir()
        return original(self, *arguments)

    monkeypatch.setattr(curvi.methods.GrowingDraws, "advance", removed)
    with pytest.raises(curvi.CheckpointError, match=r"No such file.*start=error.fit") as caught:
        fit(key=jax.random.key(1), family="mean_field", num_steps=9, checkpoint=path, checkpoint_seconds=0)
    monkeypatch.undo()
    whole = fit(key=jax.random.key(1), family="mean_field", num_steps=9)
    found = fit(start=caught.value.fit, num_steps=9 - len(caught.value.fit.history))
    np.testing.assert_array_equal(np.asarray(found.q.params), np.asarray(whole.q.params))


@pytest.mark.parametrize(
    "options, words",
    [
        ({"checkpoint": "nowhere/run.curvi"}, "nowhere .*create it"),
        ({"checkpoint": 3}, "path of a file"),
        ({"checkpoint": "."}, "is a directory"),
        ({"checkpoint": "run.curvi", "checkpoint_seconds": -1}, "checkpoint_seconds"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=words):
        fit(key=jax.random.key(0), **options)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    path = tmp_path / "run.curvi"
    other = curvi.Target(lambda theta: -0.5 * jnp.sum(theta["y"] ** 2), {"y": jnp.zeros(2)})
    curvi.fit(other, key=jax.random.key(0), checkpoint=path, progress=False)
    with pytest.raises(ValueError, match="belongs to another model"):
        curvi.fit(target(), start=path, progress=False)
