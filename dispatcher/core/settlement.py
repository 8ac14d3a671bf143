"""Consumers report on their messages: acked or failed. The dead queue confirms those that it has stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dispatcher.core.events import CopiesConfirmed, DeadLetterConfirmed
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.model import Consumer, MessageState, Original
from dispatcher.core.ownership import no_longer_in_flight
from dispatcher.core.records import Discharged, Record, SettledRange
from dispatcher.core.runs import runs
from dispatcher.core.state import LaneState
from dispatcher.wire.protocol import FailedMessage, Settle

#: Handler calls that a consumer may report are kept up to this; the journal and the dead queue have 32 bits.
CALLS_MAX: Final = 2**31 - 1


class Settlement(Feature):
    """Ends messages. Seqs that were never sent, or have ended, are counted and ignored (an expected race)."""

    def __init__(self, state: LaneState) -> None:
        self._state = state

    def events(self) -> Mapping[type, Handler]:
        return {
            Settle: self.settle,
            CopiesConfirmed: self.confirmed,
            DeadLetterConfirmed: lambda event: self.discharged(event.message),
        }

    def confirmed(self, event: CopiesConfirmed) -> None:
        """The broker has answered copies: others may go out in their place."""
        self._state.unconfirmed -= event.count
        self._state.unconfirmed_bytes -= event.size

    def settle(self, settle: Settle) -> None:
        """Apply a settle; it counts for nothing if its consumer is unknown, another's, or has ended."""
        state = self._state
        consumer = state.by_uuid.get(settle.incarnation)
        if consumer is None or consumer.id != settle.consumer:
            named = sum(b - a + 1 for a, b in settle.acked if b >= a) + len(settle.failed)
            state.ignored_settles.note(settle.consumer, named)
            return
        for first, last in settle.acked:
            self.settle_range(consumer, first, last)
        for failed in settle.failed:
            self._fail(consumer, failed)
        state.refresh_credit(consumer)
        if not consumer.in_flight:
            for drained in state.signals.consumer_drained:
                drained(consumer)

    def settle_range(self, consumer: Consumer, first: int, last: int) -> None:
        """Settle the messages in flight with the numbers first to last; journal them as runs without gaps."""
        state, in_flight = self._state, consumer.in_flight
        seqs: Sequence[int] = range(first, last + 1)
        if len(seqs) > len(in_flight) or not all(seq in in_flight for seq in seqs):
            # A consumer that names more than there is does not make us count it.
            seqs = sorted(seq for seq in in_flight if first <= seq <= last)
            state.ignored_settles.note(consumer.id, last - first + 1 - len(seqs))
            if not seqs:
                return
        messages = [in_flight[seq] for seq in seqs]
        for settling in state.signals.settling:
            settling(consumer, messages)
        more = list[Record]()
        for message in messages:
            del in_flight[message.seq]
            message.consumer = None
            group = message.group
            if group is not None:
                no_longer_in_flight(state, group, message)
                if group.in_flight + 1 >= group.window:  # its window was full
                    state.relist_backlogs(group)
            if message.tag:  # as `is_here` says, without a call: this is asked for each message
                state.settled(message)
            else:
                more += state.absent.settled_before_its_return(message)
        consumer.credit += len(seqs)
        consumer.refusals = 0
        state.counters["settled"] += len(seqs)
        records = state.effects.records
        records += [SettledRange(consumer.number, *run) for run in runs(seqs)]
        records += more

    def no_longer_has(self, consumer: Consumer, message: Original) -> None:
        """The consumer has given the message up, or never got it. The caller has removed it from `in_flight`,
        and says what becomes of it. Its group may change its owner, if that was the last in flight."""
        consumer.credit += 1
        consumer.refusals = 0
        message.consumer = None
        if message.is_here:
            self._state.inbounds[message.inbound].count_back()
        group = message.group
        if group is not None:
            no_longer_in_flight(self._state, group, message)
            self._state.relist_backlogs(group)

    def _fail(self, consumer: Consumer, failed: FailedMessage) -> None:
        """Given up by its consumer: to the dead queue (`skip`; the followers go on), or its group stops."""
        message = consumer.in_flight.pop(failed.seq, None)
        if message is None:
            self._state.ignored_settles.note(consumer.id, 1)
            return
        message.calls = min(failed.attempts, CALLS_MAX)  # of its handler; `attempt` counts hand-overs
        self._state.counters["failed"] += 1
        self._state.warn_message(
            message, "message_failed", consumer=consumer.id, reason=failed.reason,
            attempt=message.attempt, calls=message.calls,
        )  # fmt: skip
        failing = self._state.signals.failing
        is_lost = self._state.absent.is_lost(message)
        stops = not is_lost and any(stops_at(message, failed.reason) for stops_at in failing)
        self.no_longer_has(consumer, message)
        for settling in self._state.signals.settling:
            settling(consumer, [message])
        if stops:
            for stopped_at in self._state.signals.stopped_at:
                stopped_at(message)
        else:
            self._state.dead_letter(message, failed.reason)

    def discharged(self, message: Original) -> None:
        """The broker has stored the copy in the dead queue: the original is settled."""
        if message.state is not MessageState.ENDING:
            return
        state = self._state
        state.ending.pop(message, None)
        state.undeliverable.pop(message, None)
        state.effects.records.append(Discharged(message.queue, message.arrival))
        state.settled(message)
