"""Turns the decisions of one leadership into records, in the ledger's process, some time later.

The core's effects name settled messages by ranges of numbers only, so the tracker knows which consumer has
which messages. A hand-over becomes one record when it ends, with all its times. Messages and hand-overs that
have not ended when a file is closed get a record of their own in that file (`open_rows`), once.
"""

from __future__ import annotations

from typing import Any, Final

from dispatcher.core.effects import Effects
from dispatcher.core.model import MessageState, Original
from dispatcher.core.orders import AckInbound, LogEvent
from dispatcher.core.parking.orders import GroupParked, ParkCopy, Relocated
from dispatcher.core.queue_ids import UNKNOWN_INBOUND
from dispatcher.core.records import (
    DeadLetterPending,
    Discharged,
    Dispatched,
    IncarnationEnded,
    OpenEntry,
    SettledRange,
    Vanished,
)
from dispatcher.ledger.backfill import what_left
from dispatcher.ledger.hand_overs import (
    CONFIRMED_US,
    DECIDED_US,
    ENDED_US,
    IS_TOLD,
    ORDER,
    HandOver,
    Names,
    known_before,
    size_and_cost,
)
from dispatcher.ledger.leadership_header import CopiesInHand, LeadershipHeader
from dispatcher.ledger.reclaimed import ReclaimedMessages
from dispatcher.ledger.rows import Row, detail, row
from dispatcher.ledger.schema import STOLEN, Event
from dispatcher.ledger.steps import Place, Step
from dispatcher.ledger.waits import Waits

#: The event that says why an owner changes.
GROUP_STOLEN: Final = "group_stolen"
#: Log events that get no record of their own: other records say more about them.
_KNOWN_OTHERWISE: Final = frozenset({
    "consumer_joined", "consumer_taken_back", "message_dead_lettered", "messages_deduplicated",
    "message_failed", GROUP_STOLEN,
})  # fmt: skip


class Tracker:
    """Makes the records of one leadership. `rows` are those that were not fetched yet, `settled` the settled
    hand-overs without a record so far: these records are made many at once."""

    def __init__(self, header: LeadershipHeader) -> None:
        self.rows: list[Row] = []
        self.settled: list[HandOver] = []
        inbounds = [inbound["queue"] for inbound in header.options["inbounds"]]
        self.names = Names(inbounds, header.parking_queues)
        self._hands: dict[int, dict[int, HandOver]] = {}
        self._waiting: dict[Original, int] = {}  # received, and not handed over yet
        self._told: dict[Original, int] = {}  # those of them that have their record
        self._ending: dict[Place, tuple[DeadLetterPending, Original | None]] = {}
        self._moving: dict[Place, Original] = {}
        self._hands_over = bool(header.options["handover"])
        self._reclaimed = ReclaimedMessages(self.names, self._hands)
        self._over_before: set[int] = set()  # incarnations whose end was told
        self._waits = Waits(groups_first=header.groups_first)
        self._former_us = 0  # when the step before was decided
        self.rows.append(_started(header))
        self._know(header.consumers)

    def _know(self, consumers: list[CopiesInHand]) -> None:
        for number, consumer, uuid, prefetch, copies in consumers:
            self._introduce(number, consumer, uuid, prefetch)
            self._hands[number] = {copy.seq: known_before(copy) for copy in copies}

    def _introduce(self, number: int, consumer: str, uuid: str, prefetch: int) -> None:
        self.names.introduce(number, consumer, uuid)
        self._waits.prefetch[number] = prefetch

    # -- facts --

    def arrived(self, received_us: int, messages: list[Original]) -> None:
        """Originals were read from an inbound queue."""
        self._waiting.update(dict.fromkeys(messages, received_us))

    def confirmed(self, confirmed_us: int, copies: list[tuple[int, int]]) -> None:
        """The broker has these copies, each by its incarnation and seq."""
        all_hands = self._hands
        for number, seq in copies:
            if (hands := all_hands.get(number)) is not None and (hand := hands.get(seq)) is not None:
                hand[CONFIRMED_US] = hand[CONFIRMED_US] or confirmed_us

    def decided(self, former_us: int, decided_us: int, committed_us: int, effects: Effects) -> None:
        """A step is committed; the one before it was decided at `former_us`."""
        self._former_us = former_us
        self._waits.begin_step()
        if effects.incarnations:
            self._note_incarnations(decided_us, effects)
        if effects.actions:
            self._note_tells(decided_us, effects)
        step = Step(effects)
        for record in effects.records:
            kind = type(record)
            if kind is Dispatched:
                self._dispatched(record, decided_us, committed_us)  # type: ignore[arg-type]
            elif kind is SettledRange:
                self._settled(decided_us, *record)
            else:
                self._decided_rare(decided_us, record, step)
        if effects.actions:
            self._note_acks(decided_us, effects, step)
            if self._hands_over:
                rows, settled = self._reclaimed.decided(decided_us, committed_us, effects.actions)
                self.rows, self.settled = self.rows + rows, self.settled + settled
        if effects.owners:
            self._note_owners(decided_us, effects)

    def changed(self, time_us: int, options: dict[str, Any]) -> None:
        """The lane goes on with other options."""
        self.rows.append(row(time_us, Event.LANE_CHANGED, detail=detail(options)))

    def sampled(self, time_us: int, inbounds: list[tuple[str, int, int, int, int, bool]]) -> None:
        """How many messages of each inbound queue wait and are in flight, and what it has used of its share
        so far."""
        for name, waiting, in_flight, dispatched, spent, is_full in inbounds:
            self.rows.append(row(
                time_us, Event.SAMPLED, inbound=name, waiting=waiting, in_flight=in_flight,
                messages=dispatched, cost=spent, detail=detail({"full": is_full}),
            ))  # fmt: skip

    def lost(self, since_us: int, until_us: int, count: int, known: list[CopiesInHand], why: str) -> None:
        """Notes of that many messages were dropped; the consumers have these messages in hand now."""
        self.rows.append(row(
            until_us, Event.RECORDS_DROPPED, messages=count, reason=why,
            detail=detail({"since_us": since_us}),
        ))  # fmt: skip
        self._waiting.clear()
        self._told.clear()
        self._ending.clear()
        self._moving.clear()
        self._hands.clear()
        self._reclaimed.forget()
        self._know(known)

    def end(self, time_us: int, reason: str | None) -> None:
        """The leadership has ended, for this reason; None: on purpose, after all that it had read was
        done."""
        self.rows += self.open_rows()
        self.rows.append(row(time_us, Event.LANE_ENDED, reason=reason))

    # -- hand-overs --

    def _dispatched(self, order: Dispatched, decided_us: int, committed_us: int) -> None:
        message, number, _, seq, _, _, attempt, _ = order
        received_us = self._waiting.pop(message, None)
        if received_us is None:
            received_us = self._told.pop(message, None) or message.received_at_ms * 1000
        waited = received_us <= self._former_us or attempt > 1 or message.queue != message.inbound
        cause = self._waits.cause(order) if waited else None
        hands = self._hands.get(number)
        if hands is None:
            hands = self._hands[number] = {}
        hands[seq] = [order, received_us, decided_us, committed_us, None, cause, False, None]

    def _settled(self, time_us: int, number: int, first: int, last: int) -> None:
        hands = self._hands.get(number, {})
        self._waits.settles(number, len(hands))
        settled = []
        for seq in range(first, last + 1):
            hand = hands.pop(seq, None)
            if hand is not None:
                hand[ENDED_US] = time_us
                settled.append(hand)
            else:  # the note of its hand-over was dropped
                consumer, uuid = self.names.whom(number)
                self.rows.append(row(time_us, Event.SETTLED, consumer=consumer, incarnation=uuid, seq=seq))
        self.settled += settled
        if self._waits.groups_first:
            self._waits.ended_groups.update([hand[ORDER].message.group_id for hand in settled])

    def _over(
        self, time_us: int, event: str, hand: HandOver, reason: str | None = None, calls: int | None = None
    ) -> None:
        """A hand-over has ended otherwise."""
        self._waits.ended_groups.add(hand[ORDER].message.group_id)
        self.rows.append(self.names.hand_over(time_us, event, hand, reason, calls))

    def _take(self, place: Place, seq: int | None) -> HandOver | None:
        """Remove the hand-over of the message at this place, and return it; None: no consumer has the
        message."""
        for hands in self._hands.values():
            found = [seq] if seq in hands else [] if seq else list(hands)
            for one in found:
                message = hands[one][ORDER].message
                if (message.queue, message.arrival) == place:
                    return hands.pop(one)
        return None

    # -- rare events --

    def _decided_rare(self, time_us: int, record: Any, step: Step) -> None:
        match record:
            case DeadLetterPending():
                self._gives_up(time_us, record, step)
            case Discharged():
                self._gone(time_us, (record.inbound, record.arrival), step)
            case OpenEntry():
                self._reopened(time_us, record, step)
            case IncarnationEnded():
                for hand in self._hands.pop(record.incarnation, {}).values():
                    self._over(time_us, Event.TAKEN_BACK, hand)
            case Relocated():
                place = (record.inbound, record.arrival)
                step.done.add(place)
                if (message := self._moving.pop(place, None)) is not None:
                    self.rows.append(self._about(time_us, Event.PARKED, message))
            case GroupParked():
                self.rows.append(row(
                    time_us, Event.GROUP_PARKED, group=self.names.groups[record.group],
                    queue=self.names.queues.get(record.queue),
                ))  # fmt: skip
            case Vanished() if record.inbound != UNKNOWN_INBOUND:
                self._vanished(time_us, (record.inbound, record.arrival), step)

    def _gives_up(self, time_us: int, record: DeadLetterPending, step: Step) -> None:
        place = (record.inbound, record.arrival)
        message = step.messages.get(place)
        hand = self._take(place, message.seq if message is not None else None) if record.attempt else None
        if hand is not None:
            if message is not None:  # of a former leader's hand-over the journal did not tell all of it
                hand[ORDER] = hand[ORDER]._replace(message=message)
            self._over(time_us, Event.FAILED, hand, reason=record.reason, calls=record.calls)
        self._ending[place] = (record, message or (hand[ORDER].message if hand is not None else None))

    def _gone(self, time_us: int, place: Place, step: Step) -> None:
        step.done.add(place)
        known = self._ending.pop(place, None)
        if known is None:  # by a former leader, whose ledger has the rest
            known = DeadLetterPending(*place, b"", None, 0, ""), None
        record, message = known
        event, reason = what_left(record.reason)
        if message is not None:
            self.rows.append(self._about(time_us, event, message, reason=reason, calls=record.calls or None))
            return
        self.rows.append(row(
            time_us, event, **self.names.origin(record.inbound, record.arrival)._asdict(),
            queue=self.names.queues.get(record.inbound), group=self.names.groups[record.group],
            attempt=record.attempt or None, calls=record.calls or None,
            dispatch_id=record.fingerprint or None, reason=reason or None,
        ))  # fmt: skip

    def _reopened(self, time_us: int, record: OpenEntry, step: Step) -> None:
        """An entry that is not a dispatch: no consumer has the message any more, or it has other numbers, or
        only its consumer knew of it."""
        place = (record.inbound, record.arrival)
        self._ending.pop(place, None)
        if not record.incarnation:
            hand = self._take(place, record.seq)
            if hand is not None:
                reason, calls = step.failure(self.names.groups[record.group])
                self._over(time_us, Event.FAILED, hand, reason, calls)
            return
        hands = self._hands.setdefault(record.incarnation, {})
        if (known := hands.get(record.seq)) is not None:  # the same copy, with other numbers
            known[ORDER] = known[ORDER]._replace(group_seq=record.group_seq, epoch=record.epoch)
            return
        message = Original(record.inbound, 0, record.arrival, record.fingerprint, record.group, None, 0, 0)
        order = Dispatched(
            message, record.incarnation, "", record.seq, record.group_seq, record.epoch, record.attempt
        )
        hands[record.seq] = known_before(order)

    def _vanished(self, time_us: int, place: Place, step: Step) -> None:
        step.done.add(place)
        if place in step.acked:  # an operator has purged a message that was taken back
            self.rows.append(self._about(time_us, Event.PURGED, step.acked[place]))
            return
        hand = self._take(place, None)
        if hand is not None:
            self._over(time_us, Event.VANISHED, hand)
            return
        self.rows.append(
            row(time_us, Event.VANISHED, **self.names.origin(*place)._asdict(),
                queue=self.names.queues.get(place[0]))
        )  # fmt: skip

    def _note_acks(self, time_us: int, effects: Effects, step: Step) -> None:
        """Messages that end without having been handed over, and that have no record of that so far."""
        for action in effects.actions:
            if type(action) is ParkCopy:
                message = action.message
                self._moving[message.queue, message.arrival] = message
            elif type(action) is AckInbound:
                for message in action.messages:
                    if not message.attempt and (message.queue, message.arrival) not in step.done:
                        self._forget(message)
                        event = step.why(message)
                        self.rows.append(self._about(time_us, event, message))

    def _forget(self, message: Original) -> None:
        self._waiting.pop(message, None)
        self._told.pop(message, None)

    def _about(self, time_us: int, event: str, message: Original, **values: Any) -> Row:
        """A record of a message that no consumer has."""
        size, cost = size_and_cost(message.size, message.cost)
        return row(
            time_us, event, **self.names.origin_of(message)._asdict(),
            queue=self.names.queues.get(message.queue), group=self.names.groups[message.group_id],
            attempt=message.attempt or None, dispatch_id=message.fingerprint, size=size,
            cost=cost, received_at=message.received_at_ms * 1000 or None,
            type=self.names.groups[message.kind], **values,
        )  # fmt: skip

    # -- consumers and owners --

    def _note_incarnations(self, time_us: int, effects: Effects) -> None:
        for number, found in effects.incarnations.items():
            if found is None:
                continue
            is_new = number not in self.names.incarnations
            self._introduce(number, found.consumer, found.uuid, found.prefetch)
            is_over = found.state in ("taking", "taken") and number not in self._over_before
            if is_new or is_over:
                self._over_before.update([number] if is_over else [])
                self._waits.somebody_came |= is_new
                self.rows.append(row(
                    time_us, Event.CONSUMER_JOINED if is_new else Event.CONSUMER_TAKEN_BACK,
                    consumer=found.consumer, incarnation=found.uuid,
                    detail=detail({"prefetch": found.prefetch}),
                ))  # fmt: skip

    def _note_owners(self, time_us: int, effects: Effects) -> None:
        stolen = {
            action.fields["group"]: detail({name: action.fields[name] for name in ("former", "waited_ms")})
            for action in effects.actions
            if type(action) is LogEvent and action.event == GROUP_STOLEN
        }
        for group, owner in effects.owners.items():
            consumer, uuid = self.names.whom(owner.incarnation) if owner else (None, None)
            epoch = owner.epoch or None if owner is not None else None
            name = self.names.groups[group]
            self.rows.append(row(
                time_us, Event.OWNER_CHANGED, group=name, epoch=epoch, consumer=consumer, incarnation=uuid,
                reason=STOLEN if name in stolen else None, detail=stolen.get(name),
            ))  # fmt: skip

    def _note_tells(self, time_us: int, effects: Effects) -> None:
        for action in effects.actions:
            if type(action) is not LogEvent:
                continue
            self._waits.told(action)
            if action.event in _KNOWN_OTHERWISE:
                continue
            fields = dict(action.fields)
            consumer, group = fields.pop("consumer", None), fields.pop("group", None)
            uuid = fields.pop("incarnation", None) or self.names.uuid_of(consumer)
            self.rows.append(row(
                time_us, action.event, consumer=consumer, incarnation=uuid, group=group,
                reason=fields.pop("reason", None), detail=detail(fields),
            ))  # fmt: skip

    def closed(self, time_us: int, message: Original) -> None:
        """The message that closed its group is settled."""
        self.rows.append(self._about(time_us, Event.CLOSED, message))

    # -- messages that have not ended --

    def open_rows(self) -> list[Row]:
        """Records of received messages and hand-overs that have not ended, each once."""
        rows, received = [], Event.RECEIVED
        for message, received_us in self._waiting.items():
            if message.state is MessageState.WAITING:
                rows.append(self._about(received_us, received, message))
                self._told[message] = received_us
        self._waiting.clear()
        for message in [m for m in self._told if m.state is not MessageState.WAITING]:
            del self._told[message]
        for hands in self._hands.values():
            for hand in hands.values():
                if not hand[IS_TOLD]:
                    hand[IS_TOLD] = True
                    rows.append(self.names.hand_over(hand[DECIDED_US], Event.DISPATCHED, hand))
        return rows


def _started(header: LeadershipHeader) -> Row:
    """A leadership's first record."""
    facts: dict[str, Any] = {
        "lane": header.lane, "host": header.host, "former_epoch": header.former_epoch,
        "paused": header.is_paused, **header.options,
        "consumers": [
            {"consumer": each.consumer, "incarnation": each.uuid, "prefetch": each.prefetch,
             "in_flight": len(each.copies)}
            for each in header.consumers
        ],
    }  # fmt: skip
    return row(header.time_us, Event.LANE_STARTED, detail=detail(facts))
