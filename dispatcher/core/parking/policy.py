"""Which backlogs move to parking queues, and when they have come back (docs/architecture.md, "Parking").

The pass of parking runs behind that of deliveries: it sees what could not go. It parks, moves, reads on and
unparks; nothing here dispatches.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Final

from dispatcher.core.arrivals import Arrivals
from dispatcher.core.bounds import DELIVERIES_MAX
from dispatcher.core.effects import Snapshot
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.inbound import Inbound
from dispatcher.core.model import Backlog, Group, MessageState, Original
from dispatcher.core.operators.flags import awaits_operator
from dispatcher.core.operators.stop import stop_of
from dispatcher.core.parking.display import SENTENCES
from dispatcher.core.parking.events import (
    ParkingQueueDeleted,
    ParkingQueueOpened,
    ParkingQueueUnavailable,
)
from dispatcher.core.parking.journal_replay import ParkingReplay
from dispatcher.core.parking.loading import add_queue, load_queues, load_routes, parking_records
from dispatcher.core.parking.orders import (
    AbandonParkingQueue,
    DeleteParkingQueue,
    GroupParked,
    OpenParkingQueue,
    ParkingQueueForgotten,
    ParkingQueueNamed,
    QueueUnparked,
)
from dispatcher.core.parking.parked_entries import ParkedEntries
from dispatcher.core.parking.queue import ParkingQueue, ParkingQueueState
from dispatcher.core.parking.reading import ParkedReading
from dispatcher.core.parking.relocation import Relocations
from dispatcher.core.parking.reparking import Reparking
from dispatcher.core.queue_ids import FIRST_INBOUND, QueueId, parking_id
from dispatcher.core.records import Record
from dispatcher.core.state import LaneState
from dispatcher.core.waiting import forget_if_empty, group_of, leave_ungrouped, waits_here, waits_since_ms

#: When a look-ahead is full of blocked messages for this time, messages behind it could go.
BLOCKED_MS: Final = 20
#: Groups that stand still are parked before they fill a look-ahead: when this part of it waits for them. A
#: message that is settled behind so many costs RabbitMQ little to ack (`service/ack_window.py`).
STANDING_PART: Final = 20
#: Parking goes on until this part of that number waits for them: each ack costs RabbitMQ the more, the more
#: messages before it are unacked. It does not go on to the last one: a consumer with one such message would
#: need a parking queue for it.
STANDING_LEFT_PART: Final = 10
#: A parking queue that ran empty is kept a while, for groups that are blocked again at once.
LINGER_MS: Final = 2_000
#: When all parking queues are in use, look for a free one so often.
BOUND_RETRY_MS: Final = 1_000
#: What can't be parked yet, for its group is being recovered or sent away, or its parking queue is being
#: opened, is looked at again so often.
RETRY_MS: Final = 100
#: When a consumer's backlogs are to be parked, parking queues of others are opened at the same time: of those
#: whose groups have at least a tenth of the messages that wait …
OPENED_PART: Final = 10
#: … and of so many consumers at most, the first one included.
OPENED_TOGETHER: Final = 4
#: In the place of the id of the consumer that gets a parking queue's messages. No consumer has such an id.
ANYBODY: Final = ""
HELD_BY_OPERATORS: Final = "(held)"


class _LookAhead:
    """What parking remembers of the messages of one inbound queue that wait here."""

    __slots__ = ("aging", "blocked_since_ms", "parks_standing")

    def __init__(self) -> None:
        self.aging: deque[Original] = deque()  # the longest here first, and some that don't wait any more
        self.blocked_since_ms: int | None = None  # full of blocked messages, while a consumer is free
        self.parks_standing = False  # too many waited for groups that stand still, and some of them still do


class Parking(Feature):
    """Parks and unparks the groups of one lane."""

    def __init__(
        self,
        state: LaneState,
        entries: ParkedEntries,
        relocations: Relocations,
        reading: ParkedReading,
        arrivals: Arrivals,
    ) -> None:
        self._state = state
        self._entries = entries
        self._relocations = relocations
        self._reading = reading
        self._file = arrivals.file
        self._names = state.options.parking_queues
        self._reparking = Reparking()
        self._look_aheads = [_LookAhead() for _ in state.inbounds]
        self._passed: QueueId | None = None  # while it is read to its end: what waits is past this stop
        self._idle = False  # the latest pass found nothing that could be dispatched
        self._bound_until_ms = 0
        self._retry_at_ms = 0
        self._look_at_ms = 0  # for groups that stand still, not before
        state.signals.group_changed.append(self._group_changed)
        state.signals.window_filled.append(self._window_filled)
        state.signals.routing.append(self._goes_on)
        state.signals.filed.append(self._filed)
        state.signals.returned.append(self._returned)
        state.signals.withdrawing.append(self._withdraw)
        state.signals.settled_elsewhere.append(self._settled)
        state.explanation.elsewhere.append(state.parking.hold_on)
        state.explanation.sentences |= SENTENCES
        state.explanation.shown_as["parked"] = lambda group: state.parking.parked(group) > 0

    def events(self) -> Mapping[type, Handler]:
        return {
            ParkingQueueOpened: self.opened,
            ParkingQueueUnavailable: self.unavailable,
            ParkingQueueDeleted: self.deleted,
        }

    def load_first(self, snapshot: Snapshot) -> None:
        """Take over the queues. Recovery has read the journal."""
        replay = self._entries.replay
        assert replay is not None
        load_queues(self._state, replay, snapshot.parking_found)
        self._load_resting(snapshot, replay)

    def load(self, snapshot: Snapshot) -> None:
        load_routes(self._state)

    def _load_resting(self, snapshot: Snapshot, replay: ParkingReplay) -> None:
        """When a queue was deleted nobody has written down: a moment ago, for all that is known. If Redis has
        forgotten things, that may be so of any name: hardly of the higher half, since the lowest free number
        is always taken."""
        state, lower = self._state, map(parking_id, range(len(self._names) // 2))
        for index in replay.forgotten if snapshot.complete else lower:
            if index not in state.parking:
                state.parking.rest(index, state.now_ms)

    # -- what happens elsewhere --

    def _group_changed(self, group: Group) -> None:
        parking = self._state.parking
        if group.in_flight >= group.window and parking.route(group):
            for holds in self._state.signals.full_while_parked:
                holds(group)
        if group.route or group.demand:
            parking.refresh_demand(group)

    def _window_filled(self, group: Group) -> None:
        """Its parked messages are not called back before there is room for them."""
        if group.demand is not None or self._state.parking.default_route:
            self._state.relist_backlogs(group)

    def _goes_on(self, group: Group, message: Original) -> bool:
        """Whether its group's route goes on from where it is; then it waits to be moved there."""
        parking = self._state.parking
        if not (group.route or parking.default_route):
            return False
        target = parking.next_on_route(group, message.queue if self._passed is None else self._passed)
        if target is None:
            return False
        self._relocations.wait(message, target)
        if not group.route:
            parking.passing[group.id] = None
        return True

    def _filed(self, message: Original) -> None:
        if message.queue == message.inbound:
            aging = self._look_aheads[message.inbound].aging
            if message.deliveries < DELIVERIES_MAX:
                aging.append(message)
            else:
                aging.appendleft(message)

    def _returned(self, message: Original) -> None:
        self._look_aheads[message.inbound].aging.appendleft(message)
        group = message.group
        if group is not None and self._state.parking.next_on_route(group, message.queue) is not None:
            self._note_overtaken(group)  # some were parked meanwhile, and are newer

    def _withdraw(self, message: Original) -> bool:
        """A consumer has a message that was on its way to a parking queue."""
        state = self._state
        if message.relocation is None:
            return False
        message.relocation.target.waiting.remove(message)
        message.relocation = None
        state.inbounds[message.inbound].end_to_wait()
        state.leave_wait(message)
        return True

    def _settled(self, message: Original) -> None:
        """An original that was read from a parking queue has ended."""
        state = self._state
        if message.state is MessageState.IN_FLIGHT:
            state.inbounds[message.inbound].count_back()
        state.parking[message.queue].settle(message)

    # -- the pass --

    def after_pass(self, *, idle: bool) -> bool:
        """Everything but deliveries."""
        state = self._state
        if state.now_ms < state.lane_holds.suspended_until_ms:
            return False
        self._idle = idle
        woken = self._look_for_blocked() if idle else False
        if idle and state.pool and state.now_ms >= self._look_at_ms:
            self._look_for_standing()
        self._look_for_old()
        self._look_for_overtaken()
        if not state.parking:
            return woken
        for queue in list(state.parking.values()):
            woken |= self._unpark(queue)
        if not state.lane_holds.publishers_blocked:
            self._relocations.run()
        for queue in list(state.parking.values()):
            self._look_after(queue, idle=idle)
        return woken

    def _look_after(self, queue: ParkingQueue, *, idle: bool) -> None:
        state, now_ms = self._state, self._state.now_ms
        self._reading.ask(queue, idle=idle)
        if queue.is_wanted(state.pool) or not queue.here:
            queue.unwanted_since_ms = now_ms
        elif not (queue.reading or queue.early):
            full = state.bytes_held >= state.options.held_bytes_max
            if full or now_ms - queue.unwanted_since_ms >= state.options.park_after_ms:
                queue.unwanted_since_ms = now_ms
                self._reading.give_back(queue)
        if not queue.is_empty() or not queue.at_end or queue.reading or queue.unknown:
            queue.idle_since_ms = now_ms
        elif queue.is_open and now_ms - queue.idle_since_ms >= LINGER_MS:
            queue.become(ParkingQueueState.DELETING)
            state.effects.actions.append(DeleteParkingQueue(queue.index))

    # -- who is parked --

    def _look_for_blocked(self) -> bool:
        """Park what fills a look-ahead, unless something else makes some of it go: True."""
        state, freed = self._state, False
        over = state.bytes_held >= state.options.held_bytes_max
        for inbound, look_ahead in zip(state.inbounds, self._look_aheads, strict=True):
            full = inbound.is_full()
            stuck = (full and bool(state.pool)) or (over and not inbound.replaceable)
            look_ahead.blocked_since_ms = self._since(look_ahead.blocked_since_ms, stuck)
            if self._is_due(look_ahead.blocked_since_ms):
                freed = freed or any([free() for free in state.signals.freeing])
                if freed:
                    look_ahead.blocked_since_ms = None
                    continue
                waits = (m for m in look_ahead.aging if self._waits_in(inbound, m))
                look_ahead.blocked_since_ms = self._park_largest(waits)
        for queue in list(state.parking.values()):
            full = over or len(queue.here) >= state.options.look_ahead
            stuck = full and not queue.at_end and queue.is_wanted(state.pool)
            queue.blocked_since_ms = self._since(queue.blocked_since_ms, stuck)
            if self._is_due(queue.blocked_since_ms):
                waits = (m for m in queue.here.values() if waits_here(m))
                queue.blocked_since_ms = self._park_largest(waits)
        return freed

    def _look_for_standing(self) -> None:
        """Park groups that stand still before they fill a look-ahead."""
        self._look_at_ms = self._state.now_ms + RETRY_MS
        for inbound, look_ahead in zip(self._state.inbounds, self._look_aheads, strict=True):
            most = self._state.options.look_ahead // STANDING_PART
            if look_ahead.parks_standing:
                most //= STANDING_LEFT_PART
            waits = self._waits_standing(inbound, look_ahead.aging) if inbound.waiting > most else []
            look_ahead.parks_standing = len(waits) > most
            if look_ahead.parks_standing:
                self._park_largest(waits)

    def _waits_standing(self, inbound: Inbound, aging: Iterable[Original]) -> list[Original]:
        """The messages of an inbound queue that wait for groups that stand still, group by group."""
        by_group: dict[Group | None, list[Original]] = {}
        for message in aging:
            if self._waits_in(inbound, message):
                by_group.setdefault(self._group_of(message), []).append(message)
        return [m for group, waits in by_group.items() if self._stands_still(group) for m in waits]

    def _stands_still(self, group: Group | None) -> bool:
        signals = self._state.signals
        return group is not None and any(stands_still(group) for stands_still in signals.stands_still)

    def _since(self, before_ms: int | None, stuck: bool) -> int | None:
        if not stuck:
            return None
        return self._state.now_ms if before_ms is None else before_ms

    def _is_due(self, since_ms: int | None) -> bool:
        return since_ms is not None and self._state.now_ms - since_ms >= BLOCKED_MS

    @staticmethod
    def _waits_in(inbound: Inbound, message: Original) -> bool:
        return waits_here(message) and message.queue == inbound.index

    def _park_largest(self, messages: Iterable[Original]) -> int | None:
        """Park all groups of the consumer that most of these messages wait for. They go on until there is a
        queue for them. Returns since when waiting messages count as blocked: not before they can be parked,
        for to look at them costs time."""
        counts: Counter[str] = Counter()
        groups: dict[str, list[Group]] = {}
        for group, count in Counter(map(self._group_of, messages)).items():
            if group is not None and not self._reading.is_busy(group) and not self._goes_soon(group):
                taker = self._taker(group)
                counts[taker] += count
                groups.setdefault(taker, []).append(group)
        largest = sorted(counts, key=lambda taker: -counts[taker])
        parked = [self._park(group) for taker in largest[:1] for group in groups[taker]]
        for taker in largest[1:OPENED_TOGETHER]:
            if counts[taker] * OPENED_PART >= sum(counts.values()):  # it is parked next, if that goes on
                self._target_of(groups[taker][0], is_needed=False)
        if any(parked):
            return None
        return max(self._state.now_ms + RETRY_MS, self._bound_until_ms)

    def _taker(self, group: Group) -> str:
        """The consumer whose parking queue its messages belong in. Groups that operators hold get one of
        their own, so that no message that could go is behind them."""
        if awaits_operator(self._state, group):
            return HELD_BY_OPERATORS
        return group.taker.id if group.taker is not None else ANYBODY

    def _goes_soon(self, group: Group) -> bool:
        return any(goes_soon(group) for goes_soon in self._state.signals.goes_soon)

    def _group_of(self, message: Original) -> Group | None:
        if message.group_id is None or not self._state.policy.grouped:
            return None
        return group_of(self._state, message)

    def _look_for_old(self) -> None:
        """Park messages that have waited for too long (RabbitMQ closes the channel of a client that holds one
        longer than its consumer_timeout), or that a quorum queue has delivered often: it drops them in the
        end."""
        state = self._state
        limit_ms = state.now_ms - state.options.park_after_ms
        for inbound in state.inbounds:
            aging = self._look_aheads[inbound.index].aging
            if not aging:
                continue
            for _ in range(len(aging)):
                message = aging[0]
                if self._waits_in(inbound, message):
                    is_due = message.received_at_ms <= limit_ms or message.deliveries >= DELIVERIES_MAX
                    if not is_due or state.now_ms < self._bound_until_ms:
                        break
                    group = self._group_of(message)
                    target = self._target_of_old(group)
                    if target is not None and not target.is_open:
                        self._retry_at_ms = state.now_ms + RETRY_MS
                        break
                    if target is None:
                        aging.append(message)  # looked at again when the others were
                    elif group is not None:
                        self._park_in(group, target)
                    else:
                        self._park_alone(message, target)
                aging.popleft()
            self._compact(inbound)

    def _target_of_old(self, group: Group | None) -> ParkingQueue | None:
        """Where an old message moves, alone or with its group. None: no queue is free, or the group can't be
        parked now."""
        if group is None:
            return self._queue_for(ANYBODY, above=FIRST_INBOUND)
        if not self._reading.is_busy(group):
            return self._target_of(group)
        self._retry_at_ms = self._state.now_ms + RETRY_MS
        return None

    def _compact(self, inbound: Inbound) -> None:
        """Forget messages that have gone, once they are most of those that are remembered."""
        look_ahead = self._look_aheads[inbound.index]
        if len(look_ahead.aging) > 2 * inbound.unacked + 1_000:
            waiting = (message for message in look_ahead.aging if self._waits_in(inbound, message))
            look_ahead.aging = deque(dict.fromkeys(waiting))  # a message that came back may be in it twice

    def _look_for_overtaken(self) -> None:
        """Park messages that came back to a parked group: in front of the rest, so in a queue with a higher
        number. Not before there is such a queue: until then they may be handed over, or operators decide
        about them."""
        now_ms = self._state.now_ms
        for group in self._reparking.take_due(now_ms):
            if not self._is_reparked_first(group):
                continue
            target = None if self._reading.is_busy(group) else self._target_of(group, is_needed=False)
            if target is not None and target.is_open:
                self._park_in(group, target)
            else:
                self._reparking.later(group, now_ms)

    def _note_overtaken(self, group: Group) -> None:
        """Messages are here that came back to a parked group. Those that wait for operators may do so for
        long."""
        state = self._state
        self._reparking.note(group, state.now_ms, at_once=awaits_operator(state, group))

    def _is_reparked_first(self, group: Group) -> bool:
        """Whether a message waits here that only the journal knows to be older than the parked ones of its
        group."""
        parking = self._state.parking
        heads = [backlog.head() for backlog in (group.backlogs or {}).values()]
        return any(
            head is not None and parking.next_on_route(group, head.queue) is not None for head in heads
        )

    # -- parking --

    def _park(self, group: Group) -> bool:
        """Give the group a route, or a longer one, and move all that waits of it. False: no queue is free, or
        it is not open yet; until then the group goes on."""
        target = self._target_of(group)
        if target is None or not target.is_open:
            return False
        self._park_in(group, target)
        return True

    def _target_of(self, group: Group, *, is_needed: bool = True) -> ParkingQueue | None:
        """The queue for the group's waiting messages; None: none is free, which is told if it `is_needed`."""
        waiting = [m for b in (group.backlogs or {}).values() for m in b.messages]
        route = self._state.parking.route(group)
        last = max([m.queue for m in waiting if m.is_parked] + list(route), default=FIRST_INBOUND)
        if last and last not in route:  # it was read to its end, and the group's messages in it wait here
            return self._state.parking[last]
        return self._queue_for(self._taker(group), above=last, is_needed=is_needed)

    def _park_in(self, group: Group, target: ParkingQueue) -> None:
        self._state.effects.records.append(GroupParked(group.id, target.index, 0, waits_since_ms(group) or 0))
        group.route = (*group.route, target.index)
        target.members.setdefault(group.id, 0)
        target.additions += 1  # something comes: one that was empty is not read to its end any more
        target.end_seen = False
        self._state.counters["groups_parked"] += 1
        for backlog in _stopped_first(group):
            for message in _pop_behind(backlog, target.index):
                self._state.suspects.discard(message)
                self._relocations.wait(message, target)
            forget_if_empty(self._state, backlog)
        self._state.parking.refresh_demand(group)
        if self._is_reparked_first(group):
            self._note_overtaken(group)

    def _park_alone(self, message: Original, target: ParkingQueue) -> None:
        """A message that no order binds: it goes alone."""
        leave_ungrouped(self._state, message)
        self._relocations.wait(message, target)

    def _queue_for(self, consumer: str, *, above: QueueId, is_needed: bool = True) -> ParkingQueue | None:
        """The parking queue for messages that wait for this consumer; its number is larger than `above`.

        One that is open and has nothing goes from one consumer to another: owners may change while queues
        are opened, and a look-ahead that is full would stand still once more for as long.
        """
        queues = [queue for queue in self._state.parking.values() if queue.index > above and queue.is_usable]
        own = next((queue for queue in queues if queue.consumer == consumer), None)
        if own is not None and (own.is_open or not own.is_empty()):
            return own
        unused = next((queue for queue in queues if queue.is_open and queue.is_empty()), None)
        if unused is None:
            return own if own is not None else self._name_queue(consumer, above, is_needed=is_needed)
        if own is not None:
            self._rename(own, unused.consumer)
        self._rename(unused, consumer)
        return unused

    def _rename(self, queue: ParkingQueue, consumer: str) -> None:
        queue.consumer, queue.idle_since_ms = consumer, self._state.now_ms
        self._state.effects.records.append(ParkingQueueNamed(queue.index, consumer))

    def _name_queue(self, consumer: str, above: QueueId, *, is_needed: bool) -> ParkingQueue | None:
        state = self._state
        free = self._free_name(above)
        if free is None and not is_needed:
            return None
        if free is None:
            self._bound_until_ms = state.now_ms + BOUND_RETRY_MS
            if not state.parking.at_bound:
                state.log_event("parking_bound_reached", queues=len(state.parking))
            state.parking.at_bound = True
            return None
        state.parking.at_bound = False
        queue = add_queue(state, free, consumer)
        state.effects.records.append(ParkingQueueNamed(free, consumer))
        state.effects.actions.append(OpenParkingQueue(free))
        state.log_event("parking_begins", queue=queue.name, consumer=consumer or None)
        return queue

    def _free_name(self, above: QueueId) -> QueueId | None:
        """The lowest number that is neither in use nor at rest."""
        parking, now_ms = self._state.parking, self._state.now_ms
        for index in map(parking_id, range(len(self._names))):
            if index > above and index not in parking and not parking.rests(index, now_ms):
                parking.resting.pop(index, None)
                return index
        return None

    # -- unparking --

    def _unpark(self, queue: ParkingQueue) -> bool:
        """When it was read to its end, and nothing of it is here but what the journal knows: its groups are
        done with it. True when something waits that may be dispatched now."""
        state = self._state
        if not (queue.members or queue.unknown) or not queue.is_read:
            return False
        if queue.holds_undecided(state.revoked):
            return False
        state.effects.records.append(QueueUnparked(queue.index))
        self._tell_end(queue)
        queue.unknown = False
        state.parking.default_route = _without(queue.index, state.parking.default_route)
        if not state.parking.default_route:
            passed, state.parking.passing = state.parking.passing, {}
            for group in [state.groups[key] for key in passed if key in state.groups]:
                state.forget_if_unused(group)
        members = [state.groups[key] for key in queue.members if key is not None and key in state.groups]
        queue.members.clear()
        queue.since_ms.clear()
        queue.terms_needed.clear()
        for group in members:
            group.route = _without(queue.index, group.route)
            state.parking.refresh_demand(group)
        waiting, queue.waiting = queue.waiting, deque()
        self._passed = queue.index  # the waiting messages are past this stop of their groups' routes
        for message in waiting:
            if message.state is MessageState.WAITING:
                message.relocation = None
                state.inbounds[message.inbound].end_to_wait()
                self._file(message)
        self._passed = None
        for group in members:
            state.forget_if_unused(group)
            state.rested(group)
        return bool(waiting)

    def _tell_end(self, queue: ParkingQueue) -> None:
        """Everything that was stored in it is here, or ended. What is not is lost, unless Redis has forgotten
        how much there was."""
        state, groups = self._state, len(queue.members)
        lost = 0 if queue.unknown else max(0, queue.originals - len(queue.here))
        queue.originals = len(queue.here)
        if lost:
            state.counters["parked_lost"] += lost
            state.report_loss("parking_lost", queue=queue.name, groups=groups, lost=lost)
        else:
            state.log_event("parking_ends", queue=queue.name, groups=groups)

    # -- what the edge says --

    def opened(self, event: ParkingQueueOpened) -> None:
        queue = self._state.parking[event.queue]
        queue.become(ParkingQueueState.OPEN)
        if queue.problem is not None:
            queue.problem = None
            self._state.log_event("parking_available", queue=queue.name)
        queue.idle_since_ms = self._state.now_ms
        self._retry_at_ms = 0
        places: list[_LookAhead | ParkingQueue] = [*self._look_aheads, *self._state.parking.values()]
        for each in places:
            if each.blocked_since_ms is not None:  # perhaps for want of this queue
                each.blocked_since_ms = self._state.now_ms - BLOCKED_MS

    def unavailable(self, event: ParkingQueueUnavailable) -> None:
        """It can't be read. Groups with messages in it wait. One in which nothing can be is given up: others
        take its place."""
        state, queue = self._state, self._state.parking.get(event.queue)
        if queue is None or queue.is_open:  # its end, or its opening, was told meanwhile
            return
        if queue.problem is None:
            state.warn(
                "parking_unavailable", queue=queue.name, groups=len(queue.members), problem=event.problem
            )
        queue.problem = event.problem
        if queue.is_empty() and not (queue.unknown or queue.redelivering):
            state.effects.actions.append(AbandonParkingQueue(queue.index))
            self._forget(queue)
            self._retry_at_ms = 0

    def deleted(self, event: ParkingQueueDeleted) -> None:
        """It is gone; or something was in it, which must be read then."""
        queue = self._state.parking[event.queue]
        if not event.is_gone:
            queue.become(ParkingQueueState.OPEN)
            queue.additions += 1
            return
        self._forget(queue)

    def _forget(self, queue: ParkingQueue) -> None:
        self._state.effects.records.append(ParkingQueueForgotten(queue.index))
        del self._state.parking[queue.index]
        self._state.parking.rest(queue.index, self._state.now_ms)

    def records(self) -> list[Record]:
        """All that is still true, for a checkpoint."""
        return parking_records(self._state)

    def next_deadline_ms(self) -> int | None:
        """When the pass must run again even if nothing happens."""
        state = self._state
        if state.now_ms < state.lane_holds.suspended_until_ms:
            return None
        after_ms = state.options.park_after_ms
        later_ms = max(self._bound_until_ms, self._retry_at_ms)
        oldest = (look_ahead.aging[0] for look_ahead in self._look_aheads if look_ahead.aging)
        due = [max(message.received_at_ms + after_ms, later_ms) for message in oldest]
        if self._idle:  # else nothing checks whether it still is blocked
            since = [look_ahead.blocked_since_ms for look_ahead in self._look_aheads]
            since += [queue.blocked_since_ms for queue in state.parking.values()]
            due += [since_ms + BLOCKED_MS for since_ms in since if since_ms is not None]
            due += [self._look_at_ms for look_ahead in self._look_aheads if look_ahead.parks_standing]
        if self._reparking.due_ms is not None:
            due.append(self._reparking.due_ms)
        for queue in state.parking.values():
            if queue.waiting and queue.refused_until_ms > state.now_ms:
                due.append(queue.refused_until_ms)
            if queue.here:
                if not (queue.reading or queue.early):
                    due.append(queue.unwanted_since_ms + after_ms)
            elif queue.is_open and queue.at_end and queue.is_empty():
                due.append(queue.idle_since_ms + LINGER_MS)
        return max(min(due), state.now_ms + 1) if due else None


def _stopped_first(group: Group) -> list[Backlog]:
    """The group's backlogs. The one at whose head the group has stopped comes first: no message of the
    others can go before that."""
    stop = stop_of(group)
    backlogs = list((group.backlogs or {}).values())
    return backlogs if stop is None else sorted(backlogs, key=lambda backlog: backlog.inbound != stop.inbound)


def _pop_behind(backlog: Backlog, queue: QueueId) -> list[Original]:
    """Take out the messages behind the last one that came from this queue; all, if none did."""
    messages = list(backlog.messages)
    last = max((at for at, message in enumerate(messages) if message.queue == queue), default=-1)
    backlog.messages = deque(messages[: last + 1])
    return [message for message in messages[last + 1 :] if message.state is MessageState.WAITING]


def _without(queue: QueueId, route: tuple[QueueId, ...]) -> tuple[QueueId, ...]:
    return tuple(index for index in route if index != queue)
