"""Journal entries whose copy no consumer has, but for which others wait.

Redis has forgotten that they were settled, and only the end of the redeliveries shows that their originals
are gone. The redeliveries do not end while the look-ahead is full of messages that wait for the capacity of
these entries, for the place of their id, or in their bucket. A classic queue's window is widened then
(`ExpectedRedeliveries.window`); a quorum queue's can't be.
"""

from __future__ import annotations

from dispatcher.core.feature import Feature
from dispatcher.core.model import MessageState, Original
from dispatcher.core.recovery.copies import Copies
from dispatcher.core.recovery.expected import ExpectedRedeliveries
from dispatcher.core.recovery.matching import Recovery
from dispatcher.core.state import LaneState


class StaleEntries(Feature):
    """Looks for them while open entries await their originals."""

    def __init__(self, state: LaneState, recovery: Recovery) -> None:
        self._state = state
        self._recovery = recovery
        self.pending = (recovery.awaited,)

    def before_pass(self) -> None:
        drop_stale_entries(self._state, self._recovery)


def drop_stale_entries(state: LaneState, recovery: Recovery) -> None:
    """Give up such entries of a queue that stands still. Only where no consumer has a message in hand: a
    settle would bring the next original, and messages behind a lost copy must not be settled before it."""
    for inbound in state.inbounds:
        expected: ExpectedRedeliveries | None = inbound.recovery
        if expected is None or inbound.replaceable or not inbound.is_full():
            continue
        if not expected.holds_up_its_own(state, inbound) or inbound.head() is not None:
            continue
        out = [message for consumer in state.by_uuid.values() for message in consumer.in_flight.values()]
        if not all(map(_is_stale, out)):
            return
        for message in expected.all_open():
            if message.state is MessageState.IN_FLIGHT:
                recovery.vanish(message)


def _is_stale(message: Original) -> bool:
    """It has not come back, and its consumer says that it does not have it."""
    consumer = message.consumer
    return not message.is_here and consumer is not None and consumer.note(Copies).lacks(message.seq)
