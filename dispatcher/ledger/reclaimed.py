"""Records of messages that are reclaimed from the queues of hand-over consumers, and forwarded again.

Each message names its origin, so its records join those of its first hand-over. What readers reject, and what
expires or can't be published meanwhile, comes to the dead queue over the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dispatcher.core.forwarding.orders import (
    AckReclaimed,
    DeadLetterReclaimed,
    ForwardReclaimed,
    ReclaimedCopy,
)
from dispatcher.core.model import Original
from dispatcher.core.orders import Action
from dispatcher.core.records import Dispatched
from dispatcher.ledger.hand_overs import CONFIRMED_US, ENDED_US, HandOver, Names
from dispatcher.ledger.rows import Row, row
from dispatcher.ledger.schema import Event, WaitCause
from dispatcher.wire.origin import read_origin

#: Where a message was read, and its number there.
ReadAt = tuple[str, int]


class StepRecords(NamedTuple):
    """Of one step."""

    rows: list[Row]
    settled: list[HandOver]


class ReclaimedMessages:
    """The reclaimed messages of one leadership. `hands`: which consumer has which message, by incarnation and
    seq."""

    def __init__(self, names: Names, hands: dict[int, dict[int, HandOver]]) -> None:
        self._names = names
        self._hands = hands
        self._on_its_way: dict[ReadAt, tuple[int, int]] = {}  # incarnation and seq of what goes on
        self._buried: dict[ReadAt, tuple[ReclaimedCopy, str]] = {}

    def forget(self) -> None:
        """Records were dropped: messages that were on their way are not known any more."""
        self._on_its_way.clear()
        self._buried.clear()

    def decided(self, decided_us: int, committed_us: int, actions: Iterable[Action]) -> StepRecords:
        """The records of these actions of one step, which was decided and committed at those times, and the
        hand-overs that they settle."""
        found = StepRecords([], [])
        for action in actions:
            if isinstance(action, ForwardReclaimed):
                self._goes_on(action, decided_us, committed_us, found)
            elif isinstance(action, DeadLetterReclaimed):
                self._is_buried(action, decided_us, found)
            elif isinstance(action, AckReclaimed):
                self._arrived(action.handed, decided_us, found)
        return found

    def _goes_on(
        self, order: ForwardReclaimed, decided_us: int, committed_us: int, found: StepRecords
    ) -> None:
        handed, number, seq = order.handed, order.incarnation, order.seq
        found.rows.extend(self._read_back(handed, decided_us))
        message = self._message(handed, decided_us)
        copy = Dispatched(message, number, "", seq, order.group_seq, order.epoch, order.attempt)
        hand: HandOver = [copy, decided_us, decided_us, committed_us, None, WaitCause.RETRY, False, None]
        self._hands.setdefault(number, {})[seq] = hand
        self._on_its_way[handed.queue, handed.tag] = number, seq

    def _is_buried(self, order: DeadLetterReclaimed, time_us: int, found: StepRecords) -> None:
        handed = order.handed
        place = handed.queue, handed.tag
        if (hand := self._taken_out(place)) is not None:  # no reader can get it any more
            found.rows.append(self._names.hand_over(time_us, Event.FAILED, hand, order.reason))
        else:
            found.rows.extend(self._read_back(handed, time_us))
        self._buried[place] = handed, order.reason

    def _arrived(self, handed: ReclaimedCopy, time_us: int, found: StepRecords) -> None:
        """Its next queue has it, or it was read twice: nothing is known of that."""
        place = handed.queue, handed.tag
        if (hand := self._taken_out(place)) is not None:
            hand[CONFIRMED_US] = hand[ENDED_US] = time_us
            found.settled.append(hand)
        elif (buried := self._buried.pop(place, None)) is not None:
            found.rows.append(self._dead_lettered(*buried, time_us))

    def _taken_out(self, place: ReadAt) -> HandOver | None:
        number, seq = self._on_its_way.pop(place, (0, 0))
        return self._hands.get(number, {}).pop(seq, None)

    # -- records --

    def _read_back(self, handed: ReclaimedCopy, time_us: int) -> list[Row]:
        if not handed.incarnation or not handed.origin:
            return []
        message = self._message(handed, time_us)
        consumer, uuid = self._names.whom(handed.incarnation)
        return [row(
            time_us, Event.READ_BACK, **self._about(message), consumer=consumer, incarnation=uuid,
            seq=handed.seq, attempt=handed.attempt,
        )]  # fmt: skip

    def _dead_lettered(self, handed: ReclaimedCopy, reason: str, time_us: int) -> Row:
        if not handed.origin:  # no dispatcher has put it there
            return row(time_us, Event.DEAD_LETTERED, size=handed.size, reason=reason)
        message = self._message(handed, time_us)
        return row(
            time_us, Event.DEAD_LETTERED, **self._about(message), attempt=handed.attempt, size=handed.size,
            reason=reason,
        )  # fmt: skip

    def _about(self, message: Original) -> dict[str, object]:
        return {
            **self._names.origin(message.inbound, message.arrival)._asdict(),
            "group": self._names.groups[message.group_id], "dispatch_id": message.fingerprint,
        }  # fmt: skip

    def _message(self, handed: ReclaimedCopy, read_us: int) -> Original:
        """It takes nothing of its queue's share a second time."""
        inbound, arrival = read_origin(handed.origin)
        number = self._names.number_of(inbound)
        read_ms, group = read_us // 1_000, handed.group
        return Original(
            number, 0, arrival, handed.fingerprint, group, None, handed.size, read_ms, cost=0
        )  # fmt: skip
