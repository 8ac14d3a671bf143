"""The wire between the dispatcher and the process that writes its ledger: the core's objects as plain values,
and back.

The encoding is the event loop's, while the objects are fresh; what it makes can be marshalled. A message's
facts go with its arrival. Later it is named by its place, and its facts go again only where the other side
may not know it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from operator import attrgetter, itemgetter
from typing import Any, Final

from dispatcher.core.effects import Effects
from dispatcher.core.forwarding.orders import (
    AckReclaimed,
    DeadLetterReclaimed,
    ForwardReclaimed,
    ReclaimedCopy,
)
from dispatcher.core.model import MessageState, Original
from dispatcher.core.operations.orders import SendTransfer
from dispatcher.core.orders import AckInbound, Action, DeadLetter, LogEvent
from dispatcher.core.parking.orders import GroupParked, ParkCopy, Relocated
from dispatcher.core.queue_ids import FIRST_INBOUND, QueueId
from dispatcher.core.records import (
    DeadLetterPending,
    Discharged,
    Dispatched,
    IncarnationEnded,
    JournalReset,
    OpenEntry,
    Record,
    SettledRange,
    Vanished,
)
from dispatcher.core.tables import IncarnationRow, OwnerRow
from dispatcher.ledger.leadership_header import CopiesInHand

Place = tuple[QueueId, tuple[int, int]]
_ARRIVAL: Final = attrgetter(
    "tag", "group_id", "fingerprint", "size", "cost", "closing", "kind",
)  # fmt: skip
_FACTS: Final = attrgetter(
    "inbound", "tag", "arrival", "fingerprint", "group_id", "size", "received_at_ms", "redelivered",
    "closing", "cost", "queue", "origin_arrival", "message_id", "attempt", "seq", "kind",
)  # fmt: skip
_RARE_RECORDS: Final = (
    DeadLetterPending,
    Discharged,
    OpenEntry,
    IncarnationEnded,
    Relocated,
    GroupParked,
    Vanished,
)
_KINDS: Final = {kind.__name__: kind for kind in _RARE_RECORDS}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
#: What of a journal says anything of hand-overs.
_JOURNAL: Final[dict[type, str]] = {
    kind: kind.__name__
    for kind in (
        JournalReset,
        OpenEntry,
        SettledRange,
        DeadLetterPending,
        Discharged,
        Vanished,
        IncarnationEnded,
    )
}
_OF_JOURNAL: Final = {name: kind for kind, name in _JOURNAL.items()}
#: In the place of a record's name, for those that come by the thousand.
_DISPATCHED, _SETTLED, _DISPATCHED_RARELY, _DISPATCHED_MANY = range(4)
#: How many are encoded together: their parts in turn, by functions written in C.
_MANY: Final = 8
_NUMBERS: Final = itemgetter(1, 3, 4, 5)  # incarnation, seq, group-seq, epoch
_KEPT_FROM: Final = attrgetter("inbound", "tag", "cost")
_CONFIRMED: Final = itemgetter(1, 3)
_HANDED: Final = attrgetter(
    "queue", "tag", "seq", "group", "attempt", "fingerprint", "size", "origin", "incarnation",
)  # fmt: skip
_STATES: Final = {
    "DeadLetter": MessageState.ENDING, "SendTransfer": MessageState.TRANSFERRING,
    "ParkCopy": MessageState.RELOCATING,
}  # fmt: skip


def encode_arrivals(messages: list[Original]) -> tuple[QueueId, list[Any]]:
    """Originals that are new, all of one inbound queue."""
    return messages[0].inbound, list(map(_ARRIVAL, messages))


def encode_copy(copy: Dispatched) -> tuple[Any, ...]:
    """A hand-over that the other side need not know anything of."""
    return (*copy[1:], _FACTS(copy.message))


def encode_in_hand(consumers: list[CopiesInHand]) -> list[Any]:
    return [(*each[:4], [encode_copy(copy) for copy in each.copies]) for each in consumers]


def encode_effects(effects: Effects) -> tuple[Any, ...]:
    """What the ledger needs of a step."""
    records: list[Any] = []
    copies: list[Any] = []
    vanishes = False
    for record in () if effects.checkpoint else effects.records:
        kind = type(record)
        if kind is Dispatched:
            copies.append(record)
        elif kind is SettledRange:
            records.append((_SETTLED, *record))
        elif kind in _NAMES:
            vanishes |= kind is Vanished
            records.append((_NAMES[kind], *record))
    if copies:  # decided behind everything else
        records += _encode_dispatches(copies)
    actions = [
        encoded for action in (effects.actions if len(effects.actions) > len(copies) else ())
        if type(action) is not Dispatched and (encoded := _encode_action(action, every_ack=vanishes))
    ]  # fmt: skip
    owners = {group: owner and tuple(owner) for group, owner in effects.owners.items()}
    rows = {  # the ledger does not ask for `bundle`, and marshal takes no tuple with names within another
        number: each and tuple(each._replace(bundle=None)) for number, each in effects.incarnations.items()
    }
    return effects.checkpoint, records, actions, owners, rows, effects.repeated


def _encode_dispatches(copies: list[Any]) -> list[Any]:
    messages = [copy[0] for copy in copies]
    known = [
        copy for copy, message in zip(copies, messages, strict=True)
        if copy[6] > 1 or message.redelivered or message.queue != message.inbound
    ]  # fmt: skip
    if len(copies) < _MANY or known:
        return [_encode_dispatch(copy) for copy in copies]
    return [(_DISPATCHED_MANY, list(map(_NUMBERS, copies)), list(map(_KEPT_FROM, messages)))]


def encode_journal(records: Iterable[Record]) -> list[tuple[Any, ...]]:
    """What a commit of the leadership before says of hand-overs."""
    return [(_JOURNAL[type(record)], *record) for record in records if type(record) in _JOURNAL]


def decode_journal(encoded: list[tuple[Any, ...]]) -> list[Any]:
    return [_OF_JOURNAL[record[0]](*record[1:]) for record in encoded]


def encode_confirmed(orders: list[Any]) -> list[tuple[int, int]]:
    """The copies among what the broker has confirmed."""
    if set(map(type, orders)) == {Dispatched}:
        return list(map(_CONFIRMED, orders))
    return [_CONFIRMED(order) for order in orders if type(order) is Dispatched]


def _encode_dispatch(order: Any) -> tuple[Any, ...]:
    """Hardly any message was ever out before, parked or delivered again: its tag is its arrival number."""
    message, number, _, seq, group_seq, epoch, attempt, _ = order
    inbound = message.inbound
    if attempt > 1 or message.redelivered or message.queue != inbound:
        return _DISPATCHED_RARELY, number, seq, group_seq, epoch, attempt, _FACTS(message)
    return _DISPATCHED, number, seq, group_seq, epoch, inbound, message.tag, message.cost


def _encode_action(action: Action, *, every_ack: bool) -> tuple[Any, ...] | None:
    match action:
        case AckInbound(messages):
            rare = [m for m in messages if type(m) is Original and (every_ack or not m.attempt)]
            return ("AckInbound", [_FACTS(message) for message in rare]) if rare else None
        case LogEvent(event, fields):
            return "Tell", event, json.dumps(fields, default=str)
        case DeadLetter() | SendTransfer() | ParkCopy():
            return type(action).__name__, _FACTS(action.message)
        case ForwardReclaimed(handed):
            return "HandOn", _HANDED(handed), *action[1:]
        case DeadLetterReclaimed(handed, reason):
            return "Bury", _HANDED(handed), reason
        case AckReclaimed(handed):
            return "AckHanded", _HANDED(handed)
        case _:
            return None


class NoteDecoder:
    """Makes the core's objects again, as far as the ledger needs them: one object for each message."""

    def __init__(self, lane_epoch: int) -> None:
        self._lane_epoch = lane_epoch
        self._messages: dict[Place, Original] = {}  # arrived, and not named since

    def forget(self) -> None:
        """Messages that are named from now on come with their facts, or are not known."""
        self._messages.clear()

    def arrivals(self, received_us: int, encoded: tuple[QueueId, list[Any]]) -> list[Original]:
        inbound, rows = encoded
        received_at_ms, known, made = received_us // 1_000, self._messages, []
        epoch = self._lane_epoch
        for tag, group_id, fingerprint, size, cost, closing, kind in rows:
            arrival = epoch, tag
            message = known[inbound, arrival] = Original(
                inbound, tag, arrival, fingerprint, group_id, None, size, received_at_ms, False, closing,
                None, None, cost,
            )  # fmt: skip
            message.kind = kind
            made.append(message)
        return made

    def copy(self, encoded: tuple[Any, ...]) -> Dispatched:
        return Dispatched(self._message(encoded[-1]), *encoded[:-1])

    def in_hand(self, encoded: list[Any]) -> list[CopiesInHand]:
        return [
            CopiesInHand(number, consumer, uuid, prefetch, [self.copy(copy) for copy in copies])
            for number, consumer, uuid, prefetch, copies in encoded
        ]

    def _message(self, facts: tuple[Any, ...]) -> Original:
        """The message that these are the facts of."""
        inbound, tag, arrival, fingerprint, group_id, size, received_at_ms, redelivered, closing = facts[:9]
        queue = facts[10]
        message = self._messages.pop((queue, arrival), None) or Original(
            inbound, tag, arrival, fingerprint, group_id, None, size, received_at_ms, redelivered, closing
        )
        message.cost, message.queue, message.origin_arrival, message.message_id = facts[9:13]
        message.attempt, message.seq, message.kind = facts[13:]
        return message

    def effects(self, encoded: tuple[Any, ...]) -> Effects:
        checkpoint, records, actions, owners, rows, repeated = encoded
        effects = Effects(checkpoint=checkpoint, repeated=repeated)
        if records and records[-1][0] == _DISPATCHED_MANY:
            *records, (_, numbers, kept) = records
            records += [(_DISPATCHED, *each, *of) for each, of in zip(numbers, kept, strict=True)]
        effects.records = [self._record(record) for record in records]
        effects.actions = [self._action(*action) for action in actions]
        effects.owners = {group: owner and OwnerRow(*owner) for group, owner in owners.items()}
        effects.incarnations = {number: each and IncarnationRow(*each) for number, each in rows.items()}
        return effects

    def _record(self, encoded: tuple[Any, ...]) -> Any:
        kind = encoded[0]
        if kind == _SETTLED:
            return SettledRange(*encoded[1:])
        if kind == _DISPATCHED:
            _, number, seq, group_seq, epoch, inbound, tag, cost = encoded
            arrival, attempt = (self._lane_epoch, tag), 1
            found = self._messages.pop((inbound, arrival), None)
            message = found or Original(inbound, tag, arrival, b"", None, None, 0, 0)
            message.cost = cost
        elif kind == _DISPATCHED_RARELY:
            _, number, seq, group_seq, epoch, attempt, facts = encoded
            message = self._message(facts)
        else:
            return _KINDS[kind](*encoded[1:])
        message.state = MessageState.IN_FLIGHT
        return Dispatched(message, number, "", seq, group_seq, epoch, attempt)

    def _action(self, name: str, *fields: Any) -> Action:
        match name:
            case "AckInbound":
                return AckInbound([self._message(facts) for facts in fields[0]])
            case "Tell":
                return LogEvent(fields[0], json.loads(fields[1]))
            case "HandOn":
                return ForwardReclaimed(_handed(fields[0]), *fields[1:])
            case "Bury":
                return DeadLetterReclaimed(_handed(fields[0]), fields[1])
            case "AckHanded":
                return AckReclaimed(_handed(fields[0]))
        message = self._message(fields[0])
        message.state = _STATES[name]
        if name == "DeadLetter":
            return DeadLetter(message, "")
        return SendTransfer("", message) if name == "SendTransfer" else ParkCopy(message, FIRST_INBOUND, 0)


def _handed(facts: tuple[Any, ...]) -> ReclaimedCopy:
    queue, tag, seq, group, attempt, fingerprint, size, origin, incarnation = facts
    handed = ReclaimedCopy(queue, tag, seq, group, attempt, fingerprint, None, size, origin=origin)
    handed.incarnation = incarnation
    return handed
