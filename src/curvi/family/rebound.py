"""Structures with their latents replaced."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from curvi.model.latents import Latent
from curvi.model.location_scale import LocationScale


def rebound(value: Any, latents: Mapping[str, Latent]) -> Any:
    """A copy of a tree of dataclasses and tuples with its latents replaced by name."""
    if isinstance(value, Latent):
        return latents.get(value.name, value)
    if isinstance(value, LocationScale):
        return value
    if type(value) is tuple:
        return tuple(rebound(item, latents) for item in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    # Bypass the class's own initialiser, which may take other arguments than its fields.
    made = object.__new__(type(value))
    for field in dataclasses.fields(value):
        object.__setattr__(made, field.name, rebound(getattr(value, field.name), latents))
    return made
