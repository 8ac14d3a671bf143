"""Whether the broker restarted: one transient message in a durable queue survives everything but that.

On a cluster the question is whether the former leader's node restarted, or is away: a quorum queue may then
elect a leader, and acks may have ended with that node. So there each leader deletes the queue and declares it
anew, on its own node: while that node is away nobody can read the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pamqp import commands

from dispatcher.amqp.events import Fetched
from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import QueueDeclare
from dispatcher.core.lane import Lane
from dispatcher.errors import NOT_FOUND, BrokerUnavailable, ChannelRefused, is_out_of_reach
from dispatcher.service.queue_kinds import major_of, version_of
from dispatcher.wire.protocol import LaneNames

POLL_S: Final = 0.1
#: If the node of a witness that moves is away RabbitMQ 3.10 says so at once, RabbitMQ 4.0 after a minute. One
#: that is not there in this time counts as gone: that costs a wait.
ANSWER_S: Final = 1.0
#: Between two attempts to delete a queue whose node is away.
AWAY_S: Final = 10.0
_ENDS_CONNECTIONS_SINCE: Final = 4
#: RabbitMQ's words of a queue whose process could not be started again.
_CRASHED: Final = "has crashed"
#: Messages of others in the witness queue, which prove nothing: so many are dropped at a time.
FOREIGN_MAX: Final = 100
_TRANSIENT: Final = 1


class Witness:
    """The lane's witness, on a channel of its own. `moves`: its queue moves along with the leader."""

    answer_s, away_s = ANSWER_S, AWAY_S

    def __init__(self, link: Link, names: LaneNames, *, moves: bool = False) -> None:
        self._link = link
        self._names = names
        self._moves = moves
        #: Consumers of inbound queues that RabbitMQ counts although their node is away. One message more in
        #: the queue for each tells the next leader.
        self.ghosts = 0
        self._channel = 0
        self._gone = False
        self._lane: Lane | None = None

    async def is_gone(self) -> bool:
        """True when the broker was restarted since it was laid down, or it never was."""
        self._channel = await self._link.open_channel()
        count = await (self._count_in_time() if self._moves else self._count())
        self._gone, self.ghosts = not count, max(0, count - 1) if self._moves else 0
        return self._gone

    async def _count_in_time(self) -> int:
        """The same as `_count`; 0 if there is no queue, or if its node is away."""
        try:
            async with asyncio.timeout(self.answer_s):
                return await self._count()
        except TimeoutError:
            pass
        except ChannelRefused as refused:
            if refused.code != NOT_FOUND:
                raise
        # An answer that comes late ends the channel that was asked on, which is nobody's by then.
        self._channel = await self._link.open_channel()
        return 0

    async def _count(self) -> int:
        """How many messages dispatchers have laid down. Those of others prove nothing, and are dropped."""
        own = []
        for _ in range(FOREIGN_MAX):
            found = await self._link.call(self._channel, commands.Basic.Get(queue=self._names.witness))
            if not isinstance(found, Fetched):
                break
            if found.exchange.decode(errors="replace") == self._names.exchange:
                own.append(found.tag)
            else:
                self._link.ack(self._channel, found.tag)
        for tag in own:
            self._link.send(self._channel, commands.Basic.Nack(tag, requeue=True))
        return len(own)

    def watch(self, lane: Lane) -> None:
        self._lane = lane

    async def renew_after_recovery(self, decided_is_done: Callable[[], Awaitable[None]]) -> None:
        """Declare the witness again, but only after the recovery that its loss matters for, and once Redis
        has the decisions of that: a dispatcher that takes over before must still see that the broker was
        restarted."""
        if self._lane is None or not (self._gone or self._moves):
            return
        try:
            # The core is pure: it sets no event that could be awaited.
            while self._gone and any(  # noqa: ASYNC110
                inbound.recovery is not None for inbound in self._lane.state.inbounds
            ):
                await asyncio.sleep(POLL_S)
            if self._gone:
                await decided_is_done()
            if self._moves:
                while not await self._declare_here():  # noqa: ASYNC110 - RabbitMQ tells nobody
                    await asyncio.sleep(self.away_s)
            properties = commands.Basic.Properties(delivery_mode=_TRANSIENT)
            for _ in range(1 + self.ghosts if self._moves else 1):
                self._link.publish(
                    self._channel,
                    exchange=self._names.exchange,
                    routing_key=self._names.witness,
                    properties=properties.marshal(),
                    body=b"",
                )
        except BrokerUnavailable:
            return  # the next leader does it

    async def _declare_here(self) -> bool:
        """False: the node that has it is away. If we die in between, the next leader waits for nothing."""
        queue, exchange = self._names.witness, self._names.exchange
        classic: dict[str, Any] = {"x-queue-type": "classic"}
        if not await self._may_be_deleted():
            return False
        try:
            await self._link.call(self._channel, commands.Queue.Delete(queue=queue))
        except ChannelRefused as refused:
            if refused.code != NOT_FOUND:
                raise
            self._channel = await self._link.open_channel()
            return False
        await self._link.call(self._channel, QueueDeclare(queue=queue, durable=True, arguments=classic))
        bind = commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=queue)
        await self._link.call(self._channel, bind)
        return True

    async def _may_be_deleted(self) -> bool:
        """RabbitMQ 4.0 ends the connection (541) when a queue is deleted whose node was stopped in order. It
        says at once that such a queue can't be used. After a kill it deletes the queue, and when asked says
        nothing for a minute. A crashed queue on a node that runs can be deleted, too."""
        if major_of(version_of(self._link)) < _ENDS_CONNECTIONS_SINCE:
            return True
        may = True
        try:
            async with asyncio.timeout(self.answer_s):
                await self._link.call(self._channel, QueueDeclare(queue=self._names.witness, passive=True))
                return True
        except TimeoutError:
            pass
        except ChannelRefused as refused:
            if refused.code != NOT_FOUND:
                raise
            may = not is_out_of_reach(refused) or _CRASHED in refused.text
        self._channel = await self._link.open_channel()
        return may
