"""Recovery: meets the originals that the broker delivers again with what the journal says of them.

After a fail-over or a lost connection every unsettled original comes back with the broker's `redelivered`
flag, in its queue's order. A flagged delivery is matched by its inbound queue and fingerprint: first to open
entries, the first to arrive; then to a settled one, if it can be no other message. Everything else is new.
When in doubt a message is handed over again (docs/architecture.md, "Recovery").

The entries of a group are a prefix of its messages in the queue, except for repeated ones. So the first of a
group that matches nothing, or the end of the redeliveries, says that open entries still unmatched have no
original any more: deleted, or expired. So does an original that arrived after it at the same leader.
"""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.core.effects import Snapshot
from dispatcher.core.entries import ended_entry
from dispatcher.core.events import AcksProven, RedeliveriesEnded
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.inbound import Inbound
from dispatcher.core.model import Consumer, Group, GroupState, MessageState, Original
from dispatcher.core.ordered import OrderedSet
from dispatcher.core.orders import DeadLetter
from dispatcher.core.queue_ids import UNKNOWN_INBOUND, is_known_inbound
from dispatcher.core.records import (
    DeadLetterPending,
    JournalEntry,
    OpenEntry,
    ProvenAcks,
    Record,
    SettledEntries,
    Vanished,
)
from dispatcher.core.recovery.adopted import AdoptedMessages
from dispatcher.core.recovery.elsewhere import Elsewhere, Expecting
from dispatcher.core.recovery.expected import REDELIVERIES_MAX, ExpectedRedeliveries
from dispatcher.core.recovery.groups import GroupRecovery
from dispatcher.core.recovery.journal_replay import JournalReplay
from dispatcher.core.recovery.lost_originals import LostOriginals
from dispatcher.core.recovery.pending_redeliveries import PendingRedeliveries
from dispatcher.core.recovery.resending import Resending
from dispatcher.core.state import LaneState
from dispatcher.core.waiting import put_in_front, wait_again


class Recovery(Feature):
    """Matches redeliveries with open entries and settled originals."""

    def __init__(self, state: LaneState, elsewhere: Elsewhere) -> None:
        self._state = state
        self._elsewhere = elsewhere
        self._broker_restarted = False
        self._replay: JournalReplay | None = None  # until it is loaded
        self.resending = Resending(state)
        self.groups = self._groups = GroupRecovery(state, self.resending)
        self.awaited: OrderedSet[Original] = OrderedSet()  # open entries whose original has not come back
        self.adopted = AdoptedMessages(state)
        self.lost_originals = LostOriginals(state)
        self.pending_redeliveries = PendingRedeliveries(state.key_of, state.signals.all_back)
        state.absent = self
        state.signals.claiming.append(self.claims)
        state.signals.busy.append(self._is_awaited)

    def events(self) -> Mapping[type, Handler]:
        inbounds = self._state.inbounds
        return {
            AcksProven: lambda event: self.proven(inbounds[event.inbound], event.count),
            RedeliveriesEnded: lambda event: self.ended(inbounds[event.inbound]),
        }

    # -- loading --

    def load_first(self, snapshot: Snapshot) -> None:
        """Read the journal. Its entries are loaded when the consumers and the other queues are."""
        self._broker_restarted, self._groups.redis_complete = snapshot.broker_restarted, snapshot.complete
        self._replay = JournalReplay()
        self._elsewhere.listen(self._replay)
        self._replay.read(snapshot.records)

    def load(self, snapshot: Snapshot) -> None:
        """Take over the open entries, then the owners. Consumers have been loaded; no other feature loads
        anything before this."""
        replay, self._replay = self._replay, None
        assert replay is not None
        self._load_entries(replay)
        self._groups.load_owners(snapshot.owners)

    def _load_entries(self, replay: JournalReplay) -> None:
        state = self._state
        state.epoch_counter = max(state.epoch_counter, replay.highest_epoch)
        for number, consumer in state.by_number.items():
            consumer.next_seq = max(consumer.next_seq, replay.highest_seq.get(number, 0) + 1)
        for inbound in state.inbounds:
            inbound.recovery = ExpectedRedeliveries()
            unproven = replay.unproven.get(inbound.index, {})
            inbound.recovery.expect_unproven(unproven)
            inbound.settled.add_proven(replay.proven.get(inbound.index, ()))
            proven = {a: fp for a, fp in inbound.settled.proven if a not in unproven}  # else acked once more
            inbound.recovery.expect_proven(proven, broker_restarted=self._broker_restarted)
        self.adopted.load_settled(replay.unproven.get(UNKNOWN_INBOUND, {}))
        entries = replay.finish()
        self._elsewhere.load(entries)
        for entry in entries:
            self._load_entry(entry)

    def _load_entry(self, entry: JournalEntry) -> None:
        message = Original(
            entry.inbound, 0, entry.arrival, entry.fingerprint, entry.group, None, 0, self._state.now_ms
        )
        message.attempt = entry.attempt
        if isinstance(entry, DeadLetterPending):
            message.become(MessageState.ENDING)
            message.calls = entry.calls
            self._state.ending[message] = entry.reason
        elif not isinstance(entry, OpenEntry):
            self._elsewhere.resume(message, entry, is_known=self._groups.redis_complete)
        else:
            holder = self._state.by_number.get(entry.incarnation)
            message.seq, message.epoch, message.group_seq = entry.seq, entry.epoch, entry.group_seq
            message.first = entry.first
            if holder is not None:
                self.put_in_flight(message, holder)
            else:
                self.nobody_has(message)
            if holder is not None or self._elsewhere.has_entries_of(entry.group):
                self._groups.wait_for(message)
        self.expect(message)

    def expect(self, message: Original) -> None:
        """An open entry whose original is still to come."""
        self.awaited.add(message)
        self._expecting(message).expect(message)

    def expect_again(self, message: Original) -> None:
        """One that came, and has gone back to its parking queue."""
        self.expect(message)
        self._groups.wait_again_for(message)

    def _expecting(self, message: Original) -> Expecting:
        """Which queue is to deliver its original."""
        elsewhere = self._elsewhere.expecting(message)
        if elsewhere is not None:
            return elsewhere
        if message.queue == UNKNOWN_INBOUND:
            return self.adopted
        recovery: ExpectedRedeliveries | None = self._state.inbounds[message.queue].recovery
        assert recovery is not None
        return recovery

    def put_in_flight(self, message: Original, holder: Consumer) -> None:
        """The journal, or the consumer itself, says that the consumer has this message."""
        message.become(MessageState.IN_FLIGHT)
        message.consumer = holder
        holder.in_flight[message.seq] = message
        holder.credit -= 1
        holder.next_seq = max(holder.next_seq, message.seq + 1)

    def owners(self) -> dict[bytes, Consumer]:
        """The owners of groups that recover, as far as they are known."""
        return self._groups.owners()

    def open_entries(self) -> list[Original]:
        """Every open entry whose original has not come back."""
        return list(self.awaited)

    def settled_records(self) -> list[Record]:
        """Of originals that are settled and may come back all the same, for a checkpoint."""
        records: list[Record] = []
        for inbound in self._state.inbounds:
            unproven = list(inbound.settled.unproven)
            if inbound.recovery is not None:
                unproven = inbound.recovery.unmatched_settled() + unproven
            records.append(SettledEntries(inbound.index, True, tuple(inbound.settled.proven)))
            records.append(SettledEntries(inbound.index, False, tuple(unproven)))
        records.append(SettledEntries(UNKNOWN_INBOUND, False, tuple(self.adopted.settled())))
        return records

    # -- originals coming back --

    def claims(self, inbound: Inbound, delivered: Original) -> bool:
        """True when the delivery is an original that the journal knows; else it is to be treated as new."""
        if not self._meets_known(inbound, delivered):
            return False
        if delivered.state is not MessageState.SETTLED:  # else it was acked again
            delivered.become(MessageState.SETTLED)  # its entry stands for it from now on
        for claimed in self._state.signals.claimed:
            claimed(delivered)
        return True

    def _meets_known(self, inbound: Inbound, delivered: Original) -> bool:
        """Whether it met its open entry, or is one that was settled."""
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
        if self.is_reported(fingerprint):
            self._match_adopted(inbound, delivered)
            return True
        arrival = recovery.take_settled(fingerprint)
        if arrival is not None:
            delivered.arrival = arrival
            self._ack_again(inbound, delivered)
            return True
        # Settled ones, and those that wait for others, may stand before open ones.
        overtaken = self._state.signals.overtaken
        if not (recovery.kept[fingerprint] or any(may_be(delivered) for may_be in overtaken)):
            for message in recovery.of_group(delivered.group_id):
                self.vanish(message)
        return False

    def is_reported(self, fingerprint: bytes) -> bool:
        """Only its consumer told us of it."""
        return self.adopted.has(fingerprint)

    def match(self, message: Original | None, delivered: Original) -> None:
        """The original of this entry was read; None: of one that only its consumer reported."""
        inbound = self._state.inbounds[delivered.inbound]
        self._state.bytes_held += delivered.footprint
        if message is not None:
            self._match(inbound, message, delivered)
        else:
            self._match_adopted(inbound, delivered)

    def end_if_through(self) -> None:
        """One more queue will deliver nothing again: originals of adopted messages may be gone."""
        if self.is_through():
            self.adopted.end(self.vanish)

    def is_through(self) -> bool:
        """Nothing that was unacked before is still to come from any queue."""
        return self._elsewhere.is_through() and not self.some_may_come()

    # -- meetings --

    def _ack_again(self, inbound: Inbound, delivered: Original) -> None:
        """It was settled before: no consumer gets it, it is acked once more."""
        entry = (delivered.arrival, delivered.fingerprint)
        self._state.effects.records.append(SettledEntries(delivered.queue, False, (entry,)))
        self._state.settled(delivered)
        self._state.counters["acked_again"] += 1

    def _match_adopted(self, inbound: Inbound, delivered: Original) -> None:
        """The original of a message that only its consumer told us of is back."""
        message = self.adopted.meet(delivered)
        if message.state is MessageState.SETTLED:
            self._ack_again(inbound, delivered)
        else:
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
        self._elsewhere.is_back(message)
        del self.awaited[message]
        self.pending_redeliveries.discard(message)
        match message.state:
            case MessageState.RELOCATING:
                self._elsewhere.go_on(message)
                return
            case MessageState.TRANSFERRING:
                return
            case MessageState.ENDING:
                self._state.effects.actions.append(DeadLetter(message, self._state.ending[message]))
                return
            case MessageState.IN_FLIGHT:
                inbound.count_out()
                if message.group is None:
                    self.resending.send(message)
            case MessageState.WAITING:
                self._back_to_backlog(message)
        self._groups.resolved(message)

    def _back_to_backlog(self, message: Original) -> None:
        """Its consumer has ended: it waits for the next one, before everything newer of its group."""
        state = self._state
        if message.group_id is not None and state.policy.grouped:
            message.group = state.group(message.group_id)
        wait_again(state, message)
        if message.group is not None:
            put_in_front(state, message, message.group)
        else:
            state.wait_ungrouped(message)

    # -- settles, failures and deaths that come before the original --

    def settled_before_its_return(self, message: Original) -> list[Record]:
        """A settle for an entry without its original: ack that when it comes. Returns further records."""
        message.become(MessageState.SETTLED)
        if message not in self.awaited:
            if message.queue == UNKNOWN_INBOUND:
                return [Vanished(message.queue, message.arrival)]
            entry = (message.arrival, message.fingerprint)
            if is_known_inbound(message.queue):
                self._state.inbounds[message.queue].settled.add_proven([entry])
            else:
                self._elsewhere.is_settled(message)
            return [SettledEntries(message.queue, True, (entry,))]
        del self.awaited[message]
        self.pending_redeliveries.discard(message)
        self._expecting(message).settled_early(message)
        self._groups.resolved(message)
        return []

    def failed_before_its_return(self, message: Original, reason: str) -> bool:
        """A failure for an entry without its original: it goes to the dead queue when that comes. False: it
        comes no more."""
        if message not in self.awaited:
            self.lost_originals.forget(message)
            return False
        message.become(MessageState.ENDING)
        self._state.ending[message] = reason
        self._state.effects.records.append(ended_entry(message, reason))
        self._groups.resolved(message)
        message.group = None
        return True

    def revoked_before_their_return(self, messages: list[Original]) -> None:
        """Their consumer has ended and their originals are not here: these are gone too, or they come before
        all newer messages of their groups. The groups don't wait for them, because the look-ahead may end
        before the last."""
        for message in messages:
            if message not in self.awaited:
                self.lost_originals.forget(message)
                continue
            self.nobody_has(message)
            if message.group is not None and not self._comes_in_order(message, message.group):
                continue
            self._groups.resolved(message)
            message.group = None

    def _is_awaited(self, group: Group) -> bool:
        """Messages of the group that were here under the former leader are still to come, and are older."""
        return group.state is GroupState.RECOVERING or self.pending_redeliveries.has_any_of(group.id)

    def may_come(self, group: Group) -> bool:
        """Some of the group may still come, from any queue."""
        return bool(group.unresolved) or self.some_may_come() or self._elsewhere.may_bring(group)

    def some_may_come(self) -> bool:
        """An inbound queue may still deliver again what it had delivered before."""
        return any(inbound.recovery is not None for inbound in self._state.inbounds)

    def go_before(self, group_id: bytes | None) -> bool:
        """Messages of this id that no consumer has are still to come."""
        return self.pending_redeliveries.has_any(group_id)

    def nobody_has(self, message: Original) -> None:
        """No consumer has it. From an inbound queue its original comes before everything newer of its group;
        those that are elsewhere are put in order there."""
        if is_known_inbound(message.queue):
            self.pending_redeliveries.add(message)

    def _comes_in_order(self, message: Original, group: Group) -> bool:
        """Everything of the group comes out of one queue."""
        elsewhere = self._elsewhere
        has_others = elsewhere.has_entries_of(message.group_id) or elsewhere.may_have(group)
        return not has_others and elsewhere.expecting(message) is None

    # -- the end --

    def is_lost(self, message: Original) -> bool:
        """In flight, and its original will not come back."""
        return not message.is_here and message not in self.awaited

    def vanish(self, message: Original) -> None:
        """No original will come. If a living consumer has the copy, its settle is awaited; else the message
        has ended."""
        del self.awaited[message]
        self._expecting(message).forget(message)
        self.pending_redeliveries.discard(message)
        for lost in self._state.signals.lost:
            lost(message)
        self._elsewhere.forget(message, is_known=self._groups.redis_complete)
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
            inbound.settled.add_proven(arrived)
            self._state.effects.records.append(SettledEntries(inbound.index, True, tuple(arrived)))
        inbound.recovery = None
        self.proven(inbound, recovery.proven_meanwhile)
        self.end_if_through()

    def proven(self, inbound: Inbound, count: int) -> None:
        """The broker has processed that many more acks. Counted later while old entries may still be met."""
        if inbound.recovery is not None:
            inbound.recovery.proven_meanwhile += count
            return
        count = inbound.settled.prove(count)
        if count:
            self._state.effects.records.append(ProvenAcks(inbound.index, count))
