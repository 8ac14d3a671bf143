"""Messages without a consumer whose originals are still to come from inbound queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dispatcher.core.model import Original
from dispatcher.core.ordered import OrderedSet


class PendingRedeliveries:
    """Counts them by group: the parked messages of a group are newer, and must not overtake them."""

    def __init__(self, key: Callable[[bytes], bytes], ended: list[Callable[[bytes], None]]) -> None:
        self._key = key  # of the group, or bucket, of an id
        self._messages: OrderedSet[Original] = OrderedSet()
        self._of_group: Counter[bytes | None] = Counter()
        self._ended = ended  # told of an id whose group has none any more

    def add(self, message: Original) -> None:
        if message not in self._messages:
            self._messages.add(message)
            self._of_group[self._key_of(message.group_id)] += 1

    def discard(self, message: Original) -> None:
        if message in self._messages:
            self._messages.discard(message)
            key = self._key_of(message.group_id)
            self._of_group[key] -= 1
            if not self._of_group[key]:
                del self._of_group[key]
                if message.group_id is not None:
                    for ended in self._ended:
                        ended(message.group_id)

    def has_any(self, group_id: bytes | None) -> bool:
        return self._key_of(group_id) in self._of_group

    def has_any_of(self, key: bytes) -> bool:
        return key in self._of_group

    def _key_of(self, group_id: bytes | None) -> bytes | None:
        return None if group_id is None else self._key(group_id)
