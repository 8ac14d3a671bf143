"""Reads a lane's history to its present end, and publishes what is in it again."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

from pamqp import commands

from dispatcher.amqp.kept import KeptMessage, mark_frames, read_kept, replay_frames
from dispatcher.amqp.link import Link
from dispatcher.cli.reading import QueueReading
from dispatcher.errors import BrokerUnavailable, ChannelRefused, CommandRefused
from dispatcher.protocol import LaneNames

#: Deliveries that are not acked yet, and publishes on their way.
_PREFETCH: Final = 1_000
_UNCONFIRMED_MAX: Final = 500
_NOT_FOUND: Final = 404
#: Whose clock wrote what may be behind RabbitMQ's by so much.
_CLOCKS_APART_MS: Final = 60_000
#: A message is in the history again only if it was unacked meanwhile: behind the first time there are no more
#: than all inbound queues together may have unacked, and these few are far more than lanes have.
_IDENTITIES_MAX: Final = 500_000


class HistoryReader(QueueReading):
    """One reading of a lane's history; any number of them may read at a time, and nothing is taken out.

    `count`: about how many messages it has.
    """

    connection_name = "dispatcher replay"

    def __init__(self, names: LaneNames, timeout_ms: int) -> None:
        super().__init__(names, timeout_ms)
        self._reading = self._publishing = 0  # channels
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self.repeated = 0  # left out: in it once more, for they had been delivered before

    @property
    def _queue(self) -> str:
        return self._names.history

    async def _begin(self, link: Link) -> None:
        self._reading = await link.open_channel()
        look = commands.Queue.Declare(queue=self._names.history, passive=True)
        try:
            self.count = (await link.call(self._reading, look)).message_count
        except ChannelRefused as refused:
            if refused.code != _NOT_FOUND:
                raise BrokerUnavailable(f"{self._names.history}: {refused}") from None
            raise CommandRefused(
                f"lane {self._names.lane} has no history {self._names.history} on RabbitMQ "
                "(a dispatcher declares it when it first leads the lane with `history`)"
            ) from None
        self._publishing = await link.open_channel()
        await link.call(self._publishing, commands.Confirm.Select())

    # -- reading --

    async def messages(self, since_ms: int) -> AsyncIterator[KeptMessage]:
        """What came in since then and is in the history now, in the order in which it came in.

        Raises ProtocolViolation for what no dispatcher has put there.
        """
        link, mark = self._opened(), str(uuid.uuid4())
        await self._put_mark(mark)
        offset: Any = "first"
        if since_ms > _CLOCKS_APART_MS:
            offset = datetime.fromtimestamp((since_ms - _CLOCKS_APART_MS) // 1_000, UTC)
        await link.call(self._reading, commands.Basic.Qos(prefetch_count=_PREFETCH))
        consume = commands.Basic.Consume(queue=self._names.history, arguments={"x-stream-offset": offset})
        await link.call(self._reading, consume)
        while True:
            delivery = await self._next_delivery()
            kept = read_kept(delivery.body)
            if kept == mark:
                return
            if isinstance(kept, KeptMessage) and kept.kept_at_ms >= since_ms and not self._is_repeated(kept):
                yield kept
            link.ack(self._reading, delivery.tag)

    async def _put_mark(self, mark: str) -> None:
        """At the end of what is to be read."""
        link, history = self._opened(), self._names.history
        frames = mark_frames(mark, channel=self._publishing, queue=history, frame_max=link.frame_max)
        self._unconfirmed[link.write(self._publishing, frames, 1)] = history
        await self.finish()

    def _is_repeated(self, kept: KeptMessage) -> bool:
        identity = kept.content.fingerprint
        if identity in self._seen and kept.redelivered:
            self.repeated += 1
            return True
        self._seen[identity] = None
        if len(self._seen) > _IDENTITIES_MAX:
            self._seen.popitem(last=False)
        return False

    # -- publishing --

    async def publish(self, message: KeptMessage, queue: str) -> None:
        """Send it again, marked as a replay. Raises BrokerUnavailable."""
        link = self._opened()
        frames = replay_frames(message, channel=self._publishing, queue=queue, frame_max=link.frame_max)
        self._unconfirmed[link.write(self._publishing, frames, 1)] = queue
        await self._until(lambda: len(self._unconfirmed) < _UNCONFIRMED_MAX)

    async def finish(self) -> None:
        """Wait for the broker's word on everything published. Raises BrokerUnavailable."""
        await self._until(lambda: not self._unconfirmed)

    def _answered(self, tag: int, nacked: bool) -> None:
        queue = self._unconfirmed.pop(tag)
        if queue in self._missing:
            self._problem = self._problem or f"there is no queue {queue!r}"
        elif nacked:
            self._problem = self._problem or f"queue {queue!r} refuses messages: is it full?"
