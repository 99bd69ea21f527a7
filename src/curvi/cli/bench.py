"""`curvi bench`: the short benchmark of a checkout."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import curvi
from curvi.cli.common import ERROR, InputError, Json, Traceback, emit, explained

_SCRIPT = Path("benchmarks") / "peers.py"


def bench(
    output: Annotated[Path, typer.Option(help="File for the results, one line of JSON a run.")] = Path(
        "curvi-bench.jsonl"
    ),
    problems: Annotated[list[str] | None, typer.Option("--problem", help="This problem only; may be repeated.")] = None,
    methods: Annotated[list[str] | None, typer.Option("--method", help="This method only; may be repeated.")] = None,
    budget: Annotated[float | None, typer.Option(help="Most seconds of one run, without compilation.")] = None,
    as_json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Compare curvi with the other libraries that are installed on six problems; takes minutes."""
    with explained(traceback, as_json):
        script = _find_script()
        output.parent.mkdir(parents=True, exist_ok=True)
        before = len(_lines(output))
        command = [sys.executable, str(script), "--short", "--output", str(output.resolve())]
        command += ["--problems", *problems] if problems else []
        command += ["--methods", *methods] if methods else []
        command += ["--budget", str(budget)] if budget is not None else []
        done = subprocess.run(command, stdout=sys.stderr.fileno() if as_json else None)
        added = _lines(output)[before:]
        if as_json:
            emit({"runs": added})
        elif added:
            typer.echo(f"{len(added)} runs written to {output}")
    if done.returncode or not added:
        raise typer.Exit(ERROR)


def _find_script() -> Path:
    """The script of the checkout that one stands in, or that curvi is installed from."""
    for folder in (Path.cwd(), *Path.cwd().parents, *Path(curvi.__file__).parents):
        if (folder / _SCRIPT).exists() and (folder / "src" / "curvi").exists():
            return folder / _SCRIPT
    raise InputError("the benchmarks are no part of the installed package; run curvi bench in a checkout of curvi")


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
