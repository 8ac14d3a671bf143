"""Forwarding on the connection: queues of consumers that only read are inspected, reclaimed and released."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from pamqp import commands

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import BasicConsume, QueueDeclare
from dispatcher.amqp.reclaimed import read_reclaimed, stranger
from dispatcher.core.events import Event
from dispatcher.core.forwarding.events import (
    MessageRejected,
    QueueInspected,
    QueueInUse,
    QueueReclaimed,
    QueueReleased,
)
from dispatcher.core.forwarding.orders import (
    AckReclaimed,
    ForwardingAction,
    InspectQueue,
    ReclaimedCopy,
    ReclaimQueue,
    ReleaseQueue,
)
from dispatcher.errors import ACCESS_REFUSED, ChannelRefused, ProtocolViolation, is_missing
from dispatcher.service.channels import Channels
from dispatcher.service.tasks import Tasks
from dispatcher.settings import LaneSettings
from dispatcher.wire.protocol import LaneNames

#: Rejected messages on their way to the dead queue.
REJECTED_PREFETCH: Final = 256
#: Between two looks whether a queue that is read back is empty.
END_POLL_S: Final = 0.005


class ForwardingQueues:
    """Of one session. `report` takes what the core must know, `fail` ends the session."""

    def __init__(
        self,
        link: Link,
        names: LaneNames,
        channels: Channels,
        lane: LaneSettings,
        *,
        report: Callable[[Event], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._link = link
        self._names = names
        self._channels = channels
        self._first_header = lane.first_header
        self._report = report
        self._look_channel = 0
        self._reclaimed: dict[str, int] = {}  # queues that are read back, and the channel of each
        self._read: dict[int, list[ReclaimedCopy]] = {}  # the copies that were read on each channel
        self._rejected = 0  # the channel that reads rejected messages
        self._turn = asyncio.Lock()  # of looks and releases: no look may count ourselves as a reader
        self._tasks = Tasks(fail)
        if lane.handover:
            self._tasks.start(self._read_rejected)

    # -- orders --

    def perform(self, order: ForwardingAction) -> None:
        """Carry out an order that is no publish; an answer to it is reported as an event."""
        match order:
            case InspectQueue():
                self._tasks.start(self._look, order.queue)
            case ReclaimQueue():
                self._tasks.start(self._reclaim, order.queue)
            case ReleaseQueue():
                self._tasks.start(self._release, order.queue)
            case AckReclaimed(handed):
                is_rejected = handed.queue == self._names.rejected
                self._link.ack(self._rejected if is_rejected else self._reclaimed[handed.queue], handed.tag)

    def close(self) -> None:
        """The session has ended: wait for nothing more."""
        self._tasks.close()

    # -- looking --

    async def _look(self, queue: str) -> None:
        async with self._turn:
            readers, ready = await self._ask(queue)
        self._report(QueueInspected(queue, readers, ready))

    async def _ask(self, queue: str) -> tuple[int, int]:
        if not self._look_channel:
            self._look_channel = await self._link.open_channel()
        try:
            declared = await self._link.call(self._look_channel, QueueDeclare(queue=queue, passive=True))
        except ChannelRefused as refused:
            self._look_channel = 0
            if not is_missing(refused):
                raise
            return 0, 0
        return int(declared.consumer_count), int(declared.message_count)

    # -- reading back --

    async def _reclaim(self, queue: str) -> None:
        channel = await self._link.open_channel()
        self._read[channel] = []
        self._reclaimed[queue] = channel
        consume = BasicConsume(queue=queue, consumer_tag=f"taken-{channel}", exclusive=True)
        try:
            await self._link.call(channel, consume)
        except ChannelRefused as refused:
            del self._read[channel], self._reclaimed[queue]
            if refused.code == ACCESS_REFUSED:
                self._report(QueueInUse(queue))
            elif is_missing(refused):  # the lane does not name its consumer any more
                self._report(QueueReclaimed(queue, []))
            else:
                raise
            return
        self._channels.handed.add(channel)
        while not await self._is_read(queue, channel):  # noqa: ASYNC110 - RabbitMQ says when asked
            await asyncio.sleep(END_POLL_S)
        self._report(QueueReclaimed(queue, self._read[channel]))

    async def _is_read(self, queue: str, channel: int) -> bool:
        """Nothing is ready, and all that was on its way when that was said has come: it may come behind that
        answer (seen with queues on disk), but not behind the next one."""
        if await self._ready(queue, channel):
            return False
        before = len(self._read[channel])
        return not await self._ready(queue, channel) and len(self._read[channel]) == before

    async def _ready(self, queue: str, channel: int) -> int:
        declared = await self._link.call(channel, QueueDeclare(queue=queue, passive=True))
        return int(declared.message_count)

    async def _release(self, queue: str) -> None:
        channel = self._reclaimed.pop(queue, 0)
        if channel:
            self._channels.handed.discard(channel)
            async with self._turn:
                await self._link.call(channel, commands.Channel.Close(200, "released", 0, 0))
            # Messages still came while this waited for its turn. RabbitMQ puts them back into the queue.
            del self._read[channel]
        self._report(QueueReleased(queue))

    # -- messages that come --

    async def _read_rejected(self) -> None:
        channel = await self._link.open_channel()
        self._rejected = channel
        self._channels.handed.add(channel)
        await self._link.call(channel, commands.Basic.Qos(prefetch_count=REJECTED_PREFETCH))
        name = self._names.rejected
        await self._link.call(channel, BasicConsume(queue=name, consumer_tag=name, exclusive=True))

    def receive(self, delivery: Delivery) -> bool:
        """Take in a delivery; False when it is none of these queues."""
        if delivery.channel == self._rejected:
            handed, reason = self._handed(delivery, self._names.rejected)
            self._report(MessageRejected(handed, handed.refusal or reason or "rejected"))
        elif delivery.channel in self._read:
            queue = next((name for name, number in self._reclaimed.items() if number == delivery.channel), "")
            handed, _ = self._handed(delivery, queue)
            self._read[delivery.channel].append(handed)
        else:
            return False
        return True

    def _handed(self, delivery: Delivery, queue: str) -> tuple[ReclaimedCopy, str]:
        try:
            copy = read_reclaimed(delivery, self._names, self._first_header)
        except ProtocolViolation as problem:
            content = stranger(delivery)
            content.origin = f"{queue} 0.{delivery.tag}"
            return ReclaimedCopy(
                queue, delivery.tag, 0, None, 0, b"", content, content.size, refusal=str(problem)
            ), ""
        content = copy.content
        handed = ReclaimedCopy(
            queue, delivery.tag, copy.seq, content.group, copy.attempt, content.fingerprint, content,
            content.size, copy.deadline_at_ms, origin=content.origin or "",
        )  # fmt: skip
        return handed, copy.reason
