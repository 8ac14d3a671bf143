"""The messages: encoded once, published as fast as the broker takes them, or at a steady rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from pamqp import commands

from bench.relay.shapes import Shape
from dispatcher.amqp.events import Confirmed, ConnectionEvent
from dispatcher.amqp.link import Link
from dispatcher.amqp.properties import string_field
from dispatcher.amqp.wire import content_frames, pack_u32, publish_frame
from dispatcher.service.confirms import PublishWindow
from dispatcher.settings import RabbitSettings

#: A thousand groups in turn.
EVENLY: Final = Shape()
BODY_BYTES: Final = 256
#: Unconfirmed publishes while filling a queue; more only fills the broker's buffers.
UNCONFIRMED_MAX: Final = 2_000
CHUNK: Final = 200
#: The first bytes of a body are its number, the next ones the ns at which it was sent.
NUMBER_BYTES: Final = 8
SENT_AT_BYTES: Final = 8

_HEADERS_DELIVERY_MODE_MESSAGE_ID: Final = (1 << 13 | 1 << 12 | 1 << 7).to_bytes(2, "big")


def properties(number: int, group: int, prefix: bytes = b"group") -> bytes:
    """Property list of message `number`: its group as a header, persistent, a message id."""
    table = string_field(b"x-group-id", b"%b-%03d" % (prefix, group))
    identity = b"%036d" % number
    return b"".join((
        _HEADERS_DELIVERY_MODE_MESSAGE_ID, pack_u32(len(table)), table, b"\x02",
        bytes((len(identity),)), identity,
    ))  # fmt: skip


def body(number: int, sent_at_ns: int = 0, size: int = BODY_BYTES) -> bytes:
    head = number.to_bytes(NUMBER_BYTES, "big") + sent_at_ns.to_bytes(SENT_AT_BYTES, "big")
    return head + b"x" * (size - len(head))


def number_and_time(content: bytes) -> tuple[int, int]:
    """A message's number, and the ns at which it was sent, from its body."""
    head = content[: NUMBER_BYTES + SENT_AT_BYTES]
    return int.from_bytes(head[:NUMBER_BYTES], "big"), int.from_bytes(head[NUMBER_BYTES:], "big")


class Publisher:
    """One connection that publishes to one queue through the default exchange, with confirms."""

    def __init__(
        self,
        queue: str,
        *,
        shape: Shape = EVENLY,
        group_prefix: bytes = b"group",
        body_bytes: int = BODY_BYTES,
        exchange: str = "",
    ) -> None:
        self._queue = queue
        self._exchange = exchange
        self._shape = shape
        self._groups: Sequence[int] = ()  # by message
        self._group_prefix = group_prefix
        self._body_bytes = body_bytes
        self._window = PublishWindow()
        self._answered = asyncio.Event()

    async def open(self, url: str) -> None:
        """Connect. Raises BrokerUnavailable."""
        self._link = await Link.open(
            RabbitSettings(url=url), name="bench publisher", on_events=self._on_events
        )
        self._channel = await self._link.open_channel()
        await self._link.call(self._channel, commands.Confirm.Select())
        self._method = publish_frame(self._channel, self._exchange, self._queue, mandatory=False)

    async def fill(self, count: int) -> None:
        """Publish messages 0 to `count` - 1 and wait until the broker has stored all of them."""
        self._groups = self._shape.group_numbers(count)
        for start in range(0, count, CHUNK):
            self._publish(range(start, min(start + CHUNK, count)), 0)
            await self._until_unanswered(UNCONFIRMED_MAX)
        await self._until_unanswered(0)

    async def send_steadily(self, count: int, per_second: int) -> None:
        """Publish `count` messages, each at its time, with the time in it."""
        self._groups = self._shape.group_numbers(count)
        begun = time.monotonic()
        sent = 0
        while sent < count:
            due = min(count, int((time.monotonic() - begun) * per_second) + 1)
            self._publish(range(sent, due), time.monotonic_ns())
            sent = due
            await asyncio.sleep(max(0.0, begun + sent / per_second - time.monotonic()))

    async def close(self) -> None:
        await self._link.close()

    def _publish(self, numbers: range, sent_at_ns: int) -> None:
        if not numbers:
            return
        frames = []
        for number in numbers:
            content = body(number, sent_at_ns, self._body_bytes)
            listed = properties(number, self._groups[number], self._group_prefix)
            frames.append(self._method)
            frames.append(content_frames(self._channel, listed, content, self._link.frame_max))
        last = self._link.write(self._channel, b"".join(frames), len(numbers))
        for tag in range(last - len(numbers) + 1, last + 1):
            self._window.add(tag, None)
        self._link.flush()

    def _on_events(self, events: list[ConnectionEvent]) -> None:
        for event in events:
            if isinstance(event, Confirmed):
                for _ in self._window.answered(event):
                    pass
        self._answered.set()

    async def _until_unanswered(self, count: int) -> None:
        while len(self._window) > count:
            self._answered.clear()
            await self._answered.wait()
