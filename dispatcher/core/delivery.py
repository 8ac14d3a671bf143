"""The one pass that decides every delivery.

Handlers of events only change state. At the end of each step this pass asks whose turn it is, serves one
message (or one batch) from that inbound queue's next source, and repeats until nothing is eligible or
enough is on its way to the broker. Nothing else dispatches, except `optional/poison`, which calls
`DeliveryPass.dispatch`: a message that is tried alone goes out of turn.
"""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.core.bounds import UNCONFIRMED_BYTES_MAX, UNCONFIRMED_MAX
from dispatcher.core.drr import DeficitRoundRobin
from dispatcher.core.holds import HoldKind
from dispatcher.core.inbound import Inbound, UngroupedSource, UnownedSource
from dispatcher.core.model import (
    IN_FLIGHT,
    OWNED,
    Backlog,
    Consumer,
    ConsumerSource,
    Group,
    GroupState,
    Original,
)
from dispatcher.core.ownership import close
from dispatcher.core.records import Dispatched, new_record
from dispatcher.core.state import LaneState


class DeliveryPass:
    """Dispatches what may go now."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self._dispatching, self._dispatched = state.signals.dispatching, state.signals.dispatched
        self._eligibility = state.eligibility
        self._turns = DeficitRoundRobin(state.inbounds)
        #: Attributes instead of methods, here and in a few other classes: the simulator puts its own in their
        #: place to look on, and a method of a compiled class can't be replaced.
        self.run: Callable[[], bool] = self._run

    def _run(self) -> bool:
        """Serve until nothing is eligible (True), or no more may go now (False): the lane is suspended, or
        the window of unconfirmed copies is full.

        The window may be overshot by one batch, which is bounded by its consumer's prefetch.
        """
        state, pick = self._state, self._turns.pick
        if self._eligibility.is_suspended(state.now_ms):
            return False
        while state.unconfirmed < UNCONFIRMED_MAX and state.unconfirmed_bytes < UNCONFIRMED_BYTES_MAX:
            inbound = pick()
            if inbound is None:
                return True
            ring = inbound.ring
            source = ring[0]
            source.passed_over = 0
            if len(ring) > 1:
                ring.rotate(-1)
            if type(source) is ConsumerSource:
                self._serve_consumer(inbound, source)
            elif type(source) is UnownedSource:
                self._begin(inbound, next(iter(source.backlogs)), state.pool.least_loaded())
            elif isinstance(source, UngroupedSource):
                self._serve_ungrouped(inbound, source)
        return False

    def _serve_consumer(self, inbound: Inbound, source: ConsumerSource) -> None:
        backlog = next(iter(source.backlogs))
        if backlog.group.owner is None:  # it is pinned to this consumer
            self._begin(inbound, backlog, source.consumer)
            return
        group = backlog.group
        self.dispatch(inbound, backlog.messages.popleft(), source.consumer, group)
        if backlog.messages:
            self._served(inbound, backlog)
            if backlog.listed_in is source.backlogs:
                source.backlogs.move_to_end(backlog)
        else:
            inbound.forget_empty(backlog)
        if group.in_flight >= group.window:
            self._state.window_filled(group)

    def _served(self, inbound: Inbound, backlog: Backlog) -> None:
        """The backlog may be empty now, or its new first message may not go in its turn."""
        head = backlog.head() if backlog.messages else None
        if head is None:
            inbound.forget_empty(backlog)
        elif backlog.listed_in is not None and self._eligibility.head_held_by(head) is not None:
            backlog.leave()
            self._state.list_backlog(backlog)  # leaves it out, and tells the feature that handles the cause

    def _begin(self, inbound: Inbound, backlog: Backlog, consumer: Consumer) -> None:
        """Give a free group to a consumer: with one message if the rest may follow in its turn, else with as
        many as the consumer has room for now (Q14)."""
        state, group = self._state, backlog.group
        tops_up = state.policy.tops_up
        wanted = 1 if tops_up or state.stops_failed else min(consumer.credit, len(backlog.messages))
        state.assign(group, consumer, OWNED if tops_up else GroupState.BATCHED)
        for number in range(min(wanted, group.window)):
            head = backlog.head()
            if head is None:
                break
            if number and (kind := self._eligibility.head_held_by(head)) is not None:
                state.held_back(kind, group, head)  # its backlog is not listed again before a settle
                break
            backlog.messages.popleft()
            self.dispatch(inbound, head, consumer, group)
            if head.closing:
                break
        self._served(inbound, backlog)
        if group.in_flight >= group.window:
            state.window_filled(group)
        # The window cut the batch short: tell the windows, so that it may grow. `list_backlog` would not, as
        # a group whose batch is out is held by that.
        if wanted > group.window and group.backlogs is not None:
            state.held_back(HoldKind.WINDOW_FULL, group, next(iter(group.backlogs.values())).messages[0])

    def _serve_ungrouped(self, inbound: Inbound, source: UngroupedSource) -> None:
        pool = self._state.pool
        consumer = pool.least_loaded() if self._state.policy.by_load else pool.next_in_turn()
        self.dispatch(inbound, source.messages.popleft(), consumer, None)

    def dispatch(self, inbound: Inbound, message: Original, consumer: Consumer, group: Group | None) -> None:
        """Hand one message to a consumer that has credit for it: numbers, journal record, order to send."""
        state = self._state
        for dispatching in self._dispatching:
            dispatching(message)
        seq = consumer.next_seq
        consumer.next_seq = seq + 1
        message.first = False
        if group is not None:
            message.first, group.fresh = group.fresh, False
            if group.epoch == 0:
                state.begin_epoch(group)
            group.number(message)
            group.count_out(message)
            message.group = group
            if message.closing and group.state is OWNED:
                close(state, group)
        else:
            message.group_seq, message.epoch = 0, state.epoch_counter
        if message.attempt or state.revoked:  # one that did not leave was perhaps never handed over
            state.leave_wait(message)
        message.attempt += 1
        message.state = IN_FLIGHT  # from WAITING: not asked, as this is done for each message
        message.consumer = consumer
        message.seq = seq
        message.dispatched_at_ms = consumer.last_sent_ms = state.now_ms
        consumer.in_flight[seq] = message
        consumer.credit -= 1
        if consumer.credit:
            state.pool.sent_to(consumer)
        else:
            state.pool.discard(consumer)
        inbound.dispatch(message.cost)
        state.unconfirmed += 1
        state.unconfirmed_bytes += message.size
        copy = new_record(Dispatched, (
            message, consumer.number, consumer.queue, seq, message.group_seq, message.epoch,
            message.attempt, message.first,
        ))  # fmt: skip
        state.effects.records.append(copy)
        state.effects.actions.append(copy)
        for dispatched in self._dispatched:
            dispatched(message, group)
