"""Tries a parking queue before the lane's own connection touches it.

RabbitMQ (3.10.8) may leave a quorum queue without a leader. A declare of it or a get from it never ends, or
ends the whole connection with 541: on the lane's own that would be its leadership, again and again. So these
are sent on another connection first, to the same node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import structlog
from pamqp import commands

from dispatcher.amqp.events import Fetched
from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import QueueDeclare
from dispatcher.errors import BrokerUnavailable, ChannelRefused
from dispatcher.service.topology import open_parking
from dispatcher.wire.protocol import LaneNames

log = structlog.get_logger()

OpenProbe = Callable[[Callable[[list[Any]], None]], Awaitable[Link]]

#: RabbitMQ itself gives up to ask a leader after 5 s.
ANSWER_S: Final = 7.0
#: How often to look whether a message that was fetched is back.
_LOOK_S: Final = 0.02


class ParkingProbe:
    """Of one session. The connection is there only while queues are tried: one after the other, for it may
    end with any of them."""

    def __init__(self, open_link: OpenProbe, names: LaneNames, own: Link) -> None:
        self._open_link = open_link
        self._names = names
        self._own = own  # the lane's own connection
        self._lock = asyncio.Lock()
        self._asking = 0
        self._link: Link | None = None

    async def problem_of(self, queue: str) -> str | None:
        """Declare a parking queue; why it can't be used. None: it can, or it could not be tried."""
        self._asking += 1
        try:
            async with self._lock:
                return await self._problem_of(queue)
        finally:
            self._asking -= 1
            if not self._asking and self._link is not None:
                link, self._link = self._link, None
                with suppress(BrokerUnavailable):
                    await link.close()

    def close(self) -> None:
        """The session has ended."""
        if self._link is not None:
            self._link.abort()
            self._link = None

    async def _problem_of(self, queue: str) -> str | None:
        if self._link is None or self._link.closed.done():
            try:
                self._link = await self._open_link(lambda _: None)
            except BrokerUnavailable as failure:
                log.warning("parking_not_tried", lane=self._names.lane, queue=queue, problem=str(failure))
                return None
        link = self._link
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._try(link, queue)
        except TimeoutError:
            self._drop()
            return f"RabbitMQ did not answer within {ANSWER_S:g} s"
        except ChannelRefused as refused:
            return str(refused)
        except BrokerUnavailable as failure:
            self._drop()
            return str(failure)
        return None

    def _drop(self) -> None:
        """What is asked on it may be answered late, or end it."""
        if self._link is not None:
            self._link.abort()
            self._link = None

    async def _try(self, link: Link, queue: str) -> None:
        parked = await open_parking(link, self._names, queue, quorum=True)
        if parked.is_quorum and not parked.was_there:  # RabbitMQ counts nothing where no leader answers
            await self._still_leads()
            got = await link.call(parked.channel, commands.Basic.Get(queue=queue))
            if isinstance(got, Fetched):
                await self._give_back(link, parked.channel, queue, got)
        await link.call(parked.channel, commands.Channel.Close(200, "tried", 0, 0))

    async def _still_leads(self) -> None:
        """A former leader must fetch nothing: with its own connection this one is of no use."""
        channel = await self._own.open_channel()
        await self._own.call(channel, commands.Channel.Close(200, "asked", 0, 0))

    async def _give_back(self, link: Link, channel: int, queue: str, got: Fetched) -> None:
        """It was not empty, but its leader did not say so in time. Return when the message is back: who reads
        next must not get a newer one."""
        link.send(channel, commands.Basic.Nack(delivery_tag=got.tag, requeue=True))
        while True:
            declared = await link.call(channel, QueueDeclare(queue=queue, passive=True))
            if declared.message_count > got.message_count:
                return
            await asyncio.sleep(_LOOK_S)
