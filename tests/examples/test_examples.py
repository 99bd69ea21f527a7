"""The tutorials are scripts: each runs as it stands, and ends with a fit that converged."""

import runpy
import warnings
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
# What a script needs beyond curvi itself.
NEEDS = {"pymc_model": ["pymc"], "bambi_model": ["bambi", "sklearn"], "stan_program": ["stan"]}
NEEDS |= {"polish": ["blackjax"], "rows": ["pyarrow"]}
SLOW = {"stan_program"}  # compiles C++
APART = {"two_processes"}  # has a test of its own, which holds its answer against that of one process


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in SLOW else [])
        for path in EXAMPLES
        if path.stem not in APART
    ],
)
def test_example_runs_and_converges(path, capsys):
    for module in NEEDS.get(path.stem, []):
        pytest.importorskip(module, reason=f"{path.name} needs {module}, which is not installed")
    with warnings.catch_warnings():
        if path.stem in SLOW:
            warnings.simplefilter("ignore")  # those of PyStan's server
        names = runpy.run_path(str(path), run_name="__main__")
    assert names["fit"].converged
    assert "converged" in capsys.readouterr().out
