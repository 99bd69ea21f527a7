"""curvi fit --output and curvi report: a fit is saved, and shown again by another command."""

import json

import pytest
from typer.testing import CliRunner

from curvi.cli import app

MODEL = """
import numpyro
import numpyro.distributions as dist

def line(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    (folder / "model.py").write_text(MODEL)
    (folder / "data.csv").write_text("x,y\n" + "\n".join(f"{x},{2 * x + 0.1}" for x in range(8)))
    saved = run("fit", f"{folder}/model.py:line", "--data", folder / "data.csv", "--output", folder / "line.fit")
    assert saved.exit_code == 0, saved.output
    return folder


def run(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_report_of_a_saved_fit(folder):
    result = run("report", folder / "line.fit", "--title", "A line")
    assert result.exit_code == 0, result.output
    page = (folder / "line.html").read_text(encoding="utf-8")
    assert "A line" in page and "slope" in page and "converged" in page.lower()


def test_report_with_the_model(folder):
    arguments = ("--model", f"{folder}/model.py:line", "--data", folder / "data.csv")
    result = run("report", folder / "line.fit", "--output", folder / "full.html", *arguments, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {
        "report": str(folder / "full.html"), "converged": True, "outcome": "CONVERGED",
    }  # fmt: skip
    assert (folder / "full.html").stat().st_size > 1000


def test_fit_writes_a_report_at_once(folder):
    result = run("fit", f"{folder}/model.py:line", "--data", folder / "data.csv", "--report", folder / "once.html")
    assert result.exit_code == 0 and "slope" in (folder / "once.html").read_text(encoding="utf-8")


def test_damaged_and_missing_files_are_one_line(folder):
    (folder / "cut.fit").write_bytes((folder / "line.fit").read_bytes()[:200])
    for path in (folder / "cut.fit", folder / "data.csv", folder / "none.fit"):
        result = run("report", path, "--output", folder / "no.html")
        assert result.exit_code == 1 and result.stderr.startswith("Error: ") and "Traceback" not in result.output
    assert not (folder / "no.html").exists()


def test_folders_are_checked_before_the_fit(folder):
    for option in ("--output", "--report"):
        result = run("fit", f"{folder}/model.py:line", "--data", folder / "data.csv", option, folder / "no" / "file")
        assert result.exit_code == 1 and "no folder" in result.stderr
