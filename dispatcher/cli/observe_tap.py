"""Copies of what is published to an exchange, from a temporary queue of the observer's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from dispatcher.cli.observation import SeenMessage
from dispatcher.cli.rabbitmq import look_at_queue
from dispatcher.errors import NOT_FOUND, ChannelRefused, CommandRefused
from dispatcher.wire.group_text import format_group

#: RabbitMQ drops the oldest copies beyond this: an observer that is too slow must not fill its memory.
COPIES_MAX: Final = 100_000
_LOOK_S: Final = 1.0


class Reading(NamedTuple):
    """What of a message says its group, its number and who published it."""

    group_header: Sequence[str]  # as a lane's `group_header`
    sequence_header: str | None

    def copy(self, method: Any, properties: pika.BasicProperties, body: bytes, at_s: float) -> SeenMessage:
        headers = properties.headers or {}
        number = headers.get(self.sequence_header) if self.sequence_header else None
        return SeenMessage(
            at_s, self._group(method.routing_key, properties, headers), len(body),
            number if isinstance(number, int) and not isinstance(number, bool) else None,
            properties.timestamp if isinstance(properties.timestamp, int) else None,
            str(properties.app_id or properties.user_id or "not named"),
        )  # fmt: skip

    def _group(self, key: str, properties: pika.BasicProperties, headers: dict[str, Any]) -> str | None:
        for source in self.group_header:
            if source == "routing_key":
                found: Any = key
            elif source.startswith("property:"):
                found = getattr(properties, source.removeprefix("property:"), None)
            else:
                found = headers.get(source)
            if isinstance(found, str | bytes) and found:
                return format_group(found if isinstance(found, bytes) else found.encode())
            if isinstance(found, int) and not isinstance(found, bool):
                return str(found)
        return None


class Tap:
    """Bound from its making until the connection ends, and with it the queue."""

    def __init__(self, connection: BlockingConnection, exchange: str, keys: Sequence[str]) -> None:
        """Raises CommandRefused when there is no such exchange, ChannelRefused when the user may not bind."""
        self._connection = connection
        self._channel: BlockingChannel = connection.channel()
        self.dropped = False  # RabbitMQ may have dropped copies
        try:
            declared = self._channel.queue_declare(
                "", exclusive=True, auto_delete=True,
                arguments={"x-queue-type": "classic", "x-max-length": COPIES_MAX, "x-overflow": "drop-head"},
            )  # fmt: skip
            self._queue = str(declared.method.queue)
            for key in keys:
                self._channel.queue_bind(self._queue, exchange, key)
        except ChannelClosedByBroker as error:
            if error.reply_code == NOT_FOUND:
                raise CommandRefused(f"there is no exchange {exchange!r}") from None
            raise ChannelRefused(error.reply_code, error.reply_text) from None

    def read(
        self, reading: Reading, seconds: float, add: Callable[[SeenMessage], None], wanted: Callable[[], bool]
    ) -> None:
        """Give each copy to `add` as it comes: for so long, or until no more are `wanted`."""

        def on_copy(_: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
            add(reading.copy(method, properties, body, time.monotonic()))

        self._channel.basic_consume(self._queue, on_copy, auto_ack=True)
        look_at = time.monotonic() + _LOOK_S
        ends_at = time.monotonic() + seconds
        while (left := ends_at - time.monotonic()) > 0 and wanted():
            self._connection.process_data_events(time_limit=min(left, _LOOK_S))
            if time.monotonic() >= look_at:
                behind = look_at_queue(self._connection, self._queue).ready
                self.dropped |= behind is not None and behind >= COPIES_MAX
                look_at = time.monotonic() + _LOOK_S
