"""Inbound queues, their sources for the delivery pass, and their numbers.

An inbound queue offers its sources to the delivery pass: those in its ring, each with the backlogs that
eligibility lets pass. `prefetch_window` decides how many of its originals may be here at a time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Final

from dispatcher.core.model import IN_FLIGHT, WAITING, Backlog, ConsumerSource, Group, Original
from dispatcher.core.placement import Pool
from dispatcher.core.queue_ids import QueueId
from dispatcher.core.settled_originals import SettledOriginals

#: Empty backlogs that are kept for the next groups, about 1 kB each: enough for the arrivals of a step.
SPARE_BACKLOGS: Final = 256
#: A source goes first after others took so often the last room of the consumers that it waits for (F-4).
PASSED_OVER_MAX: Final = 16
#: The mean size of originals is that of about this many.
SIZES_REMEMBERED: Final = 64


class UnownedSource:
    """Groups without an owner that have messages in one inbound queue, in turn."""

    __slots__ = ("backlogs", "in_ring", "offered", "passed_over", "pool")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.backlogs: OrderedDict[Backlog, None] = OrderedDict()
        self.in_ring = self.offered = False
        self.passed_over = 0

    def head(self) -> Original | None:
        """The first message of the next free group, or None: no consumer has credit, or nothing waits."""
        if not self.pool or not self.backlogs:
            return None
        return next(iter(self.backlogs)).head()

    def has_waiting(self) -> bool:
        """Whether the delivery pass could serve it if a consumer had free capacity."""
        return bool(self.backlogs)

    def has_room(self) -> bool:
        """Whether a consumer has free capacity."""
        return bool(self.pool)


class UngroupedSource:
    """Messages of one inbound queue that belong to no group, or to a lane that doesn't group."""

    __slots__ = ("in_ring", "messages", "offered", "passed_over", "pool")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.messages: Any = deque()  # of Original; or what looks like it: optional/group_limit.py
        self.in_ring = self.offered = False
        self.passed_over = 0

    def head(self) -> Original | None:
        return self.first() if self.pool else None

    def first(self) -> Original | None:
        """The next message that may go to a consumer with free capacity."""
        messages: deque[Original] = self.messages
        while messages:
            if messages[0].state is WAITING:
                return messages[0]
            messages.popleft()
        return None

    def has_waiting(self) -> bool:
        """As for groups without an owner."""
        return bool(self.messages)

    def has_room(self) -> bool:
        """The same."""
        return bool(self.pool)

    def is_at_limit(self) -> bool:
        """Messages wait only for others of their ids to be settled."""
        return False


class Inbound:
    """One inbound queue of the lane. Sizes are in bytes."""

    __slots__ = (
        "deficit", "dispatched", "in_flight", "index", "latest", "mean_bytes", "name", "paused", "ring",
        "recovery", "replaceable", "settled", "_spare", "spent", "unacked", "ungrouped", "unowned", "waiting",
        "weight", "window",
    )  # fmt: skip

    def __init__(self, index: QueueId, name: str, weight: int, window: int, pool: Pool) -> None:
        self.index = index
        self.name = name
        self.weight = weight  # its quantum: what a turn adds to the deficit
        self.deficit = 0
        #: Sources that may have an eligible message.
        self.ring: deque[ConsumerSource | UnownedSource | UngroupedSource] = deque()
        self.unowned = UnownedSource(pool)
        self.ungrouped = UngroupedSource(pool)
        self.waiting = 0
        self.in_flight = 0
        self.dispatched = 0  # since start
        self.spent = 0  # what that cost
        #: Of groups whose only message went out: a group that has one at a time would make them each time.
        self._spare: list[dict[QueueId, Backlog]] = []
        # What is here of it
        self.window = window  # originals that may be here at a time, beside what a former window let in
        self.unacked = 0  # originals here: waiting, in flight or ending
        self.latest = (0, 0)  # arrival of the latest original
        self.mean_bytes = 0.0  # that the latest originals took; 0: none came
        self.paused = False  # not fetched from because of the byte budget
        self.replaceable = True  # False: its consumer must never be replaced, and its window stays
        self.recovery: Any = None  # what it may still deliver again: recovery/expected.py has the type
        self.settled = SettledOriginals()

    # -- its sources --

    def enlist(self, source: ConsumerSource | UnownedSource | UngroupedSource) -> None:
        """Let the delivery pass look at this source again: behind the others, or first if it has been passed
        over so often."""
        if not source.in_ring:
            source.in_ring = True
            if source.passed_over < PASSED_OVER_MAX:
                self.ring.append(source)
            else:
                self.ring.appendleft(source)
        if source.has_room():
            source.offered = True

    def wake_common_sources(self) -> None:
        """A consumer has free capacity again: offer it the sources that have no consumer of their own."""
        if self.unowned.backlogs:
            self.enlist(self.unowned)
        if self.ungrouped.messages:
            self.enlist(self.ungrouped)

    def head(self) -> Original | None:
        """The next eligible message. Sources without one leave the ring until something changes for them."""
        ring = self.ring
        while ring:
            source = ring[0]
            message = source.head()
            if message is not None:
                return message
            ring.popleft()
            source.in_ring = False
            if not source.has_waiting():
                source.passed_over = 0
            elif source.offered:  # there was room, and others took it
                source.passed_over += 1
            source.offered = False
        return None

    # -- its backlogs --

    def backlog_of(self, group: Group) -> Backlog:
        """The group's backlog for this queue, made when it is first needed."""
        backlogs, index = group.backlogs, self.index
        if backlogs is None:
            if self._spare:
                backlogs = self._spare.pop()
                backlogs[index].group = group
            else:
                backlogs = {}
            group.backlogs = backlogs
        backlog = backlogs.get(index)
        if backlog is None:
            backlog = backlogs[index] = Backlog(group, index)
        return backlog

    def forget_empty(self, backlog: Backlog) -> None:
        """Take an empty backlog from its group. The caller must not keep it: another group will get it."""
        backlog.leave()
        group = backlog.group
        backlogs = group.backlogs
        if backlogs is not None and len(backlogs) > 1:
            del backlogs[self.index]
        elif backlogs is not None:
            group.backlogs = None
            if len(self._spare) < SPARE_BACKLOGS:
                self._spare.append(backlogs)

    # -- its counters: only these methods change them; `drr` sets the deficit, `prefetch_window` the window --

    def take_in(self, message: Original) -> None:
        """An original is here, and counts until it is settled."""
        self.latest = message.arrival
        self.unacked += 1
        mean, footprint = self.mean_bytes, message.footprint
        self.mean_bytes = mean + (footprint - mean) / SIZES_REMEMBERED if mean else footprint

    def is_full(self) -> bool:
        """Nothing more of it comes before something is settled."""
        return self.paused or self.unacked >= self.window

    def settle(self, message: Original) -> None:
        """An original that is here ended, and its ack is on the way."""
        if message.state is IN_FLIGHT:
            self.in_flight -= 1
        self.settled.unproven.append((message.arrival, message.fingerprint))
        self.unacked -= 1

    def begin_to_wait(self) -> None:
        """One of its messages waits."""
        self.waiting += 1

    def end_to_wait(self) -> None:
        """One that waited does so no more, and was not dispatched."""
        self.waiting -= 1

    def dispatch(self, cost: int) -> None:
        """One that waited goes to a consumer, and the queue pays for it."""
        self.deficit -= cost
        self.spent += cost
        self.waiting -= 1
        self.in_flight += 1
        self.dispatched += 1

    def repay(self, cost: int) -> None:
        """A message went out of turn: the queue gets back what it paid for it."""
        self.deficit += cost

    def count_out(self) -> None:
        """One is in flight that this leader did not dispatch."""
        self.in_flight += 1

    def count_back(self) -> None:
        """One is in flight no more."""
        self.in_flight -= 1
