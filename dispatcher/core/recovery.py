"""Recovery: meets the originals that the broker delivers again with what the journal says of them.

After a fail-over or a lost connection every unsettled original comes back with the broker's `redelivered`
flag, in its queue's order. The flag alone proves nothing. A flagged delivery is matched by its inbound
queue and fingerprint: first to open entries, the one that arrived first; then to a settled one, under
conditions that make sure that no other message is taken for it. Everything else is new. When in doubt a
message is handed over again, never dropped (docs/architecture.md, "Recovery").

Entries of a group are a prefix of what its queue holds for it. So the first delivery of that group that
matches nothing, or the end of the redeliveries, says that open entries still unmatched have no original
any more: others deleted it, or it expired.
"""

from __future__ import annotations

from collections import deque

from dispatcher.core.consumers import Consumer
from dispatcher.core.effects import (
    UNKNOWN_INBOUND,
    DeadLetter,
    Ended,
    OpenEntry,
    Proven,
    Record,
    SettledEntries,
    Vanished,
)
from dispatcher.core.entries import ended_entry, open_entry
from dispatcher.core.group_recovery import GroupRecovery
from dispatcher.core.inbound import Inbound
from dispatcher.core.model import Message, MessageState
from dispatcher.core.ordered import OrderedSet
from dispatcher.core.redeliveries import REDELIVERIES_MAX, InboundRecovery
from dispatcher.core.replay import Arrival, Replay
from dispatcher.core.state import LaneState
from dispatcher.protocol import TYPE_REJOIN


class Recovery:
    """Matches redeliveries with open entries and settled originals."""

    def __init__(self, state: LaneState, groups: GroupRecovery, *, broker_restarted: bool) -> None:
        self._state = state
        self._groups = groups
        self._broker_restarted = broker_restarted
        self._awaited: OrderedSet[Message] = OrderedSet()  # open entries whose original has not come back
        #: Messages that only their consumer told us of, settled ones too; matched in whatever queue.
        self._adopted: dict[bytes, deque[Message]] = {}
        self._asked: OrderedSet[Consumer] = OrderedSet()  # to join again: what they have is gone

    # -- loading --

    def load(self, replay: Replay) -> None:
        """Take over what the journal says. Consumers must have been loaded before."""
        state = self._state
        state.epoch_counter = max(state.epoch_counter, replay.highest_epoch)
        for number, consumer in state.by_number.items():
            consumer.next_seq = max(consumer.next_seq, replay.highest_seq.get(number, 0) + 1)
        for inbound in state.inbounds:
            inbound.recovery = InboundRecovery()
            unproven = replay.unproven.get(inbound.index, {})
            inbound.recovery.expect_unproven(unproven)
            inbound.proven.extend(replay.proven.get(inbound.index, ()))
            proven = dict(inbound.proven)
            for arrival in unproven.keys() & proven.keys():  # acked once more
                del proven[arrival]
            inbound.recovery.expect_proven(proven, broker_restarted=self._broker_restarted)
        for arrival, fingerprint in replay.unproven.get(UNKNOWN_INBOUND, {}).items():
            message = self._entry(UNKNOWN_INBOUND, arrival, fingerprint, None)
            message.state = MessageState.SETTLED
            self._adopted.setdefault(fingerprint, deque()).append(message)
        for entry in replay.finish():
            self._load_entry(entry)

    def _load_entry(self, entry: OpenEntry | Ended) -> None:
        message = self._entry(entry.inbound, entry.arrival, entry.fingerprint, entry.group)
        message.attempt = entry.attempt
        if isinstance(entry, Ended):
            message.state = MessageState.ENDING
            message.calls = entry.calls
            self._state.ending[message] = entry.reason
        else:
            holder = self._state.by_number.get(entry.incarnation)
            message.seq, message.epoch, message.group_seq = entry.seq, entry.epoch, entry.group_seq
            message.first = entry.first
            if holder is not None:
                self.put_in_flight(message, holder)
                self._groups.wait_for(message)
        self._awaited.add(message)
        if entry.inbound == UNKNOWN_INBOUND:
            self._adopted.setdefault(entry.fingerprint, deque()).append(message)
        else:
            recovery = self._state.inbounds[entry.inbound].recovery
            assert recovery is not None
            recovery.expect(message)

    def _entry(self, inbound: int, arrival: Arrival, fingerprint: bytes, group: bytes | None) -> Message:
        return Message(inbound, 0, arrival, fingerprint, group, None, 0, self._state.now_ms)

    def put_in_flight(self, message: Message, holder: Consumer) -> None:
        """The journal, or the consumer itself, says that this message is in the consumer's hands."""
        message.state = MessageState.IN_FLIGHT
        message.consumer = holder
        holder.in_flight[message.seq] = message
        holder.credit -= 1
        holder.next_seq = max(holder.next_seq, message.seq + 1)

    def adopt(self, message: Message) -> None:
        """A message in flight that only its consumer told us of: whatever queue delivers these bytes again
        has its original. When every queue is through, nobody has it."""
        if all(inbound.recovery is None for inbound in self._state.inbounds):
            if message.group_id is not None and self._state.policy.grouped:
                message.group = self._state.group(message.group_id)
                self._groups.reported(message)
            return
        self._adopted.setdefault(message.fingerprint, deque()).append(message)
        self._awaited.add(message)
        self._groups.wait_for(message)

    def open_entries(self) -> list[Message]:
        """Every open entry whose original has not come back."""
        return list(self._awaited)

    def adopted_settled(self) -> list[tuple[Arrival, bytes]]:
        """Messages that only their consumer told us of, settled before their original came."""
        adopted = (message for messages in self._adopted.values() for message in messages)
        return [(m.arrival, m.fingerprint) for m in adopted if m.state is MessageState.SETTLED]

    # -- originals coming back --

    def claims(self, inbound: Inbound, delivered: Message) -> bool:
        """True when the delivery is an original that the journal knows; else it is to be treated as new."""
        recovery = inbound.recovery
        assert recovery is not None
        recovery.seen += 1
        if not delivered.redelivered or recovery.seen > REDELIVERIES_MAX:
            self.ended(inbound)
            return False
        fingerprint = delivered.fingerprint
        message = recovery.first_with(fingerprint)
        if message is not None:
            recovery.matched(message)
            self._match(inbound, message, delivered)
            return True
        if self._adopted.get(fingerprint):
            self._match_adopted(inbound, self._adopted[fingerprint].popleft(), delivered)
            return True
        arrival = recovery.take_settled(fingerprint)
        if arrival is not None:
            delivered.arrival = arrival
            self._ack_again(inbound, delivered)
            return True
        if not recovery.kept[fingerprint]:  # else it may be a settled one, which may stand before open ones
            for message in recovery.of_group(delivered.group_id):
                self._vanish(message)
        return False

    def _ack_again(self, inbound: Inbound, delivered: Message) -> None:
        """It was settled before: nobody gets it, it is acked once more."""
        entry = (delivered.arrival, delivered.fingerprint)
        self._state.effects.records.append(SettledEntries(inbound.index, False, (entry,)))
        inbound.unacked += 1
        self._state.bytes_held += delivered.size
        self._state.settled(delivered)
        self._state.counters["acked_again"] += 1

    def _match_adopted(self, inbound: Inbound, message: Message, delivered: Message) -> None:
        """An entry that only its consumer told us of has met its original: journal it as that."""
        records = self._state.effects.records
        records.append(Vanished(UNKNOWN_INBOUND, message.arrival))
        if message.state is MessageState.SETTLED:
            self._ack_again(inbound, delivered)
            return
        message.inbound = message.queue = inbound.index
        message.arrival = delivered.arrival
        reason = self._state.ending.get(message)
        records.append(open_entry(message) if reason is None else ended_entry(message, reason))
        self._match(inbound, message, delivered)

    def _match(self, inbound: Inbound, message: Message, delivered: Message) -> None:
        """The original is back: from now on it can be acked, sent again or dead-lettered."""
        message.tag = delivered.tag
        message.content, message.size = delivered.content, delivered.size
        message.deadline_at_ms, message.closing = delivered.deadline_at_ms, delivered.closing
        message.cost, message.received_at_ms = delivered.cost, delivered.received_at_ms
        inbound.unacked += 1
        self._state.bytes_held += message.size
        del self._awaited[message]
        match message.state:
            case MessageState.ENDING:
                self._state.effects.actions.append(DeadLetter(message, self._state.ending[message]))
                return
            case MessageState.IN_FLIGHT:
                inbound.in_flight += 1
                if message.group is None:
                    self._groups.send_again(message)
            case MessageState.HELD:
                self._back_to_backlog(inbound, message)
                return
        self._groups.resolved(message)

    def _back_to_backlog(self, inbound: Inbound, message: Message) -> None:
        """Its consumer is over: it waits for the next one, before everything newer of its group."""
        self._state.wait_again(message)
        is_loose = message.group_id is None or not self._state.policy.grouped
        if is_loose and message.attempt >= self._state.suspect_after:
            self._state.suspects.add(message)
        elif is_loose:
            inbound.loose.messages.append(message)
            inbound.queue_source(inbound.loose)
        else:
            assert message.group_id is not None
            message.group = self._state.group(message.group_id)
            backlog = message.group.backlog(inbound.index)
            backlog.messages.append(message)
            if backlog.source is None:
                self._state.list_backlog(backlog)

    # -- settles, failures and deaths that come before the original --

    def settled_before_its_return(self, message: Message) -> list[Record]:
        """A settle for an entry without its original: ack that when it comes. Returns further records."""
        message.state = MessageState.SETTLED
        unknown = message.queue == UNKNOWN_INBOUND
        if message not in self._awaited:
            if unknown:
                return [Vanished(UNKNOWN_INBOUND, message.arrival)]
            entry = (message.arrival, message.fingerprint)
            self._state.inbounds[message.queue].proven.append(entry)
            return [SettledEntries(message.queue, True, (entry,))]
        del self._awaited[message]
        if not unknown:
            recovery = self._state.inbounds[message.queue].recovery
            assert recovery is not None
            recovery.settle(message)
        self._groups.resolved(message)
        return []

    def failed_before_its_return(self, message: Message, reason: str) -> None:
        """A failure for an entry without its original: it goes to the dead queue when that comes."""
        state = self._state
        if message not in self._awaited:
            self._forgotten(message)
            return
        message.state = MessageState.ENDING
        state.ending[message] = reason
        state.effects.records.append(ended_entry(message, reason))
        self._groups.resolved(message)
        message.group = None

    def taken_before_their_return(self, messages: list[Message]) -> None:
        """Their consumer is over and their originals are not here: gone with it, or they come before
        everything newer of their groups, which therefore don't wait for them: what the look-ahead lets in
        may end before the last of them."""
        for message in messages:
            if message not in self._awaited:
                self._forgotten(message)
            else:
                self._groups.resolved(message)
                message.group = None

    def is_orphan(self, message: Message) -> bool:
        """In flight, and its original will not come back."""
        return message.tag == 0 and message not in self._awaited

    def _forgotten(self, message: Message) -> None:
        self._state.effects.records.append(Vanished(message.queue, message.arrival))
        self._state.counters["vanished"] += 1

    # -- the end --

    def _vanish(self, message: Message) -> None:
        """No original will come. In a living consumer's hands its settle is awaited, else it is over."""
        del self._awaited[message]
        if message.queue != UNKNOWN_INBOUND:
            recovery = self._state.inbounds[message.queue].recovery
            assert recovery is not None
            recovery.forget(message)
        if message.state is not MessageState.IN_FLIGHT:
            self._state.ending.pop(message, None)
            self._forgotten(message)
        elif message.consumer is not None:
            self._ask_for(message, message.consumer)
        self._groups.resolved(message)

    def _ask_for(self, message: Message, holder: Consumer) -> None:
        """Its settle is awaited, if the holder has it: the copy may never have been published."""
        if holder.reported is None:
            if holder not in self._asked:
                self._asked.add(holder)
                self._state.notice(holder, TYPE_REJOIN)
        elif message.seq not in holder.reported:
            self.drop_orphan(message, holder)

    def drop_orphan(self, message: Message, holder: Consumer) -> None:
        """Neither its queue nor its consumer has it: it is gone. Its group's numbers begin again, for the
        consumer would wait for the missing one."""
        del holder.in_flight[message.seq]
        holder.credit += 1
        message.state, message.consumer = MessageState.SETTLED, None
        self._forgotten(message)
        group = message.group
        if group is not None:
            holder.broken.add(group)
            if group.owner is holder:
                group.epoch = 0
            group.came_back(message)
            if not group.in_flight:
                self._state.drained(group)
        self._state.refresh_credit(holder)

    def ended(self, inbound: Inbound) -> None:
        """Nothing that was unacked before is still to come from this queue."""
        recovery = inbound.recovery
        if recovery is None:
            return
        for message in recovery.all_open():
            self._vanish(message)
        arrived = recovery.unmatched_settled()  # their acks had reached the broker
        if arrived:
            inbound.proven.extend(arrived)
            self._state.effects.records.append(SettledEntries(inbound.index, True, tuple(arrived)))
        inbound.recovery = None
        self.proven(inbound, recovery.proven_meanwhile)
        if all(other.recovery is None for other in self._state.inbounds):
            self._end_adopted()

    def _end_adopted(self) -> None:
        adopted = [message for messages in self._adopted.values() for message in messages]
        self._adopted.clear()
        for message in adopted:
            if message.state is MessageState.SETTLED:
                self._state.effects.records.append(Vanished(UNKNOWN_INBOUND, message.arrival))
            else:
                self._vanish(message)

    def proven(self, inbound: Inbound, count: int) -> None:
        """The broker has processed that many more acks. Counted later while old entries may still be met."""
        if inbound.recovery is not None:
            inbound.recovery.proven_meanwhile += count
            return
        count = min(count, len(inbound.unproven))
        for _ in range(count):
            inbound.proven.append(inbound.unproven.popleft())
        if count:
            self._state.effects.records.append(Proven(inbound.index, count))
