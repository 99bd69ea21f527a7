"""The command line: `curvi fit`, `curvi check`, `curvi report`, `curvi demo`.

Exit codes:

0    done: the fit converged, the checks passed
1    bad input, or an error; one line says which
2    wrong usage of the command line
3    the answer is no: the fit did not converge, or a check failed
4    a package is missing; the line says what to install
130  interrupted

`--json` prints one JSON object, errors included, on standard output; progress and remarks go to standard error.
"""

from typing import Annotated

import typer

import curvi
from curvi.cli import check, demo, fit, report

app = typer.Typer(
    help="Curvature-aware variational inference.",
    epilog="Exit codes: 0 done, 1 bad input or error, 2 wrong usage, 3 not converged or a check failed, "
    "4 a package is missing, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (fit.fit, check.check, report.report, demo.demo):
    app.command()(command)


def main() -> None:
    """Run the command line."""
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"curvi {curvi.__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
