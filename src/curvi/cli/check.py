"""`curvi check FILE.py:MODEL --data FILE`."""

import dataclasses

import jax
import typer

import curvi
from curvi.cli.common import NO, Json, Seed, Traceback, console, emit, explained
from curvi.cli.model import DataOption, Float32Option, ModelArgument, SetOption, read_target


def check(
    model: ModelArgument,
    data: DataOption = None,
    settings: SetOption = None,
    seed: Seed = 0,
    float32: Float32Option = False,
    as_json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Check a model before a fit; exit with 0 if it is ready, with 3 if it is not."""
    with explained(traceback, as_json):
        target, remarks = read_target(model, data, settings, float32)
        found = curvi.check(target, key=jax.random.key(seed))
        if as_json:
            emit({"ok": found.ok, "checks": [dataclasses.asdict(one) for one in found]})
        else:
            out = console()
            for latent in target.latents:
                out.print(f"  {latent.name} {latent.shape or ''}", markup=False)
            for remark in remarks:
                out.print(f"  {remark}", markup=False)
            out.print(found)
    if not found.ok:
        raise typer.Exit(NO)
