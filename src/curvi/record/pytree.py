"""Frozen dataclasses that are JAX pytrees.

Equinox modules offer more, but take some twenty times as long to construct: objects made at every step of a host loop
use these instead.
"""

import dataclasses
from typing import TypeVar, dataclass_transform

import jax

Class = TypeVar("Class", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def pytree(cls: Class) -> Class:
    """The class as a frozen dataclass and a pytree; fields made by `static` belong to its structure."""
    frozen = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(frozen)
    static = [field.name for field in fields if field.metadata.get("static", False)]
    arrays = [field.name for field in fields if field.name not in static]
    jax.tree_util.register_dataclass(frozen, data_fields=arrays, meta_fields=static)
    return frozen


def static(**options):
    """A field that is part of the structure of a tree, not one of its arrays."""
    return dataclasses.field(metadata={"static": True}, **options)
