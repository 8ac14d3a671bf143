"""Plain AMQP clients for tests: a producer that knows what the broker confirmed, and a look into queues."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from pamqp import commands

from dispatcher.amqp.events import ChannelClosed, Confirmed, ConnectionClosed, Fetched
from dispatcher.amqp.link import Link
from dispatcher.settings import RabbitSettings
from tests.amqp.samples import properties as raw_properties
from tests.amqp.samples import text
from tests.waiting import TIMEOUT_S, eventually


async def open_link(settings: RabbitSettings, name: str, on_events: Callable[[list[Any]], None]) -> Link:
    return await Link.open(settings, name=name, on_events=on_events)


class Client:
    """One connection to the broker with confirms on: publishes, reads queues, declares them."""

    def __init__(self, link: Link, channel: int, events: list[Any]) -> None:
        self.link = link
        self.channel = channel
        self._events = events
        self._last = 0
        self._seen = 0  # events that were looked at
        self._all_up_to = 0  # every publish up to this one is confirmed
        self._singles: set[int] = set()  # and these above it

    @classmethod
    async def open(cls, settings: RabbitSettings) -> Client:
        events: list[Any] = []
        link = await open_link(settings, "test", events.extend)
        try:
            channel = await link.open_channel()
            await link.call(channel, commands.Confirm.Select())
        except BaseException:
            link.abort()
            raise
        return cls(link, channel, events)

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, settings: RabbitSettings) -> AsyncIterator[Client]:
        client = await cls.open(settings)
        try:
            yield client
        finally:
            await client.close()

    async def close(self) -> None:
        await self.link.close()

    @property
    def broker_version(self) -> tuple[int, ...]:
        numbers = str(self.link.server_properties["version"]).partition("-")[0].split(".")
        return tuple(int(number) for number in numbers if number.isdigit())

    # -- publishing --

    def send(
        self, queue: str, body: bytes, group: str | bytes | None = None, *fields: bytes,
        exchange: str = "", **properties: Any,
    ) -> None:  # fmt: skip
        """Publish to a queue; `group` goes into x-group-id, `fields` are raw header fields."""
        if group is not None:
            fields = (text("x-group-id", group), *fields)
        properties.setdefault("delivery_mode", 2)
        self.send_raw(queue, body, raw_properties(*fields, **properties), exchange)

    def send_raw(self, queue: str, body: bytes, properties: bytes, exchange: str = "") -> None:
        """Publish with this raw property list."""
        self._last = self.link.publish(
            self.channel, exchange=exchange, routing_key=queue, properties=properties, body=body
        )

    async def confirmed(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until the broker has everything; fails when it refused something."""
        await eventually(self._answered, timeout_s, "the broker's confirms")

    def _answered(self) -> bool:
        for event in self._events[self._seen :]:
            assert not isinstance(event, ChannelClosed | ConnectionClosed), event
            if isinstance(event, Confirmed):
                assert not event.nacked, "RabbitMQ refused a message"
                if event.multiple:
                    self._all_up_to = max(self._all_up_to, event.tag)
                else:
                    self._singles.add(event.tag)
        self._seen = len(self._events)
        while self._all_up_to + 1 in self._singles:
            self._all_up_to += 1
            self._singles.discard(self._all_up_to)
        return self._all_up_to >= self._last

    # -- queues --

    async def declare(self, queue: str, *, auto_delete: bool = False, **arguments: Any) -> None:
        names = {name.replace("_", "-"): value for name, value in arguments.items()}
        declare = commands.Queue.Declare(queue=queue, durable=True, auto_delete=auto_delete, arguments=names)
        await self.link.call(self.channel, declare)

    async def delete(self, queue: str) -> None:
        await self.link.call(self.channel, commands.Queue.Delete(queue=queue))

    async def purge(self, queue: str) -> None:
        await self.link.call(self.channel, commands.Queue.Purge(queue=queue))

    async def ready(self, queue: str) -> int:
        """How many messages wait in the queue and are with nobody."""
        declared = await self.link.call(self.channel, commands.Queue.Declare(queue=queue, passive=True))
        return int(declared.message_count)

    async def consumers(self, queue: str) -> int:
        declared = await self.link.call(self.channel, commands.Queue.Declare(queue=queue, passive=True))
        return int(declared.consumer_count)

    async def take(self, queue: str) -> list[Fetched]:
        """Everything that is ready in the queue, removed from it."""
        taken = []
        while True:
            answer = await self.link.call(self.channel, commands.Basic.Get(queue=queue, no_ack=True))
            if not isinstance(answer, Fetched):
                return taken
            taken.append(answer)

    async def has_ready(self, queue: str, count: int, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until exactly that many messages are ready in the queue."""

        async def enough() -> bool:
            return await self.ready(queue) == count

        await eventually(enough, timeout_s, f"{count} messages ready in {queue}")
