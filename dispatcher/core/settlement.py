"""Consumers report on their messages: acked or failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dispatcher.core.dead_letters import dead_letter
from dispatcher.core.events import CopiesConfirmed
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.model import OWNED, Consumer, Group, GroupState, Original
from dispatcher.core.ownership import change_owner
from dispatcher.core.records import Record, SettledRange
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
            dead_letter(self._state, message, failed.reason)


def no_longer_in_flight(state: LaneState, group: Group, message: Original) -> None:
    """This message of the group is in flight no more: if none is now, the group may leave its owner.

    If it has the group's last number while others of the group are out, the next ones get a new epoch (O-3).
    For the journal forgets messages that have ended. A later leader would think that the highest number still
    out is the last one, and would give this number a second time.
    """
    group.count_back(message)
    if not group.in_flight:
        nothing_in_flight(state, group)
    elif group.state is OWNED and group.gave_last(message):
        state.begin_epoch(group)


def nothing_in_flight(state: LaneState, group: Group) -> None:
    """Nothing of the group is in flight any more. One that recovers goes on when it is through."""
    if group.state is OWNED and state.policy.keeps_owner:
        for rested in state.signals.group_rested:
            rested(group)
        if state.stops_failed:
            state.relist_backlogs(group)
    elif group.state is not GroupState.RECOVERING:
        change_owner(state, group)
