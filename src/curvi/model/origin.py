"""Information about the model of a target besides its log density."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Origin:
    """Information about the model of a target besides its log density. Compared by identity.

    Attributes
    ----------
    observed_data
        Observations by name.
    dims, coords
        Names of the axes of latents and outputs, and the labels along them, as ArviZ takes them.
    plates
        For each plate or named axis of latents, the position of that axis in each of its latents.
    predict
        Takes a key and a dict of draws with a leading axis; returns groups of arrays by name with the same axis,
        "posterior_predictive" and "log_likelihood".
    """

    observed_data: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    dims: Mapping[str, list[str]] = dataclasses.field(default_factory=dict)
    coords: Mapping[str, object] = dataclasses.field(default_factory=dict)
    predict: Callable | None = None
    plates: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)


def origin_of(target) -> Origin:
    """The `Origin` of a target; an empty one for a plain log density."""
    return getattr(target, "origin", None) or Origin()
