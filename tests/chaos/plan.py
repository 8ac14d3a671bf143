"""Which faults come when: drawn from the seed before anything starts, so that a seed names one plan."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from dispatcher.nodes.local_cluster import PAUSE_MINORITY

#: Heartbeat of the dispatchers' connections to RabbitMQ, the shortest that leaves room for a busy machine.
DISPATCHER_HEARTBEAT_S: Final = 4
QUEUE_VERSIONS: Final = (1, 2)
STOPPING: Final = ((), ("exclusive",), ("sequenced",), ("exclusive", "sequenced"))
KEEPING: Final = ((), ("exclusive",), ("sequenced",))
DROPPING: Final = ((), ("exclusive",), ("sequenced",))
CHECKING: Final = ((), ("exclusive",), ("sequenced",), ("exclusive", "sequenced"))
EVICTING: Final = ((), ("exclusive",), ("sequenced",), ("exclusive", "sequenced", "concurrent"))
#: By how many ms a message takes at most: longer than a whole prefetch does, one after the other.
ACK_TIMEOUTS_S: Final = {30.0: 3.0, math.inf: 5.0}
#: So short that attempts are used up while faults go on.
BACKOFF: Final = "100ms"
#: The hand-over lane, where others are named by their policies; and who reads there.
HANDOVER: Final = "handover"
CONCURRENT: Final = "concurrent"
READERS: Final = ("h0", "h1", "h2")
#: What each of them does with repeated messages: processes them again, or drops them.
READER_KINDS: Final = ("reading", "reading", REMEMBERING := "remembering")


#: What nodes of a cluster do that lose sight of others. The first is what it should be.
PARTITIONS: Final = (PAUSE_MINORITY, PAUSE_MINORITY, "autoheal", "ignore")
#: So long before the end nothing of these streams begins any more: lanes have this time to go on.
CALM_S: Final = {"node": 20.0, "upkeep": 60.0}


class Span(NamedTuple):
    """How long a fault lasts: uniform between these."""

    shortest_s: float
    longest_s: float


#: Parts of the mean distance: a run of a minute sees something of every stream, and bursts are usual.
FIRST, NEXT = Span(0.2, 0.8), Span(0.1, 1.9)
MOMENT, SHORT, MIDDLE = Span(0.0, 0.0), Span(0.1, 3.0), Span(1.0, 6.0)
#: Longer than RabbitMQ waits for a sign of life: two heartbeats of a dispatcher, of an SDK consumer (10 s).
DISPATCHER_LOST, CONSUMER_LOST = Span(9.0, 14.0), Span(21.0, 28.0)
#: Longer than a cluster takes to give up a node that stands still.
NODE_GIVEN_UP, PARTED = Span(9.0, 14.0), Span(1.0, 14.0)
#: A replica knows nothing of the last five seconds, or of more.
WRITES_LOST = Span(5.0, 8.0)
#: Longer than any of ACK_TIMEOUTS_S, for most leaders.
OVERDUE = Span(8.0, 16.0)


class Kind(NamedTuple):
    """One kind of fault; `faults.py` has the method of that name."""

    name: str
    weight: int
    span: Span


class Stream(NamedTuple):
    """Faults of one kind of part, at random times with this mean distance."""

    mean_s: float
    kinds: tuple[Kind, ...]


STREAMS: Final = {
    "dispatcher": Stream(4.0, (
        Kind("kill_leader", 4, SHORT), Kind("kill_other", 1, SHORT), Kind("kill_dispatchers", 1, SHORT),
        Kind("stop_leader", 2, SHORT), Kind("freeze_leader", 2, SHORT),
        Kind("freeze_leader", 1, DISPATCHER_LOST), Kind("cut_dispatcher", 3, MOMENT),
        Kind("stall_dispatcher", 2, SHORT), Kind("stall_dispatcher", 1, DISPATCHER_LOST),
        Kind("half_stall_dispatcher", 1, MIDDLE), Kind("cut_redis", 2, MOMENT),
        Kind("stall_redis", 2, MIDDLE), Kind("lose_redis_replies", 2, SHORT),
    )),
    "consumer": Stream(2.5, (
        Kind("kill_consumer", 5, SHORT), Kind("leave_consumer", 3, SHORT),
        Kind("join_consumer", 1, CONSUMER_LOST), Kind("freeze_consumer", 3, MIDDLE),
        Kind("freeze_consumer", 1, CONSUMER_LOST), Kind("cut_consumer", 4, MOMENT),
        Kind("stall_consumer", 2, MIDDLE), Kind("stall_consumer", 1, CONSUMER_LOST),
        Kind("half_stall_consumer", 1, MIDDLE),
    )),
    "stuck": Stream(9.0, (Kind("stick_consumer", 1, OVERDUE),)),
    "producer": Stream(10.0, (
        Kind("kill_producer", 1, SHORT), Kind("freeze_producer", 1, MIDDLE), Kind("cut_producer", 2, MOMENT),
        Kind("stall_producer", 1, MIDDLE), Kind("stall_producer", 1, CONSUMER_LOST),
    )),
    "operator": Stream(5.0, (
        Kind("rebalance", 4, MOMENT), Kind("reset", 1, MOMENT), Kind("reset_group", 2, MOMENT),
        Kind("move_group", 3, MOMENT), Kind("rebalance_by_cli", 1, MOMENT),
        Kind("close_group", 2, MOMENT), Kind("evict_consumer", 2, MOMENT),
        Kind("pause_group", 2, MIDDLE), Kind("pause_lane", 1, SHORT), Kind("pin_group", 2, MIDDLE),
        Kind("drain_consumer", 1, MIDDLE),
    )),
    "operations": Stream(3.0, (
        Kind("purge_group", 3, MOMENT), Kind("move_out", 3, MOMENT), Kind("reroute_out", 2, MOMENT),
    )),
    "decisions": Stream(1.5, (Kind("decide_stopped", 1, MOMENT),)),
    "configuration": Stream(9.0, (
        Kind("reload_weights", 3, MOMENT), Kind("reload_anew", 1, MOMENT), Kind("reload_nonsense", 1, MOMENT),
    )),
    "redis": Stream(12.0, (
        Kind("kill_redis", 3, SHORT), Kind("stop_redis", 2, MIDDLE), Kind("empty_redis", 2, SHORT),
        Kind("set_redis_back", 1, MIDDLE),
    )),
    "broker": Stream(32.0, (Kind("kill_rabbitmq", 3, SHORT), Kind("stop_rabbitmq", 2, SHORT))),
}  # fmt: skip


#: On a cluster. A node is hurt only while all others are well; who looks after the cluster waits for that.
ON_CLUSTER: Final = {
    "node": Stream(22.0, (
        Kind("kill_node", 3, MIDDLE), Kind("stop_node", 2, MIDDLE), Kind("stop_app", 2, MIDDLE),
        Kind("freeze_node", 1, SHORT), Kind("freeze_node", 2, NODE_GIVEN_UP), Kind("part_node", 3, PARTED),
    )),
    "upkeep": Stream(60.0, (Kind("lose_node", 2, MIDDLE), Kind("upgrade_nodes", 1, SHORT))),
    "dispatcher": Stream(12.0, (
        Kind("kill_leader", 3, SHORT), Kind("kill_other", 1, SHORT), Kind("stop_leader", 1, SHORT),
    )),
    "consumer": Stream(5.0, (
        Kind("kill_consumer", 4, SHORT), Kind("leave_consumer", 2, SHORT), Kind("cut_consumer", 2, MOMENT),
        Kind("freeze_consumer", 1, MIDDLE), Kind("freeze_consumer", 1, CONSUMER_LOST),
    )),
    "producer": Stream(20.0, (Kind("kill_producer", 1, SHORT), Kind("cut_producer", 1, MOMENT))),
    "operator": Stream(5.0, (
        Kind("rebalance", 2, MOMENT), Kind("move_group", 2, MOMENT), Kind("close_group", 1, MOMENT),
        Kind("pause_group", 1, MIDDLE), Kind("pin_group", 1, MIDDLE),
    )),
    "redis": Stream(40.0, (
        Kind("lose_redis_primary", 2, MOMENT), Kind("lose_redis_writes", 2, WRITES_LOST),
        Kind("flip_redis", 1, WRITES_LOST),
    )),
}  # fmt: skip
NODE_FAULTS: Final = frozenset(kind.name for kind in ON_CLUSTER["node"].kinds)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a plan. `pick` chooses its target among those there are then, 0 <= pick < 1."""

    at_s: float
    name: str
    length_s: float
    pick: float


@dataclass(frozen=True, slots=True)
class Settings:
    """What differs from seed to seed beside the faults."""

    reconnect_grace: str
    look_ahead: int  # a small one is full of what waits for a frozen consumer
    park_after: str
    top_up: bool
    queue_version: int
    groups: int  # of a producer at a time; the fewer, the more of each is in flight
    work_ms: float  # of an SDK consumer, whose handlers run side by side
    group_map: str | dict[str, int]
    group_idle_timeout: str | None
    steal_after: str | None
    group_window: dict[str, int]
    on_join: bool
    pause: str
    start_consumers: int
    retry_attempts: int
    stopping: tuple[str, ...]  # policies whose lane stops a group at a message that failed
    keeping: tuple[str, ...]  # policies whose lane keeps what comes in
    dropping: tuple[str, ...]  # policies whose lane drops what repeats another message
    checking: tuple[str, ...]  # policies whose lane reports numbers that don't follow
    evicting: tuple[str, ...]  # policies whose lane evicts who does not settle in time
    cost: str | int  # what messages count in their queues' shares
    placement: str  # of new groups
    readers_prefetch: int  # of the consumers that only read their queues
    in_flight_per_group: int  # at most, where a group has no owner
    readers_keep: bool  # whether their lane keeps what comes in
    partitions: str  # what nodes of a cluster do that lose sight of others

    def lane_keys(self, policy: str) -> dict[str, Any]:
        """What a lane of this policy is configured with, beside its inbound queues."""
        if policy == HANDOVER:
            return self._for_readers()
        if policy == CONCURRENT:
            return self._for_concurrent()
        keys: dict[str, Any] = {
            "policy": policy, "look_ahead": self.look_ahead, "park_after": self.park_after,
            "reconnect_grace": self.reconnect_grace,
            "rebalance": {"pause": self.pause}, "retry": self._retry(policy),
            "start": {"consumers": self.start_consumers, "wait": "2s" if self.start_consumers else "0"},
            "history": {"max_age": "1d"} if policy in self.keeping else None,
            "dedup": {"window": "1h"} if policy in self.dropping else None,
            "cost": self.cost, "placement": self.placement, **self._windows(policy),
            "sequence_check": "report" if policy in self.checking else "off",
            **self._evicts(policy),
        }  # fmt: skip
        if policy == "sequenced":
            return keys | {"top_up": self.top_up, "group_map": self._for_sequenced()}
        keys["rebalance"]["on_join"] = self.on_join
        return keys | {
            "group_map": self.group_map, "group_idle_timeout": self.group_idle_timeout,
            "steal_after": self.steal_after,
        }  # fmt: skip

    def _windows(self, policy: str) -> dict[str, Any]:
        """With `on_exhausted: stop` one message of a group is out at a time."""
        return {} if policy in self.stopping else {"group_window": self.group_window}

    def _for_concurrent(self) -> dict[str, Any]:
        return {
            "policy": CONCURRENT, "max_in_flight_per_group": self.in_flight_per_group,
            "look_ahead": self.look_ahead, "park_after": self.park_after,
            "reconnect_grace": self.reconnect_grace, "rebalance": {"pause": self.pause},
            "retry": self._retry(CONCURRENT), "cost": self.cost, "placement": self.placement,
            **self._evicts(CONCURRENT),
        }  # fmt: skip

    def _for_readers(self) -> dict[str, Any]:
        consumers = [{"id": who, "prefetch": self.readers_prefetch} for who in READERS]
        return {
            "handover": True, "consumers": consumers, "queue_type": "classic",
            "look_ahead": self.look_ahead, "park_after": self.park_after,
            "reconnect_grace": self.reconnect_grace, "rebalance": {"pause": self.pause},
            "history": {"max_age": "1d"} if self.readers_keep else None,
        }  # fmt: skip

    def _retry(self, policy: str) -> dict[str, Any]:
        act = "stop" if policy in self.stopping else "skip"
        return {"attempts": self.retry_attempts, "backoff": BACKOFF, "on_exhausted": act}

    def _evicts(self, policy: str) -> dict[str, Any]:
        if policy not in self.evicting:
            return {}
        return {"ack_timeout": f"{self.ack_timeout_s:.0f}s", "on_ack_timeout": "evict"}

    @property
    def ack_timeout_s(self) -> float:
        """Of a lane that evicts."""
        return next(timeout_s for most_ms, timeout_s in ACK_TIMEOUTS_S.items() if self.work_ms <= most_ms)

    def _for_sequenced(self) -> str | dict[str, int]:
        """`lru` is for `exclusive` only."""
        return "exact" if "lru" in self.group_map else self.group_map

    def buckets(self) -> int | None:
        """How many buckets groups share; None: each is for itself."""
        return self.group_map.get("buckets") if isinstance(self.group_map, dict) else None

    def steal_after_s(self) -> float | None:
        """How long a group waits for room at its owner before another consumer takes it over."""
        return None if self.steal_after is None else float(self.steal_after.removesuffix("s"))

    def keeps_owner_idle_s(self) -> float | None:
        """For how long a group that has nothing keeps its owner under `exclusive`; None: for ever."""
        if "lru" in self.group_map:
            return 0.0
        return None if self.group_idle_timeout is None else float(self.group_idle_timeout.removesuffix("s"))


class Plan:
    """Everything that the seed decides. `on_cluster`: of three RabbitMQ nodes."""

    def __init__(self, seed: int, seconds: float, *, on_cluster: bool = False) -> None:
        self.on_cluster = on_cluster
        chance = random.Random(seed)
        self.settings = Settings(
            reconnect_grace=chance.choice(["0s", "0s", "2s"]),
            **_look_ahead(chance.choice([10_000, 300]), random.Random(f"{seed} parking")),
            top_up=chance.random() < 0.3,
            queue_version=chance.choice(QUEUE_VERSIONS),
            groups=chance.choice([6, 12, 40]),
            work_ms=chance.choice([4.0, 30.0, 80.0]),
            **_lane_options(random.Random(f"{seed} options")),
            stopping=random.Random(f"{seed} stopping").choice(STOPPING),
            keeping=random.Random(f"{seed} keeping").choice(KEEPING),
            dropping=random.Random(f"{seed} dropping").choice(DROPPING),
            checking=random.Random(f"{seed} sequences").choice(CHECKING),
            evicting=random.Random(f"{seed} evicting").choice(EVICTING),
            **_measured(random.Random(f"{seed} shares")),
            **_windows(random.Random(f"{seed} windows")),
            in_flight_per_group=random.Random(f"{seed} concurrent").choice([1, 3, 10]),
            **_for_readers(random.Random(f"{seed} readers")),
            partitions=random.Random(f"{seed} partitions").choice(PARTITIONS),
        )
        if on_cluster:  # a lane whose groups have all stopped does not go on by itself
            self.settings = replace(self.settings, stopping=())
        self.producer_seed = chance.randrange(2**31)
        # A stream of its own each: one more kind here changes nothing there.
        self.faults = sorted(
            (
                fault
                for name, stream in (ON_CLUSTER if on_cluster else STREAMS).items()
                for fault in _drawn(random.Random(f"{seed} {name}"), stream, seconds - CALM_S.get(name, 0.0))
            ),
            key=lambda fault: fault.at_s,
        )


def _lane_options(chance: random.Random) -> dict[str, Any]:
    return {
        "group_map": chance.choice(["exact", "exact", {"lru": 12}, {"buckets": 16}]),
        "group_idle_timeout": chance.choice([None, None, "1s"]),
        "on_join": chance.random() < 0.25,
        "pause": chance.choice(["group", "group", "lane"]),
        "start_consumers": chance.choice([0, 0, 3]),
        "retry_attempts": chance.choice([2, 3, 3]),
    }


def _measured(chance: random.Random) -> dict[str, Any]:
    return {
        "cost": chance.choice([1, 1, "bytes", "measured"]),
        "placement": chance.choice(["fewest", "measured"]),
    }


def _windows(chance: random.Random) -> dict[str, Any]:
    return {
        "steal_after": chance.choice(["1s", "1s", "3s", None]),
        "group_window": chance.choice([{"initial": 2}, {"initial": 2}, {"initial": 60_000}]),
    }


def _for_readers(chance: random.Random) -> dict[str, Any]:
    return {"readers_prefetch": chance.choice([3, 30, 300]), "readers_keep": chance.random() < 0.25}


def _look_ahead(usual: int, chance: random.Random) -> dict[str, Any]:
    """Often so small, or so short, that much is parked."""
    return {
        "look_ahead": chance.choice([usual, 100, 40]), "park_after": chance.choice(["10m", "10m", "500ms"])
    }  # fmt: skip


def _drawn(chance: random.Random, stream: Stream, seconds: float) -> list[Fault]:
    weights = [kind.weight for kind in stream.kinds]
    faults = []
    at_s = stream.mean_s * chance.uniform(*FIRST)
    while at_s < seconds:
        (kind,) = chance.choices(stream.kinds, weights)
        length_s = min(chance.uniform(*kind.span), seconds - at_s)
        faults.append(Fault(at_s, kind.name, length_s, chance.random()))
        at_s += stream.mean_s * chance.uniform(*NEXT)
    return faults
