"""Two processes with files of their own, and the answer of one process that has all files."""

import runpy
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

import curvi

EXAMPLE = Path(__file__).parents[2] / "examples" / "two_processes.py"


def test_two_processes_give_the_answer_of_one(capsys, tmp_path):
    names = runpy.run_path(str(EXAMPLE), run_name="__main__")
    together, said = names["fit"], capsys.readouterr().out
    assert together.converged and "curvi fit: converged" in said
    assert "devices         4 (rows 4)" in said
    assert said.count("curvi fit:") == 1, "one process shows what both computed"

    names["write_rows"](tmp_path)
    rows = curvi.Rows(str(tmp_path / "part-*.csv"))
    target = names["regression"](rows)
    one = Mesh(np.array(jax.devices()[:1]), ("rows",))
    alone = curvi.fit(target, key=jax.random.key(0), family="full_rank", mesh=one, progress=False)
    # In single precision there, in double here, and with other draws: far below an sd all the same.
    sd = alone.sd()["slopes"]
    assert np.all(np.abs(together.mean()["slopes"] - alone.mean()["slopes"]) < 0.01 * sd)
    np.testing.assert_allclose(together.sd()["slopes"], sd, rtol=0.01)
    assert abs(together.elbo - alone.elbo) < 0.02
    # Half of the rows is another posterior: what would be seen if a process had fitted its own rows alone.
    half = names["regression"](curvi.Rows(str(tmp_path / "part-0-*.csv")))
    half = curvi.fit(half, key=jax.random.key(0), family="full_rank", mesh=one, progress=False)
    assert half.elbo > alone.elbo + 100
