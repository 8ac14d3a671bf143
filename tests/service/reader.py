"""An application that knows nothing of groups: it consumes a queue with a prefetch, and acks."""

from __future__ import annotations

from typing import Any

from pamqp import commands

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import BasicConsume
from dispatcher.amqp.properties import split_table
from dispatcher.settings import RabbitSettings
from tests.service.clients import open_link
from tests.waiting import eventually


class Reader:
    """`acks`: at once; else it holds what it has received."""

    def __init__(self, *, acks: bool) -> None:
        self.received: list[Delivery] = []
        self._acks = acks

    @classmethod
    async def open(
        cls, settings: RabbitSettings, queue: str, *, acks: bool = True, prefetch: int = 10
    ) -> Reader:
        """Raises ChannelRefused while somebody else is the queue's only reader."""
        reader = cls(acks=acks)
        reader._link = await open_link(settings, "reader", reader._take)
        reader._channel = await reader._link.open_channel()
        await reader._link.call(reader._channel, commands.Basic.Qos(prefetch_count=prefetch))
        await reader._link.call(reader._channel, BasicConsume(queue=queue, consumer_tag="reader"))
        return reader

    _link: Link
    _channel: int

    def _take(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, Delivery):
                self.received.append(event)
                if self._acks:
                    self.ack(event)

    def ack(self, delivery: Delivery) -> None:
        self._link.ack(self._channel, delivery.tag)

    def reject(self, delivery: Delivery) -> None:
        self._link.send(self._channel, commands.Basic.Nack(delivery_tag=delivery.tag, requeue=False))

    async def heard(self) -> None:
        """RabbitMQ has read what was said so far."""
        await self._link.call(self._channel, commands.Basic.Qos(prefetch_count=0))

    async def cancel(self) -> None:
        """It reads no more; what it has and did not ack stays with it."""
        await self._link.call(self._channel, commands.Basic.Cancel("reader"))

    def die(self) -> None:
        """Its connection is gone."""
        self._link.abort()

    # -- what it got --

    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.received]

    def group(self, name: bytes) -> list[bytes]:
        """Bodies like `<group>.<number>` of that group, in the order in which they came."""
        return [body for body in self.bodies() if body.startswith(name + b".")]

    async def has(self, count: int) -> None:
        await eventually(lambda: len(self.received) >= count, what=f"{count} messages at the reader")


def header(delivery: Any, name: str) -> bytes | None:
    """The value of a header, its type byte and a string's length apart; None: it has none of that name."""
    fields, _, _ = split_table(delivery.properties)
    key = bytes((len(name),)) + name.encode()
    for one in fields:
        if one.startswith(key):
            value = one[len(key) :]
            return value[5:] if value[:1] == b"S" else value[1:]
    return None
