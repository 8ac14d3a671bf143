"""What one inbound queue may still deliver again after a recovery, and the window that this needs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Final

from dispatcher.core.inbound import Inbound
from dispatcher.core.model import MessageState, Original
from dispatcher.core.prefetch_window import free_places
from dispatcher.core.recovery.journal_replay import Arrival
from dispatcher.core.state import LaneState

#: Everything unacked was within the largest window (60,000), and what a killed broker forgot to be acked
#: (40,000) lies before that. Later flags mean nothing: after a kill a whole classic queue carries them.
REDELIVERIES_MAX: Final = 100_000
#: How much a window grows at a time while redeliveries are awaited.
WIDENED_BY: Final = 8
#: No look-ahead is larger, so that whatever a former leader had is within so many.
WINDOW_MAX: Final = 60_000


class ExpectedRedeliveries:
    """What one inbound queue may still deliver again."""

    def __init__(self) -> None:
        self.open: dict[bytes, deque[Original]] = {}  # by fingerprint, in arrival order
        self.by_group: dict[bytes, dict[Original, None]] = {}  # those that are a prefix of their group
        self._settled: dict[bytes, list[Arrival]] = {}  # by fingerprint; their acks may not have arrived
        self._proven: dict[bytes, Arrival] = {}  # theirs have; of several with these bytes only one
        self.kept: Counter[bytes] = Counter()  # entries of either kind at the start, by fingerprint
        self._highest_matched: dict[int, int] = {}  # by lane epoch: delivery tag of an open entry
        self._in_order: dict[int, deque[Original]] | None = None  # by lane epoch: open ones, some are not now
        self.proven_meanwhile = 0
        self.seen = 0  # flagged deliveries so far

    def expect(self, message: Original) -> None:
        self.open.setdefault(message.fingerprint, deque()).append(message)
        self.kept[message.fingerprint] += 1
        # One that ended while it waited may stand anywhere in its group. One that only its consumer told us
        # of (then its number is not known) may stand behind others that Redis forgot to be settled.
        dispatched = message.group_seq and message.state is not MessageState.ENDING
        if message.group_id is not None and (dispatched or message.state is MessageState.RELOCATING):
            self.by_group.setdefault(message.group_id, {})[message] = None

    def forget(self, message: Original) -> None:
        """It is not expected any more: it came, or nothing of it will."""
        waiting = self.open[message.fingerprint]
        waiting.remove(message)
        if not waiting:
            del self.open[message.fingerprint]
        if message.group_id is not None:
            self.by_group.get(message.group_id, {}).pop(message, None)

    def matched(self, message: Original) -> list[Original]:
        """Its original has come; or, where bytes are equal, another one with as good a claim to be it. Only
        one that can be no other says how far the queue has come: returns the open entries that it has left
        behind. Their originals are gone, and a full look-ahead may hold nothing else that says so."""
        if self._in_order is None:
            self._in_order = self._by_arrival()
        self.forget(message)
        if self.kept[message.fingerprint] != 1:
            return []
        lane_epoch, tag = message.arrival
        self._highest_matched[lane_epoch] = max(self._highest_matched.get(lane_epoch, 0), tag)
        passed = []
        waiting = self._in_order[lane_epoch]
        while waiting and waiting[0].arrival[1] <= tag:
            earlier = waiting.popleft()
            if earlier in self.open.get(earlier.fingerprint, ()):
                passed.append(earlier)
        return passed

    def _by_arrival(self) -> dict[int, deque[Original]]:
        in_order: dict[int, deque[Original]] = {}
        for message in sorted(self.all_open(), key=lambda message: message.arrival):
            in_order.setdefault(message.arrival[0], deque()).append(message)
        return in_order

    def is_past(self, arrival: Arrival) -> bool:
        """An original behind this one has come back already, so this one will not.

        Only arrivals at the same leader say so. What a leader held and never dispatched gets a new arrival
        from the next one, and stands in the queue before originals whose older arrival was journalled.
        """
        lane_epoch, tag = arrival
        return self._highest_matched.get(lane_epoch, 0) > tag

    def first_with(self, fingerprint: bytes) -> Original | None:
        """The open entry with these bytes that arrived first."""
        waiting = self.open.get(fingerprint)
        return waiting[0] if waiting else None

    def of_group(self, group_id: bytes | None) -> list[Original]:
        """Open entries that stand before every other message of this group in the queue."""
        return list(self.by_group.get(group_id, ())) if group_id is not None else []

    def all_open(self) -> list[Original]:
        return [message for waiting in self.open.values() for message in waiting]

    def settled_early(self, message: Original) -> None:
        """An expected one is settled: its original is to be acked when it comes."""
        self.forget(message)
        self._settled.setdefault(message.fingerprint, []).append(message.arrival)

    def expect_unproven(self, entries: Mapping[Arrival, bytes]) -> None:
        """Settled originals whose acks may not have reached the broker."""
        self.kept.update(entries.values())
        for arrival, fingerprint in entries.items():
            self._settled.setdefault(fingerprint, []).append(arrival)

    def expect_proven(self, entries: Mapping[Arrival, bytes], *, broker_restarted: bool) -> None:
        """Settled originals whose acks have: they come back only from a broker that was killed. A busy queue
        has tens of thousands of them, and a take-over waits for this."""
        self.kept.update(entries.values())
        if broker_restarted:
            self._proven = {fingerprint: arrival for arrival, fingerprint in entries.items()}

    def take_settled(self, fingerprint: bytes) -> Arrival | None:
        """The settled entry with these bytes, which is then no longer expected. Only if it can be no other
        message: no other entry of either kind has them, and nothing behind it has come back."""
        if self.kept[fingerprint] != 1:
            return None
        unproven = self._settled.get(fingerprint)
        arrival = unproven[0] if unproven else self._proven.get(fingerprint)
        if arrival is None or self.is_past(arrival):
            return None
        self._settled.pop(fingerprint, None)
        self._proven.pop(fingerprint, None)
        return arrival

    def unmatched_settled(self) -> list[tuple[Arrival, bytes]]:
        """Settled originals that have not come back and whose acks may never have arrived."""
        entries = ((arrival, fp) for fp, arrivals in self._settled.items() for arrival in arrivals)
        return sorted(entries)

    # -- its window --

    def window(self, state: LaneState, inbound: Inbound) -> int | None:
        """How many originals of this queue should be here at a time; None: as many as at other times.

        It is not stopped while it is to deliver originals of open entries: their groups wait for them, and
        the messages of these groups would never become fewer. Nor does it stop at the look-ahead when that is
        full of messages that wait for them: a former leader with a larger one, or another group map, may have
        handed over messages behind it; or the acks of these originals have arrived, which only the end of the
        redeliveries says. Or one is gone about which operators have decided: this, too, only that end says.
        """
        if not (self.open or state.awaiting_decision):
            return None
        if inbound.unacked < inbound.window:
            return inbound.window
        room = free_places(state, inbound)
        if room <= 0 and (state.awaiting_decision or self.holds_up_its_own(state, inbound)):
            room = WINDOW_MAX - inbound.unacked
        return max(inbound.window, min(WIDENED_BY * inbound.window, room))

    def holds_up_its_own(self, state: LaneState, inbound: Inbound) -> bool:
        """Something here waits for an original that this queue is still to deliver: for capacity, of which
        those take all there is, for a place of its id, or behind it. Other ids of its bucket only: of its own
        id everything else is behind it.
        """
        awaited = self.all_open()
        is_stuck = not state.pool or inbound.ungrouped.is_at_limit()
        if is_stuck and any(message.state is MessageState.IN_FLIGHT for message in awaited):
            return True
        groups = (message.group for message in awaited)
        return any(
            group is not None and group.unresolved and inbound.index in (group.backlogs or ())
            for group in groups
        )
