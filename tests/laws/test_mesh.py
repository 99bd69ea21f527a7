"""Laws of fits on several devices: the answers of one device, its operations divided, the same bits; and misuse."""

import json
import os
import subprocess
import sys
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


@pytest.fixture(scope="module")
def found():
    """What the process with virtual devices found."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={NUM_DEVICES}"
    paths = [*map(str, Path(curvi.__file__).parents[1:2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", on_devices.CASES)
def test_answers_are_those_of_one_device(found, name):
    one, mesh = found["fits"][name]["one"], found["fits"][name]["mesh"]
    single = "float32" in name
    assert one["converged"] and mesh["converged"]
    # Every decision of the fit was the same, so that what is left is rounding of sums in another order.
    assert abs(one["evaluations"] - mesh["evaluations"]) <= 65, "the check of the scale is for batches alone"
    np.testing.assert_allclose(mesh["params"], one["params"], atol=1e-4 if single else 1e-9)
    np.testing.assert_allclose(mesh["elbo"], one["elbo"], rtol=1e-5 if single else 1e-11)


@pytest.mark.parametrize("name", on_devices.CASES)
def test_a_fit_says_its_devices(found, name):
    axes = on_devices.CASES[name][1]
    shown = ", ".join(f"{axis} {size}" for axis, size in axes.items())
    assert f"devices         {np.prod(list(axes.values()))} ({shown})" in found["fits"][name]["mesh"]["text"]
    assert "devices  " not in found["fits"][name]["one"]["text"]


@pytest.mark.parametrize("axis", ["rows", "draws"])
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


def test_rows_that_fill_up_count_for_nothing(found):
    one, mesh, wrong = found["fill"]
    np.testing.assert_allclose(mesh, one, rtol=1e-12)
    assert abs(wrong - one) > 1e-3 * abs(one)


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
