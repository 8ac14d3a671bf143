"""What consumers say to the dispatcher: a copy of every control message, read as the dispatcher reads it."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Final

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from dispatcher.errors import ProtocolViolation
from dispatcher.wire import protocol
from dispatcher.wire.protocol import Begun, Heartbeat, Join, LaneNames, Leave, Settle

_PERSISTENT: Final = 2
_TRANSIENT: Final = 1


class ControlTap:
    """`async with ControlTap(url, names) as tap`, once the lane exists."""

    def __init__(self, amqp_url: str, names: LaneNames) -> None:
        self.problems: list[str] = []
        self.joins: dict[str, list[Join]] = defaultdict(list)  # by consumer
        self.leaves: dict[str, list[Leave]] = defaultdict(list)
        self.settles: dict[str, list[Settle]] = defaultdict(list)
        self.heartbeats: dict[str, list[tuple[float, Heartbeat]]] = defaultdict(list)  # with their times
        self._url = amqp_url
        self._names = names

    async def __aenter__(self) -> ControlTap:
        self._connection = await aio_pika.connect(self._url)
        channel = await self._connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        exchange = await channel.get_exchange(self._names.control_exchange)
        for key in (protocol.KEY_CONTROL, protocol.KEY_HEARTBEAT):
            await queue.bind(exchange, key)
        await queue.consume(self._received, no_ack=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    def begun_by(self, consumer: str) -> list[Begun]:
        """Everything that it has said of its handlers."""
        said = [settle.begun for settle in self.settles[consumer]]
        said += [heartbeat.begun for _, heartbeat in self.heartbeats[consumer]]
        return [begun for begun in said if begun is not None]

    async def _received(self, message: AbstractIncomingMessage) -> None:
        try:
            said = protocol.decode_control(message.body)
        except ProtocolViolation as error:
            self.problems.append(f"a control message is malformed: {error}")
            return
        match said:
            case Join():
                self.joins[said.consumer].append(said)
            case Leave():
                self.leaves[said.consumer].append(said)
            case Settle():
                self.settles[said.consumer].append(said)
            case Heartbeat():
                self.heartbeats[said.consumer].append((time.monotonic(), said))
            case _:
                return  # the dispatcher's own
        self._check_way(message, isinstance(said, Heartbeat))

    def _check_way(self, message: AbstractIncomingMessage, is_heartbeat: bool) -> None:
        key = protocol.KEY_HEARTBEAT if is_heartbeat else protocol.KEY_CONTROL
        mode = _TRANSIENT if is_heartbeat else _PERSISTENT
        if (message.routing_key, message.delivery_mode) != (key, mode):
            found = f"key {message.routing_key!r} and delivery mode {message.delivery_mode}"
            self.problems.append(f"a control message has {found}, not {key!r} and {mode}")
