"""What arrives on the lane's own queues: control messages, heartbeats, commands, the broker's notices."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import structlog
from pamqp import commands

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.link import Link
from dispatcher.amqp.properties import split_table, string_property, user_property
from dispatcher.core.events import Event
from dispatcher.core.orders import SendNotice
from dispatcher.errors import ProtocolViolation
from dispatcher.service.ack_window import AckWindow
from dispatcher.service.channels import CONTROL_PREFETCH, Channels
from dispatcher.service.operators import Operators
from dispatcher.service.outbox import Outbox
from dispatcher.service.publications import StoreInQueue
from dispatcher.wire.protocol import (
    TYPE_REFUSED,
    ControlMessage,
    Heartbeat,
    Join,
    LaneNames,
    Marker,
    claimed_sender,
    decode_control,
    refusable_join,
)

log = structlog.get_logger()

#: Events gathered while no step runs. What isn't a heartbeat is bounded by prefetches and windows.
EVENTS_MAX: Final = 10_000


class ReadUpTo(NamedTuple):
    """How far the control and the command queue were read: up to these delivery tags; 0: nothing new."""

    control_tag: int
    command_tag: int


class ControlInbox:
    """Turns deliveries into events of the core; acks them when their commit is known."""

    def __init__(
        self,
        names: LaneNames,
        link: Link,
        channels: Channels,
        outbox: Outbox,
        operators: Operators,
        counters: Counter[str],
        *,
        strict_identity: bool,
        is_consumers: Callable[[str], bool],
    ) -> None:
        self._names = names
        self._link = link
        self._channels = channels
        self._outbox = outbox
        self._operators = operators
        self._counters = counters
        self._strict_identity = strict_identity
        self._is_consumers = is_consumers  # whether a queue is that of a consumer that has joined
        self._control_tag = self._command_tag = 0
        self._acks = AckWindow(prefetch=CONTROL_PREFETCH)
        self._committed_tag = 0  # the effects of control messages up to this tag are committed
        self._kept: set[int] = set()  # tags of those whose copy in the dead queue is not confirmed

    def receive(self, delivery: Delivery, events: list[Event]) -> None:
        """Add the event that this delivery means, if any."""
        channels = self._channels
        if delivery.channel == channels.command:
            self._command_tag = delivery.tag
            if _came_through(delivery, self._names.command_exchange):
                command = self._operators.receive(delivery)
                if command is not None:
                    events.append(command)
            else:
                self._keep(delivery, _elsewhere(delivery, self._names.command_exchange))
        elif delivery.channel == channels.events:
            event = channels.event_of(delivery)
            if event is not None:
                events.append(event)
        elif channels.is_of_lock(delivery):
            channels.tell_lock(delivery)
        else:
            self._receive_control(delivery, events)

    def _receive_control(self, delivery: Delivery, events: list[Event]) -> None:
        if delivery.channel == self._channels.control:
            self._control_tag = delivery.tag
            self._acks.deliver(1)
        if not _came_through(delivery, self._names.control_exchange, self._names.exchange):
            self._keep(delivery, _elsewhere(delivery, self._names.control_exchange))
            return
        try:
            message = self._decode(delivery)
        except ProtocolViolation as problem:
            self._refuse(delivery, str(problem))
            return
        if type(message) is Heartbeat and len(events) >= EVENTS_MAX:
            return  # while Redis is away nothing is decided; the next heartbeat says the same
        events.append(message)

    def _decode(self, delivery: Delivery) -> ControlMessage:
        message = decode_control(delivery.body)
        if isinstance(message, Marker) and not _came_through(delivery, self._names.exchange):
            raise ProtocolViolation("a marker is the dispatcher's own")
        if isinstance(message, Join) and self._names.is_ours(message.queue):
            raise ProtocolViolation(f"queue: {message.queue!r} is the lane's own")
        if isinstance(message, Heartbeat) != (delivery.channel == self._channels.heartbeat):
            kind, key = type(message).__name__.lower(), delivery.routing_key.decode(errors="replace")
            raise ProtocolViolation(f"a {kind} must not be published with the routing key {key!r}")
        if self._strict_identity and not isinstance(message, Marker):
            user = user_property(delivery.properties)
            if user is None:
                raise ProtocolViolation("the lane has strict_identity: set the property user_id")
            return replace(message, user=user)
        return message

    def _refuse(self, delivery: Delivery, problem: str) -> None:
        """Not understood: a consumer that would join is told, everything else is kept."""
        queue = refusable_join(delivery.body)
        speaks_for_itself = not (self._strict_identity and queue is not None and self._is_consumers(queue))
        if queue is not None and not self._names.is_ours(queue) and speaks_for_itself:
            self._counters["control_refused"] += 1
            sender = _sender(delivery)
            log.warning("join_refused", lane=self._names.lane, queue=queue, problem=problem, **sender)
            self._outbox.perform([SendNotice(queue, TYPE_REFUSED, {"reason": problem})])
            return
        self._keep(delivery, problem)

    def _keep(self, delivery: Delivery, problem: str) -> None:
        """To the dead queue with its reason, and counted; acked when it is there."""
        self._counters["control_refused"] += 1
        log.warning(
            "control_message_refused", lane=self._names.lane, problem=problem, size=len(delivery.body),
            **_sender(delivery),
        )  # fmt: skip
        properties = commands.Basic.Properties(
            delivery_mode=2, headers={"x-dispatch-reason": f"control: {problem}"}
        )  # fmt: skip
        stored = partial(self._stored, delivery)
        if delivery.channel == self._channels.control:
            self._kept.add(delivery.tag)
        self._outbox.perform([StoreInQueue(self._names.dead, properties, delivery.body, stored)])

    # -- acks --

    def _stored(self, delivery: Delivery) -> None:
        """The dead queue has it."""
        if delivery.channel == self._channels.control:
            self._kept.discard(delivery.tag)
            if delivery.tag <= self._committed_tag:
                self._acks.settle(delivery.tag)
                self._send_acks()

    def take_read(self) -> ReadUpTo:
        """The deliveries that were read since the last call."""
        read = ReadUpTo(self._control_tag, self._command_tag)
        self._control_tag = self._command_tag = 0
        return read

    def ack(self, read: ReadUpTo) -> None:
        """What all that came of it is committed."""
        if read.control_tag:
            for tag in range(self._committed_tag + 1, read.control_tag + 1):
                if tag not in self._kept:
                    self._acks.settle(tag)
            self._committed_tag = read.control_tag
            self._send_acks()
        if read.command_tag:
            self._link.ack(self._channels.command, read.command_tag, True)

    def _send_acks(self) -> None:
        for ack in self._acks.take(0, everything=True):  # nothing waits, so the time does not matter
            self._link.ack(self._channels.control, ack.tag, ack.multiple)
        self._acks.take_acked()


def _came_through(delivery: Delivery, *exchanges: str) -> bool:
    """Whether rights on one of these exchanges were needed to publish it.

    Who may write to RabbitMQ's default exchange, as producers may, publishes to any queue by its name.
    """
    return delivery.exchange.decode(errors="replace") in exchanges


def _elsewhere(delivery: Delivery, exchange: str) -> str:
    """Why a message is refused that came through another exchange."""
    name = delivery.exchange.decode(errors="replace")
    return f"it came through the exchange {name!r}, and only what is published to {exchange} counts"


def _sender(delivery: Delivery) -> dict[str, str]:
    """Who a message that can't be understood is from, for the log: what it claims, and what RabbitMQ has
    checked (`user_id`)."""
    sender = claimed_sender(delivery.body)
    if (user := user_property(delivery.properties)) is not None:
        sender["user_id"] = user
    with contextlib.suppress(ProtocolViolation):
        _, _, table_end = split_table(delivery.properties)
        if value := string_property(delivery.properties, table_end, "app_id"):
            sender["app_id"] = value.decode(errors="replace")
    return sender
