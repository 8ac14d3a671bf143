"""Messages that only their consumer told us of: Redis has forgotten their entries.

The queue of such a message is not known, so its original may come from any of them. Those that were settled
stay until it comes, and are acked then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from dispatcher.core.entries import ended_entry, open_entry
from dispatcher.core.model import MessageState, Original
from dispatcher.core.queue_ids import UNKNOWN_INBOUND
from dispatcher.core.records import Vanished
from dispatcher.core.recovery.journal_replay import Arrival
from dispatcher.core.state import LaneState


class AdoptedMessages:
    """Expects their originals (`elsewhere.Expecting`), from whatever queue."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self._by_fingerprint: dict[bytes, deque[Original]] = {}

    def load_settled(self, entries: Mapping[Arrival, bytes]) -> None:
        """A former leader has adopted these, and read their settles."""
        for arrival, fingerprint in entries.items():
            message = Original(UNKNOWN_INBOUND, 0, arrival, fingerprint, None, None, 0, self._state.now_ms)
            message.become(MessageState.SETTLED)
            self.expect(message)

    def settled(self) -> list[tuple[Arrival, bytes]]:
        """Those that were settled before their original came."""
        settled = [message for message in self._all() if message.state is MessageState.SETTLED]
        return [(message.arrival, message.fingerprint) for message in settled]

    def expect(self, message: Original) -> None:
        self._by_fingerprint.setdefault(message.fingerprint, deque()).append(message)

    def forget(self, message: Original) -> None:
        """Nothing: `end` forgets all of them."""

    def settled_early(self, message: Original) -> None:
        """Nothing: it is expected until its original comes."""

    def has(self, fingerprint: bytes) -> bool:
        """Whether an original with these bytes is expected."""
        return bool(self._by_fingerprint.get(fingerprint))

    def meet(self, delivered: Original) -> Original:
        """This original is that of an adopted message, which is returned. From now on the journal knows the
        message by its original; a settled one is forgotten."""
        message = self._by_fingerprint[delivered.fingerprint].popleft()
        records = self._state.effects.records
        records.append(Vanished(UNKNOWN_INBOUND, message.arrival))
        if message.state is not MessageState.SETTLED:
            message.queue, message.arrival = delivered.queue, delivered.arrival
            reason = self._state.ending.get(message)
            records.append(open_entry(message) if reason is None else ended_entry(message, reason))
        return message

    def end(self, vanish: Callable[[Original], None]) -> None:
        """No original comes any more: forget all that were expected; those that are not settled `vanish`."""
        adopted = self._all()
        self._by_fingerprint.clear()
        for message in adopted:
            if message.state is MessageState.SETTLED:
                self._state.effects.records.append(Vanished(UNKNOWN_INBOUND, message.arrival))
            else:
                vanish(message)

    def _all(self) -> list[Original]:
        return [message for messages in self._by_fingerprint.values() for message in messages]
