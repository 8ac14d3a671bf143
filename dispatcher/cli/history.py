"""Reads a lane's history to its present end, and publishes its messages again."""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, Final, Self

from pamqp import commands

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.grouping import header_key
from dispatcher.amqp.history_message import KeptMessage, mark_frames, read_kept, replay_frames
from dispatcher.amqp.link import Link
from dispatcher.amqp.properties import number_of, split_table
from dispatcher.cli.output import counted
from dispatcher.cli.queue_reader import QueueReader
from dispatcher.errors import (
    PRECONDITION_FAILED,
    BrokerUnavailable,
    ChannelRefused,
    CommandRefused,
    is_missing,
)
from dispatcher.settings import RabbitSettings
from dispatcher.settings.urls import parse_broker_url
from dispatcher.wire.protocol import LaneNames

#: Deliveries that are not acked yet, and publishes on their way.
_PREFETCH: Final = 1_000
_UNCONFIRMED_MAX: Final = 500
#: In RabbitMQ's text, 3.10 and 4.0: the node has none, or it does not run.
_WITHOUT_REPLICA: Final = "replica on the local node"
_OFFSET: Final = "x-stream-offset"
#: The clock of the dispatcher that wrote a message may be behind RabbitMQ's by this much.
_CLOCKS_APART_MS: Final = 60_000
#: A message is in the history again only if it was unacked meanwhile: behind the first time there are no more
#: than all inbound queues together may have unacked, and these few are far more than lanes have.
_IDENTITIES_MAX: Final = 500_000


class _NoReplica(BrokerUnavailable):
    """No replica of the stream runs at this node: RabbitMQ lets nobody read it there."""

    def __init__(self, url: str) -> None:
        self.url = url
        super().__init__(url)


class HistoryReader(QueueReader):
    """One reading of a lane's history; any number of them may read at a time, and nothing is taken out."""

    connection_name = "dispatcher replay"

    def __init__(self, names: LaneNames, timeout_ms: int) -> None:
        super().__init__(names, timeout_ms)
        self._looking = self._reading = self._publishing = 0  # channels
        self._mark = str(uuid.uuid4())
        self._to: str | None = None  # where messages are sent; None: to where each came in
        self._next: Delivery | None = None  # the first one to look at
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._taken, self._last_taken = 0, ""  # how many messages, and the origin of the last one
        self.repeated = 0  # left out: in it once more, for they had been delivered before

    @property
    def _queue(self) -> str:
        return self._names.history

    @classmethod
    async def _begun(cls, settings: RabbitSettings, names: LaneNames, timeout_ms: int) -> Self:
        urls, without, more = [node.url for node in settings.nodes()], list[str](), ""
        while urls:
            rest = settings.model_copy(update={"urls": tuple(urls)})
            try:
                return await super()._begun(rest, names, timeout_ms)
            except _NoReplica as refused:
                urls.remove(refused.url)
                without.append(refused.url)
            except BrokerUnavailable as failure:
                if not without:
                    raise
                urls, more = [], f"; {failure}"
        raise BrokerUnavailable(_unreadable(settings, names.history, without) + more)

    async def _begin(self, link: Link) -> None:
        self._looking = await link.open_channel()
        try:
            await self._consume(link, self._looking, "next")
        except ChannelRefused as refused:
            if refused.code == PRECONDITION_FAILED and _WITHOUT_REPLICA in str(refused):
                raise _NoReplica(link.url) from None
            if not is_missing(refused):
                raise BrokerUnavailable(f"{self._names.history}: {refused}") from None
            raise CommandRefused(
                f"lane {self._names.lane} has no history {self._names.history} on RabbitMQ "
                "(a dispatcher declares it when it first leads the lane with `history`)"
            ) from None
        self._publishing = await link.open_channel()
        await link.call(self._publishing, commands.Confirm.Select())

    # -- reading --

    async def begin(self, since_ms: int) -> int:
        """Go to the first message since then, or a little before; returns how many messages there are from
        there on. RabbitMQ's own count of a stream is some seconds old."""
        link, end = self._opened(), await self._put_mark()
        offset: Any = "first"
        if since_ms > _CLOCKS_APART_MS:
            offset = datetime.fromtimestamp((since_ms - _CLOCKS_APART_MS) // 1_000, UTC)
        self._reading = await link.open_channel()
        await self._consume(link, self._reading, offset)
        self._next = await self._next_delivery()
        return end - _offset(self._next)

    async def messages(self, since_ms: int, passed: Callable[[], None]) -> AsyncIterator[KeptMessage]:
        """The messages that came in since then, in their order, up to the history's end at the time of
        `begin`; `passed` is called for each message that was looked at.

        Raises ProtocolViolation for what no dispatcher has put there.
        """
        link, delivery = self._opened(), self._next
        assert delivery is not None
        while (kept := read_kept(delivery.body)) != self._mark:
            passed()
            if isinstance(kept, KeptMessage) and kept.kept_at_ms >= since_ms and not self._is_repeated(kept):
                yield kept
            link.ack(self._reading, delivery.tag)
            delivery = await self._next_delivery()

    async def _put_mark(self) -> int:
        """Put a mark at the end of the part to read; return its offset, which a reader from there on is
        told."""
        link, history = self._opened(), self._names.history
        frames = mark_frames(
            self._mark, channel=self._publishing, exchange=self._names.command_exchange, queue=history,
            frame_max=link.frame_max,
        )  # fmt: skip
        self._unconfirmed[link.write(self._publishing, frames, 1)] = (history, None)
        await self.finish()
        while (delivery := await self._next_delivery()).body[1:] != self._mark.encode():
            link.ack(self._looking, delivery.tag)
        await link.call(self._looking, commands.Channel.Close(200, "", 0, 0))
        self._deliveries = asyncio.Queue()
        return _offset(delivery)

    async def _consume(self, link: Link, channel: int, offset: Any) -> None:
        await link.call(channel, commands.Basic.Qos(prefetch_count=_PREFETCH))
        arguments = {_OFFSET: offset}
        await link.call(channel, commands.Basic.Consume(queue=self._names.history, arguments=arguments))

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

    async def publish(self, message: KeptMessage, to: str | None) -> None:
        """Send it again, marked as a replay: to that queue, or to where it came in. Raises
        BrokerUnavailable."""
        self._to, link, queue = to, self._opened(), to or message.queue
        frames = replay_frames(
            message, channel=self._publishing, exchange="" if to else self._names.command_exchange,
            queue=queue, frame_max=link.frame_max,
        )  # fmt: skip
        self._unconfirmed[link.write(self._publishing, frames, 1)] = (queue, message.origin)
        await self._until(lambda: len(self._unconfirmed) < _UNCONFIRMED_MAX)

    async def finish(self) -> None:
        """Wait for the broker's word on everything published. Raises BrokerUnavailable."""
        await self._until(lambda: not self._unconfirmed)

    def _answered(self, tag: int, nacked: bool) -> None:
        queue, origin = self._unconfirmed.pop(tag)
        if queue in self._missing:
            gone = f"there is no queue {queue!r}" if self._to else self._unreached(queue)
            self._problem = self._problem or gone
        elif nacked:
            self._problem = self._problem or f"queue {queue!r} refuses messages: is it full?"
        elif origin is not None:
            self._taken, self._last_taken = self._taken + 1, origin

    @property
    def progress(self) -> str:
        """How far it has come when it can't go on."""
        last = f", the last one {self._last_taken}" if self._taken else ""
        doubtful = sum(queue not in self._missing for queue, _ in self._unconfirmed.values())
        more = f"; {doubtful:,} more may have been" if doubtful else ""
        return f"{counted(self._taken, 'message')} had been sent{last}{more}"


def _unreadable(settings: RabbitSettings, stream: str, urls: list[str]) -> str:
    """Why it can't be read at these nodes, and what to do."""
    addresses = [parse_broker_url(url) for url in urls]
    where = ", ".join(sorted(f"{address.host}:{address.port}" for address in addresses))
    return (
        f"{stream} can't be read: it is a stream, and no replica of it runs at {where}; try again if a node "
        f"has just started, name a node that has one in {settings.url_key}, or have one made: "
        f"rabbitmq-streams add_replica --vhost {addresses[0].vhost} {stream} NODE"
    )


def _offset(delivery: Delivery) -> int:
    """A message's place in the stream, which RabbitMQ puts into a header."""
    prefix = header_key(_OFFSET)
    (value,) = [one for one in split_table(delivery.properties)[0] if one.startswith(prefix)]
    return number_of(value[len(prefix) :])
