"""The lock of a lane whose own queues are quorum queues: who has its one message leads.

`exclusive` means nothing on a quorum queue. Its consumers are served one at a time instead (single active
consumer), and a message is what tells a dispatcher that its turn has come. It stays unacknowledged for as
long as that one leads. When its connection ends, or its node is lost, RabbitMQ gives it to the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from pamqp import commands

from dispatcher.amqp.events import ChannelClosed, ConnectionClosed, ConsumerCancelled, Delivery
from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import BasicConsume, QueueDeclare
from dispatcher.errors import BrokerUnavailable, DeliveredAgain
from dispatcher.wire.protocol import LaneNames

#: How often the leader takes a new message: far below RabbitMQ's `consumer_timeout`.
RENEW_S: Final = 10.0
#: How long RabbitMQ may take for it, an election of the queue's leader included.
ANSWER_S: Final = 20.0
#: How often one that waits lays down another message: the one that was there may have been purged.
REPEAT_S: Final = 10.0
_EMPTY: Final = commands.Basic.Properties(delivery_mode=2).marshal()


class QuorumLock:
    """One dispatcher's place in the line, on a channel of its own."""

    def __init__(self, link: Link, names: LaneNames, *, renew_s: float = RENEW_S) -> None:
        self._link = link
        self._names = names
        self._renew_s = renew_s
        self.channel = 0
        self._tag = 0  # of the message that we have
        self._next: asyncio.Future[Delivery] | None = None  # the message that we have asked for
        self._lost: DeliveredAgain | None = None

    async def take(self) -> bool:
        """Wait until it is ours. True when no other dispatcher was there. Raises BrokerUnavailable."""
        self.channel = await self._link.open_channel()
        look = QueueDeclare(queue=self._names.lock, passive=True)
        was_free = not (await self._link.call(self.channel, look)).consumer_count
        await self._link.call(self.channel, commands.Basic.Qos(prefetch_count=1))
        arrives = self._next = asyncio.get_running_loop().create_future()
        consume = BasicConsume(queue=self._names.lock, consumer_tag="lock")
        await self._link.call(self.channel, consume)
        while not arrives.done():
            self._lay_down()
            await asyncio.wait((arrives,), timeout=REPEAT_S)
        self._tag = arrives.result().tag
        return was_free

    def receive(self, event: Delivery | ConsumerCancelled | ChannelClosed | ConnectionClosed) -> None:
        """What happens on its channel, or the end of all. Raises DeliveredAgain if we get the message that we
        have."""
        arrives = self._next
        if not isinstance(event, Delivery):
            self._end_wait(BrokerUnavailable(f"the lock is lost: {event}"))
        elif arrives is None or arrives.done() or (self._tag and event.redelivered):
            self._lost = DeliveredAgain("RabbitMQ took back the lock, and gives it to us again")
            self._end_wait(self._lost)  # the message that `renew` waits for would prove nothing now
            raise self._lost
        else:
            arrives.set_result(event)

    def _end_wait(self, problem: BrokerUnavailable) -> None:
        if self._next is not None and not self._next.done():
            self._next.set_exception(problem)
            self._next.exception()  # perhaps nobody waits for it: asyncio would log that nobody has looked

    async def renew(self) -> None:
        """Give the message back for a new one, which only who leads can get: so it proves that we lead.

        Raises BrokerUnavailable when it doesn't come.
        """
        if self._lost is not None:
            raise self._lost
        self._next = asyncio.get_running_loop().create_future()
        self._lay_down()
        self._link.ack(self.channel, self._tag)
        try:
            async with asyncio.timeout(ANSWER_S):
                self._tag = (await self._next).tag
        except TimeoutError:
            raise BrokerUnavailable("RabbitMQ does not say that we still have the lock") from None

    async def keep(self, fail: Callable[[BaseException], None]) -> None:
        """Renew it again and again; `fail` is told when it is lost."""
        try:
            while True:
                await asyncio.sleep(self._renew_s)
                await self.renew()
        except BrokerUnavailable as lost:
            fail(lost)

    def _lay_down(self) -> None:
        """Only the newest one stays in the queue."""
        self._link.publish(
            self.channel, exchange=self._names.exchange, routing_key=self._names.lock, properties=_EMPTY,
            body=b"", mandatory=False,
        )  # fmt: skip
