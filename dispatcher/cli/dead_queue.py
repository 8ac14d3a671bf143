"""Reads a lane's dead queue: messages that were given up, with their reasons; sends them back to their
queues."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from pamqp import commands

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.grouping import Grouping
from dispatcher.amqp.link import Link
from dispatcher.amqp.properties import string_field
from dispatcher.amqp.relay import Content, read_content
from dispatcher.amqp.wire import pack_u32
from dispatcher.cli.queue_reader import QueueReader
from dispatcher.client import properties as amqp_properties
from dispatcher.errors import ACCESS_REFUSED, BrokerUnavailable, ChannelRefused, CommandRefused, is_missing
from dispatcher.wire.group_text import format_group
from dispatcher.wire.json_fields import is_short_string
from dispatcher.wire.plain_text import printable_lines
from dispatcher.wire.protocol import (
    HEADER_ATTEMPT,
    HEADER_CALLS,
    HEADER_EXCHANGE,
    HEADER_GROUP,
    HEADER_ORIGIN,
    HEADER_REASON,
    HEADER_ROUTING_KEY,
    LaneNames,
)

#: Publishes and acks on their way at a time.
_UNCONFIRMED_MAX: Final = 500
#: AMQP's prefetch is 16 bits wide; 0 is without a limit.
_PREFETCH_MAX: Final = 65_535
#: So much of a body is shown.
BODY_SHOWN_MAX: Final = 1_024
#: RabbitMQ would obey this header a second time and send further copies; it means nothing to a consumer.
_OBEYED_HEADER: Final = "CC"


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """One message of the dead queue. What a control message of a consumer has not is None."""

    delivery: Delivery
    reason: str
    group: bytes | None
    origin: str | None  # inbound queue and arrival; copies of one original have the same
    attempt: int | None  # hand-overs
    calls: int | None  # of its handler in the last one
    exchange: str | None
    routing_key: str | None
    message_id: str | None

    @property
    def inbound(self) -> str | None:
        """The inbound queue that it came from; None if nothing says so, or what says so can't be one."""
        queue = self.origin.rpartition(" ")[0] if self.origin is not None else ""
        return queue if is_short_string(queue) else None

    def row(self) -> dict[str, Any]:
        """For people and programs; bodies are not shown."""
        return {
            "origin": self.origin,
            "inbound": self.inbound,
            "group": format_group(self.group) if self.group is not None else None,
            "reason": self.reason,
            "attempt": self.attempt,
            "calls": self.calls,
            "exchange": self.exchange,
            "routing_key": self.routing_key,
            "message_id": self.message_id,
            "size": len(self.delivery.body),
        }

    def content(self) -> dict[str, Any]:
        """Properties and headers as they are, and the beginning of the body as text."""
        properties, headers = _read(self.delivery)
        body = self.delivery.body[:BODY_SHOWN_MAX]
        return {
            "properties": {key: _plain(value) for key, value in asdict(properties).items()},
            "headers": {as_text(key): _plain(value) for key, value in headers.items()},
            "body": as_text(body),
            "cut": len(body) < len(self.delivery.body),
        }


def _read(delivery: Delivery) -> tuple[amqp_properties.Properties, dict[str | bytes, Any]]:
    """Properties and headers; none of a message whose headers can't be read."""
    try:
        return amqp_properties.read(delivery.properties)
    except (ValueError, IndexError):
        return amqp_properties.Properties(), {}


def as_text(value: str | bytes) -> str:
    """Printable: a byte that is no UTF-8, and a character that is not printable, are escaped. Lines stay."""
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
    return printable_lines(text)


def _plain(value: Any) -> Any:
    """A value of a header, for JSON."""
    match value:
        case None | bool() | int() | float():
            return value
        case str() | bytes():
            return as_text(value)
        case dict():
            return {as_text(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return str(value)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages a command is about; None: any."""

    group: bytes | None = None
    reason: str | None = None  # a part of it is enough
    origin: str | None = None

    @property
    def named(self) -> str | None:
        """The message or group that must be there, for a refusal; None: it only filters."""
        if self.origin is not None:
            return f"message {self.origin!r}"
        return f"group {format_group(self.group)!r}" if self.group is not None else None

    def has(self, message: DeadMessage) -> bool:
        return (
            (self.group is None or message.group == self.group)
            and (self.reason is None or self.reason in message.reason)
            and (self.origin is None or message.origin == self.origin)
        )


def read_dead(delivery: Delivery) -> DeadMessage:
    """The facts in the headers of a message in a dead queue, which other programs may have put there."""
    found, headers = _read(delivery)
    group = headers.get(HEADER_GROUP)
    if isinstance(group, str):
        group = group.encode(errors="surrogateescape")

    def text(name: str) -> str | None:
        value = headers.get(name)
        return value.decode(errors="replace") if isinstance(value, bytes) else value and str(value)

    def number(name: str) -> int | None:
        value = headers.get(name)
        return value if isinstance(value, int) else None

    message_id = found.message_id
    return DeadMessage(
        delivery, text(HEADER_REASON) or "not said", group if isinstance(group, bytes) else None,
        text(HEADER_ORIGIN), number(HEADER_ATTEMPT), number(HEADER_CALLS), text(HEADER_EXCHANGE),
        text(HEADER_ROUTING_KEY), None if message_id is None else str(message_id),
    )  # fmt: skip


class DeadQueue(QueueReader):
    """One reader at a time: two would each see a part. Messages that it doesn't take out are back in their
    places when it ends. It acks a message only after the broker has confirmed the message's copy, so a crash
    in between leaves both.
    """

    connection_name = "dispatcher dead"

    def __init__(self, names: LaneNames, timeout_ms: int) -> None:
        super().__init__(names, timeout_ms)
        self._channel = 0
        #: What it takes to tell headers that are relayed from those that are not.
        self._cleaning = Grouping((), None, first_header=_OBEYED_HEADER, prefix=names.prefix)
        self._refusal: str | None = None  # of a release
        self.released = 0

    @property
    def _queue(self) -> str:
        return self._names.dead

    async def _begin(self, link: Link) -> None:
        self._channel = await link.open_channel()
        await link.call(self._channel, commands.Confirm.Select())
        try:
            declared = await link.call(
                self._channel, commands.Queue.Declare(queue=self._names.dead, passive=True)
            )
        except ChannelRefused as refused:
            if not is_missing(refused):
                raise
            raise BrokerUnavailable(
                f"lane {self._names.lane} has no dead queue {self._names.dead} on RabbitMQ "
                "(a dispatcher declares it when it first runs the lane)"
            ) from None
        self.count = declared.message_count

    async def messages(self, first: int | None = None) -> AsyncIterator[DeadMessage]:
        """The messages that were there at the beginning, in the queue's order; `None`: all, else the first
        ones."""
        link, channel = self._opened(), self._channel
        wanted = self.count if first is None else min(self.count, first)
        if first is not None and 0 < wanted <= _PREFETCH_MAX:
            await link.call(channel, commands.Basic.Qos(prefetch_count=wanted))
        try:
            await link.call(channel, commands.Basic.Consume(queue=self._names.dead, exclusive=True))
        except ChannelRefused as refused:
            if refused.code == ACCESS_REFUSED and "exclusive" in refused.text:
                raise CommandRefused(
                    f"another program reads {self._names.dead} now; try again when that has ended"
                ) from None
            raise
        for _ in range(wanted):
            yield read_dead(await self._next_delivery())

    async def drop(self, message: DeadMessage) -> None:
        """Take it out for good."""
        self._take_out(message)

    def _take_out(self, message: DeadMessage) -> None:
        self._opened().ack(self._channel, message.delivery.tag)

    async def release(self, message: DeadMessage) -> None:
        """Publish it to its inbound queue again; it is taken out when the broker has it there.

        Raises BrokerUnavailable.
        """
        assert message.inbound is not None
        content = read_content(message.delivery, self._cleaning)
        tag = self._opened().publish(
            self._channel, exchange=self._names.command_exchange, routing_key=message.inbound,
            properties=_with_origin(content, message.origin or ""), body=content.body,
        )  # fmt: skip
        self._unconfirmed[tag] = message
        await self._until(lambda: len(self._unconfirmed) < _UNCONFIRMED_MAX)
        if self._refusal is not None:
            await self.finish()

    async def finish(self) -> None:
        """Wait for the broker's word on everything released. Raises BrokerUnavailable."""
        await self._until(lambda: not self._unconfirmed)
        if self._refusal is not None:
            raise BrokerUnavailable(self._refusal)

    def _answered(self, tag: int, nacked: bool) -> None:
        message = self._unconfirmed.pop(tag)
        inbound = message.inbound or ""
        if inbound in self._missing:
            self._refusal = f"{self._unreached(inbound)}; messages that came from it stay in the dead queue"
        elif nacked:
            self._refusal = f"queue {inbound!r} refuses messages: is it full?"
        else:
            self.released += 1
            self._take_out(message)


def _with_origin(content: Content, origin: str) -> bytes:
    """Its properties, which say that it was here before: it repeats no other message."""
    at, end = content.table_at, content.table_end
    table = content.properties[at:end] + string_field(HEADER_ORIGIN.encode(), origin.encode())
    return content.properties[: at - 4] + pack_u32(len(table)) + table + content.properties[end:]
