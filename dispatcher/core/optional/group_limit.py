"""`max_in_flight_per_group`: ids of a `concurrent` lane share it fairly, and none has more than that number
in flight. The waiting messages of an inbound queue are a line for each id instead of one for all. The lines
are served in turn, one message each, those at the limit not at all. The messages in flight of an id are
counted where consumers' messages are kept, however they came there.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial

from dispatcher.core.feature import Feature
from dispatcher.core.holds import HoldKind
from dispatcher.core.inbound import Inbound, UngroupedSource
from dispatcher.core.model import Consumer, MessageState, Original
from dispatcher.core.placement import Pool
from dispatcher.core.state import LaneState


class GroupLimit:
    """How many messages of each id are in flight, and which queues want to know that an id may have more
    again."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._out: Counter[bytes] = Counter()
        self.lines: list[FairQueue] = []

    def is_full(self, group_id: bytes | None) -> bool:
        """Nothing more of it may go; what belongs to no group has no limit."""
        return group_id is not None and self._out.get(group_id, 0) >= self._most

    def count_out(self, message: Original) -> None:
        if message.group_id is not None:
            self._out[message.group_id] += 1

    def count_back(self, message: Original) -> None:
        group_id = message.group_id
        if group_id is None:
            return
        self._out[group_id] -= 1
        if self._out[group_id] == self._most - 1:
            for lines in self.lines:
                lines.open(group_id)
        if not self._out[group_id]:
            del self._out[group_id]


class CountedInFlight(dict[int, Original]):
    """What one consumer has, by seq; counts as it changes."""

    def __init__(self, limits: GroupLimit) -> None:
        super().__init__()
        self._limits = limits

    def __setitem__(self, seq: int, message: Original) -> None:
        if seq in self:
            self._limits.count_back(self[seq])
        super().__setitem__(seq, message)
        self._limits.count_out(message)

    def __delitem__(self, seq: int) -> None:
        message = self[seq]
        super().__delitem__(seq)
        self._limits.count_back(message)

    def pop(self, seq: int, default: Original | None = None) -> Original | None:  # type: ignore[override]
        if seq not in self:
            return default
        message = self[seq]
        del self[seq]
        return message

    def clear(self) -> None:
        for seq in list(self):
            del self[seq]


class FairQueue:
    """The waiting messages of one inbound queue: a line for each id, in turn. To others it looks like one
    deque."""

    def __init__(self, limits: GroupLimit, wake: Callable[[], None]) -> None:
        self._limits = limits
        self._wake = wake  # something may go again
        self._turn: OrderedDict[bytes | None, deque[Original]] = OrderedDict()
        self._full: dict[bytes | None, deque[Original]] = {}  # lines at the limit
        limits.lines.append(self)

    def __bool__(self) -> bool:
        return bool(self._turn)

    def first(self) -> Original | None:
        """The next message that may go."""
        turn = self._turn
        while turn:
            group_id, line = next(iter(turn.items()))
            while line and line[0].state is not MessageState.WAITING:
                line.popleft()
            if line and not self._limits.is_full(group_id):
                return line[0]
            del turn[group_id]
            if line:
                self._full[group_id] = line
        return None

    def popleft(self) -> Original:
        """Take out what `first` has found; its line goes behind the others."""
        group_id, line = next(iter(self._turn.items()))
        message = line.popleft()
        if line:
            self._turn.move_to_end(group_id)
        else:
            del self._turn[group_id]
        return message

    def append(self, message: Original) -> None:
        self._line(message).append(message)

    def extendleft(self, messages: Iterable[Original]) -> None:
        for message in messages:
            self._line(message).appendleft(message)

    def remove(self, message: Original) -> None:
        """Raises ValueError: it is not here."""
        self._line(message).remove(message)

    def is_at_limit(self) -> bool:
        """Messages wait, and none of them may go."""
        if self.first() is not None:
            return False
        full = (message for line in self._full.values() for message in line)
        return any(message.state is MessageState.WAITING for message in full)

    def open(self, group_id: bytes) -> None:
        """There may be more of it again."""
        line = self._full.pop(group_id, None)
        if line is not None:
            self._turn[group_id] = line
            self._wake()

    def _line(self, message: Original) -> deque[Original]:
        full = self._full.get(message.group_id)
        return full if full is not None else self._turn.setdefault(message.group_id, deque())


class FairSource(UngroupedSource):
    """A source of the delivery pass whose ids are served in turn."""

    def __init__(self, pool: Pool, lines: FairQueue) -> None:
        super().__init__(pool)
        self.messages = self._lines = lines

    def first(self) -> Original | None:
        return self._lines.first()

    def is_at_limit(self) -> bool:
        return self._lines.is_at_limit()


class GroupLimits(Feature):
    """`max_in_flight_per_group` of one lane."""

    def __init__(self, state: LaneState, most: int) -> None:
        self.limit = limit = GroupLimit(most)
        for inbound in state.inbounds:
            queue = FairQueue(limit, partial(_wake, inbound))
            inbound.ungrouped = FairSource(state.pool, queue)
        state.signals.consumer_entered.append(self._count)
        state.explanation.sentences[HoldKind.LIMIT_FULL] = lambda _: (
            "Each id that waits has as many messages in flight as it may (`max_in_flight_per_group`)."
        )

    def _count(self, consumer: Consumer) -> None:
        consumer.in_flight = CountedInFlight(self.limit)


def _wake(inbound: Inbound) -> None:
    inbound.enlist(inbound.ungrouped)
