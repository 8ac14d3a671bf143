"""How many messages the lane's dead queue has. RabbitMQ knows it: a count of ours would end with its leader,
and operators empty the queue without the dispatcher."""

from __future__ import annotations

import asyncio
from typing import Final

from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import QueueDeclare
from dispatcher.errors import BrokerUnavailable, ChannelRefused
from dispatcher.wire.protocol import LaneNames

#: How often RabbitMQ is asked: more often than Prometheus usually reads, and still next to nothing for both.
LOOK_S: Final = 5.0


class DeadLetterCount:
    """Asks on a channel of its own: RabbitMQ closes it when the queue is gone, and the lane goes on."""

    def __init__(self, link: Link, names: LaneNames, *, look_s: float = LOOK_S) -> None:
        self._link = link
        self._queue = names.dead
        self._look_s = look_s
        #: Messages in it at the latest look; None: not known.
        self.count: int | None = None

    async def look_after(self) -> None:
        """Look now and then: until the connection ends, or the queue is not there. The next leader declares
        it again; each look at what is missing would be a line in the broker's log."""
        look = QueueDeclare(queue=self._queue, passive=True)
        try:
            channel = await self._link.open_channel()
            while True:
                declared = await self._link.call(channel, look)
                self.count = int(declared.message_count)
                await asyncio.sleep(self._look_s)
        except ChannelRefused:
            self.count = None
        except BrokerUnavailable:
            return  # the session hears of it itself
