"""The receiving end, as cheap as it can be, so that the relay is what is measured."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Final

from pamqp import commands

from bench.relay.meter import Meter
from dispatcher.amqp.events import Confirmed, ConnectionClosed, Delivery, Returned
from dispatcher.amqp.link import Link
from dispatcher.client.membership import BUNDLE
from dispatcher.settings import RabbitSettings
from dispatcher.wire.bundle import BundleLimits, split_bundle
from dispatcher.wire.protocol import (
    HEADER_SEQ,
    KEY_CONTROL,
    KEY_HEARTBEAT,
    TYPE_BUNDLE,
    TYPE_WELCOME,
    Heartbeat,
    Join,
    LaneNames,
    Settle,
    encode,
)

PREFETCH: Final = 500
#: As the SDK does: a settle every 5 ms or half a prefetch.
SETTLE_S: Final = 0.005
JOIN_AGAIN_S: Final = 1.0
HEARTBEAT_S: Final = 2.0
_SEQ: Final = bytes((len(HEADER_SEQ),)) + HEADER_SEQ.encode() + b"l"
_BUNDLE: Final = TYPE_BUNDLE.encode()
_PERSISTENT: Final = commands.Basic.Properties(delivery_mode=2).marshal()
_TRANSIENT: Final = commands.Basic.Properties(delivery_mode=1).marshal()


class PlainConsumer:
    """Consumes a queue with automatic acks."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    async def open(self, url: str, queue: str) -> None:
        self._link = await Link.open(
            RabbitSettings(url=url), name="bench consumer", on_events=self._on_events
        )
        self._channel = await self._link.open_channel()
        await self._consume(queue)

    async def _consume(self, queue: str) -> None:
        await self._link.call(self._channel, commands.Basic.Consume(queue=queue, no_ack=True))

    def _on_events(self, events: list[Any]) -> None:
        self._meter.arrived([event.body for event in events if type(event) is Delivery])

    async def close(self) -> None:
        await self._link.close()


class AckingConsumer(PlainConsumer):
    """Acks what it has processed, as seldom and as cheaply as the protocol's consumers settle theirs."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(meter)
        self._last = self._count = 0  # the highest tag received, and how many are not acked
        self._timer: asyncio.TimerHandle | None = None

    async def _consume(self, queue: str) -> None:
        await self._link.call(self._channel, commands.Basic.Qos(prefetch_count=PREFETCH))
        await self._link.call(self._channel, commands.Basic.Consume(queue=queue))

    def _on_events(self, events: list[Any]) -> None:
        tags = [event.tag for event in events if type(event) is Delivery]
        if not tags:
            return
        self._last = tags[-1]
        self._count += len(tags)
        super()._on_events(events)
        if self._count >= PREFETCH // 2:
            self._ack()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self._ack)

    def _ack(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._count = 0
        self._link.ack(self._channel, self._last, multiple=True)

    async def close(self) -> None:
        if self._timer is not None:
            self._ack()
        await super().close()


class ProtocolConsumer:
    """Speaks docs/protocol.md: joins, settles what it gets, sends heartbeats. Processing takes no time."""

    def __init__(
        self, meter: Meter, names: LaneNames, consumer: str, bundle: BundleLimits | None = BUNDLE
    ) -> None:
        self._bundle = bundle
        self._meter = meter
        self._names = names
        self._consumer = consumer
        self._incarnation = str(uuid.uuid4())
        self._acked: list[tuple[int, int]] = []
        self._count = 0  # received and not settled
        self._last = 0
        self._joined = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, url: str) -> None:
        """Connect and ask to join; the answer may come later."""
        link = self._link = await Link.open(
            RabbitSettings(url=url), name=f"bench {self._consumer}", on_events=self._on_events
        )
        self._publishing = await link.open_channel()
        await link.call(self._publishing, commands.Confirm.Select())
        channel = await link.open_channel()
        declared = await link.call(
            channel, commands.Queue.Declare(queue="", exclusive=True, auto_delete=True)
        )
        self._queue = str(declared.queue)
        await link.call(
            channel,
            commands.Queue.Bind(queue=self._queue, exchange=self._names.exchange, routing_key=self._queue),
        )
        await link.call(channel, commands.Basic.Consume(queue=self._queue, no_ack=True))
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._join()), loop.create_task(self._beat())]

    async def _join(self) -> None:
        while not self._joined:
            join = Join(
                consumer=self._consumer, incarnation=self._incarnation, n=1, queue=self._queue,
                prefetch=PREFETCH, bundle=self._bundle,
            )  # fmt: skip
            self._control(KEY_CONTROL, _PERSISTENT, encode(join))
            await asyncio.sleep(JOIN_AGAIN_S)

    async def _beat(self) -> None:
        while True:
            beat = Heartbeat(
                consumer=self._consumer, incarnation=self._incarnation, queue=self._queue,
                held=self._count, last=self._last,
            )  # fmt: skip
            self._control(KEY_HEARTBEAT, _TRANSIENT, encode(beat))
            await asyncio.sleep(HEARTBEAT_S)

    def _on_events(self, events: list[Any]) -> None:
        bodies: list[bytes] = []
        for event in events:
            if type(event) is Delivery:
                if _BUNDLE in event.properties:
                    for properties, body in split_bundle(event.body):
                        self._note(properties, properties.find(_SEQ))
                        bodies.append(body)
                elif (at := event.properties.find(_SEQ)) >= 0:
                    self._note(event.properties, at)
                    bodies.append(event.body)
                else:
                    self._on_notice(event.properties)
            elif type(event) is not Confirmed:
                self._on_rare(event)
        if not bodies:
            return
        self._count += len(bodies)
        self._meter.arrived(bodies)
        if self._count >= PREFETCH // 2:
            self._settle()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self._settle)

    def _note(self, properties: bytes, at: int) -> None:
        """Settle this copy with the next ones; its number is at this place."""
        acked = self._acked
        at += len(_SEQ)
        seq = int.from_bytes(properties[at : at + 8], "big")
        if acked and acked[-1][1] == seq - 1:
            acked[-1] = (acked[-1][0], seq)
        else:
            acked.append((seq, seq))
        self._last = seq

    def _on_notice(self, properties: bytes) -> None:
        if TYPE_WELCOME.encode() in properties:
            self._joined = True
        elif b"dispatch.ping" not in properties:
            self._meter.fail(f"{self._consumer} was told {properties!r}")

    def _on_rare(self, event: Any) -> None:
        if isinstance(event, Returned):
            self._meter.fail(f"{self._consumer}: a control message came back: {event.text}")
        elif isinstance(event, ConnectionClosed) and event.code != 200:
            self._meter.fail(f"{self._consumer} lost its connection: {event.text}")

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._acked:
            settle = Settle(consumer=self._consumer, incarnation=self._incarnation, acked=tuple(self._acked))
            self._acked.clear()
            self._count = 0
            self._control(KEY_CONTROL, _PERSISTENT, encode(settle))

    def _control(self, key: str, properties: bytes, body: bytes) -> None:
        self._link.publish(
            self._publishing, exchange=self._names.control_exchange, routing_key=key, properties=properties,
            body=body,
        )  # fmt: skip

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        await self._link.close()
