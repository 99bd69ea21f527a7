"""Objects as plain data: dicts, lists, numbers and strings, with arrays stored separately.

A class is written under its registered name, never under the path of its module, so that moving a module does not
break saved fits. Only registered classes and numpyro's constraints are read, field by field; no code from a file is
executed.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from curvi.model.latents import Latent
from curvi.model.location_scale import LocationScale
from curvi.model.support import describe

_CLASSES: dict[str, type] = {"LocationScale": LocationScale}
_NAMES: dict[type, str] = {LocationScale: "LocationScale"}

Class = TypeVar("Class", bound=type)


class CannotSaveError(ValueError):
    """Raised for a value without a plain form: a function, an optimiser, a class that is not registered."""


@overload
def register(cls: Class) -> Class: ...


@overload
def register(*, name: str) -> Callable[[Class], Class]: ...


def register(cls: Class | None = None, *, name: str | None = None) -> Class | Callable[[Class], Class]:
    """Register a dataclass or module under a name for saving, by default that of the class.

    Names must not change, since old files use them. Registering a name again, as a notebook does when a cell runs
    twice, replaces the class.
    """

    def with_name(cls: Class) -> Class:
        own = name or cls.__name__
        if own in _CLASSES and _CLASSES[own].__module__ != cls.__module__:
            raise ValueError(f"{_CLASSES[own]} is saved as {own!r} already; give {cls} another name")
        _CLASSES[own], _NAMES[cls] = cls, own
        return cls

    return with_name if cls is None else with_name(cls)


def registered_name(cls: type) -> str | None:
    return _NAMES.get(cls)


def to_plain(value, arrays: list[np.ndarray]):
    """`value` in a form for JSON; arrays are appended to `arrays` and replaced by their index."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return {"key": to_plain(jax.random.key_data(value), arrays), "impl": str(jax.random.key_impl(value))}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        arrays.append(np.asarray(value))
        return {"array": len(arrays) - 1, "device": isinstance(value, jax.Array)}
    if type(value) in (list, tuple):
        return {type(value).__name__: [to_plain(item, arrays) for item in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": [[key, to_plain(item, arrays)] for key, item in value.items()]}
    if isinstance(value, Latent):
        return _plain_latent(value, arrays)
    if isinstance(value, LocationScale):
        value = dataclasses.replace(value, function=None)  # that of the target, which a file does not hold
    if isinstance(value, constraints.Constraint) and _constraint(type(value).__name__) is type(value):
        return {"constraint": type(value).__name__, "fields": _fields(vars(value), arrays)}
    if (name := _NAMES.get(type(value))) is not None:
        return {"object": name, "fields": _fields(_values(value), arrays)}
    raise CannotSaveError(f"a {type(value).__name__} cannot be saved")


def from_plain(plain, arrays: list[np.ndarray], latents: dict[str, Latent] | None = None):
    """The value that `to_plain` converted; latents are taken from `latents` where names and shapes match."""
    if not isinstance(plain, dict):
        return plain
    again: Callable = lambda item: from_plain(item, arrays, latents)  # noqa: E731
    if "float" in plain:
        return float(plain["float"])
    if "array" in plain:
        array = arrays[plain["array"]]
        return jnp.asarray(array) if plain.get("device") else array
    if "key" in plain:
        return jax.random.wrap_key_data(jnp.asarray(again(plain["key"])), impl=plain["impl"])
    for kind in (list, tuple):
        if kind.__name__ in plain:
            return kind(again(item) for item in plain[kind.__name__])
    if "dict" in plain:
        return {key: again(item) for key, item in plain["dict"]}
    if "latent" in plain:
        return _read_latent(plain, again, {} if latents is None else latents)
    cls = _constraint(plain["constraint"]) if "constraint" in plain else _CLASSES.get(plain["object"])
    if cls is None:
        unknown = plain.get("constraint", plain.get("object"))
        raise ValueError(
            f"no class is registered as {unknown!r}: import what defines it, or use the version that wrote it"
        )
    made = object.__new__(cls)
    for name, value in plain["fields"].items():
        # Bypass frozen classes and their checks, which the saved object had passed.
        object.__setattr__(made, name, again(value))
    return made


def _plain_latent(latent: Latent, arrays) -> dict:
    try:
        support = to_plain(latent.support, arrays)
    except CannotSaveError:
        support = None
    return {"latent": latent.name, "shape": list(latent.shape), "dtype": str(latent.dtype), "support": support}


def _read_latent(plain: dict, again, latents: dict[str, Latent]) -> Latent:
    """One latent, always the same object for the same name, since latents are compared by identity."""
    name, shape, dtype = plain["latent"], tuple(plain["shape"]), np.dtype(plain["dtype"])
    support, known = again(plain["support"]), latents.get(name)
    if known is not None:
        same = (known.shape, known.dtype) == (shape, dtype)
        if same and (support is None or describe(support) == describe(known.support)):
            return known
        support = known.support if support is None else support
    if support is None:
        raise ValueError(f"the support of latent '{name}' has no plain form; pass target= to curvi.load")
    latents[name] = Latent(name, shape, dtype, support)
    return latents[name]


def _values(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass."""
    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}


def _fields(values: dict, arrays) -> dict:
    return {name: to_plain(value, arrays) for name, value in values.items()}


def _constraint(name: str) -> type | None:
    cls = getattr(constraints, name, None)
    return cls if isinstance(cls, type) and issubclass(cls, constraints.Constraint) else None
