"""Sets that keep the order in which things came: the same events always have the same effects."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class OrderedSet(dict[T, None]):
    """A set of objects in insertion order. A plain one would be in the order of their addresses."""

    __slots__ = ()

    def add(self, item: T) -> None:
        self[item] = None

    def discard(self, item: T) -> None:
        self.pop(item, None)
