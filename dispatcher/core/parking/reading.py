"""Reading parking queues: which deliveries are originals, where they go on, and when the end was reached."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from dispatcher.core.arrivals import Arrivals
from dispatcher.core.dead_letters import dead_letter
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.holds import HoldKind
from dispatcher.core.model import Backlog, Group, Original
from dispatcher.core.operators.stop import has_decision
from dispatcher.core.parking.events import ParkingQueueRead
from dispatcher.core.parking.orders import GiveBack, OpenParkingQueue, ReadParkingQueue
from dispatcher.core.parking.queue import ParkingQueue
from dispatcher.core.recovery.pending_redeliveries import PendingRedeliveries
from dispatcher.core.state import LaneState
from dispatcher.core.waiting import backlog_of, group_of, head_changed, leave_ungrouped, waits_here

#: Messages fetched at a time: each is a request of its own, and one that is fetched for nothing is held.
READ_MAX: Final = 100
#: And at least so many: who takes one at a time would wait for the broker each time.
READ_MIN: Final = 10


class CopyKind(Enum):
    """What a delivery of a parking queue is."""

    WAIT = auto()  # not known before a relocation that is under way has ended
    REPEATED = auto()  # another copy counts
    KNOWN = auto()  # the journal, or a consumer, knows it: its original is back
    ORIGINAL = auto()


class ParkedReading(Feature):
    """Reads on demand, and files the messages as if they had just arrived."""

    def __init__(self, state: LaneState, arrivals: Arrivals) -> None:
        self._state = state
        self._arrivals = arrivals
        #: What the journal knows and a parking queue got back: it is still to come.
        self._given_back = PendingRedeliveries(state.key_of, [])
        state.signals.lost.append(self._given_back.discard)
        self.pending = (state.parking,)

    def events(self) -> Mapping[type, Handler]:
        return {ParkingQueueRead: self.read}

    def begin(self) -> None:
        for queue in self._state.parking.values():
            self._state.effects.actions.append(OpenParkingQueue(queue.index))

    def before_pass(self) -> None:
        """Decide about messages that were read earlier and could not be decided about then."""
        for queue in self._state.parking.values():
            if queue.early:
                self.accept(queue)

    def is_busy(self, group: Group) -> bool:
        """Its waiting messages may be about to move, or other messages of it that the journal knows are still
        to come: from an inbound queue, or from a parking queue that got them back. Those go to consumers
        when they come. Messages that wait now may be older, and must not be parked behind them."""
        return any(busy(group) for busy in self._state.signals.busy) or self._given_back.has_any_of(group.id)

    # -- messages that were read --

    def read(self, event: ParkingQueueRead) -> None:
        """The answer to an order to read."""
        queue = self._state.parking[event.queue]
        queue.reading = False
        queue.left = event.left
        queue.end_seen = event.is_end
        queue.early.extend(event.messages)
        if event.is_end:
            queue.end_at = queue.asked_at
        self.accept(queue)
        if queue.redelivering:
            full = len(queue.here) >= self._state.options.look_ahead
            if full or event.is_end or any(not message.redelivered for message in event.messages):
                queue.redelivering = False
                self._state.absent.end_if_through()

    def accept(self, queue: ParkingQueue) -> None:
        """Decide about the messages that were read, in their order, as far as possible."""
        early = queue.early
        while early:
            message = early[0]
            match self._judge(queue, message):
                case CopyKind.WAIT:
                    return
                case CopyKind.REPEATED:
                    self._state.acks.append(message)
                    self._state.counters["repeated_copies"] += 1
                case CopyKind.KNOWN:
                    known = queue.expected.pop(message.fingerprint, None)
                    if known is not None:
                        self._given_back.discard(known)
                    self._state.absent.match(known, message)
                case CopyKind.ORIGINAL:
                    self._take(queue, message)
            early.popleft()
        if queue.end_at == queue.additions and not queue.published and queue.expected:
            for message in list(queue.expected.values()):  # others deleted their originals
                self._state.absent.vanish(message)

    def _judge(self, queue: ParkingQueue, message: Original) -> CopyKind:
        copy, absent = message.fingerprint, self._state.absent
        original = queue.relocating.get(copy)
        if original is not None:
            kind = self._judge_relocated(queue, message, original)
            if kind is not None:
                return kind
        if copy in queue.expected or absent.is_reported(copy):
            return CopyKind.KNOWN
        if absent.go_before(message.group_id):
            return CopyKind.WAIT  # older ones of its group are still to come from an inbound queue
        if copy in queue.here or copy in queue.settled or message.term < queue.terms_needed.get(copy, 0):
            return CopyKind.REPEATED
        return CopyKind.ORIGINAL

    @staticmethod
    def _judge_relocated(queue: ParkingQueue, message: Original, original: Original) -> CopyKind | None:
        """The kind of a copy whose original is to be relocated to this queue. None: it may count although it
        is older than that relocation, for Redis has forgotten the one that came behind it, which counts as
        well."""
        relocation = original.relocation
        assert relocation is not None
        is_published = message.fingerprint in queue.published
        if is_published and message.term >= relocation.term:
            return CopyKind.WAIT
        if not relocation.repeated:  # a copy is published again with all that are open
            return CopyKind.REPEATED if message.term < queue.void_before else None
        return CopyKind.REPEATED if is_published or original.is_here else CopyKind.WAIT

    def _take(self, queue: ParkingQueue, message: Original) -> None:
        state = self._state
        queue.take(message)
        self._arrivals.set_common_group(message)
        state.bytes_held += message.footprint
        # When its consumers died is not known any more: only settles from now on prove anything.
        message.settles_at_death = state.settles
        for delivered in state.signals.delivered:
            delivered(message)
        if message.refusal is not None:
            dead_letter(state, message, message.refusal)
        else:
            self._arrivals.file(message)

    # -- orders --

    def ask(self, queue: ParkingQueue, *, idle: bool) -> None:
        """Read on, if that is of use; `idle`: nothing that is here could go."""
        if not queue.is_open or queue.reading or queue.early:
            return
        limit = self._limit(queue, idle=idle)
        if limit > 0:
            queue.begin_read()
            self._state.effects.actions.append(ReadParkingQueue(queue.index, min(limit, READ_MAX)))

    def _limit(self, queue: ParkingQueue, *, idle: bool) -> int:
        state = self._state
        if queue.published and queue.end_at == queue.additions:
            return 0  # it was empty, and copies on their way there count when they are confirmed
        if queue.expected:
            return READ_MAX
        if queue.redelivering:
            return state.options.look_ahead - len(queue.here)
        if queue.at_end:
            return 0
        if not queue.members and not queue.unknown:  # only copies that count no more can be left
            return READ_MAX
        if state.bytes_held >= state.options.held_bytes_max or not (idle or queue.read_through):
            return 0
        if queue.read_through:
            return state.options.look_ahead - len(queue.here)
        if not queue.is_wanted(state.pool):
            return 0
        room = state.options.look_ahead - len(queue.here)
        if room <= 0 and self._is_searched(queue):
            return READ_MIN
        return min(max(READ_MIN, queue.room(state.pool)), room)

    def _is_searched(self, queue: ParkingQueue) -> bool:
        """A message that operators decided about may be behind all that are here: from another inbound queue,
        for one."""
        route = self._state.parking.route
        return any(
            has_decision(group) and queue.index in route(group) for group in self._state.awaiting_decision
        )

    # -- giving back --

    def give_back(self, queue: ParkingQueue) -> None:
        """Give messages that wait here and can't go back to their queue: to their places, in front."""
        returned: set[Original] = set()
        tags = []
        stay = self._in_front(queue)
        for message in list(queue.here.values()):
            if not waits_here(message) or message in stay or not self._returns_in_order(queue, message):
                continue
            returned.add(message)
            tags.append(message.tag)
            self._leave(queue, message)
        if not returned:
            return
        self._drop(returned)
        queue.additions += 1
        queue.end_seen = False
        self._state.effects.actions.append(GiveBack(queue.index, tuple(tags)))
        self._state.counters["given_back"] += len(returned)

    def _in_front(self, queue: ParkingQueue) -> set[Original]:
        """Messages that wait here before a newer one from another queue: that one stays here, and must not
        pass them. It went directly to the consumer that had them, before its group was parked again."""
        stay: set[Original] = set()
        lines = {backlog_of(self._state, m): None for m in queue.here.values() if waits_here(m)}
        for line in lines:
            before: list[Original] = []
            for message in line.messages if line is not None else ():
                before.append(message)
                if message.queue != queue.index:
                    stay.update(before)
                    before.clear()
        return stay

    def _returns_in_order(self, queue: ParkingQueue, message: Original) -> bool:
        """This is the last parking queue of its group: no newer one can come out of another. Messages that
        an operation takes from here stay."""
        if message.group_id is None or not self._state.policy.grouped:
            return True
        group = group_of(self._state, message)
        return (
            group is not None
            and self._state.eligibility.flag_holds.first(group) is not HoldKind.TRANSFERRING
            and self._state.parking.route(group)[-1:] == (queue.index,)
        )

    def _drop(self, messages: set[Original]) -> None:
        """They wait here no more."""
        state = self._state
        backlogs: dict[Backlog, None] = {}
        for message in messages:
            inbound = state.inbounds[message.inbound]
            inbound.end_to_wait()
            backlog = backlog_of(state, message)
            if backlog is not None:
                backlogs[backlog] = None
                state.suspects.discard(message)
            else:
                leave_ungrouped(state, message)
        for backlog in backlogs:
            backlog.messages = deque(message for message in backlog.messages if message not in messages)
            head_changed(state, backlog)

    def _leave(self, queue: ParkingQueue, message: Original) -> None:
        state = self._state
        queue.leave(message)
        state.bytes_held -= message.footprint
        message.tag, message.content = 0, None
        if message in state.revoked:  # the journal has an entry of it, which it will meet again
            state.revoked.discard(message)
            state.absent.expect_again(message)
            self._given_back.add(message)
