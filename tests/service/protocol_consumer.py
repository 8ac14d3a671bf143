"""A consumer that speaks the wire contract and does exactly what a test tells it to.

Nothing of the SDK is in it. It settles at once what it receives, or holds it (`hold`) until told; it can
fail messages, freeze, drop its connection and come back with the same incarnation.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

from pamqp import commands, header

from dispatcher.amqp.events import Confirmed, ConnectionClosed, ConsumerCancelled, Delivery
from dispatcher.amqp.link import Link
from dispatcher.settings import RabbitSettings
from dispatcher.wire.bundle import split_bundle
from tests.service.clients import open_link
from tests.waiting import TIMEOUT_S, eventually

PERSISTENT = commands.Basic.Properties(content_type="application/json", delivery_mode=2).marshal()
TRANSIENT = commands.Basic.Properties(content_type="application/json", delivery_mode=1).marshal()
HEARTBEAT_BEFORE_WELCOME_S = 1.0


class Notice(NamedTuple):
    """A message of type `dispatch.*`, without that prefix."""

    type: str
    body: dict[str, Any]


class Copy(NamedTuple):
    """One handed-over message with the numbers of its headers."""

    seq: int
    group: bytes | None
    group_seq: int
    epoch: int
    attempt: int
    identity: str
    headers: dict[str, Any]
    properties: commands.Basic.Properties
    raw: bytes  # property flags and list as they came
    body: bytes
    redelivered: bool
    at: float  # time.monotonic()


class ProtocolConsumer:
    """One incarnation of a consumer. `received` has every copy once, whatever became of it."""

    def __init__(
        self, settings: RabbitSettings, exchange: str, consumer_id: str, *, prefetch: int = 50,
        hold: bool = False, incarnation: str | None = None, bundle: dict[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.id = consumer_id
        self.incarnation = incarnation or str(uuid.uuid4())
        self.prefetch = prefetch
        self.bundle = bundle
        self.bundles: list[int] = []  # how many copies were in each
        self.holding = hold
        self.queue = ""
        self.n = 0
        self.received: list[Copy] = []
        self.repeated: list[Copy] = []  # copies with a seq that was known
        self.notices: list[Notice] = []
        self.in_hand: dict[int, Copy] = {}
        self.settled: set[int] = set()
        self.connected = False
        self.cancelled = False  # the server ended our consumer
        self.most_in_hand = 0
        self._settings = settings
        self._exchange = exchange
        self._link: Link | None = None
        self._channel = 0
        self._frozen = False
        self._to_settle: list[int] = []
        self._unconfirmed: set[int] = set()
        self._beats: asyncio.Task[None] | None = None

    # -- life --

    async def connect(self) -> None:
        """A connection, and an exclusive queue bound by its own name."""
        self._link = link = await open_link(self._settings, f"consumer {self.id}", self._on_events)
        self._unconfirmed.clear()
        self.connected = True
        self._channel = channel = await link.open_channel()
        await link.call(channel, commands.Confirm.Select())
        declared = await link.call(
            channel, commands.Queue.Declare(queue="", exclusive=True, auto_delete=True)
        )  # fmt: skip
        self.queue = str(declared.queue)
        await link.call(
            channel,
            commands.Queue.Bind(queue=self.queue, exchange=self._exchange, routing_key=self.queue),
        )
        await link.call(channel, commands.Basic.Consume(queue=self.queue, no_ack=True))

    async def join(self, *, expect: str | None = "welcome") -> Self:
        """Connect if needed, join, and wait for the answer."""
        if not self.connected:
            await self.connect()
        self.n += 1
        asked = len(self.notices)
        self.send_join()
        if expect is not None:
            await eventually(
                lambda: any(notice.type == expect for notice in self.notices[asked:]),
                what=f"{expect} for {self.id}",
            )
        return self

    async def rejoin(self, *, expect: str | None = "welcome") -> None:
        """The same incarnation again, with a new connection and queue, and what is in hand."""
        if self.connected:
            await self.drop()
        self._frozen = False
        await self.connect()
        await self.join(expect=expect)

    def send_join(self, **changes: Any) -> None:
        """One join message, without waiting for anything."""
        in_hand = [
            [c.seq, None if c.group is None else base64.b64encode(c.group).decode(), c.identity]
            for c in self.in_hand.values()
        ]
        fields = {
            "type": "join", "protocol": 1, "consumer": self.id, "incarnation": self.incarnation, "n": self.n,
            "queue": self.queue, "prefetch": self.prefetch, "in_hand": in_hand,
            **({} if self.bundle is None else {"bundle": self.bundle}),
        }  # fmt: skip
        self.publish({**fields, **changes})

    async def leave(self) -> None:
        """Say so; what is in hand must still be settled."""
        self.publish({"type": "leave", "consumer": self.id, "incarnation": self.incarnation})
        await self.confirmed()

    async def drop(self) -> None:
        """Lose the connection, as a crash would: no goodbye."""
        if self._beats is not None:
            self._beats.cancel()
            self._beats = None
        if self._link is not None:
            self._link.abort()
            await eventually(lambda: not self.connected, what="the end of the connection")

    async def delete_queue(self) -> None:
        """What an operator might do with the management page: only its owner's connection may, by AMQP."""
        assert self._link is not None
        await self._link.call(self._channel, commands.Queue.Delete(queue=self.queue))

    def freeze(self) -> None:
        """Stay connected and do nothing: no settle, no heartbeat."""
        self._frozen = True

    def thaw(self) -> None:
        """Go on."""
        self._frozen = False
        self._settle_pending()

    # -- settling --

    def hold(self) -> None:
        """Settle nothing until told."""
        self.holding = True

    def release(self) -> None:
        """Settle everything in hand, and from now on at once."""
        self.holding = False
        self.settle(list(self.in_hand))

    def settle(self, seqs: Iterable[int]) -> None:
        """Settle these: exact ranges of what was received."""
        ranges: list[list[int]] = []
        for seq in sorted(seqs):
            if ranges and ranges[-1][1] == seq - 1:
                ranges[-1][1] = seq
            else:
                ranges.append([seq, seq])
            self.in_hand.pop(seq, None)
            self.settled.add(seq)
        if ranges:
            self.send_settle(acked=ranges)

    def fail(self, seq: int, reason: str, attempts: int = 1) -> None:
        """Give a message up."""
        self.in_hand.pop(seq, None)
        self.settled.add(seq)
        self.send_settle(failed=[{"seq": seq, "reason": reason, "attempts": attempts}])

    def send_settle(self, acked: Sequence[Any] = (), failed: Sequence[Any] = (), **changes: Any) -> None:
        """One settle message, whatever it says."""
        fields = {
            "type": "settle", "consumer": self.id, "incarnation": self.incarnation,
            "acked": list(acked), "failed": list(failed),
        }  # fmt: skip
        self.publish({**fields, **changes})

    # -- the wire --

    def publish(self, fields: dict[str, Any] | bytes, key: str = "control") -> None:
        """A control message, or any bytes in place of one."""
        assert self._link is not None
        body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
        tag = self._link.publish(
            self._channel, exchange=f"{self._exchange}.in", routing_key=key,
            properties=TRANSIENT if key == "heartbeat" else PERSISTENT, body=body,
        )  # fmt: skip
        self._unconfirmed.add(tag)

    async def confirmed(self) -> None:
        """Wait until the broker has everything that was published."""
        await eventually(lambda: not self._unconfirmed, what=f"confirms for {self.id}")

    def _on_events(self, events: list[Any]) -> None:
        for event in events:
            match event:
                case Delivery():
                    self._delivered(event)
                case Confirmed():
                    done = {t for t in self._unconfirmed if t <= event.tag} if event.multiple else {event.tag}
                    self._unconfirmed -= done
                case ConsumerCancelled():
                    self.cancelled = True
                case ConnectionClosed():
                    self.connected = False
        self._settle_pending()

    def _delivered(self, delivery: Delivery) -> None:
        properties = read_properties(delivery.properties)
        headers = properties.headers or {}
        kind = properties.message_type or ""
        if kind == "dispatch.bundle":
            parts = split_bundle(delivery.body)
            self.bundles.append(len(parts))
            for raw, body in parts:
                self._delivered(delivery._replace(properties=raw, body=body))
            return
        if kind.startswith("dispatch.") and "x-dispatch-seq" not in headers:
            self._noticed(Notice(kind.removeprefix("dispatch."), json.loads(delivery.body)))
            return
        copy = _copy(delivery, properties, headers)
        if copy.seq in self.settled or copy.seq in self.in_hand:
            self.repeated.append(copy)
            if copy.seq in self.settled:
                self._to_settle.append(copy.seq)
            return
        self.received.append(copy)
        self.in_hand[copy.seq] = copy
        self.most_in_hand = max(self.most_in_hand, len(self.in_hand))
        if not self.holding:
            self._to_settle.append(copy.seq)

    def _settle_pending(self) -> None:
        if self._to_settle and not self._frozen and self.connected:
            seqs, self._to_settle = self._to_settle, []
            self.settle(seqs)

    def _noticed(self, notice: Notice) -> None:
        self.notices.append(notice)
        if notice.type == "welcome" and self._beats is None:
            interval_s = notice.body["heartbeat"] / 1000
            self._beats = asyncio.get_running_loop().create_task(self._beat(interval_s))

    async def _beat(self, interval_s: float) -> None:
        while self.connected:
            if not self._frozen:
                self.send_heartbeat()
            await asyncio.sleep(interval_s)  # sleeps: a heartbeat is periodic

    def send_heartbeat(self, **changes: Any) -> None:
        """One heartbeat."""
        last = max((copy.seq for copy in self.received), default=0)
        fields = {
            "type": "heartbeat", "consumer": self.id, "incarnation": self.incarnation, "queue": self.queue,
            "held": len(self.in_hand), "last": last,
        }  # fmt: skip
        self.publish({**fields, **changes}, "heartbeat")

    # -- what tests look at --

    def of_group(self, group: bytes | str) -> list[Copy]:
        wanted = group.encode() if isinstance(group, str) else group
        return [copy for copy in self.received if copy.group == wanted]

    def bodies(self, group: bytes | str | None = None) -> list[bytes]:
        return [copy.body for copy in (self.received if group is None else self.of_group(group))]

    def heard(self, kind: str) -> list[Notice]:
        return [notice for notice in self.notices if notice.type == kind]

    async def has(self, count: int, timeout_s: float = TIMEOUT_S) -> list[Copy]:
        """Wait until that many different copies came."""
        await eventually(lambda: len(self.received) >= count, timeout_s, f"{count} messages for {self.id}")
        return self.received


def read_properties(raw: bytes) -> commands.Basic.Properties:
    """The property list of a header frame, read by pamqp."""
    frame = header.ContentHeader()
    frame.unmarshal(b"\x00\x3c\x00\x00" + bytes(8) + raw)
    properties: commands.Basic.Properties = frame.properties
    return properties


def _copy(delivery: Delivery, properties: commands.Basic.Properties, headers: dict[str, Any]) -> Copy:
    group = headers.get("x-dispatch-group")
    return Copy(
        headers["x-dispatch-seq"], group.encode() if isinstance(group, str) else group,
        headers.get("x-dispatch-group-seq", 0), headers["x-dispatch-epoch"], headers["x-dispatch-attempt"],
        headers["x-dispatch-id"], headers, properties, delivery.properties, delivery.body,
        delivery.redelivered, time.monotonic(),
    )  # fmt: skip
