"""Shared by the commands: exit codes, errors in one line, consoles, options, JSON."""

import contextlib
import json
import math
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

ERROR, NO, MISSING, INTERRUPTED = 1, 3, 4, 130

Traceback = Annotated[bool, typer.Option("--traceback", help="Show the traceback of an error.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Seed = Annotated[int, typer.Option(help="Seed of all randomness.")]


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
