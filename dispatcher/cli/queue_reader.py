"""A command's own connection, on which it reads a queue and publishes the messages that it has read."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar, Self

from dispatcher.amqp.events import (
    ChannelClosed,
    Confirmed,
    ConnectionClosed,
    ConnectionEvent,
    ConsumerCancelled,
    Delivery,
    Returned,
)  # fmt: skip
from dispatcher.amqp.link import Link
from dispatcher.errors import BrokerUnavailable
from dispatcher.settings import RabbitSettings
from dispatcher.settings.units import format_duration
from dispatcher.wire.protocol import LaneNames


class QueueReader(ABC):
    """One reading of one queue of a lane. Publishes are known by their confirm tags."""

    connection_name: ClassVar[str]

    def __init__(self, names: LaneNames, timeout_ms: int) -> None:
        self._names = names
        self._timeout_ms = timeout_ms
        self._link: Link | None = None
        self._deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        self._answer = asyncio.Event()
        self._unconfirmed: dict[int, Any] = {}  # by confirm tag
        self._missing: set[str] = set()  # queues that publishes did not reach
        self._problem: str | None = None  # nothing more can be done
        self.count = 0  # at the beginning

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, settings: RabbitSettings, names: LaneNames, timeout_ms: int) -> AsyncIterator[Self]:
        """Raises BrokerUnavailable, CommandRefused when the queue can't be read."""
        reading = await cls._begun(settings, names, timeout_ms)
        try:
            yield reading
        finally:
            await reading._opened().close()

    @classmethod
    async def _begun(cls, settings: RabbitSettings, names: LaneNames, timeout_ms: int) -> Self:
        reading = cls(names, timeout_ms)
        link = reading._link = await Link.open(
            settings, name=cls.connection_name, on_events=reading._on_events
        )
        try:
            await reading._begin(link)
        except BaseException:
            await link.close()
            raise
        return reading

    @property
    @abstractmethod
    def _queue(self) -> str:
        """The queue that is read."""

    @abstractmethod
    async def _begin(self, link: Link) -> None:
        """Open channels, and see whether the queue is there."""

    @abstractmethod
    def _answered(self, tag: int, nacked: bool) -> None:
        """RabbitMQ has answered this publish."""

    def _opened(self) -> Link:
        assert self._link is not None
        return self._link

    async def _next_delivery(self) -> Delivery:
        if self._deliveries.empty():
            await self._until(lambda: not self._deliveries.empty())
        return self._deliveries.get_nowait()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while self._problem is None and not condition():
            self._answer.clear()
            try:
                async with asyncio.timeout(self._timeout_ms / 1_000):
                    await self._answer.wait()
            except TimeoutError:
                span, blocked = format_duration(self._timeout_ms), self._opened().blocked
                why = f": it blocks publishers ({blocked})" if blocked else ""
                raise BrokerUnavailable(f"RabbitMQ did not answer within {span}{why}") from None
        if self._problem is not None:
            raise BrokerUnavailable(self._problem)

    def _unreached(self, queue: str) -> str:
        """Why a publish did not reach that queue."""
        return (
            f"there is no queue {queue!r}, or no dispatcher has bound it to {self._names.command_exchange} "
            "(it does when it leads the lane and has write on the queue)"
        )

    def _on_events(self, events: list[ConnectionEvent]) -> None:
        for event in events:
            match event:
                case Delivery():
                    self._deliveries.put_nowait(event)
                case Returned():
                    self._missing.add(event.routing_key.decode(errors="replace"))
                case Confirmed():
                    self._confirmed(event)
                case ChannelClosed() | ConnectionClosed():
                    self._problem = self._problem or f"RabbitMQ ended it: {event.text}"
                case ConsumerCancelled():
                    self._problem = f"another program deleted {self._queue}"
        self._answer.set()

    def _confirmed(self, confirmed: Confirmed) -> None:
        tags = [confirmed.tag]
        if confirmed.multiple:
            tags = [tag for tag in self._unconfirmed if tag <= confirmed.tag]
        for tag in tags:
            self._answered(tag, confirmed.nacked)
