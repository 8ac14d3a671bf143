"""What the core needs to know of a lane's configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from dispatcher.core.bounds import HELD_BYTES_PART


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one lane, ready for the delivery pass: above all how long the owner of a group keeps it.

    Always (`exclusive`), or for one batch (`sequenced`; with `top_up` while it has messages of the group).
    `concurrent` knows no groups.
    """

    name: str
    grouped: bool  # False: group ids are carried along, but nothing is ordered by them
    tops_up: bool  # the owner may receive more while it holds something
    keeps_owner: bool  # the owner keeps the group while nothing of it is out
    by_load: bool = False  # messages without a group go to the least loaded consumer, else in turn


def policy(name: str, *, top_up: bool = False, grouped: bool = True) -> Policy:
    """The policy of that name; `top_up` matters for `sequenced` only (what brokers shipped, decision 7).

    Not `grouped`: a lane that ignores groups (`group_map: none`), whatever its policy would do with them.
    Raises ValueError for a name that is none.
    """
    if not grouped and name in ("exclusive", "sequenced"):
        return Policy(name, grouped=False, tops_up=True, keeps_owner=False)
    match name:
        case "exclusive":
            return Policy(name, grouped=True, tops_up=True, keeps_owner=True)
        case "sequenced":
            return Policy(name, grouped=True, tops_up=top_up, keeps_owner=False)
        case "concurrent":
            return Policy(name, grouped=False, tops_up=True, keeps_owner=False, by_load=True)
        case _:
            raise ValueError(f"no policy {name!r}")


class Cost(Enum):
    """What messages take of their queue's share."""

    ONE = "one"  # each
    SAID = "said"  # what each says
    MEASURED = "measured"  # what others of its queue and type took


@dataclass(frozen=True, slots=True)
class DedupOptions:
    """What counts as a repeated message."""

    window_ms: int  # since the first entry of the one that it repeats
    ids_max: int  # in the window; beyond that the oldest leave it


@dataclass(frozen=True, slots=True)
class ForwardingConsumer:
    """A consumer that only reads its queue and acks."""

    id: str
    queue: str
    prefetch: int  # messages that may wait in its queue


class GroupWindow(NamedTuple):
    """How many messages of a group may be out at once."""

    initial: int  # what it begins with
    most: int | None  # as far as it grows; None: to the prefetch of its consumer


class KnownWork(NamedTuple):
    """What messages of an inbound queue (by its index) and type took, in ms, and how many they were."""

    inbound: int
    kind: bytes | None
    mean_ms: float
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneOptions:
    """One lane's options. Durations in ms, sizes in bytes."""

    policy: Policy
    inbounds: tuple[tuple[str, int], ...]  # (queue name, weight)
    ungrouped: str = "balance"  # or "reject", or "group:<name>"
    groups_remembered: int | None = None  # more than that are forgotten once they are empty; None: no limit
    buckets: int | None = None  # groups by the hash of their ids; None: by the ids
    start_consumers: int = 0  # to wait for before anything is handed out
    start_wait_ms: int = 0  # at most; 0 with a number of consumers: 1 s
    cost: Cost = Cost.ONE
    known_work: tuple[KnownWork, ...] = ()  # with which the measured costs begin
    placement_is_measured: bool = False
    max_in_flight_per_group: int | None = None  # None: no limit, and ids mean nothing
    group_window: GroupWindow | None = None  # None: as much as its consumer's prefetch lets out
    steal_after_ms: int | None = None  # how long a group waits for room at its owner; None: for ever
    rebalance_on_join: bool = False
    rebalance_pause: str = "group"  # or "lane", or "none"
    group_idle_timeout_ms: int | None = None  # None: never
    attempts: int = 3
    stops_failed: bool = False  # a group stops at a message that can't be processed (`park`)
    backoff_ms: int = 1_000
    ack_timeout_ms: int | None = None  # None: never
    evicts_overdue: bool = False
    reconnect_grace_ms: int = 0
    liveness_interval_ms: int = 500
    heartbeat_ms: int = 5_000
    look_ahead: int = 10_000
    look_ahead_bytes: int = 256 * 1024 * 1024
    park_after_ms: int = 600_000
    dedup: DedupOptions | None = None  # None: a message_id means nothing
    checks_sequence: bool = False  # the numbers that producers give to the messages of a group
    sequence_timeout_ms: int | None = (
        None  # how long later messages wait for a missing number; None: not at all
    )
    sequences_max: int = 1_000_000  # groups whose last number is kept, about 150 bytes each
    shards: int = 1  # so many lanes are one for consumers; this is one of them
    strict_identity: bool = False  # the words of an incarnation count only from the user of its join
    own_prefix: str = "dispatch."  # that names of queues and exchanges of the dispatcher's begin with
    parking_queues: tuple[str, ...] = ()  # their names, in order; none: nothing is parked
    handover: tuple[ForwardingConsumer, ...] = ()  # none: its consumers speak the protocol
    handover_prefix: str = ""  # what the names of such consumers' queues begin with
    #: How much of the byte budget is for originals; asked for several times in every step.
    held_bytes_max: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "held_bytes_max", int(self.look_ahead_bytes * HELD_BYTES_PART))

    @property
    def measures_work(self) -> bool:
        """How long consumers are busy with what matters to this lane."""
        return self.cost is Cost.MEASURED or self.placement_is_measured
