"""Chains from names: which latents follow each other, and which are global."""

from collections.abc import Sequence

import numpy as np

from curvi.family.arrow import BlockSet
from curvi.family.blocks import continuous_slot
from curvi.family.chain import Chain
from curvi.family.layout import Layout

Order = Sequence[str]


def chain_of(layout: Layout, order: Order | None, width: int) -> Chain:
    """The chain of some latents; ValueError where latents are unknown, twice named or of different lengths, or the
    width is none. The group of normal factors stands first in the layout.
    """
    if not isinstance(width, int | np.integer) or isinstance(width, bool) or width < 1:
        raise ValueError(f"width must be a positive integer, how many elements each is tied to; got {width!r}")
    elements = _in_a_row(layout) if order is None else _interleaved(layout, order)
    length = elements.count * elements.size
    if width >= length:
        raise ValueError(
            f"width must be less than the length of the chain, {length}; got {width}: take a smaller width, or "
            "FullRank, which ties all latents"
        )
    return Chain(layout.counts[0], elements, int(width))


def _in_a_row(layout: Layout) -> BlockSet:
    """All latents of more than one element, one after the other."""
    slots = [slot for slot in layout.slots if slot.group == 0 and slot.count > 1]
    if not slots:
        raise ValueError(
            "Banded needs a chain, and no continuous latent has more than one element: name latents to follow each "
            'other, such as order=["a", "b", "c"], or use FullRank'
        )
    return BlockSet("chain", 1, tuple((slot.start, 1, slot.count) for slot in slots))


def _interleaved(layout: Layout, order: Order) -> BlockSet:
    """Latents interleaved by their first axis; scalars have one element along it."""
    names = [] if isinstance(order, str) or not isinstance(order, Sequence) else list(order)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f'order must be a list of names of latents, interleaved by index, such as ["level", "slope"]; got {order!r}'
        )
    if len(set(names)) < len(names):
        raise ValueError(f"order names a latent twice: {names}; leave it in once")
    slots = [continuous_slot(layout, name, "order") for name in names]
    lengths = {slot.latent.name: (slot.working_shape or (1,))[0] for slot in slots}
    if len(set(lengths.values())) > 1:
        known = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(
            f"the latents of order are interleaved by their first axis and must be equally long; they have {known}"
        )
    count = next(iter(lengths.values()))
    return BlockSet("chain", count, tuple((slot.start, 1, slot.count // count) for slot in slots))
