"""What the user of the configuration may do on RabbitMQ, found out without leaving a trace.

RabbitMQ looks at rights before it looks at anything else. So each probe asks for something impossible, a
queue with an argument of the wrong type, say: 403 means no right, any other refusal that the right is there.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from dispatcher.cli.check_findings import Findings
from dispatcher.cli.rabbitmq import refusal
from dispatcher.errors import ACCESS_REFUSED
from dispatcher.settings import LaneSettings
from dispatcher.wire.protocol import LaneNames
from dispatcher.wire.shards import ShardNames

#: A priority is a number: no queue is ever declared with this.
IMPOSSIBLE_QUEUE: Final[dict[str, Any]] = {"x-max-priority": "impossible"}
_IMPOSSIBLE_EXCHANGE: Final[dict[str, Any]] = {"alternate-exchange": 0}
_IMPOSSIBLE_CONSUMER: Final[dict[str, Any]] = {"x-priority": "impossible"}
#: Replies to commands go through it; where rights are concerned RabbitMQ calls it amq.default.
_DEFAULT_EXCHANGE: Final = ""
_REFUSED_ON: Final = re.compile(r"access to \w+ '(.*)' in vhost")


class RightsCheck:
    """Looks at the rights that one lane needs."""

    def __init__(self, connection: BlockingConnection, user: str, findings: Findings) -> None:
        self._connection, self._user, self._findings = connection, user, findings
        self._nobody = f"check-{uuid.uuid4()}"  # a routing key that nothing is bound by

    def check(self, names: LaneNames, lane: LaneSettings) -> None:
        """Report the rights that are missing, one line per kind of right."""
        inbound = [inbound.queue for inbound in lane.inbound]
        to_declare = [inbound.queue for inbound in lane.inbound if inbound.declare]
        queues = [names.control, names.command, names.heartbeat, names.lock, names.witness]
        exchanges = [names.exchange, names.control_exchange, names.command_exchange]
        bindings = [
            (names.control, names.control_exchange), (names.heartbeat, names.control_exchange),
            (names.command, names.command_exchange), (names.control, names.exchange),
            (names.witness, names.exchange), (names.dead, names.exchange),
        ]  # fmt: skip
        written = [names.dead]
        if lane.history is not None:
            written.append(names.history)
            bindings.append((names.history, names.exchange))
        if lane.handover:
            handed = [names.rejected, *(names.consumer(consumer.id) for consumer in lane.consumers)]
            queues += handed
            bindings += [(queue, names.exchange) for queue in handed]
        if (shard := lane.shard) is not None:
            way = ShardNames(shard.lane, names.prefix)
            exchanges += [names.entrance, way.exchange, *way.kept]
            bindings += [(queue, names.entrance) for queue in inbound]
        missing = _Missing()
        for queue in [*queues, *written, *to_declare]:
            missing.note("configure", self._try(partial(_declare_queue, queue=queue)))
        for exchange in exchanges:
            missing.note("configure", self._try(partial(_declare_exchange, exchange=exchange)))
        for queue, exchange in bindings:
            error = self._try(
                partial(
                    BlockingChannel.queue_unbind, queue=queue, exchange=exchange, routing_key=self._nobody
                )
            )
            missing.note("write" if missing.named(error) == queue else "read", error)
        for exchange in (names.exchange, _DEFAULT_EXCHANGE):
            missing.note("write", self._try(partial(_publish, exchange=exchange, key=self._nobody)))
        for queue in [*queues, *inbound]:
            missing.note("read", self._try(partial(_consume, queue=queue)))
        for right, what in missing.lines():
            self._findings.problem(f"lanes.{lane.name}: {self._user} has no {right} right on {what}")
        self._check_operators_way(names, lane, inbound)

    def _check_operators_way(self, names: LaneNames, lane: LaneSettings, inbound: list[str]) -> None:
        """A lane works without it."""
        unbound = _Missing()
        for queue in inbound:
            unbind = partial(
                BlockingChannel.queue_unbind, queue=queue, exchange=names.command_exchange,
                routing_key=self._nobody,
            )  # fmt: skip
            unbound.note("write", self._try(unbind))
        for _, what in unbound.lines():
            self._findings.warning(
                f"lanes.{lane.name}: {self._user} has no write right on {what}, so it can't be bound to "
                f"{names.command_exchange}: `dead release` and `replay` do not reach it"
            )

    def _try(self, action: Callable[[BlockingChannel], object]) -> ChannelClosedByBroker | None:
        return refusal(self._connection, action)


class _Missing:
    """Rights that were refused, and on what."""

    def __init__(self) -> None:
        self._names_of: dict[str, dict[str, None]] = {}

    def note(self, right: str, error: ChannelClosedByBroker | None) -> None:
        if error is not None and error.reply_code == ACCESS_REFUSED:
            self._names_of.setdefault(right, {})[self.named(error)] = None

    @staticmethod
    def named(error: ChannelClosedByBroker | None) -> str:
        """The name in the broker's refusal: a binding needs rights on two things."""
        found = _REFUSED_ON.search(error.reply_text) if error is not None else None
        return found[1] if found else "something that RabbitMQ does not name"

    def lines(self) -> Iterator[tuple[str, str]]:
        for right, names in self._names_of.items():
            yield right, ", ".join(names)


def _declare_queue(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, durable=True, arguments=IMPOSSIBLE_QUEUE)


def _declare_exchange(channel: BlockingChannel, exchange: str) -> None:
    channel.exchange_declare(exchange, "direct", durable=True, arguments=_IMPOSSIBLE_EXCHANGE)


def _consume(channel: BlockingChannel, queue: str) -> None:
    channel.basic_consume(queue, lambda *_: None, arguments=_IMPOSSIBLE_CONSUMER)


def _publish(channel: BlockingChannel, exchange: str, key: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish(exchange, key, b"", mandatory=True)
