"""Laws of fits by several processes: the answers of one, own rows or all, the same bits on from a file; and misuse."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import on_devices
import on_processes
import pytest

import curvi
from curvi.methods import GrowingDraws

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "on_processes.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    paths = os.pathsep.join([str(Path(curvi.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    folder = str(tmp_path_factory.mktemp("processes"))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    both = [subprocess.Popen([sys.executable, SCRIPT, str(i), address, folder], **pipes) for i in range(2)]
    said = [process.communicate(timeout=900) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    return json.loads(said[0][0].splitlines()[-1])


@pytest.mark.parametrize("name", on_processes.CASES)
def test_answers_are_those_of_one_process(found, name):
    make, axes, _, options = on_processes.CASES[name]
    target = make(on_processes.X[on_processes.HERE], on_processes.Y[on_processes.HERE])
    options = {"method": GrowingDraws(), **options}
    alone = curvi.fit(target, key=on_devices.random_key(), progress=False, **options)
    together = found["fits"][name]
    assert together["converged"] and alone.converged
    np.testing.assert_allclose(together["params"], np.asarray(alone.q.params), atol=1e-9)
    np.testing.assert_allclose(together["elbo"], alone.elbo, rtol=1e-11)
    assert f"({', '.join(f'{axis} {size}' for axis, size in axes.items())})" in together["text"]


def test_a_file_goes_on_with_the_same_bits(found):
    assert found["part"] == found["whole"]


def test_the_clock_of_one_process_ends_all(found):
    assert found["short"] == "MAX_SECONDS"


def test_arrays_that_differ_between_processes_are_refused(found):
    assert "differ between processes" in found["words"] and "give curvi.Rows" in found["words"]
