"""A group's parking queues on the way of an operation (docs/architecture.md, "Operations on groups").

When the last marker is back, the messages of a parked group stand in up to four places: in front of its
parking queues, in them, on their way into one, and read back from one. Their order is that of the queues'
numbers. So each queue is read through in turn, behind the last copy that was on its way there. Messages of
other groups that block the reading move on to another parking queue, as always.
"""

from __future__ import annotations

from collections import deque

from dispatcher.core.model import Group, MessageState, Original
from dispatcher.core.parking.queue import ParkingQueue
from dispatcher.core.queue_ids import FIRST_INBOUND
from dispatcher.core.state import LaneState
from dispatcher.core.waiting import group_of

_WAITING = (MessageState.WAITING, MessageState.RELOCATING)


class ParkedScan:
    """Of one operation, from the moment in which its last marker was back: `look` until that is True."""

    def __init__(self, state: LaneState, group: Group) -> None:
        self._state = state
        self._group = group
        #: The last that was received of each inbound queue: an arrival of an earlier leader is smaller.
        self._last = {i.index: max(i.latest, (state.lane_epoch, 0)) for i in state.inbounds}
        #: They finish normally: if their consumer dies they wait again, and before all that is newer.
        self._in_flight = {
            m for c in state.by_uuid.values() for m in c.in_flight.values() if m.group is group
        }
        self._queue: ParkingQueue | None = None  # that is being read through
        self._coming: deque[Original] = deque()  # on their way into it
        self._goal: int | None = None  # its `additions` when the last of them was stored
        self._go_to_next()

    def has(self, message: Original) -> bool:
        """Whether the operation means a message of its group that waits here."""
        return message not in self._in_flight and message.first_arrival <= self._last[message.inbound]

    def look(self) -> bool:
        """Whether all messages of the operation that no consumer has wait here by now, or have ended."""
        while self._queue is not None:
            if not self._is_read(self._queue):
                return False
            self._queue.read_through -= 1
            self._go_to_next()
        return True

    def end(self) -> None:
        """The operation has ended."""
        if self._queue is not None:
            self._queue.read_through -= 1
            self._queue = None

    def sight(self) -> tuple[object, ...]:
        """Differs whenever something has moved."""
        queue = self._queue
        if queue is None:
            return ()
        return queue.index, queue.additions, queue.left, queue.asked_at, len(queue.here), len(self._coming)

    @property
    def place(self) -> str:
        """The parking queue that it waits for."""
        return self._queue.name if self._queue is not None else ""

    def _go_to_next(self) -> None:
        passed = self._queue.index if self._queue is not None else FIRST_INBOUND
        queue = self._queue = self._state.parking.next_on_route(self._group, passed)
        self._goal = None
        if queue is not None:
            queue.read_through += 1
            coming = [*queue.relocating.values(), *queue.waiting]
            self._coming = deque(m for m in coming if is_of(self._state, m, self._group) and self.has(m))

    def _is_read(self, queue: ParkingQueue) -> bool:
        if queue.index not in self._group.route:  # it was unparked
            return True
        coming = self._coming
        while coming and not _is_on_its_way(coming[0], queue):
            coming.popleft()
        if coming:
            return False
        if self._goal is None:
            self._goal = queue.additions
        if queue.reading or queue.early:
            return False
        return queue.end_at >= self._goal or self._is_passed(queue)

    def _is_passed(self, queue: ParkingQueue) -> bool:
        """What the operation doesn't mean is behind all that it means."""
        lines = (self._group.backlogs or {}).values()
        newest = (line.messages[-1] for line in lines if line.messages)
        return any(m.queue == queue.index and m.first_arrival > self._last[m.inbound] for m in newest)


def is_of(state: LaneState, message: Original, group: Group) -> bool:
    """Whether a message, perhaps one that moves, is of this group."""
    return group_of(state, message) is group


def unread_queues(state: LaneState) -> list[str]:
    """The parking queues that may hold messages of any group, for Redis has forgotten whose they hold."""
    return [state.parking[index].name for index in state.parking.default_route]


def parked_of(state: LaneState, group: Group) -> int:
    """How many messages of the group wait in parking queues, or move there, and are in no backlog here."""
    count = 0
    for index in state.parking.route(group):
        queue = state.parking[index]
        here = (m for m in queue.here.values() if m.relocation is None and is_of(state, m, group))
        coming = (m for m in (*queue.relocating.values(), *queue.waiting) if not m.is_parked)
        count += queue.members.get(group.id, 0) - sum(1 for _ in here)
        count += len({m for m in coming if is_of(state, m, group)})
    return max(0, count)


def _is_on_its_way(message: Original, queue: ParkingQueue) -> bool:
    return message.relocation is not None and message.relocation.target is queue and message.state in _WAITING
