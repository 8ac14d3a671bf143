"""What a simulation replays: when messages came, and how much work each is. Times in µs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from dispatcher.core.queue_ids import QueueId


class SampledArrival(NamedTuple):
    """One message."""

    at_us: int  # since the window began
    inbound: QueueId  # index of its queue
    group: bytes | None
    size: int
    cost: int
    demand_us: int  # how long a consumer of speed 1 works on it
    type: bytes | None = None  # where a lane measures costs, each type has its own


class Delays(NamedTuple):
    """What passes beside waiting and working. None of it keeps a consumer busy."""

    decide_us: int = 0  # from the broker's delivery to the decision, where nothing is waited for
    commit_us: int = 0  # from the decision to Redis' answer
    way_us: int = 0  # from the dispatcher to a consumer, and as long back


NO_DELAYS: Final = Delays()


@dataclass(frozen=True)
class Traffic:
    """A lane's, over a window of its ledger."""

    lane: str
    inbounds: tuple[str, ...]
    arrivals: list[SampledArrival]  # in their order; within a queue and a group that is the ledger's
    span_us: int  # in which this work had to be done
    warm_up: int = 0  # how many arrivals come before the window: they are simulated, and not counted
    is_whole: bool = True  # nothing came after the window
    delays: Delays = NO_DELAYS
    speeds: tuple[float, ...] = (1.0,)  # of the consumers, their mean 1; further ones repeat these
    at_a_time: int = 1  # messages that a consumer works on, each with its speed
    options: dict[str, Any] = field(default_factory=dict)  # as `lane_started` tells them

    def speed(self, consumer: int) -> float:
        return self.speeds[consumer % len(self.speeds)]


@dataclass(frozen=True)
class Scenario:
    """The options of which an effect is simulated."""

    consumers: int
    prefetch: int
    policy: str
    weights: tuple[int, ...]
    buckets: int | None = None  # None: groups by their ids
