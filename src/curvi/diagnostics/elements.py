"""Elements of latents and outputs by name: whole arrays, or single ones such as "x[3]"."""

import re
from collections.abc import Mapping

import numpy as np

Shapes = Mapping[str, tuple[int, ...]]
_ELEMENT = re.compile(r"^(?P<name>.+)\[(?P<index>\s*\d+(\s*,\s*\d+)*\s*)\]$")


def label_of(name: str, shape: tuple[int, ...], index: int) -> str:
    """The label of one element by its flat index: "beta[3]"."""
    return name if shape == () else f"{name}[{','.join(map(str, map(int, np.unravel_index(index, shape))))}]"


def labels_of(shapes: Shapes) -> tuple[str, ...]:
    """One label per element of quantities with these shapes by name."""
    out = []
    for name, shape in shapes.items():
        if shape == ():
            out.append(name)
        else:
            out.extend(f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape))
    return tuple(out)


def label_at(shapes: Shapes, position: int) -> str:
    """The label at a position among all elements, without those of the others."""
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        if position < size:
            return label_of(name, shape, position)
        position -= size
    raise IndexError(f"there are fewer elements than {position}")


def chosen_elements(shapes: Shapes, names=None, most: int | None = None) -> dict[str, np.ndarray]:
    """Flat indices by name of what is asked for: whole quantities, or elements such as "x[3]"; everything by default,
    but then at most the first `most` of each quantity. ValueError for unknown names.
    """
    if names is None:
        return {
            name: np.arange(min(int(np.prod(shape)), most or int(np.prod(shape)))) for name, shape in shapes.items()
        }
    out: dict[str, list] = {}
    for wanted in [names] if isinstance(names, str) else names:
        found = None if wanted in shapes else _ELEMENT.match(wanted)
        name = wanted if found is None else found["name"]
        if name not in shapes:
            raise ValueError(f"no latent or output named {wanted}; there are {', '.join(shapes)}")
        if found is None:
            out.setdefault(name, []).append(np.arange(int(np.prod(shapes[name]))))
            continue
        index = tuple(map(int, found["index"].split(",")))
        if len(index) != len(shapes[name]) or any(i >= size for i, size in zip(index, shapes[name])):
            raise ValueError(f"no element {wanted}: {name} has the shape {shapes[name]}")
        out.setdefault(name, []).append(np.array([np.ravel_multi_index(index, shapes[name])]))
    return {name: np.unique(np.concatenate(parts)) for name, parts in out.items()}
