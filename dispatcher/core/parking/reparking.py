"""Groups with unparked messages that are older than their parked ones.

It was in somebody's hands when its group was parked, and came back: its consumer died, or failed it and the
group has stopped there. That it comes first is in the journal only. A leader who finds that Redis has
forgotten everything takes the numbers of the parking queues for the order of what is in them, and what is
in an inbound queue for newer. So it is parked too, with a higher number, unless somebody takes it soon.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from dispatcher.core.model import Group
from dispatcher.core.operators.flags import awaits_operator

#: What nobody has taken for so long is parked; if that can't be, it is looked at again after the same time.
OVERTAKEN_MS: Final = 1_000


class Reparking:
    """They become due in the order in which they are kept."""

    def __init__(self) -> None:
        self._due: OrderedDict[Group, int] = OrderedDict()

    def note(self, group: Group, now_ms: int) -> None:
        """Due at once if it waits for operators, for that may be long."""
        if awaits_operator(group):
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
