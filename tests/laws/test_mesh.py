"""Laws of fits on several devices: the answers of one device, its operations divided, the same bits; and misuse."""

import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import jax
import numpy as np
import on_devices
import pytest
from jax.sharding import Mesh

import curvi
from curvi import Target
from curvi.methods import GrowingDraws, SchemeII
from curvi.model.placement import Placement

SCRIPT = Path(__file__).parent / "on_devices.py"
NUM_DEVICES = 8
_SECONDS = 500
_NONE = types.SimpleNamespace(params={})  # of a test without parameters


EVERY = [pytest.param(n, marks=pytest.mark.slow) if n in on_devices.SLOW else n for n in on_devices.CASES]


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    """What the process with virtual devices found, in the cases that are asked for: once for all test processes."""
    own = [item for item in request.session.items if item.path == Path(__file__)]
    names = {item.callspec.params["name"] for item in own if "name" in getattr(item, "callspec", _NONE).params}
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    said = folder / "on_devices.json"
    try:
        (folder / "on_devices.begun").mkdir()
    except FileExistsError:
        deadline = time.monotonic() + _SECONDS
        while not said.exists():
            assert time.monotonic() < deadline, "another test process began this and did not end it"
            time.sleep(0.5)
        return json.loads(said.read_text())
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={NUM_DEVICES}"
    paths = os.pathsep.join([str(Path(curvi.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    command = [sys.executable, SCRIPT, *sorted(names)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS)
    text = done.stdout.splitlines()[-1] if done.returncode == 0 else json.dumps({"failed": done.stderr})
    (folder / "on_devices.part").write_text(text)
    (folder / "on_devices.part").replace(said)
    assert done.returncode == 0, done.stderr
    return json.loads(text)


@pytest.mark.parametrize("name", EVERY)
def test_answers_are_those_of_one_device(found, name):
    one, mesh = found["fits"][name]["one"], found["fits"][name]["mesh"]
    single = "float32" in name
    assert one["converged"] and mesh["converged"]
    # Every decision of the fit was the same, so that what is left is rounding of sums in another order.
    assert abs(one["evaluations"] - mesh["evaluations"]) <= 65, "the check of the scale is for batches alone"
    np.testing.assert_allclose(mesh["params"], one["params"], atol=1e-4 if single else 1e-9)
    np.testing.assert_allclose(mesh["elbo"], one["elbo"], rtol=1e-5 if single else 1e-11)


@pytest.mark.parametrize("name", EVERY)
def test_a_fit_says_its_devices(found, name):
    axes = on_devices.CASES[name][1]
    shown = ", ".join(f"{axis} {size}" for axis, size in axes.items())
    assert f"devices         {np.prod(list(axes.values()))} ({shown})" in found["fits"][name]["mesh"]["text"]
    assert "devices  " not in found["fits"][name]["one"]["text"]


@pytest.mark.parametrize("axis", ["rows", "draws", "latents"])
@pytest.mark.parametrize("number", [2, 8])
def test_operations_of_a_device_fall_like_one_over_their_number(found, axis, number):
    one, own = found["cost"][f"{axis} 1"]["flops"], found["cost"][f"{axis} {number}"]["flops"]
    for whole, part in zip(one, own):
        assert 0.99 * whole / number < part < 1.05 * whole / number


@pytest.mark.parametrize("case", ["rows 8", "draws 8"])
def test_devices_exchange_no_data(found, case):
    """A gradient for each draw of a chunk, gradients for each part of the noise, or a number per draw: never rows."""
    num_draws, num_latents = 32, 4
    assert 0 < found["cost"][case]["largest"] <= 8 * num_draws < 1600 * num_latents // NUM_DEVICES


def test_devices_that_share_latents_exchange_single_vectors(found):
    assert 0 < found["cost"]["latents 8"]["largest"] <= on_devices.MANY


def test_streamed_sums_are_those_of_one_device(found):
    np.testing.assert_allclose(*found["streamed"], rtol=1e-9, atol=1e-11)


def test_rows_that_fill_up_count_for_nothing(found):
    one, mesh, wrong = found["fill"]
    np.testing.assert_allclose(mesh, one, rtol=1e-12)
    assert abs(wrong - one) > 1e-3 * abs(one)


def test_arrays_on_a_mesh_with_explicit_axes(found):
    value, words = found["explicit"]
    np.testing.assert_allclose(value, found["fill"][0], rtol=1e-12)
    assert "mesh with explicit axes" in words and "place it with NamedSharding on jax.sharding.Mesh" in words


def test_the_same_number_of_devices_gives_the_same_bits(found):
    assert found["resumed"]["part"] == found["resumed"]["whole"]


def test_another_number_of_devices_is_refused(found):
    without, eight = found["resumed"]["words"]
    assert "another number of devices (rows 2; now no mesh)" in without and "family=start.q" in without
    assert "(rows 2; now rows 8)" in eight


# -- misuse, on one device --------------------------------------------------------------------------------------------


def mesh_of(*names: str) -> Mesh:
    return Mesh(np.array(jax.devices()[:1]).reshape((1,) * len(names)), names)


def run(target=None, **settings):
    target = Target(lambda t: -0.5 * (t["x"] ** 2).sum(), {"x": np.zeros(2)}) if target is None else target
    return curvi.fit(target, key=jax.random.key(0), progress=False, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mesh": 8}, r"mesh must be a jax.sharding.Mesh, such as jax.make_mesh\(\(8,\), \('draws',\)\); got int"),
        ({"mesh": mesh_of("x", "draws")}, r"must be named rows, draws or latents.* got \('x', 'draws'\)"),
        ({"mesh": mesh_of("draws"), "method": SchemeII()}, "SchemeII computes on one device; leave mesh out"),
        ({"mesh": mesh_of("latents")}, "GrowingDraws spreads no latents over a mesh; name its axes rows or draws"),
    ],
    ids=["no mesh", "other names", "other method", "other axis"],
)
def test_misuse_says_what_to_do(settings, words):
    with pytest.raises(ValueError, match=words):
        run(**settings)


def test_a_black_box_is_refused():
    target = Target(lambda t: -0.5 * float((t["x"] ** 2).sum()), {"x": np.zeros(2)}, order=0, black_box=True)
    with pytest.raises(ValueError, match="PooledRegression computes on one device"):
        run(target, mesh=mesh_of("draws"))


def test_a_mesh_of_one_device_is_a_mesh():
    fit = run(mesh=mesh_of("draws"))
    assert fit.converged and fit.checkpoint.mesh == (("draws", 1),)
    with pytest.raises(ValueError, match="another number of devices"):
        run(family=None, start=fit)
    assert Placement.on(mesh_of("draws")) == Placement.on(mesh_of("draws"))


def test_a_default_that_can_use_the_mesh_is_taken():
    assert isinstance(run(mesh=mesh_of("draws")).method, GrowingDraws)
