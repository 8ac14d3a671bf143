"""Inbound queues and their deficit weighted round robin.

In the field's words: weight, quantum, deficit. A queue's turn begins with one quantum added to its deficit
and lasts while the deficit covers the cost of its next message. Only *eligible* messages count, not the
backlog: a queue whose messages are all blocked loses its turn to the others, earns nothing, and keeps at
most what its next message costs; when all are blocked the turn stays where it is (D3–D6; Shreedhar and
Varghese, "Efficient fair queueing using deficit round robin"). What an emptied queue saved is forgotten,
what it overdrew is not.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

from dispatcher.core.bounds import PROVEN_PER_INBOUND_MAX
from dispatcher.core.model import Backlog, ConsumerSource, Message, MessageState
from dispatcher.core.options import LaneOptions
from dispatcher.core.placement import Pool


class UnownedSource:
    """Groups without an owner that have messages in one inbound queue, in turn."""

    __slots__ = ("backlogs", "pool", "in_ring")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.backlogs: OrderedDict[Backlog, None] = OrderedDict()
        self.in_ring = False

    def head(self) -> Message | None:
        """The first message of the next free group, or None: no consumer has credit, or nothing waits."""
        if not self.pool or not self.backlogs:
            return None
        return next(iter(self.backlogs)).head()


class UngroupedSource:
    """Messages of one inbound queue that belong to no group, or to a lane that doesn't group."""

    __slots__ = ("messages", "pool", "in_ring")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.messages: deque[Message] = deque()
        self.in_ring = False

    def head(self) -> Message | None:
        if not self.pool:
            return None
        messages = self.messages
        while messages:
            if messages[0].state is MessageState.WAITING:
                return messages[0]
            messages.popleft()
        return None


class Inbound:
    """One inbound queue of the lane. Sizes are in bytes."""

    __slots__ = (
        "aging", "blocked_since_ms", "deficit", "dispatched", "unowned", "in_flight", "index", "latest",
        "ungrouped", "mean_bytes", "name", "paused", "proven", "ready", "recovery", "replaceable",
        "spent", "unacked", "unproven", "waiting", "weight", "window",
    )  # fmt: skip

    def __init__(self, index: int, name: str, weight: int, pool: Pool) -> None:
        self.index = index
        self.name = name
        self.weight = weight  # its quantum: what a turn adds to the deficit
        self.deficit = 0
        self.ready: deque[ConsumerSource | UnownedSource | UngroupedSource] = (
            deque()
        )  # sources that may have an eligible message
        self.unowned = UnownedSource(pool)
        self.ungrouped = UngroupedSource(pool)
        self.unacked = 0  # originals here: waiting, in flight or ending
        self.waiting = 0
        self.in_flight = 0
        self.dispatched = 0  # since start
        self.spent = 0  # what that cost
        self.window = 1  # originals that may be here at a time, beside what a former window let in
        self.latest = (0, 0)  # arrival of what was delivered last
        self.mean_bytes = 0.0  # that the latest originals took; 0: none came
        self.paused = False  # not fetched from because of the byte budget
        self.replaceable = True  # False: its consumer must never be replaced, and its window stays
        self.aging: deque[Message] = deque()  # what waits here, longest first, and some that no longer does
        self.blocked_since_ms: int | None = None  # full of what can't go, while somebody has free capacity
        self.recovery: Any = None  # what it may still deliver again: recovery/expected.py has the type
        # Settled originals, in settle order: their acks are on the way …
        self.unproven: deque[tuple[tuple[int, int], bytes]] = deque()
        # … or known to be processed. A killed broker forgets up to 32,768 of those of a busy classic queue.
        self.proven: deque[tuple[tuple[int, int], bytes]] = deque(maxlen=PROVEN_PER_INBOUND_MAX)

    def is_full(self) -> bool:
        """Nothing more of it comes before something is settled."""
        return self.paused or self.unacked >= self.window

    def enlist(self, source: UnownedSource | UngroupedSource) -> None:
        """Let the delivery pass look at this source again."""
        if not source.in_ring:
            source.in_ring = True
            self.ready.append(source)

    def wake_common_sources(self) -> None:
        """Somebody has free capacity again: look at what waits for anybody."""
        if self.unowned.backlogs:
            self.enlist(self.unowned)
        if self.ungrouped.messages:
            self.enlist(self.ungrouped)

    def head(self) -> Message | None:
        """The next eligible message. Sources without one leave the list until something changes for them."""
        ready = self.ready
        while ready:
            source = ready[0]
            message = source.head()
            if message is not None:
                return message
            ready.popleft()
            source.in_ring = False
        return None


def any_recovering(inbounds: Iterable[Inbound]) -> bool:
    """What was here under the former leader may still be on its way."""
    return any(inbound.recovery is not None for inbound in inbounds)


def make_inbounds(options: LaneOptions, pool: Pool) -> list[Inbound]:
    """The lane's inbound queues."""
    made = [Inbound(n, name, weight, pool) for n, (name, weight) in enumerate(options.inbounds)]
    for inbound in made:
        inbound.window = options.look_ahead
    return made


def enlist_source(inbound: Inbound, share: ConsumerSource) -> None:
    """Let the delivery pass look at this share again."""
    if not share.in_ring and share.backlogs:
        share.in_ring = True
        inbound.ready.append(share)
