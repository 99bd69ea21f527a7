"""`curvi report FIT`."""

from pathlib import Path
from typing import Annotated

import jax
import typer

import curvi
from curvi.cli.common import InputError, Json, Traceback, console, emit, explained
from curvi.cli.model import DataOption, Float32Option, SetOption, read_target

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="FILE.py:MODEL", help="The model of the fit, for what a saved fit alone cannot tell."
    ),
]


def report(
    path: Annotated[Path, typer.Argument(metavar="FIT", help="A file that curvi fit --output wrote.")],
    output: Annotated[Path | None, typer.Option(help="The page; FIT with the ending .html by default.")] = None,
    model: ModelOption = None,
    data: DataOption = None,
    settings: SetOption = None,
    title: Annotated[str | None, typer.Option(help="The title of the page.")] = None,
    float32: Float32Option = False,
    as_json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Write the HTML report of a saved fit."""
    with explained(traceback, as_json):
        if not path.exists():
            raise InputError(f"no file {path}")
        page = path.with_suffix(".html") if output is None else output
        check_folder(page)
        jax.config.update("jax_enable_x64", not float32)
        target = None if model is None else read_target(model, data, settings, float32)[0]
        fit = curvi.load(path, target=target)
        fit.report(page, title=title)
        if as_json:
            emit({"report": str(page), "converged": fit.converged, "outcome": fit.outcome.name})
        else:
            out = console()
            out.print(str(fit), markup=False)
            out.print(f"Written to {page}", markup=False)


def check_folder(path: Path | None) -> None:
    """Raise InputError, before any long computation, if a file cannot be written."""
    if path is not None and not path.resolve().parent.is_dir():
        raise InputError(f"no folder {path.resolve().parent} to write {path.name} to")
    if path is not None and path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file")
