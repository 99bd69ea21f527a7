"""What a method is to solve: a target, a q to start from, where arrays lie, and what may be cached."""

from collections.abc import Callable
from typing import Any, TypeVar

from curvi.family import Family
from curvi.family.shapes import is_skewed_name, normal_name
from curvi.model.memory import default_budget
from curvi.model.placement import Placement
from curvi.model.target import AbstractTarget

Kept = TypeVar("Kept")


class Problem:
    """A target and the q to start from.

    `once` caches what can be derived from these and the state but is expensive, such as buffers and programs. The cache
    may be discarded at any time, and holds nothing that the state does not determine.
    """

    def __init__(
        self,
        target: AbstractTarget,
        q: Family,
        num_starts: int = 1,
        families: tuple[str, ...] = (),
        learns_centering: bool = False,
        placement: Placement | None = None,
        memory: int | None = None,
    ):
        self.target, self.q, self.num_starts = target, q, num_starts
        self.placement = placement  # where arrays lie; None on one device
        self.memory = memory or default_budget()  # bytes that the fit may take
        self.learns_centering = learns_centering  # where q has a centring; a method may leave it as it is
        self.names = families  # that a method may choose from; empty where q is an instance of the user's
        self.families = tuple(dict.fromkeys(map(normal_name, families)))  # whatever their marginals
        self.may_skew = any(map(is_skewed_name, families))
        self.must_skew = self.may_skew and all(map(is_skewed_name, families))
        self._kept: dict[str, tuple[tuple[object, ...], Any]] = {}  # the type of a value depends on its name

    def once(self, name: str, build: Callable[[], Kept], *of: object) -> Kept:
        """The result of `build`, cached while the objects `of` stay the same: identical, or equal tuples of numbers."""
        if name in self._kept:
            before, value = self._kept[name]
            if len(before) == len(of) and all(a is b or (type(a) is tuple and a == b) for a, b in zip(before, of)):
                return value
        value = build()
        self._kept[name] = (of, value)
        return value
