"""curvi bench runs the script of a checkout, and says so where there is none."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import curvi
from curvi.cli import app

CHECKOUT = Path(__file__).parents[2]


def run(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def test_unknown_problems_are_refused(tmp_path, capfd):
    result = run("--problem", "no_such_problem", "--output", tmp_path / "lines.jsonl")
    assert result.exit_code == 1
    assert "breast_cancer" in capfd.readouterr().err  # it names those that there are


def test_outside_a_checkout_it_says_where_to_go(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(curvi, "__file__", str(tmp_path / "site-packages" / "curvi" / "__init__.py"))
    result = run()
    assert result.exit_code == 1 and "checkout" in result.stderr


@pytest.mark.slow
def test_short_run_writes_lines(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(CHECKOUT)
    path = tmp_path / "lines.jsonl"
    result = run("--problem", "breast_cancer", "--method", "curvi", "--budget", 1, "--output", path)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines and all(line["method"] == "curvi" and line["problem"] == "breast_cancer" for line in lines)
