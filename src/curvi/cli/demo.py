"""`curvi demo`."""

import importlib
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.table import Table

import curvi
from curvi.cli import pictures
from curvi.cli import race as demonstration
from curvi.cli.common import INTERRUPTED, Seed, Traceback, console, explained

_NEEDED = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}


def demo(
    output: Annotated[Path, typer.Option(help="Folder for the picture and the table.")] = Path("curvi-demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Two methods and few steps: a check that it runs.")] = False,
    seed: Seed = 0,
    traceback: Traceback = False,
) -> None:
    """Fit a Bayesian logistic regression by every method; write a table and a picture."""
    with explained(traceback):
        interrupted = _demo(output, quick, seed)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _demo(output: Path, quick: bool, seed: int) -> bool:
    """Whether the demonstration was interrupted; results so far are written in any case."""
    _check_extra()
    # Before the fits, so that a folder that cannot be written fails at once.
    output.mkdir(parents=True, exist_ok=True)
    # Set here rather than in the library, whose users choose their own precision.
    jax.config.update("jax_enable_x64", True)
    out = console()
    target = demonstration.breast_cancer_target()
    chosen = demonstration.contestants(quick)
    out.print("Bayesian logistic regression, breast cancer data: 569 rows, 31 coefficients, standard normal priors")
    rows = []
    for row in demonstration.run(target, chosen, seed):
        rows.append(row)
        out.print(f"  {len(rows)}/{len(chosen)}  {row['name']:<28} {_brief(row)}")
    _show(out, rows)
    table, picture = output / "fits.jsonl", output / "race.png"
    demonstration.write_rows(rows, table)
    pictures.draw_race(rows, picture, "Bayesian logistic regression, breast cancer data, 31 coefficients")
    out.print(f"\nWritten to {output}: {picture.name} (picture), {table.name} (the table, one line of JSON a fit)")
    return rows[-1]["outcome"] == curvi.Outcome.INTERRUPTED.name


def _check_extra() -> None:
    """Raise ImportError, with a command that installs all missing packages."""
    missing, reasons = [], []
    for module, package in _NEEDED.items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            missing.append(package)
            reasons.append(str(error))
    if missing:
        raise ImportError(
            f"the demonstration needs {' and '.join(missing)} ({'; '.join(reasons)}). "
            f"Install what is missing: pip install {' '.join(missing)}"
        )


def _brief(row: dict) -> str:
    return f"ELBO {_with_error(row['elbo'], row['elbo_se'])}, {row['compile_seconds'] + row['run_seconds']:.1f} s"


def _with_error(value: float | None, error: float | None, digits: int = 2) -> str:
    if value is None:
        return "unknown"
    return f"{value:.{digits}f}" if error is None else f"{value:.{digits}f} ± {error:.{digits}f}"


def _show(out: Console, rows: list[dict]) -> None:
    table = Table(title="What each method reached, and what it cost", title_justify="left")
    table.add_column("method")
    for heading in ("ELBO\n(nats)", "remaining gain\n(nats)"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    calls = ("steps", "log-density\ncalls", "gradient\ncalls", "Hessian-vector\nproducts")
    for heading in (*calls, "seconds\ncompiling", "seconds\nrunning"):
        table.add_column(heading, justify="right")
    for row in rows:
        verdict = row["outcome"].lower().replace("_", " ")
        table.add_row(
            row["name"] + (f" ({row['method']})" if "default" in row["name"] else ""),
            _with_error(row["elbo"], row["elbo_se"]),
            _with_error(row["remaining_gain"], row["remaining_gain_se"], 3),
            f"[{'green' if row['converged'] else 'yellow'}]{verdict}[/]",
            *(f"{row[count]:,}" for count in ("num_steps", "num_log_density", "num_gradient", "num_hvp")),
            *(f"{row[seconds]:.1f}" for seconds in ("compile_seconds", "run_seconds")),
        )
    out.print()
    out.print(table)
    for outcome in dict.fromkeys(row["outcome"] for row in rows):
        word, message = outcome.lower().replace("_", " "), curvi.Outcome[outcome].message
        out.print(message if message.startswith(word) else f"{word}: {message}")
    out.print(
        "ELBOs are those of the final q on the same fresh draws for all methods. Calls are counted per draw, those of "
        "the checks included: a method that takes single steps ends with an estimate of its remaining gain, which "
        "takes gradients and Hessian-vector products whatever the method."
    )
