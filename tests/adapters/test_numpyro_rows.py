"""NumPyro models of `Rows`: one subsampled plate, whose rows are read a chunk at a time; and `curvi fit --data DIR`."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

import curvi
from curvi import Rows, from_numpyro
from curvi.cli import app
from curvi.methods import GrowingRows

KEY, COUNT = jax.random.key(0), 2500


def data():
    rng = np.random.default_rng(0)
    x, group = rng.standard_normal(COUNT), rng.integers(0, 3, COUNT)
    return {"x": x, "group": group, "y": 0.5 * x + np.array([-1.0, 0.0, 2.0])[group] + rng.standard_normal(COUNT)}


@pytest.fixture
def folder(tmp_path):
    for number, at in enumerate((slice(0, 1000), slice(1000, COUNT))):
        table = pyarrow.table({name: column[at] for name, column in data().items()})
        parquet.write_table(table, tmp_path / f"{number}.parquet", row_group_size=400)
    return tmp_path


def latents():
    slope = numpyro.sample("slope", dist.Normal())
    scale = numpyro.sample("scale", dist.HalfNormal())
    return slope, scale, numpyro.sample("level", dist.Normal(0, 3).expand([3]).to_event(1))


def model(x, group, y):
    slope, scale, level = latents()
    with numpyro.plate("rows", len(y), subsample_size=100) as at:
        numpyro.sample("y", dist.Normal(slope * x[at] + level[group[at]], scale), obs=y[at])


def of_rows(rows):
    """The same with a dict of columns, some of them taken by `numpyro.subsample`."""
    slope, scale, level = latents()
    with numpyro.plate("rows", rows["y"].shape[0], subsample_size=100) as at:
        x, group = numpyro.subsample(rows["x"], event_dim=0), rows["group"][at]
        numpyro.sample("y", dist.Normal(slope * x + level[group], scale), obs=numpyro.subsample(rows["y"], event_dim=0))


def fit(target, **options):
    settings = {"key": KEY, "family": "mean_field", "centering": "off", "progress": False}
    return curvi.fit(target, **{**settings, **options})


def test_a_model_of_rows_has_the_answer_of_the_same_model_in_memory(folder):
    arrays = {name: jnp.asarray(column) for name, column in data().items()}
    whole = fit(from_numpyro(model, **arrays), method=GrowingRows(sample_rows=COUNT))
    rows = Rows(folder, chunk_rows=450)
    for target in (from_numpyro(model, **{name: rows[name] for name in rows.columns}), from_numpyro(of_rows, rows)):
        assert target.streamed
        found = fit(target, method=GrowingRows(sample_rows=300))
        assert found.converged and whole.converged and found.counts.passes >= 2
        for name, sd in whole.sd().items():
            np.testing.assert_allclose(found.mean()[name], whole.mean()[name], atol=0.2 * np.min(sd), err_msg=name)
            np.testing.assert_allclose(found.sd()[name], sd, rtol=0.1, err_msg=name)
        assert abs(found.elbo - whole.elbo) < 0.05 + 4 * np.hypot(found.elbo_se, whole.elbo_se)


def whole_column(x, group, y):
    m = numpyro.sample("m", dist.Normal())
    with numpyro.plate("rows", len(y), subsample_size=10) as at:
        numpyro.sample("y", dist.Normal(m * x, 1.0), obs=y[at])


def no_subsample(x, group, y):
    m = numpyro.sample("m", dist.Normal())
    with numpyro.plate("rows", len(y)) as at:
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y[at])


def other_index(x, group, y):
    m = numpyro.sample("m", dist.Normal())
    with numpyro.plate("rows", len(y), subsample_size=10):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y[jnp.arange(10)])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (whole_column, "column 'x' of Rows is never read as a whole: index it by what the plate gives"),
        (no_subsample, "none of its plates subsamples them; give that of the rows subsample_size"),
        (other_index, "column 'y' of Rows is never read as a whole"),
    ],
)
def test_models_that_need_all_rows_are_refused(wrong, said):
    rows = Rows(data(), chunk_rows=500)
    with pytest.raises(ValueError, match=said):
        from_numpyro(wrong, **{name: rows[name] for name in rows.columns})


def test_the_command_line_takes_a_directory(folder):
    code = folder / "models.py"
    code.write_text(
        "import numpyro\nimport numpyro.distributions as dist\n\ndef line(x, y):\n"
        "    slope = numpyro.sample('slope', dist.Normal())\n"
        "    with numpyro.plate('rows', len(y), subsample_size=100) as at:\n"
        "        numpyro.sample('y', dist.Normal(slope * x[at], 2.0), obs=y[at])\n"
    )
    done = CliRunner().invoke(app, ["fit", f"{code}:line", "--data", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    x, y = data()["x"], data()["y"]
    precision = 1 + x @ x / 4
    assert said["method"] == "GrowingRows" and said["converged"] and said["num_passes"] == 1
    np.testing.assert_allclose(said["posterior"]["slope"]["mean"], x @ y / 4 / precision, atol=0.1 * precision**-0.5)
    (folder / "2.parquet").write_text("nothing")
    done = CliRunner().invoke(app, ["fit", f"{code}:line", "--data", str(folder), "--json"])
    assert done.exit_code == 1 and "2.parquet is truncated or no Parquet file" in done.output
