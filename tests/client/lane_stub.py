"""The dispatcher's side of one lane, as far as a consumer can see it: for tests of the client alone.

It declares the lane, answers joins, publishes copies, remembers what is not settled, and sends that again to
an incarnation that comes back. It decides nothing: the test says what goes to whom.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import aio_pika
from aio_pika.abc import AbstractIncomingMessage
from pamqp.commands import Basic

from dispatcher.wire import protocol
from dispatcher.wire.protocol import Heartbeat, Join, LaneNames, Leave, Settle
from tests.client.copies_on_wire import copy_properties
from tests.waiting import eventually

LANE = "orders"
HEARTBEAT_MS = 200


class RawProperties(Basic.Properties):
    """Properties that go out as the bytes given."""

    def __init__(self, raw: bytes, message_id: str) -> None:
        super().__init__(message_id=message_id)
        self.raw = raw

    def marshal(self) -> bytes:
        return self.raw


@dataclass
class Incarnation:
    """One life of a consumer as the stub knows it."""

    consumer: str
    uuid: str
    queue: str
    n: int
    next_seq: int = 1_000
    unsettled: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)  # seq → (properties, body)
    acked: list[int] = field(default_factory=list)
    failed: list[tuple[int, str, int]] = field(default_factory=list)
    settles: list[Settle] = field(default_factory=list)
    taken: bool = False


class LaneStub:
    """See the module. `async with LaneStub(url) as lane`."""

    def __init__(self, url: str, lane: str = LANE, *, declare: bool = True) -> None:
        self.names = LaneNames(lane)
        self.joins: list[Join] = []
        self.heartbeats: list[Heartbeat] = []
        self.leaves: list[Leave] = []
        self.incarnations: dict[str, Incarnation] = {}
        self.answer: str | None = protocol.TYPE_WELCOME  # to new incarnations; None: silence
        self.ends_leavers = True
        self.retry: dict[str, int] | None = None  # what a welcome says of retries
        self._url = url
        self._declare = declare
        self._epoch = 5
        self._group_seqs: dict[tuple[str, bytes], tuple[int, int]] = defaultdict(lambda: (0, 0))
        self._ids = 0
        self._one_at_a_time = asyncio.Lock()  # aio-pika starts a task for each message

    async def __aenter__(self) -> LaneStub:
        self._connection = await aio_pika.connect(self._url)
        self._channel = await self._connection.channel()
        if self._declare:
            await self.declare()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    async def declare(self) -> None:
        channel, names = self._channel, self.names
        for exchange in (names.exchange, names.control_exchange):
            await channel.declare_exchange(exchange, "direct", durable=True)
        for queue, key in ((names.control, "control"), (names.heartbeat, "heartbeat")):
            declared = await channel.declare_queue(queue, durable=True)
            await declared.bind(names.control_exchange, key)
            await declared.consume(self._received, no_ack=True)

    # --- what consumers say ---

    async def _received(self, message: AbstractIncomingMessage) -> None:
        async with self._one_at_a_time:
            await self._understand(message)

    async def _understand(self, message: AbstractIncomingMessage) -> None:
        match protocol.decode_control(message.body):
            case Join() as join:
                self.joins.append(join)
                await self._join(join)
            case Settle() as settle:
                self._settle(settle)
                await self._end_leaver(settle.incarnation)
            case Heartbeat() as heartbeat:
                self.heartbeats.append(heartbeat)
            case Leave() as leave:
                self.leaves.append(leave)
                await self._end_leaver(leave.incarnation)

    async def _join(self, join: Join) -> None:
        known = self.incarnations.get(join.incarnation)
        if known is None and self.answer == protocol.TYPE_WELCOME:
            self.incarnations[join.incarnation] = Incarnation(
                join.consumer, join.incarnation, join.queue, join.n
            )
        if known is None or join.n <= known.n:
            if self.answer is not None:
                await self.notice(join.queue, self.answer, join)
            return
        if known.taken:
            await self.notice(join.queue, protocol.TYPE_TAKEN, join)
            return
        known.queue, known.n = join.queue, join.n
        await self.notice(join.queue, protocol.TYPE_WELCOME, join)
        in_hand = {entry.seq for entry in join.in_hand}
        for seq, (properties, body) in list(known.unsettled.items()):
            if seq not in in_hand:
                await self.publish(known.queue, properties, body)

    def _settle(self, settle: Settle) -> None:
        known = self.incarnations.get(settle.incarnation)
        if known is None or known.taken:
            return
        known.settles.append(settle)
        for first, last in settle.acked:
            for seq in range(first, last + 1):
                if known.unsettled.pop(seq, None):
                    known.acked.append(seq)
        for failed in settle.failed:
            if known.unsettled.pop(failed.seq, None):
                known.failed.append((failed.seq, failed.reason, failed.attempts))

    async def _end_leaver(self, uuid: str) -> None:
        known = self.incarnations.get(uuid)
        leaves = any(leave.incarnation == uuid for leave in self.leaves)
        if known and leaves and not known.unsettled and not known.taken and self.ends_leavers:
            known.taken = True
            await self.say(known, protocol.TYPE_TAKEN)

    # --- what the test makes the dispatcher say ---

    async def present(self, consumer: str = "c1") -> Incarnation:
        """The live incarnation of this consumer, once it has joined."""
        return await eventually(
            lambda: next(
                (i for i in self.incarnations.values() if i.consumer == consumer and not i.taken), None
            ),
            what=f"{consumer} joins",
        )  # fmt: skip

    async def notice(self, queue: str, kind: str, join: Join, **more: Any) -> None:
        body = {"lane": LANE, "consumer": join.consumer, "incarnation": join.incarnation, "n": join.n}
        body |= {"heartbeat": HEARTBEAT_MS, **more}
        if self.retry is not None and kind == protocol.TYPE_WELCOME:
            body["retry"] = self.retry
        await self.publish_notice(queue, kind, json.dumps(body).encode())

    async def say(self, to: Incarnation, kind: str) -> None:
        if kind == protocol.TYPE_TAKEN:
            to.taken = True
        body = {"consumer": to.consumer, "incarnation": to.uuid, "n": to.n}
        await self.publish_notice(to.queue, kind, json.dumps(body).encode())

    async def publish_notice(self, queue: str, kind: str, body: bytes) -> None:
        exchange = await self._channel.get_exchange(self.names.exchange, ensure=False)
        await exchange.publish(aio_pika.Message(body, type=kind), routing_key=queue, mandatory=False)

    def copy(
        self, to: Incarnation, body: bytes, group: bytes | None = None, *, attempt: int = 1,
        table: bytes = b"", **numbers: int,
    ) -> tuple[int, bytes]:  # fmt: skip
        """Numbers and properties of the next copy for this incarnation; it counts as in flight."""
        seq = numbers.get("seq", to.next_seq)
        to.next_seq = max(to.next_seq, seq) + 1
        epoch = group_seq = 0
        if group is not None:
            epoch, last = self._group_seqs[to.uuid, group]
            epoch = numbers.get("epoch", epoch or self._next_epoch())
            group_seq = numbers.get("group_seq", last + 1)
            self._group_seqs[to.uuid, group] = epoch, group_seq
        properties = copy_properties(
            seq, group, group_seq=group_seq, epoch=epoch, attempt=attempt,
            deadline_at_ms=numbers.get("deadline_at_ms"), table=table,
        )  # fmt: skip
        to.unsettled[seq] = (properties, body)
        return seq, properties

    def _next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def lose(self, to: Incarnation, body: bytes, group: bytes | None = None, **numbers: Any) -> int:
        """A copy that is in flight but never arrives."""
        return self.copy(to, body, group, **numbers)[0]

    async def send(self, to: Incarnation, body: bytes, group: bytes | None = None, **numbers: Any) -> int:
        """Publish a copy; returns its seq."""
        seq, properties = self.copy(to, body, group, **numbers)
        await self.publish(to.queue, properties, body)
        return seq

    async def publish(self, queue: str, properties: bytes, body: bytes) -> None:
        self._ids += 1
        underlay = await self._channel.get_underlay_channel()
        await underlay.basic_publish(
            body, exchange=self.names.exchange, routing_key=queue,
            properties=RawProperties(properties, f"copy-{self._ids}"),
        )  # fmt: skip

    async def send_many(self, to: Incarnation, count: int, groups: int) -> list[int]:
        """`count` copies, their numbers as bodies, round robin over `groups` groups; confirmed together."""
        copies = []
        for index in range(count):
            body = str(index).encode()
            seq, properties = self.copy(to, body, b"g%d" % (index % groups))
            copies.append((seq, properties, body))
        await asyncio.gather(*(self.publish(to.queue, properties, body) for _, properties, body in copies))
        return [seq for seq, _, _ in copies]
