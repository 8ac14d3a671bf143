"""What capabilities of a lane tell each other: facts of the whole lane that one keeps and others read."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import TypeVar, cast

from dispatcher.core.feature import AbsentOriginals, Feature
from dispatcher.core.lane_log import LaneLog
from dispatcher.core.model import Backlog, Consumer, Group, Original
from dispatcher.core.ordered import OrderedSet
from dispatcher.core.parking.queue import ParkingQueues
from dispatcher.wire.bundle import BundleLimits

F = TypeVar("F", bound=Feature)


class SharedFacts(LaneLog):
    """The part of a lane's memory that features keep for each other. The spine uses only `absent`,
    `counters`, `insert` and `suspects`."""

    parking: ParkingQueues  # empty in a lane that parks nothing
    absent: AbsentOriginals  # recovery: it knows the originals that are still to come back

    def __init__(self, now_ms: int) -> None:
        self.counters: Counter[str] = Counter()
        self.features: dict[type[Feature], Feature] = {}  # what this lane can do beside the spine
        # Membership
        self.by_id: dict[str, Consumer] = {}
        self.by_queue: dict[str, Consumer] = {}
        self.by_number: dict[int, Consumer] = {}
        self.patience_from_ms = now_ms  # since when consumers could be heard
        self.stale_owners: deque[bytes] = deque()  # groups whose row in Redis names an ended incarnation
        #: Dead letters: messages that the broker doesn't take for the dead queue, and what it says.
        self.undeliverable: dict[Original, str] = {}
        # Operators
        self.groups_with_flags: OrderedSet[Group] = OrderedSet()  # operators have set or ordered something
        #: Stopped groups whose failed message may wait here: a decision about it can be carried out.
        self.awaiting_decision: OrderedSet[Group] = OrderedSet()
        self.drained_consumers: OrderedSet[str] = OrderedSet()  # ids that get nothing
        self.reset_until: int | None = None  # owners of epochs up to this one are about to go
        # Forwarding
        self.reclaiming: set[int] = set()  # hand-over consumers whose messages are on their way to others
        # Poison: suspects that wait, first of their backlogs or without a group, the longest suspected first
        self.suspects: OrderedSet[Original] = OrderedSet()
        #: Sequence hold: files a message in front of those of its id that have larger numbers.
        self.insert: Callable[[Backlog, Original], None] | None = None

    def feature(self, kind: type[F]) -> F:
        """The lane's feature of this class, which every lane has."""
        return cast("F", self.features[kind])

    def find(self, kind: type[F]) -> F | None:
        """The lane's feature of this class; None: the lane's options don't ask for it."""
        return cast("F | None", self.features.get(kind))

    def bundle_limits(self, queue: str) -> BundleLimits | None:
        """What the consumer of this queue takes as one AMQP message; None: only single copies."""
        consumer = self.by_queue.get(queue)
        return None if consumer is None else consumer.bundle

    @property
    def settles(self) -> int:
        """How much this lane's consumers have settled since this leader's start."""
        return self.counters["settled"] + self.counters["failed"]
