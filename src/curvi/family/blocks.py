"""Sets of blocks from names: which latents have one entry per block, and along which axis."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from curvi.family.arrow import Arrow, BlockSet
from curvi.family.layout import Layout, Slot
from curvi.family.widening import normal_first
from curvi.model.origin import origin_of
from curvi.model.target import AbstractTarget

Blocks = Mapping[str, str | Sequence[str] | Mapping[str, int]]
# Coordinates that are tied to every block, up to which small sets of blocks join them: crossed or nested effects are
# told apart by their covariance, and a scale whose effects are independent of those they are nested in can collapse.
MOST_GLOBALS = 32
MOST_GLOBALS_OF_FEW, FEW_ENTRIES = 256, 400_000  # the same where that makes no more than so many entries
_LARGEST_BLOCK = 64


def arrow_of(layout: Layout, blocks: Blocks) -> Arrow:
    """The pattern of sets of blocks by name; ValueError where latents are unknown, twice named or of other shapes.

    The group of normal factors stands first in the layout.
    """
    if not isinstance(blocks, Mapping) or not blocks:
        raise ValueError(
            "blocks must name sets of blocks and the latents with one entry per block, such as "
            f'{{"school": ["slope", "intercept"]}}; got {blocks!r}'
        )
    slots = {slot.latent.name: slot for slot in layout.slots if slot.group == 0}
    owner: dict[str, str] = {}
    sets = []
    for name, members in blocks.items():
        parts, count = [], None
        for latent, axis in _axes(name, members).items():
            if latent in owner:
                raise ValueError(
                    f"blocks overlap: latent '{latent}' is in the sets '{owner[latent]}' and '{name}'; leave it in one"
                )
            owner[latent] = name
            before, own, after = _cut(continuous_slot(layout, latent, f"the set of blocks '{name}'"), axis, name)
            if count is not None and own != count:
                raise ValueError(
                    f"the latents of the set of blocks '{name}' have {count} and, in '{latent}', {own} blocks"
                )
            count = own
            parts.append((slots[latent].start, before, after))
        assert count is not None
        sets.append(BlockSet(name, count, tuple(parts)))
    return Arrow(layout.counts[0], tuple(sets))


def _axes(name: str, members) -> dict[str, int]:
    if isinstance(members, str):
        return {members: 0}
    if isinstance(members, Mapping):
        axes = dict(members)
    elif isinstance(members, Sequence):
        if len(set(members)) < len(members):
            raise ValueError(f"the set of blocks '{name}' names a latent twice: {list(members)}")
        axes = dict.fromkeys(members, 0)
    else:
        axes = {}
    valid = all(isinstance(key, str) and type(axis) is int for key, axis in axes.items())
    if not axes or not valid:
        raise ValueError(
            f"the set of blocks '{name}' must be the name of a latent, a list of names, or a dict of axes by name; "
            f"got {members!r}"
        )
    return axes


def continuous_slot(layout: Layout, latent: str, where: str) -> Slot:
    """The slot of a continuous latent; ValueError where there is none of that name, `where` it was named."""
    slots = {slot.latent.name: slot for slot in layout.slots}
    if latent in slots and slots[latent].group == 0:
        return slots[latent]
    if latent in slots:
        raise ValueError(f"latent '{latent}' of {where} is discrete: leave it out, it is independent")
    known = ", ".join(name for name, slot in slots.items() if slot.group == 0)
    raise ValueError(f"{where} names an unknown latent '{latent}'; the target has {known}")


def _cut(slot: Slot, axis: int, name: str) -> tuple[int, int, int]:
    """The sizes of the unconstrained latent before, along and after an axis of blocks."""
    shape, working = slot.latent.shape, slot.working_shape
    num_axes = len(shape) - slot.latent.support.event_dim  # pyright: ignore[reportAttributeAccessIssue]
    along = axis + len(shape) if axis < 0 else axis
    if not 0 <= along < num_axes:
        raise ValueError(
            f"latent '{slot.latent.name}' of shape {shape} has no axis {axis} of independent entries for the set of "
            f"blocks '{name}'"
        )
    return math.prod(working[:along]), working[along], math.prod(working[along + 1 :])


# -- from the plates of a model ---------------------------------------------------------------------------------------


def known_blocks(target: AbstractTarget, layout: Layout) -> dict[str, dict[str, int]]:
    """The sets of blocks of a target from its plates; ValueError where it has none."""
    plates = origin_of(target).plates
    found = blocks_of_plates(normal_first(layout, np.zeros(layout.num_params))[0], plates)
    if not found:
        raise ValueError(
            f"Bordered needs blocks: {why_no_blocks(target)}. Name them, such as "
            'blocks={"school": ["slope", "intercept"]}, or use FullRank, LowRank or MeanField'
        )
    return found


def why_no_blocks(target: AbstractTarget) -> str:
    """Why the plates of a target make no blocks."""
    return "its plates hold no latents" if origin_of(target).plates else "the target knows of no plates"


def blocks_of_plates(layout: Layout, plates: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Sets of blocks from the plates of a model: for each plate, the axis of each latent inside.

    A latent in several plates belongs to the one with most latents, else most rows, whose blocks stay small. Sets of
    few coordinates are global instead, while there are few globals: all of these are tied to each other.
    """
    sizes = {slot.latent.name: slot.count for slot in layout.slots if slot.group == 0}
    shapes = {slot.latent.name: slot.latent.shape for slot in layout.slots}
    taken: set[str] = set()
    sets: dict[str, dict[str, int]] = {}

    def first(item) -> tuple[int, int]:
        return -len(item[1]), -max(shapes[latent][axis] for latent, axis in item[1].items())

    for plate, axes in sorted(plates.items(), key=first):
        own, size = {}, 0
        for latent, axis in axes.items():
            share = sizes.get(latent, 0) // max(shapes[latent][axis], 1) if latent in sizes else 0
            if share and latent not in taken and size + share <= _LARGEST_BLOCK:
                own[latent] = axis
                size += share
        if own:
            sets[plate] = own
            taken.update(own)
    total = sum(sizes.values())
    num_global = total - sum(sizes[latent] for latent in taken)
    by_size = sorted(sets, key=lambda plate: sum(sizes[latent] for latent in sets[plate]))
    for plate in by_size[:-1]:
        num_global += sum(sizes[latent] for latent in sets[plate])
        if num_global > (MOST_GLOBALS_OF_FEW if num_global * total <= FEW_ENTRIES else MOST_GLOBALS):
            break
        del sets[plate]
    return sets
