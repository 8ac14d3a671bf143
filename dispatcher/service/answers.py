"""Answers operators' commands on a connection of its own.

RabbitMQ 3.10 fails at a direct reply (`amq.rabbitmq.reply-to`) whose receiver was connected to a node of the
cluster that is away now, and ends the connection that it was published on. That must not be the one that a
lane is led through: commands may be answered long after their senders have gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import structlog

from dispatcher.amqp.link import Link
from dispatcher.core.orders import Reply
from dispatcher.errors import DispatcherError
from dispatcher.service.publications import answer_to
from dispatcher.settings import RabbitSettings
from dispatcher.wire.protocol import LaneNames

log = structlog.get_logger()

#: Answers that wait for the connection: more than these are dropped, and their senders ask again.
WAITING_MAX: Final = 1_000
#: What the end of a lane waits for answers that were given before.
CLOSE_S: Final = 1.0


class Answers:
    """Of one lane, whoever leads it. The connection is made for the first answer, and again after its end.

    An answer that is lost, with the connection or before, is one that nobody gave: its sender is told so, or
    gives the command again.
    """

    def __init__(self, settings: RabbitSettings, names: LaneNames) -> None:
        self._settings = settings
        self._names = names
        self._waiting: deque[Reply] = deque()
        self._link: Link | None = None
        self._channel = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def give(self, reply: Reply) -> None:
        """Publish it, in the background, if anybody wants it."""
        if self._closed:
            return
        if reply.token[0] and len(self._waiting) < WAITING_MAX:
            self._waiting.append(reply)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._publish_all())

    async def close(self) -> None:
        """Give the waiting answers a moment to be published, then end the connection. If the caller is
        cancelled, the connection ends at once. Answers that are given later are dropped."""
        self._closed = True
        try:
            if self._task is not None:
                await asyncio.wait((self._task,), timeout=CLOSE_S)
                self._task.cancel()
            if self._link is not None:
                await self._link.close()
        finally:
            if self._task is not None:
                self._task.cancel()
            if self._link is not None:
                self._link.abort()

    async def _publish_all(self) -> None:
        try:
            while self._waiting:
                link = await self._opened()
                receiver, properties, body = answer_to(self._waiting.popleft())
                # Not mandatory: RabbitMQ delivers a mandatory direct reply AND returns it.
                link.publish(
                    self._channel, exchange="", routing_key=receiver, properties=properties, body=body,
                    mandatory=False,
                )  # fmt: skip
        except DispatcherError as problem:
            log.warning(
                "answers_lost", lane=self._names.lane, problem=str(problem), answers=len(self._waiting)
            )
            self._waiting.clear()

    async def _opened(self) -> Link:
        if self._link is None or self._link.closed.done():
            name = f"dispatcher {self._names.lane} answers"
            link = await Link.open(self._settings, name=name, on_events=lambda _: None)
            self._link = link
            self._channel = await link.open_channel()
        return self._link
