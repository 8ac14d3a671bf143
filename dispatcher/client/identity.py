"""Who a consumer is: checked before anything connects."""

from __future__ import annotations

import signal
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from dispatcher.client.copies import Copy, Numbers, Settler
from dispatcher.client.engine import ConsumerEngine, Listener
from dispatcher.client.links import Endpoint, Loop, MakeLink, Tls
from dispatcher.client.membership import OFFLINE_LIMIT_MS, LaneMembership
from dispatcher.client.shards import ShardsEngine
from dispatcher.errors import ConfigurationError, SettlesInDoubt
from dispatcher.wire.protocol import (
    DEFAULT_PREFIX,
    PREFETCH_MAX,
    RESERVED_SEGMENTS,
    LaneNames,
    dotted_name_problem,
)
from dispatcher.wire.shards import ShardNames, shard_number, without_number

M = TypeVar("M", bound=Copy)
#: What ends a consumer that handles signals.
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class ConsumerIdentity:
    """Who joins which lane, from where."""

    endpoint: Endpoint
    names: LaneNames
    consumer: str
    prefetch: int
    offline_limit_ms: int
    user: str | None = None  # that RabbitMQ is asked to validate
    sharded: bool = False  # it joins all shards of the lane

    def engine(
        self,
        message_type: Callable[[Numbers, bytes, bytes, Settler], M],
        settler_of: Callable[[ConsumerEngine[M]], Settler],
        loop: Loop,
        listener: Listener[M],
        make_link: MakeLink,
    ) -> ConsumerEngine[M] | ShardsEngine[M]:
        """The engine of this consumer. `settler_of`: what settles the messages of an engine."""

        def engine(names: LaneNames, prefetch: int, listener: Listener[M]) -> ConsumerEngine[M]:
            settlers: list[Settler] = []
            membership = LaneMembership(
                self.consumer,
                prefetch,
                make_message=lambda numbers, raw, body: message_type(numbers, raw, body, settlers[0]),
                new_incarnation=lambda: str(uuid.uuid4()),
                offline_limit_ms=self.offline_limit_ms,
                now_ms=loop.now_ms(),
            )
            made = ConsumerEngine(membership, names, loop, listener, make_link, user=self.user)
            settlers.append(settler_of(made))
            return made

        if not self.sharded:
            return engine(self.names, self.prefetch, listener)
        way = ShardNames(self.names.lane, self.names.prefix)
        return ShardsEngine(
            lambda number, prefetch, listener: engine(way.shard(number), prefetch, listener),
            self.prefetch, listener,
        )  # fmt: skip


class ConsumerBase(ABC):
    """What both consumers are made with. `url` may be a list, of the nodes of one cluster: attempts to
    connect take them in turn, in random order. `strict_identity` is for lanes that have it: what the consumer
    says names the URL's user, and RabbitMQ validates that. `sharded` is for lanes with `shards`: the consumer
    joins each of them, over a connection of its own, and shares its prefetch out among them. Raises
    ConfigurationError naming every wrong argument."""

    def __init__(
        self,
        url: str | Sequence[str],
        lane: str,
        consumer_id: str,
        prefetch: int = 50,
        *,
        prefix: str = DEFAULT_PREFIX,
        tls: Tls | None = None,
        offline_limit_ms: int = OFFLINE_LIMIT_MS,
        strict_identity: bool = False,
        sharded: bool = False,
    ) -> None:
        problems = []
        if problem := dotted_name_problem(without_number(lane), reserved=RESERVED_SEGMENTS):
            problems.append(f"lane: {problem}")
        if sharded and shard_number(lane) is not None:
            problems.append("lane: is one shard, so sharded must not be given")
        if problem := dotted_name_problem(consumer_id):
            problems.append(f"consumer_id: {problem}")
        if not 1 <= prefetch <= PREFETCH_MAX:
            problems.append(f"prefetch: must be an integer from 1 to {PREFETCH_MAX}")
        if offline_limit_ms < 1:
            problems.append("offline_limit_ms: must be positive")
        if problems:
            raise ConfigurationError(problems)
        endpoint = Endpoint.of(url, tls, connection_name=f"{consumer_id} of {prefix}.{lane}")
        names = LaneNames(lane, prefix)
        user = endpoint.address.user if strict_identity else None
        self._identity = ConsumerIdentity(
            endpoint, names, consumer_id, prefetch, offline_limit_ms, user, sharded
        )
        self._signals = 0
        self._doubts_told = 0
        self._set_up()

    @abstractmethod
    def _set_up(self) -> None:
        """Make what belongs to this kind of consumer."""

    def _tell_doubts(self, told_before: int, doubts: int) -> None:
        """Raises SettlesInDoubt if there are more doubts than earlier flushes had told when this one began.
        Of several flushes at a time each one raises it."""
        if doubts > told_before:
            self._doubts_told = doubts
            raise SettlesInDoubt(
                f"consumer {self._identity.consumer} was taken back or ended before all its settles surely "
                "counted: those since the last flush may not count, so others may get these messages again"
            )
