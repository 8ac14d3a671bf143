"""Hand-overs to all consumers, and their records: the part of the ledger that every message pays for.

So a hand-over is a plain list, many are changed at once where the same happens to them, and records of
settled hand-overs are made column by column.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from dispatcher.core.model import Original
from dispatcher.core.queue_ids import QueueId, inbound_id, is_known_inbound, is_parking, parking_id
from dispatcher.core.records import Dispatched
from dispatcher.ledger.rows import TYPES, Row
from dispatcher.ledger.schema import RECORD_COLUMNS, ColumnKind, Event
from dispatcher.wire.group_text import format_group

#: A hand-over by the places of its list: the order, its times in µs, what its message waited for last,
#: whether it has got a record as one that has not ended, and when it ended. Null times are a former leader's.
HandOver = list[Any]
ORDER, RECEIVED_US, DECIDED_US, COMMITTED_US, CONFIRMED_US, WAIT_CAUSE, IS_TOLD, ENDED_US = range(8)

_NAMES_REMEMBERED: Final = 50_000
_OF_MESSAGE: Final = attrgetter(
    "inbound",
    "queue",
    "arrival",
    "origin_arrival",
    "group_id",
    "fingerprint",
    "size",
    "cost",
    "closing",
    "kind",
)


def known_before(order: Dispatched) -> HandOver:
    """One of which only the journal says that it is not over."""
    return [order, None, None, None, None, None, True, None]


def size_and_cost(size: int, cost: int, *, is_decided_here: bool = False) -> tuple[int | None, int | None]:
    """As records have them, of a message: a size of 0 says that only the journal knows the message, and is
    recorded as null. Its cost is null then too, unless this leader handed it over, and so knows the cost."""
    return size or None, cost if size or is_decided_here else None


class Origin(NamedTuple):
    """An inbound queue, and an arrival there: as records have them, in their columns' order."""

    inbound: str | None = None
    arrival_epoch: int | None = None
    arrival: int | None = None


NOWHERE: Final = Origin()


class GroupNames(dict[bytes | None, str | None]):
    """Groups and types as text, each made once while it is in use."""

    def __missing__(self, group: bytes | None) -> str | None:
        if len(self) > _NAMES_REMEMBERED:
            self.clear()
        name = self[group] = None if group is None else format_group(group)
        return name


class Names:
    """What the numbers in the core's objects are called."""

    def __init__(self, inbounds: list[str], parking_queues: tuple[str, ...]) -> None:
        self.inbounds = {inbound_id(place): name for place, name in enumerate(inbounds)}
        self.queues = {parking_id(place): name for place, name in enumerate(parking_queues)}
        self.groups = GroupNames()
        self.incarnations: dict[int, tuple[str | None, str | None]] = {}  # consumer and uuid by number
        self._uuids: dict[str, str] = {}  # of the latest incarnation of a consumer

    def number_of(self, inbound: str) -> QueueId:
        """Of an inbound queue, also of one that the lane names no more."""
        for number, name in self.inbounds.items():
            if name == inbound:
                return number
        number = inbound_id(-1 - len(self.inbounds))
        self.inbounds[number] = inbound
        return number

    def introduce(self, number: int, consumer: str, uuid: str) -> None:
        """An incarnation, by its number."""
        self.incarnations[number] = consumer, uuid
        self._uuids[consumer] = uuid

    def whom(self, number: int) -> tuple[str | None, str | None]:
        """Consumer and uuid of an incarnation."""
        return self.incarnations.get(number, (None, None))

    def uuid_of(self, consumer: str | None) -> str | None:
        return self._uuids.get(consumer) if consumer is not None else None

    def origin(self, queue: QueueId, arrival: tuple[int, int]) -> Origin:
        """The name of an inbound queue, and the epoch and number of an arrival there. Nulls for any other
        queue: the journal does not tell where a parked message came from, and its number in its parking queue
        says nothing about its place among the messages of its group."""
        name = self.inbounds.get(queue)
        return Origin(name, *arrival) if name is not None else NOWHERE

    def origin_of(self, message: Original) -> Origin:
        """The same, of this message."""
        if message.is_parked and message.origin_arrival is None:
            return NOWHERE  # no dispatcher has put it there
        return self.origin(message.inbound, message.first_arrival)

    def hand_over(
        self, time_us: int, event: str, hand: HandOver, reason: str | None = None, calls: int | None = None
    ) -> Row:
        """The record of a hand-over, in the order of RECORD_COLUMNS."""
        order, received_us, decided_us, committed_us, confirmed_us, cause, _, _ = hand
        message, number, _, seq, group_seq, epoch, attempt, _ = order
        size, cost = size_and_cost(message.size, message.cost, is_decided_here=decided_us is not None)
        return (
            time_us, event, *self.origin_of(message),
            self.queues.get(message.queue), self.groups[message.group_id], group_seq, epoch,
            *self.whom(number), seq, attempt, calls, message.fingerprint, size, cost,
            received_us, decided_us, committed_us, confirmed_us, cause, reason, None, None, None, None,
            self.groups[message.kind],
        )  # fmt: skip

    def settled(self, hands: list[HandOver]) -> tuple[list[pa.Array], list[Original]]:
        """The columns of the records of settled hand-overs, and of these the messages that close groups."""
        orders, received, decided, committed, confirmed, causes, _, ended = zip(*hands, strict=True)
        messages, numbers, _, seqs, group_seqs, epochs, attempts, _ = zip(*orders, strict=True)
        facts = zip(*map(_OF_MESSAGE, messages), strict=True)
        inbounds, queues, arrivals, roots, group_ids, fingerprints, sizes, costs, closing, kinds = facts
        if any(roots):
            arrivals = tuple(root or arrival for root, arrival in zip(roots, arrivals, strict=True))
        if not is_known_inbound(max(inbounds)):
            places = zip(inbounds, arrivals, strict=True)
            arrivals = tuple(self.origin(queue, arrival)[1:] for queue, arrival in places)
        arrival_epochs, arrival_numbers = zip(*arrivals, strict=True)
        if 0 in sizes:
            decisions = zip(sizes, costs, decided, strict=True)
            told = [size_and_cost(size, cost, is_decided_here=at is not None) for size, cost, at in decisions]
            sizes, costs = zip(*told, strict=True)
        known: dict[str, Any] = {
            "time": ended, "inbound": _looked_up(inbounds, self.inbounds),
            "arrival_epoch": arrival_epochs, "arrival": arrival_numbers,
            "group": [self.groups[group_id] for group_id in group_ids], "group_seq": group_seqs,
            "epoch": epochs, "seq": seqs, "attempt": attempts, "dispatch_id": fingerprints, "size": sizes,
            "cost": costs, "received_at": received, "dispatched_at": decided, "committed_at": committed,
            "confirmed_at": confirmed, "event": pa.repeat(Event.SETTLED.value, len(hands)),
            "consumer": _looked_up(numbers, {n: whom[0] for n, whom in self.incarnations.items()}),
            "incarnation": _looked_up(numbers, {n: whom[1] for n, whom in self.incarnations.items()}),
        }  # fmt: skip
        if any(kinds):
            known["type"] = [self.groups[kind] for kind in kinds]
        if any(causes):
            known["wait_cause"] = causes
        if is_parking(max(queues)):
            known["queue"] = _looked_up(queues, self.queues)
        closed = [m for m, closes in zip(messages, closing, strict=True) if closes] if any(closing) else []
        return [_column(known.get(name), kind, len(hands)) for name, kind in RECORD_COLUMNS], closed


def _column(values: Any, kind: ColumnKind, count: int) -> pa.Array:
    if values is None:
        return pa.nulls(count, TYPES[kind])
    return values if isinstance(values, pa.Array) else pa.array(values, TYPES[kind])


_Number = TypeVar("_Number", bound=int)


def _looked_up(numbers: tuple[_Number, ...], names: dict[_Number, Any]) -> pa.Array:
    """A column of names by numbers, of which there are few; null where there is none."""
    places = {number: place for place, number in enumerate(dict.fromkeys(numbers))}
    values = pa.array([names.get(number) for number in places], pa.string())
    return values.take(pa.array(map(places.__getitem__, numbers), pa.int32()))
