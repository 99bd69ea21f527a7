"""How a model becomes a log density of latents and data. Modelling languages put theirs in here (`curvi.adapters`)."""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from curvi.many.model import StackedModel
from curvi.many.stacking import Group
from curvi.model.target import AbstractTarget, Target
from curvi.model.tracing import trace, trace_outputs


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """What was read of the model of a group: its fits together, or why they are made one by one."""

    target_of: Callable[[int], AbstractTarget]
    model: StackedModel | None
    why_not: str = ""


# (model, group) -> Reading
Reader = Callable[[Callable, Group], Reading]
READERS: dict[str, Reader] = {}


def log_density_reader(init, supports, outputs) -> Reader:
    """The reader of functions `log_density(theta, *data)`."""

    def read(log_density, group: Group) -> Reading:
        def target_of(index: int) -> Target:
            args, named = group.call(index)
            more = None if outputs is None else lambda theta: outputs(theta, *args, **named)
            return Target(lambda theta: log_density(theta, *args, **named), init, supports, outputs=more)

        return traced(group, target_of, with_data(log_density, group), outputs and with_data(outputs, group))

    return read


def with_data(function, group: Group) -> Callable:
    """A function of latents and arguments as one of latents and the arrays of a data set."""

    def of_arrays(theta, data):
        args, named = group.build(data)
        return function(theta, *args, **named)

    return of_arrays


def traced(group: Group, target_of, density, outputs=None) -> Reading:
    """The reading of a log density of latents and arrays, unless it needs the numbers of its data."""
    template = target_of(0)
    if type(template) is not Target:
        return Reading(target_of, None, f"a {type(template).__name__} is fitted alone")
    example = jax.tree.map(lambda leaf: np.asarray(leaf[0]), group.data)
    try:
        made = trace(density, template.init, "log_density", example)
        further = None if outputs is None else trace_outputs(outputs, template.init, example)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        why = "the model needs the numbers of its data, for a size, a branch or a call of numpy; pass sizes as Python "
        return Reading(target_of, None, f"{why}numbers, and use jax.numpy ({type(error).__name__})")
    return Reading(target_of, StackedModel(template, made, further, group.data, target_of))
