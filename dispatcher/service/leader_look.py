"""Who leads a lane, for the page of a replica that stands by. It asks the leader, as a command does."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from typing import Any, Final

from pamqp import commands

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import BasicConsume
from dispatcher.errors import DispatcherError
from dispatcher.settings import RabbitSettings
from dispatcher.wire import protocol
from dispatcher.wire.protocol import Command, LaneNames

#: Only while somebody looks, and then no more often: each look is a connection of its own.
LOOK_S: Final = 10.0
_ANSWER_S: Final = 2.0
_REPLY_TO: Final = "amq.rabbitmq.reply-to"


class LeaderLook:
    """Asks when it is asked, and keeps the answer for a while."""

    def __init__(self, settings: RabbitSettings, names: LaneNames) -> None:
        self._settings = settings
        self._names = names
        self._leader: str | None = None
        self._looked_at: float | None = None
        self._look: asyncio.Task[None] | None = None

    def leader(self) -> str | None:
        """Host and process id of the leader as of the last look; a new look is begun when that is due. None:
        not known yet, or it did not answer."""
        is_due = self._looked_at is None or time.monotonic() - self._looked_at >= LOOK_S
        if is_due and (self._look is None or self._look.done()):
            self._looked_at = time.monotonic()
            self._look = asyncio.get_running_loop().create_task(self._ask())
        return self._leader

    async def _ask(self) -> None:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def on_events(events: list[Any]) -> None:
            for event in events:
                if isinstance(event, Delivery) and not answer.done():
                    answer.set_result(event.body)

        try:
            async with asyncio.timeout(_ANSWER_S):
                link = await Link.open(
                    self._settings, name=f"dispatcher {self._names.lane} look", on_events=on_events
                )
                try:
                    await self._send(link)
                    found = _dispatcher(await answer)
                finally:
                    link.abort()
        except (DispatcherError, TimeoutError):
            found = None
        self._leader = found

    async def _send(self, link: Link) -> None:
        channel = await link.open_channel()
        await link.call(channel, BasicConsume(queue=_REPLY_TO, no_ack=True))
        command = Command(
            uuid=str(uuid.uuid4()), name="status", sent_at_ms=int(time.time() * 1_000), arguments={}
        )
        properties = commands.Basic.Properties(reply_to=_REPLY_TO, correlation_id=command.uuid)
        link.publish(
            channel, exchange=self._names.command_exchange, routing_key=protocol.KEY_COMMAND,
            properties=properties.marshal(), body=protocol.encode(command),
        )  # fmt: skip


def _dispatcher(body: bytes) -> str | None:
    try:
        said = json.loads(body)["result"]["dispatcher"]
    except (ValueError, KeyError, TypeError):
        return None
    return str(said)
