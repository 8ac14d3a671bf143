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
from dispatcher.errors import ConfigurationError
from dispatcher.wire.protocol import (
    DEFAULT_PREFIX,
    PREFETCH_MAX,
    RESERVED_SEGMENTS,
    LaneNames,
    dotted_name_problem,
)
from dispatcher.wire.shards import without_number

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

    def engine(
        self,
        message_type: Callable[[Numbers, bytes, bytes, Settler], M],
        settler: Settler,
        loop: Loop,
        listener: Listener[M],
        make_link: MakeLink,
    ) -> ConsumerEngine[M]:
        """The engine of this consumer; its messages are settled through `settler`."""
        membership = LaneMembership(
            self.consumer,
            self.prefetch,
            make_message=lambda numbers, raw, body: message_type(numbers, raw, body, settler),
            new_incarnation=lambda: str(uuid.uuid4()),
            offline_limit_ms=self.offline_limit_ms,
            now_ms=loop.now_ms(),
        )
        return ConsumerEngine(membership, self.names, loop, listener, make_link, user=self.user)


class ConsumerBase(ABC):
    """What both consumers are made with. `url` may be a list, of the nodes of one cluster: attempts to
    connect take them in turn, in random order. `strict_identity` is for lanes that have it: what the consumer
    says names the URL's user, and RabbitMQ validates that. Raises ConfigurationError naming every wrong
    argument."""

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
    ) -> None:
        problems = []
        if problem := dotted_name_problem(without_number(lane), reserved=RESERVED_SEGMENTS):
            problems.append(f"lane: {problem}")
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
        self._identity = ConsumerIdentity(endpoint, names, consumer_id, prefetch, offline_limit_ms, user)
        self._signals = 0
        self._set_up()

    @abstractmethod
    def _set_up(self) -> None:
        """Make what belongs to this kind of consumer."""
