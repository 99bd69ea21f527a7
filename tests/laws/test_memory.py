"""Memory is planned before a fit runs: plans follow sizes and budgets, what is refused says why, peaks keep to it."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from plan_registry import PLANNED, tied

import curvi
from curvi import MeanField, Target
from curvi.methods import GrowingDraws, SchemeI, StreamedNewton
from curvi.methods.base import Problem
from curvi.model.memory import default_budget, device_bytes, host_bytes

KEY = jax.random.key(3)
MIB, GIB = 2**20, 2**30
_SLACK = 1.2  # of a plan that a peak may reach


def plan_of(name: str, size: int, memory: int | None = None):
    method, target = PLANNED[name][0], tied(size)
    return method.plan(Problem(target, MeanField(target), memory=memory))


# -- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANNED)
def test_plans_grow_with_the_size(name):
    _, small, large = PLANNED[name]
    sizes = [plan_of(name, size, 64 * GIB).num_bytes for size in (small, (small + large) // 2, large)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


@pytest.mark.parametrize("name", PLANNED)
def test_plans_grow_with_memory_up_to_it(name):
    """Where the least is affordable, no plan is beyond memory; with more memory draws are taken more at a time."""
    size = PLANNED[name][2]
    least = plan_of(name, size, 1).num_bytes
    plans = [plan_of(name, size, memory) for memory in (least, int(1.1 * least), 2 * least, 8 * least, 64 * least)]
    assert all(plan.why_not(name) is None for plan in plans)
    for before, after in itertools.pairwise(plans):
        assert before.num_bytes <= after.num_bytes and before.draws_at_once <= after.draws_at_once
        assert (before.num_draws or 0) <= (after.num_draws or 0)


@pytest.mark.parametrize(("name", "size"), [("streamed", 4_000), ("stored draws", 40_000), ("scores", 200_000)])
def test_little_memory_means_fewer_draws(name, size):
    few, many = plan_of(name, size, plan_of(name, size, 1).num_bytes), plan_of(name, size, 64 * GIB)
    assert few.draws_at_once < many.draws_at_once or (few.num_draws or 0) < (many.num_draws or 0)


def test_the_default_is_a_share_of_all_memory():
    assert default_budget() == int(0.75 * min(device_bytes(), host_bytes()))
    assert Problem(tied(4), MeanField(tied(4))).memory == default_budget()


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANNED)
def test_what_cannot_fit_is_refused_with_the_bytes_that_it_needs(name):
    """The number in the message is enough, and one byte less is not."""
    method, _, size = PLANNED[name]
    target = tied(size)
    with pytest.raises(ValueError, match=rf"{type(method).__name__} needs .*pass memory=\d+ or more") as caught:
        curvi.fit(target, key=KEY, method=method, family="mean_field", memory=100 * MIB, progress=False)
    number = int(str(caught.value).split("memory=")[1].split()[0])
    assert number > 100 * MIB
    assert plan_of(name, size, number).why_not(name) is None
    assert plan_of(name, size, number - 1).why_not(name) is not None


def test_a_million_latents_on_stored_draws_are_refused_before_anything_runs():
    """A target of order 1 leaves the default no way without stored draws."""
    values = Target(tied(10**6).full(), {"x": np.zeros(10**6, np.float32)}, order=1)
    began = len(jax.live_arrays())
    with pytest.raises(ValueError, match=r"stored draws .*smaller max_draws"):
        curvi.fit(values, key=KEY, method=GrowingDraws(max_draws=1024), memory=4 * GIB, progress=False)
    assert len(jax.live_arrays()) <= began + 8


@pytest.mark.parametrize("memory", [0, -1, 1.5, True, "4 GiB"])
def test_memory_is_a_number_of_bytes(memory):
    with pytest.raises(ValueError, match="memory must be a positive integer or None"):
        curvi.fit(tied(4), key=KEY, memory=memory, progress=False)


@pytest.mark.parametrize("size", [4, 4_000])
def test_half_precision_is_refused(size):
    with pytest.raises(ValueError, match=r"float16.*float32"):
        curvi.fit(tied(size, np.float16), key=KEY, family="mean_field", progress=False)


def plan_kept(fit: curvi.Fit):
    assert fit.plan is not None
    return fit.plan


# -- fits -------------------------------------------------------------------------------------------------------------


def test_fewer_draws_at_a_time_make_the_same_sums():
    target = tied(3_000, np.float64)
    q, method = MeanField(target), StreamedNewton()
    least = method.plan(Problem(target, q, memory=1)).num_bytes
    options = {"key": KEY, "method": method, "num_steps": 3, "progress": False}
    tight, ample = curvi.fit(target, memory=least, **options), curvi.fit(target, **options)
    assert plan_kept(tight).draws_at_once == 1 < plan_kept(ample).draws_at_once
    assert np.allclose(tight.q.params, ample.q.params, rtol=1e-9, atol=1e-9)


def test_fewer_stored_draws_at_a_time_make_the_same_sums():
    target = tied(30, np.float64)
    method = GrowingDraws(max_draws=256)
    least = method.plan(Problem(target, MeanField(target), memory=1)).num_bytes
    options = {"key": KEY, "method": method, "family": MeanField(target), "num_steps": 3, "progress": False}
    tight, ample = curvi.fit(target, memory=least, **options), curvi.fit(target, **options)
    assert plan_kept(tight).draws_at_once == 1 < plan_kept(ample).draws_at_once
    assert np.allclose(tight.q.params, ample.q.params, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_fewer_scores_at_a_time_make_the_same_steps(monkeypatch):
    from curvi.estimate import made_score

    monkeypatch.setattr(made_score, "_STORED", 0)
    target = tied(40, np.float64)
    least = SchemeI().plan(Problem(target, MeanField(target), memory=1)).num_bytes
    options = {"key": KEY, "method": SchemeI(), "num_steps": 2, "progress": False}
    tight, ample = curvi.fit(target, memory=least, **options), curvi.fit(target, **options)
    assert plan_kept(tight).draws_at_once == 1 and plan_kept(ample).draws_at_once == 8
    assert np.allclose(tight.q.params, ample.q.params, rtol=1e-8, atol=1e-8)


def test_the_plan_is_kept_shown_and_resumed_with(tmp_path):
    target = tied(3_000)
    whole = curvi.fit(target, key=KEY, family="mean_field", memory=GIB, num_steps=4, progress=False)
    first = curvi.fit(target, key=KEY, family="mean_field", memory=GIB, num_steps=2, progress=False)
    assert plan_kept(first).memory == GIB and "memory" in str(first) and "of 1 GiB" in str(first)
    first.save(tmp_path / "fit.curvi")
    loaded = curvi.load(tmp_path / "fit.curvi", target)
    assert loaded.plan == first.plan
    rest = curvi.fit(target, start=loaded, num_steps=2, progress=False)
    assert rest.plan == whole.plan and np.array_equal(rest.q.params, whole.q.params)


# -- peaks ------------------------------------------------------------------------------------------------------------

_MEASURE = """
import json
import jax, jax.numpy as jnp, numpy as np
import curvi
from curvi.methods import *
from plan_registry import tied

# Unlike ru_maxrss, this knows nothing of the process that started this one.
def peak():
    return next(1024 * int(row.split()[1]) for row in open("/proc/self/status") if row.startswith("VmHWM"))

jnp.zeros(3).block_until_ready()
imports = peak()
found = curvi.fit(tied({size}), key=jax.random.key(0), method={method}, family="mean_field", progress=False, {more})
print(json.dumps([peak() - imports, found.plan.num_bytes]))
"""


def peak_and_plan(method: str, size: int, more: str = "") -> tuple[int, int]:
    """The most that a fit took beyond its imports, and its plan, in a process of its own."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the peak of a process is read from /proc, which this system lacks")
    code = _MEASURE.format(method=method, size=size, more=more)
    path = os.pathsep.join([str(Path(curvi.__file__).parent.parent), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    peak, planned = json.loads(done.stdout.splitlines()[-1])
    return peak, planned


PEAKS = {
    "streamed": ("StreamedNewton()", 100_000, ""),
    "stored draws": ("GrowingDraws()", 1_000, ""),
}
LARGE_PEAKS = {
    "streamed": ("StreamedNewton()", 1_000_000, ""),
    "stored draws": ("GrowingDraws()", 4_000, ""),
    "scores": ("SchemeI()", 300_000, "num_steps=2"),
    "fresh scores": ("SchemeII()", 100_000, "num_steps=2"),
}


@pytest.mark.parametrize("name", PEAKS)
def test_peaks_keep_to_the_plan(name):
    peak, planned = peak_and_plan(*PEAKS[name])
    # A plan that is far too large would refuse what fits.
    assert 0.2 * planned < peak <= _SLACK * planned


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE_PEAKS)
def test_large_peaks_keep_to_the_plan(name):
    peak, planned = peak_and_plan(*LARGE_PEAKS[name])
    assert 0.2 * planned < peak <= _SLACK * planned
