"""Settings, factors and supports as plain data: dicts, lists, numbers and words, with arrays set aside.

Only classes of curvi and numpyro's constraints are written and read, by name and field; nothing is ever executed that a
file brings along.
"""

import dataclasses
import importlib
import math

import equinox as eqx
import jax
import numpy as np
from numpyro.distributions import constraints

from curvi.family.factor import Factor


class CannotSaveError(ValueError):
    """A value that has no plain form: a function, an optimiser, a class of another library."""


def to_plain(value, arrays: list[np.ndarray]):
    """`value` as JSON can hold it; arrays are appended to `arrays` and stand there by their index."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        arrays.append(np.asarray(value))
        return {"array": len(arrays) - 1}
    if type(value) in (list, tuple):
        return {type(value).__name__: [to_plain(item, arrays) for item in value]}
    if isinstance(value, constraints.Constraint) and _constraint(type(value).__name__) is type(value):
        return {"constraint": type(value).__name__, "fields": _fields(vars(value), arrays)}
    if isinstance(value, eqx.Module | Factor) and _class(name := _name(type(value))) is type(value):
        return {"curvi": name, "fields": _fields(_values(value), arrays)}
    raise CannotSaveError(f"a {type(value).__name__} cannot be saved")


def from_plain(plain, arrays: list[np.ndarray]):
    """The value that `to_plain` took."""
    if not isinstance(plain, dict):
        return plain
    if "float" in plain:
        return float(plain["float"])
    if "array" in plain:
        return arrays[plain["array"]]
    for kind in (list, tuple):
        if kind.__name__ in plain:
            return kind(from_plain(item, arrays) for item in plain[kind.__name__])
    cls = _constraint(plain["constraint"]) if "constraint" in plain else _class(plain["curvi"])
    if cls is None:
        raise ValueError(f"no class {plain.get('constraint', plain.get('curvi'))} here: another version wrote this")
    made = object.__new__(cls)
    for name, value in plain["fields"].items():
        # Past frozen classes and their own checks: what was saved had passed them.
        object.__setattr__(made, name, from_plain(value, arrays))
    return made


def _fields(values: dict, arrays) -> dict:
    return {name: to_plain(value, arrays) for name, value in values.items()}


def _values(value) -> dict:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _class(name: str) -> type | None:
    """A class of curvi by its name; None for anything else."""
    module, _, qualname = name.partition(":")
    if not (module == "curvi" or module.startswith("curvi.")):
        return None
    try:
        cls = getattr(importlib.import_module(module), qualname, None)
    except ImportError:
        return None
    return cls if isinstance(cls, type) and issubclass(cls, eqx.Module | Factor) else None


def _constraint(name: str) -> type | None:
    cls = getattr(constraints, name, None)
    return cls if isinstance(cls, type) and issubclass(cls, constraints.Constraint) else None
