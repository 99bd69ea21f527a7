"""curvi fit and curvi check: models from files, data in three formats, JSON, exit codes, errors in one line."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from curvi.cli import app
from curvi.cli.common import InputError
from curvi.cli.data import read_data
from curvi.methods.rungs import RUNGS

MODELS = '''
import curvi, numpyro
import jax.numpy as jnp
import numpyro.distributions as dist

def line(x, y, scale=1.0):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(slope * x, scale), obs=y)

def groups(group, y):
    level = numpyro.sample("level", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(level[group], 1.0), obs=y)

ready = curvi.Target(lambda theta: -jnp.cosh(theta["x"]), {"x": jnp.asarray(0.5)})
unsupported = curvi.Target(lambda theta: jnp.log(theta["x"]) - theta["x"], {"x": jnp.asarray(1.0)})
flat = curvi.Target(lambda theta: 0.0 * theta["x"] - theta["y"] ** 2, {"x": jnp.asarray(0.0), "y": jnp.asarray(0.0)})

def make(y):
    return curvi.Target(lambda theta: -jnp.sum((theta["m"] - y) ** 2), {"m": jnp.asarray(0.0)})

def wrong():
    return 3
'''  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models.py").write_text(MODELS)
    rows = [f"{x},{2 * x + 0.1},{'ab'[x % 2]}" for x in range(8)]
    (tmp_path / "data.csv").write_text("x,y,group\n" + "\n".join(rows) + "\n")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_fit_prints_verdict_and_table(folder):
    result = run("fit", f"{folder}/models.py:line", "--data", folder / "data.csv")
    assert result.exit_code == 0, result.output
    assert "converged" in result.output and "slope" in result.output and "Posterior" in result.output


def test_fit_as_json_has_numbers_that_are_right(folder):
    arguments = (f"{folder}/models.py:line", "--data", folder / "data.csv", "--set", "scale=0.5")
    result = run("fit", *arguments, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    # Conjugate: a normal posterior of known mean and sd, and a known evidence.
    x, y = np.arange(8.0), 2 * np.arange(8.0) + 0.1
    precision = 1 + x @ x / 0.25
    np.testing.assert_allclose(record["posterior"]["slope"]["mean"], x @ y / 0.25 / precision, rtol=1e-3)
    np.testing.assert_allclose(record["posterior"]["slope"]["sd"], precision**-0.5, rtol=1e-2)
    assert record["converged"] is True and record["outcome"] == "CONVERGED" and record["dtype"] == "float64"
    assert record["posterior_check"]["answer"] == "right" and record["remaining_sds"] < 0.1
    names = [row["name"] for row in record["families"]]
    assert names == [*(one.name for one in RUNGS), "mean_field + sinh_arcsinh"]


def test_the_family_can_be_asked_for(folder):
    arguments = (f"{folder}/models.py:line", "--data", folder / "data.csv", "--set", "scale=0.5", "--json")
    record = json.loads(run("fit", *arguments, "--family", "full_rank").stdout)
    assert [row["name"] for row in record["families"] if row["chosen"]] == ["full_rank"]
    wrong = run("fit", *arguments, "--family", "full")
    assert wrong.exit_code == 1 and "mean_field" in wrong.stdout + wrong.stderr


def test_words_become_codes_and_this_is_said(folder):
    result = run("fit", f"{folder}/models.py:groups", "--data", folder / "data.csv", "--json")
    assert result.exit_code == 0, result.output
    assert "'group' has 2 levels" in result.stderr
    y = 2 * np.arange(8.0) + 0.1
    means = json.loads(result.stdout)["posterior"]["level"]["mean"]
    expected = [part.sum() / (4 + 1 / 25) for part in (y[::2], y[1::2])]
    np.testing.assert_allclose(means, expected, rtol=1e-3)


@pytest.mark.parametrize("name", ["ready", "make()"])
def test_targets_and_functions_that_make_them(folder, name):
    result = run("fit", f"{folder}/models.py:{name}", "--data", folder / "data.csv", "--json")
    assert result.exit_code == 0, result.output


def test_pymc_model(folder):
    pytest.importorskip("pymc", reason="PyMC is not installed (an extra: pymc)")
    (folder / "with_pymc.py").write_text(
        "import pymc as pm\n"
        "def build(x, y):\n"
        "    with pm.Model() as model:\n"
        "        pm.Normal('y', pm.Normal('slope') * x, 0.5, observed=y)\n"
        "    return model\n"
    )
    result = run("fit", f"{folder}/with_pymc.py:build()", "--data", folder / "data.csv", "--json")
    assert result.exit_code == 0, result.output
    assert list(json.loads(result.stdout)["posterior"]) == ["slope"]


def test_fit_that_does_not_converge_exits_with_three(folder):
    result = run("fit", f"{folder}/models.py:ready", "--num-steps", 1, "--tolerance", 1e-9, "--json")
    assert result.exit_code == 3, result.output
    assert json.loads(result.stdout)["converged"] is False


def test_check_passes_and_fails(folder):
    good = run("check", f"{folder}/models.py:line", "--data", folder / "data.csv")
    assert good.exit_code == 0 and "✓ gradient" in good.output and "ready to be fitted" in good.output
    bad = run("check", f"{folder}/models.py:unsupported")
    assert bad.exit_code == 3 and "✗ supports" in bad.output and "constraints.positive" in bad.output
    as_json = run("check", f"{folder}/models.py:flat", "--json")
    assert as_json.exit_code == 3
    record = json.loads(as_json.stdout)
    assert not record["ok"]
    assert [one["latents"] for one in record["checks"] if one["name"] == "every latent counts"] == [["x"]]


BAD_INPUT = [
    (["{}/models.py:nothing"], ["no 'nothing'", "line"]),
    (["{}/none.py:line"], ["no file"]),
    (["{}/models.py"], ["FILE.py:NAME"]),
    (["{}/models.py:line"], ["needs x, y", "--data"]),
    (["{}/models.py:line", "--data", "{}/data.txt"], [".csv, .npz, .parquet or .json"]),
    (["{}/models.py:line", "--data", "{}/none.csv"], ["no data file"]),
    (["{}/models.py:wrong()"], ["must return", "int"]),
    (["{}/models.py:dist"], ["module"]),
    (["{}/models.py:line", "--data", "{}/data.csv", "--set", "scale"], ["NAME=VALUE"]),
    (["{}/models.py:line", "--data", "{}/data.csv", "--tolerance", "-1"], ["tolerance must be a positive"]),
    (["{}/none.stan"], ["no file"]),
    (["{}/model.stan", "--set", "word=long"], ["'word' is no number"]),
    (["{}/broken.py:line"], ["broken.py fails when it is loaded", "ZeroDivisionError"]),
]


@pytest.mark.parametrize("arguments, words", BAD_INPUT, ids=lambda value: " ".join(value)[:40])
def test_bad_input_is_one_line_and_exit_code_one(folder, arguments, words):
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "model.stan").write_text("parameters { real x; } model { x ~ normal(0, 1); }")
    filled = [one.format(folder) for one in arguments]
    result = run("fit", *filled)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output and result.stdout == ""
    assert all(word in result.stderr.replace("\n", " ") for word in words), result.stderr
    as_json = run("fit", *filled, "--json")
    assert as_json.exit_code == 1 and all(word in json.loads(as_json.stdout)["error"] for word in words)
    assert not isinstance(run("fit", *filled, "--traceback").exception, SystemExit)


def test_usage_and_missing_packages_have_their_own_codes(folder, monkeypatch):
    assert run("fit").exit_code == 2
    assert run("fit", f"{folder}/models.py:line", "--no-such-option").exit_code == 2
    (folder / "needs.py").write_text("import no_such_package_here\n")
    result = run("fit", f"{folder}/needs.py:model")
    assert result.exit_code == 4 and "no_such_package_here" in result.stderr
    monkeypatch.setitem(sys.modules, "stan", None)
    (folder / "model.stan").write_text("parameters { real x; } model { x ~ normal(0, 1); }")
    result = run("fit", folder / "model.stan", "--json")
    assert result.exit_code == 4 and "curvi[stan]" in json.loads(result.stdout)["error"]


def test_exit_codes_are_documented():
    assert "3 not converged" in run("--help").output.replace("\n", " ").replace("│", "")


def test_a_real_process_leaves_with_the_code(folder):
    command = [sys.executable, "-m", "curvi.cli", "check", f"{folder}/models.py:unsupported", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3 and json.loads(done.stdout)["ok"] is False


# -- data ------------------------------------------------------------------------------------------------------


def test_three_formats_say_the_same(tmp_path):
    columns = {"n": np.arange(4), "x": np.linspace(0, 1, 4), "word": np.array(["b", "a", "b", "c"])}
    names = list(columns)
    rows = [",".join(str(columns[name][at]) for name in names) for at in range(4)]
    (tmp_path / "d.csv").write_text("\n".join([",".join(names), *rows]) + "\n")
    np.savez(tmp_path / "d.npz", **columns, single=np.asarray(3))
    paths = [tmp_path / "d.csv", tmp_path / "d.npz"]
    try:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(
            pyarrow.table({name: list(column) for name, column in columns.items()}), tmp_path / "d.parquet"
        )
        paths.append(tmp_path / "d.parquet")
    except ImportError:
        pass
    for path in paths:
        data, remarks = read_data(path)
        np.testing.assert_array_equal(data["n"], columns["n"])
        np.testing.assert_allclose(data["x"], columns["x"])
        np.testing.assert_array_equal(data["word"], [1, 0, 1, 2])
        assert len(remarks) == 1 and "3 levels" in remarks[0]
    assert read_data(tmp_path / "d.npz")[0]["single"] == 3
    nested = {"N": 4, "table": [[1, 2], [3, 4]], "word": ["b", "a"]}
    (tmp_path / "d.json").write_text(json.dumps(nested))
    data, remarks = read_data(tmp_path / "d.json")
    assert data["N"] == 4 and isinstance(data["N"], int) and data["table"].tolist() == nested["table"]
    assert data["word"].tolist() == [1, 0] and len(remarks) == 1


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("d.csv", b"x,y\n1,2\n3,\n", ["line 3", "'y'"]),
        ("d.csv", b"x,y\n1,2\n3\n", ["line 3", "1 fields"]),
        ("d.csv", b"x,x\n1,2\n", ["must differ"]),
        ("d.csv", b"x,y\n", ["at least one row"]),
        ("d.npz", b"no archive", ["not an NPZ"]),
        ("d.parquet", b"no table", ["not a Parquet"]),
        ("d.json", b"{", ["not a JSON"]),
        ("d.json", b"[1, 2]", ["one object", "list"]),
        ("d.json", b'{"x": [[1, 2], [3]]}', ["'x' differ in length"]),
        ("d.json", b'{"x": [1, null]}', ["'x' has entries that are no numbers"]),
    ],
)
def test_damaged_data_are_named(tmp_path, name, content, words):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="pyarrow is not installed (an extra: parquet)")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        read_data(tmp_path / name)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.fixture(autouse=True)
def _double_precision():
    yield
    jax.config.update("jax_enable_x64", True)


def test_a_cache_of_compiled_programs(folder):
    """The second process finds every program that the first one compiled, and says the same."""
    code = """
import sys, jax
seen = []
jax.monitoring.register_event_listener(lambda event, **_: seen.append(event.rpartition("/")[2]))
from curvi.cli import app
app(sys.argv[1:], standalone_mode=False)
print(seen.count("cache_hits"), seen.count("cache_misses"))
"""
    cache = folder / "cache"
    arguments = ["fit", f"{folder}/models.py:line", "--data", folder / "data.csv", "--json", "--cache", cache]
    said = []
    for _ in range(2):
        command = [sys.executable, "-c", code, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        fit, counts = done.stdout.strip().splitlines()
        said.append((json.loads(fit), *map(int, counts.split())))
    (first, _, misses), (second, hits, missed) = said
    assert misses > 0 and missed == 0 and hits >= misses and any(cache.iterdir())
    assert first["posterior"] == second["posterior"] and first["elbo"] == second["elbo"]


def test_a_cache_must_be_a_folder(folder):
    result = run("fit", f"{folder}/models.py:ready", "--cache", folder / "data.csv")
    assert result.exit_code == 1 and "--cache takes a folder" in result.output
