"""The tutorials are scripts: each runs as it stands, and ends with a fit that converged."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
# What a script needs beyond curvi itself.
NEEDS = {"pymc_model": ["pymc"], "bambi_model": ["bambi", "sklearn"]}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_converges(path, capsys):
    for module in NEEDS.get(path.stem, []):
        pytest.importorskip(module, reason=f"{path.name} needs {module}, which is not installed")
    names = runpy.run_path(str(path), run_name="__main__")
    assert names["fit"].converged
    assert "converged" in capsys.readouterr().out
