"""The one pass that decides every delivery.

Handlers of events only change state. At the end of each step this pass asks whose turn it is, serves one
message (or one batch) from that inbound queue's next source, and repeats until nothing is eligible or
enough is on its way to the broker. Nothing else dispatches.
"""

from __future__ import annotations

from dispatcher.core.drr import DeficitRoundRobin
from dispatcher.core.holds import HoldKind
from dispatcher.core.inbound import Inbound, UngroupedSource, UnownedSource
from dispatcher.core.model import Backlog, Consumer, ConsumerSource, Group, GroupState, Message, MessageState
from dispatcher.core.optional.measured_cost import MeasuredInbound
from dispatcher.core.options import Cost
from dispatcher.core.records import Dispatched
from dispatcher.core.state import LaneState


class DeliveryPass:
    """Dispatches what may go now."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self._dispatched = state.signals.dispatched
        self._head_held_by = state.eligibility.head_held_by
        self._turns = DeficitRoundRobin(state.inbounds)

    def run(self) -> bool:
        """Serve until nothing is eligible (True) or the window of unconfirmed copies is full (False).

        The window may be overshot by one batch, which is bounded by its consumer's prefetch.
        """
        state = self._state
        if state.is_suspended:
            return False
        while not state.window_is_full:
            inbound = self._turns.pick()
            if inbound is None:
                return True
            source = inbound.ready[0]
            if len(inbound.ready) > 1:
                inbound.ready.rotate(-1)
            if type(source) is ConsumerSource:
                self._serve_share(inbound, source)
            elif type(source) is UnownedSource:
                self._serve_free(inbound, source)
            elif isinstance(source, UngroupedSource):
                self._serve_loose(inbound, source)
        return False

    def _serve_share(self, inbound: Inbound, share: ConsumerSource) -> None:
        backlog = next(iter(share.backlogs))
        if backlog.group.owner is None:  # it is pinned to this consumer
            self._begin(inbound, backlog, share.consumer)
            return
        self._dispatch(inbound, backlog.messages.popleft(), share.consumer, backlog.group)
        self._served(backlog)
        if backlog.listed_in is share:
            share.backlogs.move_to_end(backlog)

    def _served(self, backlog: Backlog) -> None:
        """It may be empty now, or what is in front now may not go in its turn."""
        backlog.group.forget_if_empty(backlog)
        if backlog.listed_in is None:
            return
        if self._head_held_by(backlog.messages[0]) is not None:
            backlog.leave()
            self._state.list_backlog(backlog)

    def _serve_free(self, inbound: Inbound, free: UnownedSource) -> None:
        """The next free group goes to the consumer with the least to do."""
        self._begin(inbound, next(iter(free.backlogs)), self._state.pool.least_loaded())

    def _begin(self, inbound: Inbound, backlog: Backlog, consumer: Consumer) -> None:
        """Give a free group to a consumer, with its first batch."""
        state, group = self._state, backlog.group
        size = state.policy.first_batch(consumer.credit, len(backlog.messages))
        state.assign(group, consumer, GroupState.OWNED if state.policy.tops_up else GroupState.BATCHED)
        self._dispatch_batch(inbound, backlog, consumer, size)

    def _dispatch_batch(self, inbound: Inbound, backlog: Backlog, consumer: Consumer, size: int) -> None:
        group = backlog.group
        for number in range(size):
            head = backlog.head()
            if head is None or (number and self._breaks_off(group, head)):
                break
            message = backlog.messages.popleft()
            self._dispatch(inbound, message, consumer, group)
            if message.closing:
                break
        self._served(backlog)

    def _breaks_off(self, group: Group, head: Message) -> bool:
        """The batch ends before this message."""
        kind = self._head_held_by(head)
        if kind is HoldKind.NUMBER_MISSING:  # its wait begins now, although nothing is listed before a settle
            self._state.held_back(kind, group, head)
        return kind is not None

    def dispatch_alone(self, message: Message, consumer: Consumer) -> None:
        """Give a suspect to a consumer that has nothing else (see dispatcher.core.optional.poison).

        Its queue does not pay for it: many suspects would leave it in debt for long.
        """
        inbound = self._state.inbounds[message.inbound]
        deficit = inbound.deficit
        backlog = self._state.backlog_of(message)
        if backlog is None:
            self._dispatch(inbound, message, consumer, None)
        else:
            self._hand_over_first(inbound, backlog, message, consumer)
        inbound.deficit = deficit

    def _hand_over_first(
        self, inbound: Inbound, backlog: Backlog, message: Message, consumer: Consumer
    ) -> None:
        state, group = self._state, backlog.group
        if group.state is GroupState.FREE:
            state.assign(group, consumer, GroupState.OWNED if state.policy.tops_up else GroupState.BATCHED)
        backlog.messages.popleft()
        self._dispatch(inbound, message, consumer, group)
        group.forget_if_empty(backlog)
        state.list_backlog(backlog)

    def _serve_loose(self, inbound: Inbound, ungrouped: UngroupedSource) -> None:
        pool = self._state.pool
        consumer = pool.least_loaded() if self._state.policy.by_load else pool.next_in_turn()
        self._dispatch(inbound, ungrouped.messages.popleft(), consumer, None)

    def _dispatch(self, inbound: Inbound, message: Message, consumer: Consumer, group: Group | None) -> None:
        """Hand one message to a consumer that has credit for it: numbers, journal record, order to send."""
        state = self._state
        seq = consumer.next_seq
        consumer.next_seq = seq + 1
        message.first = False
        if group is not None:
            message.first, group.fresh = group.fresh, False
            if group.epoch == 0:
                state.begin_epoch(group)
            group.number(message, state.next_epoch)
            group.went_out(message)
            message.group = group
            if message.closing and group.state is GroupState.OWNED:
                state.close(group)
        else:
            message.group_seq, message.epoch = 0, state.epoch_counter
        if message.attempt or state.revoked:  # one that did not leave was perhaps never handed over
            state.revoked.discard(message)
            state.suspects.discard(message)
        message.attempt += 1
        message.state = MessageState.IN_FLIGHT
        message.consumer = consumer
        message.seq = seq
        message.overdue = False
        message.dispatched_at_ms = consumer.last_sent_ms = state.now_ms
        consumer.in_flight[seq] = message
        consumer.credit -= 1
        if consumer.credit:
            state.pool.sent_to(consumer)
        else:
            state.pool.discard(consumer)
        inbound.deficit -= message.cost
        inbound.waiting -= 1
        inbound.in_flight += 1
        inbound.dispatched += 1
        state.unconfirmed += 1
        state.unconfirmed_bytes += message.size
        copy = Dispatched(
            message, consumer.number, consumer.queue, seq, message.group_seq, message.epoch,
            message.attempt, message.first,
        )  # fmt: skip
        state.effects.records.append(copy)
        state.effects.actions.append(copy)
        for dispatched in self._dispatched:
            dispatched(message, group)


class CostedPass(DeliveryPass):
    """Where messages don't all cost 1."""

    def _dispatch(self, inbound: Inbound, message: Message, consumer: Consumer, group: Group | None) -> None:
        if isinstance(inbound, MeasuredInbound):  # it need not have been its queue's head
            message.cost = inbound.cost_of(message)
        super()._dispatch(inbound, message, consumer, group)
        inbound.surcharge += message.cost - 1


class SerialPass(DeliveryPass):
    """Where of each group one message is out at a time: it comes back when that is settled."""

    def _dispatch_batch(self, inbound: Inbound, backlog: Backlog, consumer: Consumer, size: int) -> None:
        super()._dispatch_batch(inbound, backlog, consumer, min(size, 1))

    def _dispatch(self, inbound: Inbound, message: Message, consumer: Consumer, group: Group | None) -> None:
        super()._dispatch(inbound, message, consumer, group)
        if group is not None:
            self._state.list_backlogs(group)


class CostedSerialPass(CostedPass, SerialPass):
    """Both."""


def delivery_pass_for(state: LaneState) -> DeliveryPass:
    """The pass of this lane. Who asks for nothing special pays nothing for it."""
    if state.stops_failed:
        return SerialPass(state) if state.options.cost is Cost.ONE else CostedSerialPass(state)
    return DeliveryPass(state) if state.options.cost is Cost.ONE else CostedPass(state)
