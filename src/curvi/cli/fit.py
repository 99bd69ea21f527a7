"""`curvi fit FILE.py:MODEL --data FILE`."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import curvi
from curvi.cli.common import INTERRUPTED, NO, Cache, Json, Seed, Traceback, console, emit, explained, use_cache
from curvi.cli.model import DataOption, Float32Option, ModelArgument, SetOption, read_target
from curvi.cli.report import check_folder

_MOST_ROWS = 40


def fit(
    model: ModelArgument,
    data: DataOption = None,
    settings: SetOption = None,
    seed: Seed = 0,
    tolerance: Annotated[
        float | None, typer.Option(help="Nats that may be left to gain; by default 0.05, or a thousandth per latent.")
    ] = None,
    family: Annotated[str | None, typer.Option(help="Family of q by name; by default the one that pays.")] = None,
    marginals: Annotated[
        str | None, typer.Option(help="normal or sinh_arcsinh; by default skewed where that pays.")
    ] = None,
    num_steps: Annotated[int | None, typer.Option(help="Most steps.")] = None,
    num_starts: Annotated[int, typer.Option(help="Starts to try.")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="Save the fit to this file, for curvi report and curvi.load.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Write the fit here every minute, and go on from it where it exists.")
    ] = None,
    page: Annotated[Path | None, typer.Option("--report", help="Write an HTML report to this file.")] = None,
    float32: Float32Option = False,
    cache: Cache = None,
    progress: Annotated[bool, typer.Option(help="Show progress on standard error.")] = True,
    as_json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Fit a model; exit with 0 if the fit converged, with 3 if it did not."""
    with explained(traceback, as_json):
        for path in (output, page, checkpoint):
            check_folder(path)
        use_cache(cache)
        target, remarks = read_target(model, data, settings, float32)
        for remark in remarks:
            Console(stderr=True).print(remark, style="dim", markup=False, highlight=False, soft_wrap=True)
        result = curvi.fit(
            target,
            key=jax.random.key(seed),
            tolerance=tolerance,
            family=family if checkpoint is None or not checkpoint.exists() else None,
            marginals=marginals if checkpoint is None or not checkpoint.exists() else None,
            num_steps=num_steps,
            num_starts=num_starts if checkpoint is None or not checkpoint.exists() else 1,
            start=checkpoint,
            checkpoint=checkpoint,
            progress=progress and not (as_json and not sys.stderr.isatty()),
        )
        if output is not None:
            result.save(output)
        if page is not None:
            result.report(page)
        if as_json:
            emit(as_record(result))
        else:
            _show(result)
    if result.outcome is curvi.Outcome.INTERRUPTED:
        raise typer.Exit(INTERRUPTED)
    if not result.converged:
        raise typer.Exit(NO)


def as_record(result: curvi.Fit) -> dict:
    """A fit as a dict of numbers and strings."""
    mean, sd, check = result.mean(), result.sd(), result.posterior_check
    return {
        "converged": result.converged,
        "outcome": result.outcome.name,
        "message": result.outcome.message,
        "elbo": result.elbo,
        "elbo_se": result.elbo_se,
        "remaining_gain": result.remaining_gain,
        "remaining_gain_se": result.remaining_gain_se,
        "remaining_sds": result.remaining_sds,
        "remaining_sds_se": result.remaining_sds_se,
        "posterior_check": {
            "answer": check.answer,
            "reasons": check.reasons,
            "next": check.next,
            "khat": check.khat,
            "mean_error": check.mean_error,
            "sd_error": check.sd_error,
            "worst_factor": check.worst_factor,
            "worst_at": check.worst_at,
        },
        "kind": result.kind,
        "families": [dataclasses.asdict(row) for row in result.families],
        "num_steps": len(result.history),
        "num_log_density": result.counts.log_density,
        "num_gradient": result.counts.gradient,
        "num_hvp": result.counts.hvp,
        "num_passes": result.counts.passes,
        "compile_seconds": result.seconds.compile,
        "run_seconds": result.seconds.run,
        "method": type(result.method).__name__,
        "dtype": str(result.q.params.dtype),
        "version": curvi.__version__,
        "posterior": {name: {"mean": mean[name], "sd": sd[name]} for name in mean},
    }


def _show(result: curvi.Fit) -> None:
    out = console()
    out.print(str(result), markup=False)
    table = Table(title="Posterior", title_justify="left")
    for heading in ("", "mean", "sd"):
        table.add_column(heading, justify="right" if heading else "left")
    mean, sd = result.mean(), result.sd()
    entries = [
        (name + (f"[{','.join(map(str, index))}]" if index else ""), mean[name][index], sd[name][index])
        for name in mean
        for index in np.ndindex(np.shape(mean[name]))
    ]
    for name, centre, spread in entries[:_MOST_ROWS]:
        table.add_row(name.replace("[", r"\["), f"{centre:.4g}", f"{spread:.3g}")
    out.print(table)
    if len(entries) > _MOST_ROWS:
        out.print(f"... and {len(entries) - _MOST_ROWS} more; --json has them all")
