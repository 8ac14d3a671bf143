"""Groups with unparked messages that are older than their parked ones.

The unparked ones were in flight when the group was parked, and came back: their consumer died, or failed one
and the group has stopped there. Only the journal says that they come first. A leader who finds that Redis has
forgotten everything takes the numbers of the parking queues for the order of their messages, and messages in
an inbound queue for newer ones. So they are parked too, in a queue with a higher number, unless a consumer
takes them soon.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from dispatcher.core.model import Group

#: A message that no consumer has taken for this time is parked; if that can't be, after the same time again.
OVERTAKEN_MS: Final = 1_000


class Reparking:
    """They become due in the order in which they are kept."""

    def __init__(self) -> None:
        self._due: OrderedDict[Group, int] = OrderedDict()

    def note(self, group: Group, now_ms: int, *, at_once: bool) -> None:
        """Due at once, or when a consumer had some time to take them."""
        if at_once:
            self._due[group] = now_ms
            self._due.move_to_end(group, last=False)
        elif group not in self._due:
            self._due[group] = now_ms + OVERTAKEN_MS

    def take_due(self, now_ms: int) -> Iterator[Group]:
        """Those that are due; who can't do anything about one now notes it again, with `later`."""
        while self._due and next(iter(self._due.values())) <= now_ms:
            yield self._due.popitem(last=False)[0]

    def later(self, group: Group, now_ms: int) -> None:
        """Nothing could be done about it."""
        self._due[group] = now_ms + OVERTAKEN_MS

    @property
    def due_ms(self) -> int | None:
        """When the next one is."""
        return next(iter(self._due.values()), None)
