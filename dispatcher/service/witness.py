"""Whether the broker restarted: one transient message in a durable queue survives everything but that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pamqp import commands

from dispatcher.amqp.events import Fetched
from dispatcher.amqp.link import Link
from dispatcher.core.lane import Lane
from dispatcher.errors import BrokerUnavailable
from dispatcher.wire.protocol import LaneNames

POLL_S: Final = 0.1
#: Messages of others in the witness queue, which prove nothing: so many are dropped at a time.
FOREIGN_MAX: Final = 100
_TRANSIENT: Final = 1


class Witness:
    """The lane's witness message, on a channel of its own."""

    def __init__(self, link: Link, names: LaneNames) -> None:
        self._link = link
        self._names = names
        self._channel = 0
        self._gone = False
        self._lane: Lane | None = None

    async def is_gone(self) -> bool:
        """True when the broker was restarted since the message was laid down, or it never was."""
        self._channel = await self._link.open_channel()
        self._gone = True
        for _ in range(FOREIGN_MAX):
            found = await self._link.call(self._channel, commands.Basic.Get(queue=self._names.witness))
            if not isinstance(found, Fetched):
                break
            if found.exchange.decode(errors="replace") == self._names.exchange:
                self._gone = False
                self._link.send(self._channel, commands.Basic.Nack(found.tag, requeue=True))
                break
            self._link.ack(self._channel, found.tag)
        return self._gone

    def watch(self, lane: Lane) -> None:
        self._lane = lane

    async def renew_after_recovery(self, decided_is_done: Callable[[], Awaitable[None]]) -> None:
        """Declare the witness again, but only after the recovery that its loss matters for, and once Redis
        has the decisions of that: a dispatcher that takes over before must still see that the broker was
        restarted."""
        if not self._gone or self._lane is None:
            return
        try:
            # The core is pure: it sets no event that could be awaited.
            while any(  # noqa: ASYNC110
                inbound.recovery is not None for inbound in self._lane.state.inbounds
            ):
                await asyncio.sleep(POLL_S)
            await decided_is_done()
            properties = commands.Basic.Properties(delivery_mode=_TRANSIENT)
            self._link.publish(
                self._channel, exchange=self._names.exchange, routing_key=self._names.witness,
                properties=properties.marshal(), body=b"",
            )  # fmt: skip
        except BrokerUnavailable:
            return  # the next leader does it
