"""What a run is made of: a lane, its consumers, its messages and its faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dispatcher.settings import Chosen, ExhaustedAct, SequenceCheck


class Fault(NamedTuple):
    """Something that goes wrong: when (ms after the beginning), what, to whom, how long or how much.

    `target` is below 60 and `amount` below 10,000; each kind takes from them what it needs.
    """

    at_ms: int
    kind: str
    target: int = 0
    amount: int = 0
    patient: bool = False  # it strikes only when a consumer works, unless it has to wait too long for that


class MessagePlan(NamedTuple):
    """One message that a producer publishes."""

    at_ms: int
    uid: int
    inbound: int
    group: str | None
    fails: bool = False
    closes: bool = False
    persistent: bool = True
    expires_ms: int = 0
    twin_of: int = 0  # equal in every byte to this one; 0: to none
    message_id: str | None = None
    kills: bool = False  # the consumer that works on it dies
    hangs: bool = False  # its handler does for a while, the first time
    repeats: bool = False  # the same message, published once more
    number: int = 0  # its producer's in its group; 0: none
    refused: str = ""  # RabbitMQ took it and does not take it again: see sim/message_plans.py


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """One consumer process."""

    name: str
    consumer_id: str
    prefetch: int
    concurrency: int
    work_ms: int
    starts_at_ms: int


@dataclass(frozen=True, slots=True)
class RunScenario:
    """Everything about a run that is not chance on its way."""

    seed: int
    theme: str
    policy: str
    inbounds: tuple[tuple[str, int, bool], ...]  # (queue, weight, quorum)
    options: dict[str, Any]  # of the lane: fields of LaneSettings
    group_maps: tuple[Chosen, ...]  # that dispatchers start with, in turn
    records_per_checkpoint: int
    parking_queues: int  # that there may be; 0: nothing is parked
    redis_ms: tuple[int, ...]  # by dispatcher: how long a command takes to Redis, and its answer back
    consumers: tuple[ConsumerPlan, ...]
    messages: tuple[MessagePlan, ...]
    faults: tuple[Fault, ...]
    hands_over: bool = False  # its consumers only read a queue and ack
    partitions: str = ""  # RabbitMQ is a cluster, which handles them in this way; "": a single node

    @property
    def batch_max(self) -> int:
        """The most messages that one decision may hand over."""
        if self.policy == "sequenced" and not self.options["top_up"]:
            return max(consumer.prefetch for consumer in self.consumers)
        return 1

    @property
    def groups(self) -> bool:
        """Whether messages of a group are kept in order."""
        return self.policy != "concurrent" and self.group_maps[0].name != "none"

    @property
    def stops_failed(self) -> bool:
        """Whether a failure stops its group."""
        return self.options["retry"].on_exhausted is ExhaustedAct.STOP

    @property
    def holds(self) -> bool:
        """Whether what follows a gap in the numbers of its group waits for it."""
        return self.options.get("sequence_check") is SequenceCheck.HOLD

    @property
    def dispatchers(self) -> int:
        return len(self.redis_ms)

    def but(self, **changes: Any) -> RunScenario:
        return replace(self, **changes)
