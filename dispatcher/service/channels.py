"""The lane's channels on its one connection: the fence, what we listen to, what we publish on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog
from pamqp import commands, decode

from dispatcher.amqp.events import ChannelClosed, ConnectionClosed, ConsumerCancelled, Delivery
from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import BasicConsume, QueueDeclare
from dispatcher.core.events import Event, QueueReturned
from dispatcher.core.forwarding.events import ReadersChanged
from dispatcher.core.queue_ids import QueueId
from dispatcher.errors import ACCESS_REFUSED, ChannelRefused, ConfigurationError, DispatcherError
from dispatcher.service.quorum_lock import QuorumLock
from dispatcher.wire.protocol import LaneNames

log = structlog.get_logger()

#: How often a standby looks whether the lock is free: a fail-over takes at least about this long.
LOCK_RETRY_S: Final = 0.05
#: Control messages read and not yet committed; each may settle half a prefetch.
CONTROL_PREFETCH: Final = 1_000
COMMAND_PREFETCH: Final = 100
#: Where RabbitMQ's event exchange plugin tells of deleted queues, in the vhost that it is configured for.
EVENT_EXCHANGE: Final = "amq.rabbitmq.event"
_DELETED: Final = "queue.deleted"
_CONSUMERS: Final = ("consumer.created", "consumer.deleted")


class Channels:
    """Channel numbers by purpose, once opened; 0: not open."""

    def __init__(
        self,
        link: Link,
        names: LaneNames,
        *,
        quorum: frozenset[str] = frozenset(),
        lock_retry_s: float = LOCK_RETRY_S,
    ) -> None:
        """`quorum`: which of the lane's own queues are quorum queues."""
        self._link = link
        self._names = names
        self._quorum = quorum
        self._quorum_lock = QuorumLock(link, names) if names.lock in quorum else None
        self._lock_retry_s = lock_retry_s
        self.lock = self.publish = self.control = self.command = self.heartbeat = self.events = 0
        self.history = 0
        self.inbound_index: dict[int, QueueId] = {}  # channel → index of its inbound queue
        self.parking: set[int] = set()
        self.handed: set[int] = set()  # on which hand-over consumers' messages come back
        self._vhost = ""

    @property
    def essential(self) -> set[int]:
        """Channels whose loss ends the session."""
        own = {self.lock, self.publish, self.control, self.command, self.heartbeat, self.history}
        return own | self.parking | self.handed | self.inbound_index.keys()

    async def take_lock(self) -> bool:
        """Wait until no other dispatcher holds the lane, then hold it as long as the connection lives.

        True when no other dispatcher held it. Raises ConfigurationError when the lock doesn't lock.
        """
        if self._quorum_lock is not None:
            was_free = await self._quorum_lock.take()
            self.lock = self._quorum_lock.channel
            return was_free
        was_free = True
        while True:
            channel = await self._link.open_channel()
            try:
                was_free &= await self._is_free(channel)
                await self._consume_lock(channel)
                self.lock = channel
                break
            except ChannelRefused as refused:
                if refused.code != ACCESS_REFUSED:
                    raise
                was_free = False
        await self._prove_lock()
        return was_free

    async def _is_free(self, channel: int) -> bool:
        """Wait for it; True when there was nothing to wait for. Looks without trying: each refused attempt
        would be a line in the broker's log."""
        look = QueueDeclare(queue=self._names.lock, passive=True)
        was_free = True
        while (await self._link.call(channel, look)).consumer_count:
            was_free = False
            await asyncio.sleep(self._lock_retry_s)
        return was_free

    async def _consume_lock(self, channel: int) -> None:
        tag = f"lock-{channel}"
        consume = BasicConsume(queue=self._names.lock, consumer_tag=tag, exclusive=True)
        await self._link.call(channel, consume)

    async def _prove_lock(self) -> None:
        """A second exclusive consumer must be refused, or two dispatchers could lead."""
        channel = await self._link.open_channel()
        try:
            await self._consume_lock(channel)
        except ChannelRefused as refused:
            if refused.code == ACCESS_REFUSED:
                return
            raise
        raise ConfigurationError(
            f"the queue {self._names.lock!r} does not exclude a second consumer: delete it, "
            "the dispatcher declares it again as a classic queue"
        )

    @property
    def may_lose_lock_unheard(self) -> bool:
        """Whether the lock may go to another dispatcher without our hearing of it."""
        return self._quorum_lock is not None

    async def prove_fence(self) -> None:
        """One round trip on the connection that holds the lock: it was ours a moment ago."""
        if self._quorum_lock is not None:
            await self._quorum_lock.renew()
            return
        await self._link.call(self.lock, QueueDeclare(queue=self._names.lock, passive=True))

    def is_of_lock(self, event: Any) -> bool:
        """Whether a lock that is a quorum queue has to be told; see `tell_lock`."""
        lock = self._quorum_lock
        return lock is not None and (
            isinstance(event, ConnectionClosed)
            or (
                isinstance(event, Delivery | ConsumerCancelled | ChannelClosed)
                and event.channel == lock.channel
            )
        )

    def tell_lock(self, event: Any) -> None:
        """Raises DeliveredAgain when that shows that the lock was not ours all the time."""
        assert self._quorum_lock is not None
        self._quorum_lock.receive(event)

    async def keep_lock(self, fail: Callable[[BaseException], None]) -> None:
        """Do what holding the lock takes: until the connection ends."""
        if self._quorum_lock is not None:
            await self._quorum_lock.keep(fail)

    async def listen(self, *, keeps_history: bool = False) -> None:
        """Open the channels for publishes, control messages, commands and heartbeats, and consume."""
        await self.open_publishing()
        if keeps_history:
            self.history = await self._open_confirming()
        self.control = await self._listen(self._names.control, CONTROL_PREFETCH)
        self.command = await self._listen(self._names.command, COMMAND_PREFETCH)
        self.heartbeat = await self._listen(self._names.heartbeat, None)

    async def open_publishing(self) -> None:
        """Open a channel for publishes, in place of the last one if there was one."""
        self.publish = await self._open_confirming()

    async def reopen_publishing(
        self, use: Callable[[int], None], *, fail: Callable[[BaseException], None]
    ) -> None:
        """The same in the background."""
        if (channel := await self._reopen_confirming(fail)) is not None:
            self.publish = channel
            use(channel)

    async def reopen_history(
        self, use: Callable[[int], None], *, fail: Callable[[BaseException], None]
    ) -> None:
        """The same for the channel of the history."""
        if (channel := await self._reopen_confirming(fail)) is not None:
            self.history = channel
            use(channel)

    async def _reopen_confirming(self, fail: Callable[[BaseException], None]) -> int | None:
        try:
            return await self._open_confirming()
        except DispatcherError as failure:
            fail(failure)
            return None

    async def _open_confirming(self) -> int:
        channel = await self._link.open_channel()
        await self._link.call(channel, commands.Confirm.Select())
        return channel

    async def _listen(self, queue: str, prefetch: int | None) -> int:
        channel = await self._link.open_channel()
        if prefetch is not None:
            await self._link.call(channel, commands.Basic.Qos(prefetch_count=prefetch))
        consume = BasicConsume(
            queue=queue, consumer_tag=queue, no_ack=prefetch is None, exclusive=queue not in self._quorum
        )
        await self._link.call(channel, consume)
        return channel

    async def listen_to_broker_events(self, vhost: str, *, consumers: bool = False) -> bool:
        """Hear of deleted queues at once, and of `consumers`, where the event exchange plugin is on and we
        may read from it."""
        self._vhost = vhost
        channel = await self._link.open_channel()
        try:
            await self._link.call(
                channel,
                commands.Exchange.Declare(exchange=EVENT_EXCHANGE, exchange_type="topic", passive=True),
            )
            declared = await self._link.call(
                channel, QueueDeclare(queue="", exclusive=True, auto_delete=True)
            )
            queue = str(declared.queue)
            for key in (_DELETED, *(_CONSUMERS if consumers else ())):
                bind = commands.Queue.Bind(queue=queue, exchange=EVENT_EXCHANGE, routing_key=key)
                await self._link.call(channel, bind)
            self.events = channel
            await self._link.call(channel, BasicConsume(queue=queue, no_ack=True))
        except ChannelRefused:
            self.events = 0
            return False
        return True

    def event_of(self, delivery: Delivery) -> Event | None:
        """What a broker event says, if it is of our vhost: a queue is gone, or somebody began or ceased to
        read that of a hand-over consumer."""
        headers = _headers(delivery.properties)
        is_deleted = delivery.routing_key == _DELETED.encode()
        name = headers.get("name" if is_deleted else "queue")
        if headers.get("vhost") != self._vhost or not isinstance(name, str):
            return None
        if is_deleted:
            return QueueReturned(name)
        return ReadersChanged(name) if name.startswith(self._names.consumer("")) else None


def _headers(properties: bytes) -> dict[str, Any]:
    """The header table of a message of RabbitMQ's own, which has no property before it."""
    try:
        return decode.field_table(properties[2:])[1]
    except (ValueError, IndexError):
        return {}
