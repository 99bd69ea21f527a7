"""Shared by the commands: exit codes, errors in one line, consoles, options, JSON."""

import contextlib
import json
import math
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer
from rich.console import Console

ERROR, NO, MISSING, INTERRUPTED = 1, 3, 4, 130

Traceback = Annotated[bool, typer.Option("--traceback", help="Show the traceback of an error.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Seed = Annotated[int, typer.Option(help="Seed of all randomness.")]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="FOLDER",
        help="Keep compiled programs here for the next fit of the same model.",
    ),
]


class InputError(Exception):
    """Invalid input from the user; the message says what is wrong and what to do."""


@contextlib.contextmanager
def explained(traceback: bool = False, as_json: bool = False):
    """Turn exceptions into one line and an exit code, unless a traceback is wanted."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if traceback:
            raise
        message = str(error) or type(error).__name__
        if not isinstance(error, InputError | ValueError | ImportError | OSError):
            message = f"{type(error).__name__}: {message}"
        if as_json:
            emit({"error": message})
        else:
            Console(stderr=True).print(f"Error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(MISSING if isinstance(error, ImportError) else ERROR) from None


def use_cache(folder: Path | None) -> None:
    """Let JAX keep compiled programs in a folder, which it makes; None changes nothing."""
    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--cache takes a folder; {folder} is a file")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # By default JAX keeps only what took a second to compile, and most programs of a fit take less.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def console() -> Console:
    """The console of standard output; wide for a file or pipe, where the default of 80 columns would break tables."""
    own = Console(highlight=False)
    return own if own.is_terminal else Console(highlight=False, width=150)


def emit(record: dict) -> None:
    """Print one JSON object; non-finite numbers become null."""
    typer.echo(json.dumps(plain(record), allow_nan=False))


def plain(value):
    """The value as numbers, lists and dicts for JSON."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
