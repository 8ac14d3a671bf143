"""Messages in nobody's hands whose originals are still to come from inbound queues."""

from __future__ import annotations

from collections import Counter

from dispatcher.core.model import Message
from dispatcher.core.ordered import OrderedSet


class Returning:
    """Counts them by group: what was parked of a group is newer, and must not overtake them."""

    def __init__(self) -> None:
        self._messages: OrderedSet[Message] = OrderedSet()
        self._of_group: Counter[bytes | None] = Counter()

    def add(self, message: Message) -> None:
        if message not in self._messages:
            self._messages.add(message)
            self._of_group[message.group_id] += 1

    def discard(self, message: Message) -> None:
        if message in self._messages:
            self._messages.discard(message)
            self._of_group[message.group_id] -= 1
            if not self._of_group[message.group_id]:
                del self._of_group[message.group_id]

    def has_any(self, group_id: bytes | None) -> bool:
        return group_id in self._of_group
