"""A fit that is killed at any moment goes on from its checkpoint with the same bits; no file is ever half written."""

import errno
import importlib
import os
import resource
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi

MODEL = """
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
import curvi

def log_density(theta):
    x = theta["x"]
    return -0.5 * jnp.sum(jnp.exp(0.3 * x) ** 2) - 0.5 * jnp.sum((x - jnp.roll(x, 1)) ** 2) - jnp.sum(x**4) / 50

def target():
    return curvi.Target(log_density, {"x": jnp.zeros(6)})
"""
RUN = """
import sys, time
sys.path.insert(0, sys.argv[1])
import model
KILL
print("ready", flush=True)
model.curvi.fit(model.target(), key=model.jax.random.key(1), family="mean_field", start=sys.argv[2],
                checkpoint=sys.argv[2], checkpoint_seconds=0, num_steps=29, tolerance=1e-9, progress=False)
"""
# The process kills itself before a new file is flushed, or before it takes the place of the old one.
INJECTED = {
    "before the flush": "fsync",
    "before the rename": "replace",
}
KILL = """
import os, signal
real, calls = os.{name}, [0]
def fatal(*arguments):
    calls[0] += 1
    if calls[0] == {count}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
os.{name} = fatal
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    (folder / "model.py").write_text(MODEL)
    sys.path.insert(0, str(folder))
    yield folder, importlib.import_module("model")
    sys.path.remove(str(folder))
    del sys.modules["model"]


def fit(model, **options):
    options = {"tolerance": 1e-9, "progress": False, **options}
    return curvi.fit(model.target(), **options)


def killed(folder, path, kill: str = "", after: float | None = None) -> int:
    """The exit status of a fit in a process of its own that is killed by itself, or after some seconds."""
    program = RUN.replace("KILL", kill)
    with subprocess.Popen([sys.executable, "-c", program, str(folder), str(path)], stdout=subprocess.PIPE) as process:
        if after is not None:
            assert process.stdout is not None
            process.stdout.readline()
            while not path.exists():
                time.sleep(0.01)
            time.sleep(after)
            process.send_signal(signal.SIGKILL)
        return process.wait(timeout=300)


def goes_on(model, path, steps: int = 30):
    """That the fit in a file goes on to the same bits as one that never stopped."""
    taken = len(curvi.load(path, model.target()).history)
    assert 0 < taken < steps
    resumed = curvi.fit(
        model.target(), start=path, checkpoint=path, num_steps=steps - taken, tolerance=1e-9, progress=False
    )
    whole = fit(model, key=jax.random.key(1), family="mean_field", num_steps=steps)
    np.testing.assert_array_equal(np.asarray(resumed.q.params), np.asarray(whole.q.params))
    assert (resumed.elbo, len(resumed.history)) == (whole.elbo, len(whole.history))
    np.testing.assert_array_equal(np.asarray(curvi.load(path).q.params), np.asarray(whole.q.params))


@pytest.mark.parametrize("where", INJECTED)
def test_a_process_that_dies_while_it_writes_leaves_the_last_file(model, tmp_path, where):
    folder, model = model
    path = tmp_path / "run.curvi"
    assert killed(folder, path, KILL.format(name=INJECTED[where], count=3)) == -signal.SIGKILL
    goes_on(model, path)


def test_a_process_killed_at_any_moment_goes_on(model, tmp_path):
    folder, model = model
    path = tmp_path / "run.curvi"
    assert killed(folder, path, after=0.05) == -signal.SIGKILL
    goes_on(model, path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_a_hundred_kills(model, tmp_path, seed):
    folder, model = model
    path, rng = tmp_path / "run.curvi", np.random.default_rng(seed)
    if seed < 30:
        name = list(INJECTED.values())[seed % 2]
        assert killed(folder, path, KILL.format(name=name, count=rng.integers(2, 12))) == -signal.SIGKILL
    else:
        assert killed(folder, path, after=rng.uniform(0, 0.5)) == -signal.SIGKILL
    goes_on(model, path)


def test_the_first_call_begins_and_later_ones_go_on(model, tmp_path):
    _, model = model
    path = tmp_path / "run.curvi"
    options = {"start": path, "checkpoint": path, "checkpoint_seconds": 0, "progress": False}
    first = curvi.fit(model.target(), key=jax.random.key(0), num_steps=1, **options)
    assert path.exists() and not first.converged
    second = curvi.fit(model.target(), key=jax.random.key(0), **options)
    assert second.converged and len(second.history) > len(first.history)
    assert curvi.load(path, model.target()).converged
    with pytest.raises(ValueError, match=r"no file .*elsewhere"):
        curvi.fit(model.target(), start=tmp_path / "elsewhere", checkpoint=path, progress=False)


def test_the_default_goes_on_across_a_change_of_family(model, tmp_path):
    _, model = model
    path, key = tmp_path / "run.curvi", jax.random.key(3)
    whole = curvi.fit(model.target(), key=key, progress=False)
    assert not isinstance(whole.q, curvi.MeanField)
    for steps in (1, len(whole.history) - 2):
        curvi.fit(model.target(), key=key, checkpoint=path, num_steps=steps, progress=False)
        found = curvi.fit(model.target(), start=path, progress=False)
        np.testing.assert_array_equal(np.asarray(found.q.params), np.asarray(whole.q.params))


def test_a_full_disk_is_an_error_that_holds_the_fit(model, tmp_path, monkeypatch):
    _, model = model
    path = tmp_path / "run.curvi"
    fit(model, key=jax.random.key(1), family="mean_field", num_steps=5, checkpoint=path)
    before, real = path.read_bytes(), os.fsync

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(curvi.CheckpointError, match=r"No space left.*start=error.fit") as caught:
        fit(model, start=path, num_steps=5, checkpoint=path, checkpoint_seconds=0)
    monkeypatch.setattr(os, "fsync", real)
    assert path.read_bytes() == before and [entry.name for entry in tmp_path.iterdir()] == ["run.curvi"]
    steps = len(caught.value.fit.history)
    assert 5 < steps <= 10
    resumed = fit(model, start=caught.value.fit, num_steps=10 - steps)
    whole = fit(model, key=jax.random.key(1), family="mean_field", num_steps=10)
    np.testing.assert_array_equal(np.asarray(resumed.q.params), np.asarray(whole.q.params))


def test_a_file_that_outgrows_its_limit_leaves_the_last_one(model, tmp_path):
    """The kernel's own refusal to write on, as on a full disk."""
    _, model = model
    path = tmp_path / "run.curvi"
    before = fit(model, key=jax.random.key(1), family="mean_field", num_steps=5, checkpoint=path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size // 2, limits[1]))
    try:
        with pytest.raises(curvi.CheckpointError, match=r"File too large.*start=error.fit") as caught:
            fit(model, start=path, num_steps=5, checkpoint=path, checkpoint_seconds=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.curvi"]
    np.testing.assert_array_equal(curvi.load(path).q.params, before.q.params)
    assert len(caught.value.fit.history) > 5


def test_a_folder_that_is_removed_under_a_run_is_an_error_that_holds_the_fit(model, tmp_path, monkeypatch):
    _, model = model
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
        fit(model, key=jax.random.key(1), family="mean_field", num_steps=9, checkpoint=path, checkpoint_seconds=0)
    monkeypatch.undo()
    whole = fit(model, key=jax.random.key(1), family="mean_field", num_steps=9)
    found = fit(model, start=caught.value.fit, num_steps=9 - len(caught.value.fit.history))
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
def test_bad_input_is_refused_before_anything_runs(model, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=words):
        fit(model[1], key=jax.random.key(0), **options)


def test_a_checkpoint_of_another_model_is_refused(model, tmp_path):
    path = tmp_path / "run.curvi"
    other = curvi.Target(lambda theta: -0.5 * jnp.sum(theta["y"] ** 2), {"y": jnp.zeros(2)})
    curvi.fit(other, key=jax.random.key(0), checkpoint=path, progress=False)
    with pytest.raises(ValueError, match="belongs to another model"):
        curvi.fit(model[1].target(), start=path, progress=False)
