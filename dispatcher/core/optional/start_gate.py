"""The delay before a lane hands anything out: until enough consumers are here, or for some time (C11–C16).

It begins when the first consumer comes and is over when there are as many as wanted, or the time is up. It is
asked for once more when the last one has gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dispatcher.core.state import LaneState

#: Who wants a number of consumers and says no time waits that long for them (C14).
WAIT_MS: Final = 1_000


class StartGate:
    """When the lane may begin."""

    def __init__(self, consumers: int, wait_ms: int) -> None:
        self.consumers = consumers  # wanted; 0: the time alone counts
        self._wait_ms = wait_ms or (WAIT_MS if consumers else 0)
        self.begins_at_ms: int | None = None  # None: nobody is here

    def holds(self, now_ms: int) -> bool:
        """Whether nothing may be handed out yet."""
        return self._wait_ms > 0 and (self.begins_at_ms is None or now_ms < self.begins_at_ms)

    def is_over(self, now_ms: int) -> None:
        """The lane has begun before: a new leader goes on with it."""
        self.begins_at_ms = now_ms

    def look(self, state: LaneState) -> None:
        """See who is here. O(1), while it holds O(consumers)."""
        if not self._wait_ms:
            return
        if not state.by_uuid:
            self.begins_at_ms = None
            return
        if self.begins_at_ms is None:
            self.begins_at_ms = state.now_ms + self._wait_ms
        if self.consumers and self.holds(state.now_ms) and live_consumers(state) >= self.consumers:
            self.begins_at_ms = state.now_ms

    def next_deadline_ms(self, now_ms: int) -> int | None:
        return self.begins_at_ms if self.holds(now_ms) else None


def live_consumers(state: LaneState) -> int:
    return sum(consumer.is_open for consumer in state.by_uuid.values())
