"""Recovery: meets the originals that the broker delivers again with what the journal says of them.

After a fail-over or a lost connection every unsettled original comes back with the broker's `redelivered`
flag, in its queue's order. A flagged delivery is matched by its inbound queue and fingerprint: first to open
entries, the first to arrive; then to a settled one, if it can be no other message. Everything else is new.
When in doubt a message is handed over again (docs/architecture.md, "Recovery").

Entries of a group are a prefix of what its queue holds for it, but for what repeats others. So the first of a
group that matches nothing, or the end of the redeliveries, says that open entries still unmatched have no
original any more: deleted, or expired. So does an original that arrived after it at the same leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from dispatcher.core.entries import ended_entry, open_entry
from dispatcher.core.events import AcksProven, RedeliveriesEnded
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.inbound import Inbound
from dispatcher.core.model import Consumer, Group, MessageState, Original
from dispatcher.core.optional.sequence_hold import may_be_passed, resume_sequence_hold
from dispatcher.core.ordered import OrderedSet
from dispatcher.core.orders import DeadLetter
from dispatcher.core.parking.orders import Relocating
from dispatcher.core.parking.queue import ParkingQueue
from dispatcher.core.parking.relocation import forget_relocation, resume_relocation
from dispatcher.core.queue_ids import UNKNOWN_INBOUND, is_known_inbound, is_parking
from dispatcher.core.records import (
    DeadLetterPending,
    JournalEntry,
    ProvenAcks,
    Record,
    SettledEntries,
    Vanished,
)
from dispatcher.core.recovery.expected import REDELIVERIES_MAX, ExpectedRedeliveries
from dispatcher.core.recovery.groups import GroupRecovery
from dispatcher.core.recovery.journal_replay import Arrival, JournalReplay
from dispatcher.core.recovery.lost_originals import LostOriginals
from dispatcher.core.recovery.pending_redeliveries import PendingRedeliveries
from dispatcher.core.state import LaneState


class Recovery(Feature):
    """Matches redeliveries with open entries and settled originals."""

    def __init__(self, state: LaneState, groups: GroupRecovery, *, broker_restarted: bool) -> None:
        self._state = state
        self._groups = groups
        self._broker_restarted = broker_restarted
        self.awaited: OrderedSet[Original] = OrderedSet()  # open entries whose original has not come back
        #: Messages that only their consumer told us of, settled ones too; matched in whatever queue.
        self._adopted: dict[bytes, deque[Original]] = {}
        self.lost_originals = LostOriginals(state)
        self._parked_groups: set[bytes | None] = set()  # the journal knows parked messages of theirs
        self.pending_redeliveries = PendingRedeliveries(state.group_map.key)

    def events(self) -> Mapping[type, Handler]:
        inbounds = self._state.inbounds
        return {
            AcksProven: lambda event: self.proven(inbounds[event.inbound], event.count),
            RedeliveriesEnded: lambda event: self.ended(inbounds[event.inbound]),
        }

    # -- loading --

    def load_entries(self, replay: JournalReplay) -> None:
        """Take over what the journal says. Consumers must have been loaded before."""
        state = self._state
        state.epoch_counter = max(state.epoch_counter, replay.highest_epoch)
        for number, consumer in state.by_number.items():
            consumer.next_seq = max(consumer.next_seq, replay.highest_seq.get(number, 0) + 1)
        for inbound in state.inbounds:
            inbound.recovery = ExpectedRedeliveries()
            unproven = replay.unproven.get(inbound.index, {})
            inbound.recovery.expect_unproven(unproven)
            inbound.proven.extend(replay.proven.get(inbound.index, ()))
            proven = {a: fp for a, fp in inbound.proven if a not in unproven}  # else acked once more
            inbound.recovery.expect_proven(proven, broker_restarted=self._broker_restarted)
        for arrival, fingerprint in replay.unproven.get(UNKNOWN_INBOUND, {}).items():
            message = self._entry(UNKNOWN_INBOUND, arrival, fingerprint, None)
            message.become(MessageState.SETTLED)
            self._adopted.setdefault(fingerprint, deque()).append(message)
        entries = replay.finish()
        self._parked_groups = {e.group for e in entries if is_parking(e.inbound)}
        for entry in entries:
            self._load_entry(entry)
        resume_sequence_hold(state, self.awaited, self.pending_redeliveries)

    def _load_entry(self, entry: JournalEntry) -> None:
        message = self._entry(entry.inbound, entry.arrival, entry.fingerprint, entry.group)
        message.attempt = entry.attempt
        if isinstance(entry, DeadLetterPending):
            message.become(MessageState.ENDING)
            message.calls = entry.calls
            self._state.ending[message] = entry.reason
        elif isinstance(entry, Relocating):
            resume_relocation(self._state, message, entry, is_known=self._groups.redis_complete)
        else:
            holder = self._state.by_number.get(entry.incarnation)
            message.seq, message.epoch, message.group_seq = entry.seq, entry.epoch, entry.group_seq
            message.first = entry.first
            if holder is not None:
                self.put_in_flight(message, holder)
            elif is_known_inbound(entry.inbound):
                self.pending_redeliveries.add(message)
            if holder is not None or entry.group in self._parked_groups:
                self._groups.wait_for(message)
        self.awaited.add(message)
        if entry.inbound == UNKNOWN_INBOUND:
            self._adopted.setdefault(entry.fingerprint, deque()).append(message)
        else:
            self._expecting(message).expect(message)

    def _expecting(self, message: Original) -> ExpectedRedeliveries | ParkingQueue:
        """Who waits for its original."""
        if message.is_parked:
            return self._state.parking[message.queue]
        recovery: ExpectedRedeliveries | None = self._state.inbounds[message.queue].recovery
        assert recovery is not None
        return recovery

    def _entry(self, inbound: int, arrival: Arrival, fingerprint: bytes, group: bytes | None) -> Original:
        return Original(inbound, 0, arrival, fingerprint, group, None, 0, self._state.now_ms)

    def put_in_flight(self, message: Original, holder: Consumer) -> None:
        """The journal, or the consumer itself, says that this message is in the consumer's hands."""
        message.become(MessageState.IN_FLIGHT)
        message.consumer = holder
        holder.in_flight[message.seq] = message
        holder.credit -= 1
        holder.next_seq = max(holder.next_seq, message.seq + 1)

    def adopt(self, message: Original) -> None:
        """A message in flight that only its consumer told us of: these bytes, delivered, are its original."""
        if self._is_through():
            if message.group_id is not None and self._state.policy.grouped:
                message.group = self._state.group(message.group_id)
                self._groups.reported(message)
            return
        self._adopted.setdefault(message.fingerprint, deque()).append(message)
        self.awaited.add(message)
        self._groups.wait_for(message)

    def open_entries(self) -> list[Original]:
        """Every open entry whose original has not come back."""
        return list(self.awaited)

    def adopted_settled(self) -> list[tuple[Arrival, bytes]]:
        """Messages that only their consumer told us of, settled before their original came."""
        adopted = [message for messages in self._adopted.values() for message in messages]
        return [(m.arrival, m.fingerprint) for m in adopted if m.state is MessageState.SETTLED]

    # -- originals coming back --

    def claims(self, inbound: Inbound, delivered: Original) -> bool:
        """True when the delivery is an original that the journal knows; else it is to be treated as new."""
        recovery: ExpectedRedeliveries | None = inbound.recovery
        assert recovery is not None
        recovery.seen += 1
        if not delivered.redelivered or recovery.seen > REDELIVERIES_MAX:
            self.ended(inbound)
            return False
        fingerprint = delivered.fingerprint
        message = recovery.first_with(fingerprint)
        if message is not None:
            passed = recovery.matched(message)
            self._match(inbound, message, delivered)
            for gone in passed:
                self.vanish(gone)
            return True
        if self._adopted.get(fingerprint):
            self._match_adopted(inbound, self._adopted[fingerprint].popleft(), delivered)
            return True
        arrival = recovery.take_settled(fingerprint)
        if arrival is not None:
            delivered.arrival = arrival
            self._ack_again(inbound, delivered)
            return True
        # Settled ones, and those that wait for others, may stand before open ones.
        if not (recovery.kept[fingerprint] or may_be_passed(self._state, delivered)):
            for message in recovery.of_group(delivered.group_id):
                self.vanish(message)
        return False

    def is_adopted(self, fingerprint: bytes) -> bool:
        """A consumer reported it, and its original has not come."""
        return bool(self._adopted.get(fingerprint))

    def match(self, message: Original | None, delivered: Original) -> None:
        """The original of this entry was read; None: of one that only its consumer reported."""
        inbound = self._state.inbounds[delivered.inbound]
        self._state.bytes_held += delivered.footprint
        if message is not None:
            self._match(inbound, message, delivered)
        else:
            self._match_adopted(inbound, self._adopted[delivered.fingerprint].popleft(), delivered)

    def end_if_through(self) -> None:
        """One more queue will deliver nothing again: what consumers reported may have lost its original."""
        if self._is_through():
            self._end_adopted()

    def _is_through(self) -> bool:
        """Nothing that was unacked before is still to come from any queue."""
        parking, inbounds = self._state.parking.values(), self._state.inbounds
        return not any(q.redelivering for q in parking) and all(i.recovery is None for i in inbounds)

    # -- meetings --

    def _ack_again(self, inbound: Inbound, delivered: Original) -> None:
        """It was settled before: nobody gets it, it is acked once more."""
        entry = (delivered.arrival, delivered.fingerprint)
        self._state.effects.records.append(SettledEntries(delivered.queue, False, (entry,)))
        self._state.settled(delivered)
        self._state.counters["acked_again"] += 1

    def _match_adopted(self, inbound: Inbound, message: Original, delivered: Original) -> None:
        """An entry that only its consumer told us of has met its original: journal it as that."""
        records = self._state.effects.records
        records.append(Vanished(UNKNOWN_INBOUND, message.arrival))
        if message.state is MessageState.SETTLED:
            self._ack_again(inbound, delivered)
            return
        message.queue, message.arrival = delivered.queue, delivered.arrival
        reason = self._state.ending.get(message)
        records.append(open_entry(message) if reason is None else ended_entry(message, reason))
        self._match(inbound, message, delivered)

    def _match(self, inbound: Inbound, message: Original, delivered: Original) -> None:
        """The original is back: from now on it can be acked, sent again or dead-lettered."""
        message.tag = delivered.tag
        message.inbound, message.origin_arrival = inbound.index, delivered.origin_arrival
        message.content, message.size = delivered.content, delivered.size
        message.footprint = delivered.footprint
        message.deadline_at_ms, message.closing = delivered.deadline_at_ms, delivered.closing
        message.received_at_ms, message.waits_since_ms = delivered.received_at_ms, delivered.waits_since_ms
        message.cost, message.kind, message.deliveries = delivered.cost, delivered.kind, delivered.deliveries
        if message.is_parked:
            self._state.parking[message.queue].here[message.fingerprint] = message
        del self.awaited[message]
        self.pending_redeliveries.discard(message)
        match message.state:
            case MessageState.RELOCATING:
                assert message.relocation is not None
                message.relocation.target.waiting.append(message)
                return
            case MessageState.TRANSFERRING:
                return
            case MessageState.ENDING:
                self._state.effects.actions.append(DeadLetter(message, self._state.ending[message]))
                return
            case MessageState.IN_FLIGHT:
                inbound.is_out()
                if message.group is None:
                    self._groups.send_again(message)
            case MessageState.WAITING:
                is_waited_for = message.group is not None
                self._back_to_backlog(inbound, message)
                if not is_waited_for:
                    return
        self._groups.resolved(message)

    def _back_to_backlog(self, inbound: Inbound, message: Original) -> None:
        """Its consumer is over: it waits for the next one, before everything newer of its group."""
        is_loose = message.group_id is None or not self._state.policy.grouped
        if message.group_id is not None and not is_loose:
            message.group = self._state.group(message.group_id)
        self._state.wait_again(message)
        if is_loose and message.deaths >= self._state.suspect_after:
            self._state.suspects.add(message)
        elif is_loose:
            inbound.ungrouped.messages.append(message)
            inbound.enlist(inbound.ungrouped)
        elif message.group is not None:
            self._state.put_in_front(message, message.group)

    # -- settles, failures and deaths that come before the original --

    def settled_before_its_return(self, message: Original) -> list[Record]:
        """A settle for an entry without its original: ack that when it comes. Returns further records."""
        message.become(MessageState.SETTLED)
        unknown = message.queue == UNKNOWN_INBOUND
        if message not in self.awaited:
            if unknown:
                return [Vanished(UNKNOWN_INBOUND, message.arrival)]
            entry = (message.arrival, message.fingerprint)
            if not message.is_parked:
                self._state.inbounds[message.queue].proven.append(entry)
            else:
                self._state.parking[message.queue].remember(message.fingerprint, message.arrival)
            return [SettledEntries(message.queue, True, (entry,))]
        del self.awaited[message]
        self.pending_redeliveries.discard(message)
        if not unknown:
            self._expecting(message).settled_early(message)
        self._groups.resolved(message)
        return []

    def failed_before_its_return(self, message: Original, reason: str) -> None:
        """A failure for an entry without its original: it goes to the dead queue when that comes."""
        if message not in self.awaited:
            self.lost_originals.forget(message)
            return
        message.become(MessageState.ENDING)
        self._state.ending[message] = reason
        self._state.effects.records.append(ended_entry(message, reason))
        self._groups.resolved(message)
        message.group = None

    def taken_before_their_return(self, messages: list[Original]) -> None:
        """Their consumer has ended and their originals are not here: these are gone too, or they come before
        all newer messages of their groups. The groups don't wait for them, because the look-ahead may end
        before the last."""
        for message in messages:
            if message not in self.awaited:
                self.lost_originals.forget(message)
                continue
            if is_known_inbound(message.queue):
                self.pending_redeliveries.add(message)
            if message.group is not None and not self._comes_in_order(message, message.group):
                continue
            self._groups.resolved(message)
            message.group = None

    def _comes_in_order(self, message: Original, group: Group) -> bool:
        """Everything of the group comes out of one queue."""
        is_parked = message.is_parked or message.group_id in self._parked_groups
        return not (is_parked or self._state.parking.route(group))

    # -- the end --

    def is_lost(self, message: Original) -> bool:
        """In flight, and its original will not come back."""
        return not message.is_here and message not in self.awaited

    def vanish(self, message: Original) -> None:
        """No original will come. If a living consumer has the copy, its settle is awaited; else the message
        has ended."""
        del self.awaited[message]
        if message.queue != UNKNOWN_INBOUND:
            self._expecting(message).forget(message)
        self.pending_redeliveries.discard(message)
        for lost in self._state.signals.lost:
            lost(message)
        if message.relocation is not None:
            forget_relocation(self._state, message, is_known=self._groups.redis_complete)
        if message.state is not MessageState.IN_FLIGHT:
            self._state.ending.pop(message, None)
            self.lost_originals.forget(message)
        elif message.consumer is not None:
            self.lost_originals.ask_for(message, message.consumer)
        self._groups.resolved(message)

    def ended(self, inbound: Inbound) -> None:
        """Nothing that was unacked before is still to come from this queue."""
        recovery: ExpectedRedeliveries | None = inbound.recovery
        if recovery is None:
            return
        for message in recovery.all_open():
            self.vanish(message)
        if arrived := recovery.unmatched_settled():  # their acks had reached the broker
            inbound.proven.extend(arrived)
            self._state.effects.records.append(SettledEntries(inbound.index, True, tuple(arrived)))
        inbound.recovery = None
        self.proven(inbound, recovery.proven_meanwhile)
        self.end_if_through()

    def _end_adopted(self) -> None:
        adopted = [message for messages in self._adopted.values() for message in messages]
        self._adopted.clear()
        for message in adopted:
            if message.state is MessageState.SETTLED:
                self._state.effects.records.append(Vanished(UNKNOWN_INBOUND, message.arrival))
            else:
                self.vanish(message)

    def proven(self, inbound: Inbound, count: int) -> None:
        """The broker has processed that many more acks. Counted later while old entries may still be met."""
        if inbound.recovery is not None:
            inbound.recovery.proven_meanwhile += count
            return
        count = inbound.prove(count)
        if count:
            self._state.effects.records.append(ProvenAcks(inbound.index, count))
