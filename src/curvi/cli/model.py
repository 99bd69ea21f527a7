"""The target from `FILE.py:NAME` or `FILE.stan`, and data.

NAME is a NumPyro model, a PyMC model or a curvi target. `NAME()` is a function that is called and returns a PyMC model
or a curvi target. Functions get the columns of the data named by their parameters, a Stan program
gets all of the data.
"""

import contextlib
import importlib.util
import inspect
import json
import sys
from pathlib import Path
from typing import Annotated

import jax
import typer

from curvi.adapters import from_numpyro, from_pymc
from curvi.adapters.stan import from_stan_file
from curvi.cli.common import InputError
from curvi.cli.data import read_data
from curvi.model.rows.rows import Column, Rows
from curvi.model.target import AbstractTarget

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py:MODEL",
        help="A NumPyro model, a PyMC model or a curvi target; FILE.py:make() calls a function that returns one of "
        "the last two. Or FILE.stan, a Stan program.",
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="CSV, NPZ, Parquet or JSON; columns go to the parameters of the model by name. A directory or glob is "
        "read a chunk at a time: `rows` is all of it.",
    ),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A further argument of the model, as JSON.")
]
Float32Option = Annotated[bool, typer.Option("--float32", help="Compute in single precision.")]


def read_target(model: str, data: Path | None, settings: list[str] | None, float32: bool) -> tuple:
    """The target of a command, and remarks on its data."""
    # Set here rather than in the library, whose users choose their own precision.
    jax.config.update("jax_enable_x64", not float32)
    arguments, remarks = ({}, []) if data is None else read_data(data)
    arguments.update(_read_settings(settings or []))
    if model.endswith(".stan"):
        return _stan_target(Path(model), arguments), remarks
    found, name, call = _find(model)
    if call:
        if not callable(found):
            raise InputError(f"'{name}' is no function; leave the brackets out")
        found = found(**_matching(name, found, arguments))
        if not (isinstance(found, AbstractTarget) or _is_pymc(found)):
            raise InputError(f"{name}() must return a curvi target or a PyMC model; it returned {type(found).__name__}")
    if isinstance(found, AbstractTarget):
        return found, remarks
    if _is_pymc(found):
        return from_pymc(found), remarks
    if not callable(found):
        raise InputError(
            f"'{name}' is {type(found).__name__}; expected a NumPyro model, a PyMC model or a curvi target"
        )
    return from_numpyro(found, **_matching(name, found, arguments)), remarks


def _stan_target(path: Path, arguments: dict) -> AbstractTarget:
    if not path.exists():
        raise InputError(f"no file {path}")
    for name, value in arguments.items():
        if isinstance(value, Rows | Column | str):
            raise InputError(f"'{name}' is no number and no array: a Stan program takes all of its data at once")
    return from_stan_file(path, arguments)


def _is_pymc(found) -> bool:
    # Looked up, not imported: a PyMC model implies that PyMC is imported.
    pymc = sys.modules.get("pymc")
    return pymc is not None and isinstance(found, pymc.Model)


def _read_settings(settings: list[str]) -> dict:
    out = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not sign or not name.strip():
            raise InputError(f"--set takes NAME=VALUE; got {setting!r}")
        try:
            out[name.strip()] = json.loads(value)
        except json.JSONDecodeError:
            out[name.strip()] = value
    return out


def _find(model: str):
    """The object, its name, and whether to call it."""
    path, _, name = model.rpartition(":")
    if not path.endswith(".py") or not name:
        raise InputError(f"give the model as FILE.py:NAME, a Stan program as FILE.stan; got '{model}'")
    if not Path(path).exists():
        raise InputError(f"no file {path}")
    call = name.endswith("()")
    name = name.removesuffix("()")
    module = _load(Path(path))
    if not hasattr(module, name):
        names = [one for one, value in vars(module).items() if not one.startswith("_") and not inspect.ismodule(value)]
        raise InputError(f"{path} has no '{name}'; it has {', '.join(names) or 'no names'}")
    return getattr(module, name), name, call


def _load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be loaded as a Python file")
    module = importlib.util.module_from_spec(spec)
    # Modules in its folder can be imported, as for a script.
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except ImportError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{path} fails when it is loaded: {type(error).__name__}: {error}") from error
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(path.parent.resolve()))
    return module


def _matching(name: str, function, arguments: dict) -> dict:
    """The arguments that match the parameters of a function; all if it takes arbitrary keywords."""
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return arguments
    wanted = {one.name: one.default is one.empty for one in parameters if one.kind is not one.VAR_POSITIONAL}
    if missing := [one for one, needed in wanted.items() if needed and one not in arguments]:
        raise InputError(
            f"'{name}' needs {', '.join(missing)}, which the data do not have; they have "
            f"{', '.join(arguments) or 'nothing'}. Give --data FILE or --set NAME=VALUE"
        )
    return {one: arguments[one] for one in wanted if one in arguments}
