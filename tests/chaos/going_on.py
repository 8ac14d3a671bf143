"""How soon each lane goes on after something was done to a node (R-9), or to the primary of Redis.

A lane goes on when a message is settled that was sent after the fault began, or after the new primary was
there. What was done meanwhile to dispatchers, and to Redis or a node, gives it its time once more, and so
does the upgrade of the next node.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from dispatcher.judge.record import HandlingRecord, MessageKey
from tests.chaos.cluster import TICKTIME_S
from tests.chaos.evictions import Interval
from tests.chaos.parts import NodeFault

STALL_S: Final = 15.0
STALL_AFTER_STOP_S: Final = 10.0
STALL_AFTER_FAIL_OVER_S: Final = 5.0
#: A node that stands still is given up at the latest after this time, and nobody can do anything before.
GIVEN_UP_S: Final = 1.25 * TICKTIME_S
STOPS: Final = ("stop_node", "stop_app", "upgrade_node")
FREEZES: Final = ("freeze_node",)
#: After these a node may go on apart from the others, unless it pauses; a lane may be led through it then.
PARTS: Final = ("freeze_node", "part_node")
#: Of Redis, not of a node.
FAIL_OVER: Final = "redis_fail_over"
ALL: Final = (*STOPS, *PARTS, "kill_node")


class Limits(NamedTuple):
    """How long a lane may stand still."""

    stall_s: float = STALL_S
    after_stop_s: float = STALL_AFTER_STOP_S
    after_fail_over_s: float = STALL_AFTER_FAIL_OVER_S

    def of(self, fault: NodeFault) -> float:
        if fault.name == FAIL_OVER:
            return self.after_fail_over_s
        if fault.name in STOPS:
            return self.after_stop_s
        return self.stall_s + (min(fault.lasted_s, GIVEN_UP_S) if fault.name in FREEZES else 0.0)


class Stall(NamedTuple):
    """From one moment until a lane settled a message that was sent later."""

    fault: NodeFault
    since: float
    at: float  # inf: never
    due: float  # by then it had to

    @property
    def lasted_s(self) -> float:
        return self.at - self.since

    def violation(self) -> str | None:
        if self.at <= self.due:
            return None
        name, node, *_ = self.fault
        what = name if name == FAIL_OVER else f"{name} of node {node}"
        waited = f"of what was sent from {self.since:.3f} on nothing was settled for {self.lasted_s:.1f} s"
        return f"not live: {what}: {waited}, {self.due - self.since:.1f} s were allowed"


class Settled(NamedTuple):
    """A message that was settled for good."""

    sent_at: float
    at: float


def settled(
    record: Iterable[HandlingRecord], sent: Mapping[MessageKey, float], *, acked: bool
) -> list[Settled]:
    """`acked`: consumers tell RabbitMQ alone, and nobody confirms."""
    times = ((sent.get(h.message), h.end if acked else h.confirmed_at) for h in record)
    return [Settled(sent_at, at) for sent_at, at in times if sent_at is not None and at is not None]


def stalls(
    faults: Sequence[NodeFault], of_lane: list[Settled], hindered: list[Interval], limits: Limits,
    until: float, *, waits: Collection[str] = (),
) -> list[Stall]:  # fmt: skip
    """The worst one of each fault, from whichever moment until all nodes were back: a node that is stopped
    works on for a while, and one that comes back may disturb a lane as well.

    `hindered`: from when to when something else kept the lane from going on. `until`: from then on nothing
    is sent. `waits`: after these faults a lane has its time from when all nodes are back, also if one of them
    comes when the lane was about to go on after another one.
    """
    hindered = [*hindered, *((fault.since, fault.until) for fault in faults if fault.name in waits)]
    in_order = sorted(of_lane)
    sent_at = [one.sent_at for one in in_order]
    first_at = [*accumulate((one.at for one in reversed(in_order)), min, initial=math.inf)][::-1]
    found = []
    for fault in faults:
        begin, limit_s = fault.until if fault.name in waits else fault.since, limits.of(fault)
        # Lanes may be led again, and have settled nothing yet, when the next node is upgraded.
        upgrades = [other.since for other in faults if fault.name == other.name == "upgrade_node"]
        others = [(since, since) for since in upgrades if since > fault.since][:1]
        moments = [begin, *sent_at[bisect_right(sent_at, begin) : bisect_left(sent_at, fault.until)]]
        mine = []
        for moment in moments:
            at, due = first_at[bisect_right(sent_at, moment)], _due(moment, limit_s, [*hindered, *others])
            if at <= due or due <= until:  # else nobody knows
                mine.append(Stall(fault, moment, at, due))
        if mine:
            found.append(max(mine, key=lambda stall: (stall.at > stall.due, stall.lasted_s)))
    return found


def excuses(fault: NodeFault, limits: Limits, *, waits: Collection[str] = ()) -> Interval:
    """For so long this fault of a node may keep a lane from going on after another one; see `stalls`."""
    since = fault.until if fault.name in waits else fault.since
    return fault.since, max(fault.until, since + limits.of(fault))


def _due(moment: float, limit_s: float, hindered: list[Interval]) -> float:
    due = moment + limit_s
    for since, until in sorted(hindered):
        if since < due and until > moment:
            due = max(due, until + limit_s)
    return due
