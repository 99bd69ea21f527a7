"""The arguments of many calls, read from arguments that hold one entry per data set, in groups of equal shapes."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from curvi.model.rows.rows import Rows

_NUMBERS = int | float | bool | np.generic


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Data sets of equal shapes.

    Attributes
    ----------
    members
        Their positions among all data sets.
    data
        Their arrays, stacked along a first axis.
    build
        The positional and the keyword arguments of one call, from the arrays of one data set.
    """

    members: np.ndarray
    data: tuple[np.ndarray, ...]
    build: Callable[[tuple], tuple[tuple, dict]]

    def call(self, index: int, on_device: bool = False) -> tuple[tuple, dict]:
        """The arguments of one of these data sets, by its position in the group: numpy arrays and numbers, on which a
        model may branch, or arrays on the device, which it may compare with traced ones.
        """
        rows = (leaf[index] for leaf in self.data)
        array = jnp.asarray if on_device else np.asarray
        return self.build(tuple(array(row) if row.ndim else row.item() for row in rows))


def read_groups(function, given: tuple, named: dict, shared: Iterable[str], latents_first: bool = False) -> list[Group]:
    """The groups, in the order of their first data sets; ValueError where arguments do not agree. `latents_first` says
    that the function takes the latents before its data.
    """
    names = [*_names_of(function, len(given) + latents_first)[latents_first:], *named]
    shared = {shared} if isinstance(shared, str) else set(shared)
    if unknown := sorted(map(str, shared - set(names))):
        raise ValueError(f"shared names arguments that were not given: {', '.join(unknown)}; there are {_list(names)}")
    columns = {
        name: _Shared(value) if name in shared else _column(name, value)
        for name, value in zip(names, (*given, *named.values()), strict=True)
    }
    counts = {name: column.count for name, column in columns.items() if not isinstance(column, _Shared)}
    if not counts:
        raise ValueError(
            "no argument has one entry per data set: pass arrays whose first axis is that of the data sets, or lists "
            f"with one entry per data set; got {_list(names) or 'no data'}"
        )
    if len(set(counts.values())) > 1:
        each = ", ".join(f"'{name}' {count:,}" for name, count in counts.items())
        raise ValueError(
            "every argument needs one entry per data set, along its first axis or as a list; the numbers differ: "
            f'{each}. Name what all data sets have in common: shared="{min(counts, key=lambda name: counts[name])}"'
        )
    count = next(iter(counts.values()))
    if count == 0:
        raise ValueError(f"there is no data set: '{next(iter(counts))}' is empty")
    keys: dict[Any, list[int]] = {}
    for index in range(count):
        keys.setdefault(tuple(column.key(index) for column in columns.values()), []).append(index)
    return [_group(columns, len(given), np.array(members), len(members) == count) for members in keys.values()]


def _group(columns: dict, num_given: int, members: np.ndarray, everything: bool) -> Group:
    parts = [column.stack(members, everything) for column in columns.values()]
    ends, names = np.cumsum([0, *(len(data) for data, _ in parts)]), list(columns)[num_given:]

    def build(data: tuple) -> tuple[tuple, dict]:
        values = [rebuild(data[a:b]) for (_, rebuild), a, b in zip(parts, ends, ends[1:])]
        return tuple(values[:num_given]), dict(zip(names, values[num_given:], strict=True))

    return Group(members, tuple(leaf for data, _ in parts for leaf in data), build)


# -- one argument -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Shared:
    """What all data sets have in common."""

    value: Any

    def key(self, _: int):
        return None

    def stack(self, *_):
        return (), lambda _: self.value


@dataclasses.dataclass(frozen=True)
class _Stacked:
    """A tree of arrays with a first axis for the data sets; other leaves are common to all."""

    count: int
    tree: Any
    leaves: tuple  # arrays, or what is common

    def key(self, _: int):
        return None

    def stack(self, members, everything: bool):
        moving = [isinstance(leaf, np.ndarray) for leaf in self.leaves]
        data = tuple(leaf if everything else leaf[members] for leaf in self.leaves if isinstance(leaf, np.ndarray))

        def rebuild(data):
            rest = iter(data)
            leaves = [next(rest) if moves else leaf for leaf, moves in zip(self.leaves, moving)]
            return jax.tree.unflatten(self.tree, leaves)

        return data, rebuild


@dataclasses.dataclass(frozen=True)
class _Ragged:
    """One tree per data set, whose shapes may differ."""

    trees: list
    leaves: list[list]

    @property
    def count(self) -> int:
        return len(self.trees)

    def key(self, index: int):
        kinds = [(leaf.shape, leaf.dtype.str) if isinstance(leaf, np.ndarray) else leaf for leaf in self.leaves[index]]
        return self.trees[index], tuple(kinds)

    def stack(self, members, _):
        first = self.leaves[members[0]]
        places = [at for at, leaf in enumerate(first) if isinstance(leaf, np.ndarray)]
        data = tuple(np.stack([self.leaves[index][at] for index in members]) for at in places)

        def rebuild(data):
            leaves = list(first)
            for at, leaf in zip(places, data, strict=True):
                leaves[at] = leaf
            return jax.tree.unflatten(self.trees[members[0]], leaves)

        return data, rebuild


def _column(name: str, value) -> _Shared | _Stacked | _Ragged:
    if isinstance(value, Rows):
        raise ValueError(
            f"argument '{name}' is Rows, which are read a chunk at a time: curvi.fit takes them, one by one"
        )
    if isinstance(value, list | tuple):
        if all(isinstance(entry, _NUMBERS) for entry in value):
            return _stacked(name, np.asarray(value))
        entries = [jax.tree.flatten(entry, is_leaf=_is_frame) for entry in value]
        leaves = [[_entry(f"{name}[{at}]", leaf) for leaf in found] for at, (found, _) in enumerate(entries)]
        return _Ragged([tree for _, tree in entries], leaves)
    if isinstance(value, dict) or _is_array(value):
        return _stacked(name, value)
    return _Shared(value)


def _stacked(name: str, value) -> _Shared | _Stacked:
    leaves, tree = jax.tree.flatten(value, is_leaf=_is_frame)
    made = tuple(_array(name, leaf) if _is_array(leaf) and np.ndim(leaf) else leaf for leaf in leaves)
    counts = {len(leaf) for leaf in made if isinstance(leaf, np.ndarray)}
    if len(counts) > 1:
        raise ValueError(f"the arrays in argument '{name}' have first axes of different lengths: {sorted(counts)}")
    return _Stacked(counts.pop(), tree, made) if counts else _Shared(value)


def _entry(name: str, leaf):
    """A leaf of one data set: an array, or what programs take as a constant, such as a size."""
    return leaf if isinstance(leaf, int | str | bool | None) or callable(leaf) else _array(name, leaf)


def _array(name: str, value) -> np.ndarray:
    made = np.asarray(value)
    if made.dtype.kind not in "biuf":
        raise ValueError(f"argument '{name}' must hold numbers; got an array of {made.dtype}")
    return made.astype(jax.dtypes.canonicalize_dtype(made.dtype), copy=False)


def _is_array(value) -> bool:
    return isinstance(value, np.ndarray | jax.Array) or _is_frame(value)


def _is_frame(value) -> bool:
    """A table of pandas and the like, which is an array but no tree."""
    return hasattr(value, "__array__") and not isinstance(value, np.ndarray | jax.Array | np.generic)


def _names_of(function, count: int) -> list[str]:
    """Names of the positional arguments; their positions where the function does not name them."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = [one.name for one in parameters if one.kind in kinds]
    return [known[at] if at < len(known) else f"argument {at}" for at in range(count)]


def _list(names) -> str:
    return ", ".join(f"'{name}'" for name in names)
