"""Black boxes on any executor: the same bits, and workers that die."""

import os
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import distributed
import jax
import loky
import numpy as np
import pytest

import curvi
from curvi import BlackBoxError, Outcome, Target

sys.path.insert(0, str(Path(__file__).parent))
import black_boxes


def make(function, **settings) -> Target:
    return Target(function, {"x": np.zeros(2)}, order=0, black_box=True, **settings)


def run(target):
    return curvi.fit(target, key=jax.random.key(0), progress=False)


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture(scope="module")
def alone():
    return run(make(black_boxes.quadratic))


def spawned() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"))


def test_threads_give_the_same_fit(alone):
    with ThreadPoolExecutor(2) as executor:
        np.testing.assert_array_equal(run(make(black_boxes.quadratic, workers=executor)).q.params, alone.q.params)
        assert executor.submit(int).result() == 0, "the executor is the user's, and stays open"
    with pytest.raises(BlackBoxError, match=r"takes no calls .* keep it open"):
        run(make(black_boxes.quadratic, workers=executor))


def test_dask_gives_the_same_fit(alone):
    cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        fit = run(make(black_boxes.quadratic, workers=client.get_executor()))
    np.testing.assert_array_equal(fit.q.params, alone.q.params)


def test_loky_gives_the_same_fit_and_replaces_a_worker(alone, tmp_path, monkeypatch):
    monkeypatch.setenv("CURVI_TEST_MARK", str(tmp_path / "died"))
    fit = run(make(black_boxes.dies_once, workers=lambda: loky.get_reusable_executor(max_workers=1)))
    loky.get_reusable_executor().shutdown()
    assert (tmp_path / "died").exists()
    np.testing.assert_array_equal(fit.q.params, alone.q.params)


def test_a_draw_that_kills_its_worker_is_named():
    made = []

    def factory():
        made.append(spawned())
        return made[-1]

    with pytest.raises(BlackBoxError, match=r"(?s)failed at x = .*its worker died in each of 3 tries") as caught:
        run(make(black_boxes.dies_far_out, workers=factory))
    assert caught.value.theta["x"][0] > 0.9 and caught.value.fit.outcome is Outcome.MODEL_FAILED
    assert len(made) == 3
    for executor in made:
        executor.shutdown()


def test_own_processes_that_die_are_replaced(alone, tmp_path, monkeypatch):
    monkeypatch.setenv("CURVI_TEST_MARK", str(tmp_path / "died"))
    target = make(black_boxes.dies_once, workers=1)
    np.testing.assert_array_equal(run(target).q.params, alone.q.params)
    assert (tmp_path / "died").exists()


def test_what_is_no_executor_is_refused():
    with pytest.raises(ValueError, match="workers must be a number of processes, 0 for none, or a concurrent"):
        make(black_boxes.quadratic, workers="four")
