"""`curvi fit FILE.stan`: Stan programs from the command line. Compiling one takes a minute."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import curvi
from curvi.cli import app

pytestmark = pytest.mark.slow

PROGRAM = """
data { int<lower=0> N; vector[N] x; vector[N] y; real<lower=0> noise; }
parameters { real slope; }
transformed parameters { real twice = 2 * slope; }
model {
  target += normal_lpdf(slope | 0, 1) + normal_lpdf(y | slope * x, noise);
}
"""
X = np.linspace(-1, 1, 20)
Y = 0.7 * X + 0.3 * np.random.default_rng(0).normal(size=20)


@pytest.fixture
def folder(tmp_path):
    pytest.importorskip("stan", reason="PyStan is not installed (an extra: stan)", exc_type=ImportError)
    (tmp_path / "line.stan").write_text(PROGRAM)
    (tmp_path / "data.json").write_text(json.dumps({"N": 20, "x": X.tolist(), "y": Y.tolist(), "noise": 0.3}))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_a_program_with_json_data(folder):
    result = run("fit", folder / "line.stan", "--data", folder / "data.json", "--json", "--output", folder / "fit")
    assert result.exit_code == 0, result.output
    posterior = json.loads(result.stdout)["posterior"]  # nothing that PyStan prints is among it
    precision = 1 + X @ X / 0.09
    np.testing.assert_allclose(posterior["slope"]["mean"], X @ Y / 0.09 / precision, rtol=1e-3)
    np.testing.assert_allclose(posterior["slope"]["sd"], precision**-0.5, rtol=0.02)
    np.testing.assert_allclose(posterior["twice"]["mean"], 2 * posterior["slope"]["mean"], rtol=1e-6)
    assert curvi.load(folder / "fit").converged
    # The same numbers from a table and --set.
    np.savez(folder / "data.npz", x=X, y=Y)
    again = run(
        "fit", folder / "line.stan", "--data", folder / "data.npz", "--set", "N=20", "--set", "noise=0.3", "--json"
    )
    assert json.loads(again.stdout)["posterior"] == posterior
    checked = run("check", folder / "line.stan", "--data", folder / "data.json", "--json")
    assert checked.exit_code == 0 and json.loads(checked.stdout)["ok"]


def test_what_stan_refuses_is_one_line(folder):
    few = run("fit", folder / "line.stan", "--set", "N=20", "--json")
    assert few.exit_code == 1
    error = json.loads(few.stdout)["error"]
    assert "line.stan" in error and "variable name=x" in error and "they have N" in error and "Traceback" not in error
    wrong = run("fit", folder / "line.stan", "--data", folder / "data.json", "--set", "N=19", "--json")
    assert "dims declared=(19); dims found=(20)" in json.loads(wrong.stdout)["error"]
    (folder / "bad.stan").write_text(PROGRAM.replace("real slope;", "real slope"))
    bad = run("fit", folder / "bad.stan", "--data", folder / "data.json", "--json")
    assert bad.exit_code == 1 and "bad.stan: Stan cannot compile it" in json.loads(bad.stdout)["error"]
    assert "expected after variable declaration" in bad.stderr
