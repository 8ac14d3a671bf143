"""Load for the recovery tests: a producer that numbers messages per group and knows what the broker took."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict, deque
from typing import Any

from pamqp import commands

from dispatcher.amqp.events import ChannelClosed, Confirmed
from dispatcher.amqp.link import Link
from dispatcher.errors import BrokerUnavailable
from dispatcher.judge.record import UNGROUPED, MessageKey
from dispatcher.settings import RabbitSettings
from tests.amqp.samples import field, properties, text
from tests.recovery.rules import is_closing

#: Published and not confirmed at most.
WINDOW = 200
BURST_S = 0.01
MESSAGES_PER_NEW_GROUP = 60
UNGROUPED_SHARE = 0.05
RETRY_S = 0.1
#: Of clients of a cluster: so a frozen node is noticed within a few seconds.
CLUSTER_HEARTBEAT_S = 4


class Numbers:
    """Random messages: which group, which queue, the how many-th of them."""

    def __init__(self, queues: list[str], groups: int, seed: int, producer: str) -> None:
        self._queues = queues
        self._groups = groups
        self._producer = producer
        self._random = random.Random(seed)
        self._count: dict[tuple[str, str], int] = defaultdict(int)
        self._sum = 0

    def next(self) -> MessageKey:
        # Old groups end and new ones begin, so that whoever joined last gets some as well.
        first = self._sum // MESSAGES_PER_NEW_GROUP
        in_a_group = self._random.random() > UNGROUPED_SHARE
        group = f"g{first + self._random.randrange(self._groups)}" if in_a_group else UNGROUPED
        queue = self._random.choice(self._queues)
        self._sum += 1
        self._count[queue, group] += 1
        return MessageKey(queue, group, 0, self._count[queue, group], self._producer)


class NumberingProducer:
    """Publishes to random groups and queues at a rate, until told to stop, whatever happens to the broker.

    What a lost connection leaves unconfirmed is published again, in order, as messages of the next
    `publish`: nobody can know whether the broker had taken it, so either is allowed to arrive.
    """

    def __init__(
        self,
        settings: RabbitSettings,
        queues: list[str],
        groups: int,
        rate: float,
        seed: int,
        name: str = "p",
        exchange: str = "",
    ) -> None:
        self.confirmed: set[MessageKey] = set()
        self.sent_at: dict[MessageKey, float] = {}  # on the clock of the record
        self.pausing = False
        self._settings = settings
        self._rate = rate
        self._exchange = exchange
        self._numbers = Numbers(queues, groups, seed, name)
        self._random = random.Random(seed)
        self._to_send: deque[MessageKey] = deque()
        self._waiting: dict[int, MessageKey] = {}  # by confirm tag
        self._publish = 0
        self._link: Link | None = None
        self._channel = 0
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Publish nothing new; returns when everything published is confirmed."""
        self._stopping = True
        if self._task is not None:
            await self._task
        if self._link is not None:
            await self._link.close()

    async def close(self) -> None:
        """Nothing more, whatever is unconfirmed: a test that failed leaves no socket behind."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._link is not None:
            await self._link.close()

    async def _run(self) -> None:
        while not (self._stopping and not self._to_send and not self._waiting):
            try:
                if self._link is None:
                    await self._connect()
                self._send_burst()
                await asyncio.sleep(BURST_S)  # sleeps: the rate
            except BrokerUnavailable:
                self._lost()
                await asyncio.sleep(RETRY_S)  # sleeps: between attempts to connect

    async def _connect(self) -> None:
        link = self._link = await Link.open(self._settings, name="producer", on_events=self._on_events)
        self._channel = await link.open_channel()
        await link.call(self._channel, commands.Confirm.Select())

    def _lost(self) -> None:
        if self._link is not None:
            self._link.abort()
            self._link = None
        if self._waiting:
            self._publish += 1
        again = [number._replace(publish=self._publish) for number in self._waiting.values()]
        later = [number._replace(publish=self._publish) for number in self._to_send]
        self._to_send = deque(again + later)
        self._waiting.clear()

    def _send_burst(self) -> None:
        assert self._link is not None
        if self._link.closed.done():
            raise BrokerUnavailable("lost")
        if not (self._stopping or self.pausing):
            for _ in range(self._due()):
                self._to_send.append(self._numbers.next()._replace(publish=self._publish))
        while self._to_send and len(self._waiting) < WINDOW:
            number = self._to_send.popleft()
            tag = self._link.publish(
                self._channel, exchange=self._exchange, routing_key=number.queue, body=number.body(),
                properties=_properties(number),
            )  # fmt: skip
            self._waiting[tag] = number
            self.sent_at[number] = time.monotonic()
            self.note_sent(number)

    def _due(self) -> int:
        whole, part = divmod(self._rate * BURST_S, 1)
        return int(whole) + (self._random.random() < part)

    def _on_events(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, ChannelClosed) and self._link is not None:  # the exchange is not there
                self._link.abort()
            if not isinstance(event, Confirmed):
                continue
            tags = [t for t in self._waiting if t <= event.tag] if event.multiple else [event.tag]
            if event.nacked:  # the broker refused it, perhaps because it stops: what follows must not pass it
                if self._link is not None:
                    self._link.abort()
                return
            taken = [number for tag in tags if (number := self._waiting.pop(tag, None)) is not None]
            self.confirmed.update(taken)
            self.note_confirmed(taken)

    def note_sent(self, number: MessageKey) -> None:
        """The broker may have this one from now on."""

    def note_confirmed(self, numbers: list[MessageKey]) -> None:
        """The broker has these."""


def _properties(number: MessageKey) -> bytes:
    fields = []
    if number.group != UNGROUPED:
        signed = -number.number if is_closing(number) else number.number
        place = field("x-group-seq", "l", signed.to_bytes(8, signed=True))
        fields = [text("x-group-id", number.group), place]
    return properties(*fields, delivery_mode=2, message_id=b"-".join(str(part).encode() for part in number))
