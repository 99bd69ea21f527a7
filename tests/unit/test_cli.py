"""The command line, the demonstration behind it, and the examples of the README."""

import json
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import curvi
from curvi.cli import app
from curvi.cli import race as demo
from curvi.cli.pictures import estimated_optimum

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
FIELDS = {
    "name", "method", "uses_derivatives", "elbo", "elbo_se", "remaining_gain", "remaining_gain_se", "converged",
    "outcome", "message", "num_steps", "num_log_density", "num_gradient", "num_hvp", "compile_seconds", "run_seconds",
    "seed", "dtype", "device", "versions", "curve",
}  # fmt: skip


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"curvi {curvi.__version__}"


def test_demo_writes_a_picture_and_one_line_a_fit(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--quick", "--output", str(tmp_path), "--seed", "3"])
    assert result.exit_code == 0, result.output
    assert str(tmp_path) in result.output.replace("\n", "")
    assert (tmp_path / "race.png").read_bytes().startswith(b"\x89PNG")
    rows = [json.loads(line) for line in (tmp_path / "fits.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["name"] for row in rows] == [one.name for one in demo.contestants(quick=True)]
    for row in rows:
        assert set(row) == FIELDS
        assert row["seed"] == 3 and row["dtype"] == "float64"
        lengths = {len(column) for column in row["curve"].values()}
        assert len(lengths) == 1 and lengths.pop() > 1
        assert np.all(np.diff(row["curve"]["num_log_density"]) > 0)
        # Every method has climbed: the start lies hundreds of nats below.
        assert row["elbo"] > row["curve"]["elbo"][0] + 10 * row["elbo_se"]


@pytest.mark.parametrize("module, package", [("sklearn", "scikit-learn"), ("matplotlib", "matplotlib")])
def test_missing_extra_says_what_to_install(monkeypatch, tmp_path, module, package):
    monkeypatch.setitem(sys.modules, module, None)  # makes its import fail
    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path / "out")])
    assert result.exit_code == 4
    assert f"pip install {package}" in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_error_without_and_with_traceback(tmp_path):
    (tmp_path / "taken").write_text("a file where the folder should be")
    arguments = ["demo", "--quick", "--output", str(tmp_path / "taken")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1 and "Error: " in result.output and "Traceback" not in result.output
    assert isinstance(CliRunner().invoke(app, [*arguments, "--traceback"]).exception, FileExistsError)


def test_target_is_the_model_in_numpy():
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    x = np.column_stack([np.ones(len(y)), (x - x.mean(0)) / x.std(0)])
    beta = np.random.default_rng(0).normal(size=31) / 5
    probability = 1 / (1 + np.exp(-x @ beta))
    expected = np.sum(np.log(np.where(y == 1, probability, 1 - probability)))
    expected += np.sum(-(beta**2) / 2 - np.log(2 * np.pi) / 2)
    np.testing.assert_allclose(demo.breast_cancer_target().full()({"beta": jnp.asarray(beta)}), expected, rtol=1e-10)


def test_shorter_fit_takes_the_same_path():
    # The measured curve of a method on fixed draws rests on it.
    target = curvi.Target(lambda theta: -jnp.sum(jnp.cosh(theta["x"] - 2.0)), {"x": jnp.zeros(2)})
    whole = curvi.fit(target, key=jax.random.key(0), progress=False)
    assert isinstance(whole.method, curvi.methods.GrowingDraws) and len(whole.history) > 2
    for num_steps in (1, len(whole.history) - 1):
        part = curvi.fit(target, key=jax.random.key(0), num_steps=num_steps, progress=False)
        np.testing.assert_array_equal(part.history.elbo, whole.history.elbo[:num_steps])


def test_optimum_comes_from_the_surest_fit():
    sure = {"elbo": -2.0, "remaining_gain": 0.5, "remaining_gain_se": 0.01}
    noisy = {"elbo": -1.0, "remaining_gain": 0.4, "remaining_gain_se": 5.0}
    unknown = {"elbo": -1.5, "remaining_gain": None, "remaining_gain_se": None}
    assert estimated_optimum([noisy, sure, unknown]) == -1.5
    assert estimated_optimum([unknown]) == -1.5


def test_the_example_of_the_readme_runs(capsys):
    (code,) = BLOCKS
    names = {}
    exec(compile(code, str(README), "exec"), names)
    assert names["fit"].converged
    assert capsys.readouterr().out
