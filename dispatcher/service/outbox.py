"""Carries out the core's orders: publishes, inbound acks, replies. Called only after their commit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import structlog
from pamqp import commands

from dispatcher.amqp.events import Confirmed
from dispatcher.amqp.link import Link
from dispatcher.amqp.relay import copy_frames, dead_frames
from dispatcher.core.effects import (
    AckInbound,
    Action,
    DeadLetter,
    Dispatched,
    PauseInbound,
    PublishMarker,
    Reply,
    SendCopy,
    SendNotice,
    Tell,
)
from dispatcher.core.events import CopiesConfirmed, DeadLetterConfirmed, Event, PingRouted, QueueNacked
from dispatcher.errors import InvalidTransition
from dispatcher.protocol import KEY_CONTROL, TYPE_PING, LaneNames, Marker, encode
from dispatcher.service.confirms import PublishWindow

log = structlog.get_logger()

_PERSISTENT: Final = 2
_TRANSIENT: Final = 1


class PingToken(NamedTuple):
    queue: str


class RetryToken(NamedTuple):
    """A publish to a queue of ours that must get there: done again when the broker refuses it."""

    again: Callable[[], None]


class DeadToken(NamedTuple):
    order: DeadLetter


class StoreToken(NamedTuple):
    """Something that is acked elsewhere only when the broker has stored it here."""

    done: Callable[[], None]
    again: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Relay:
    """Where copies go, and how they look: fixed for one connection."""

    link: Link
    channel: int  # confirms are on; no consumer on it
    names: LaneNames
    lane_epoch: int
    first_header: str | None
    inbound_queues: tuple[str, ...]


class Outbox:
    """One connection's way out. `later` re-schedules a refused publish; `on_pause` changes a consumer."""

    def __init__(
        self,
        relay: Relay,
        *,
        ack: Callable[[int, int], None],
        later: Callable[[Callable[[], None]], None],
        on_pause: Callable[[int, bool], None],
    ) -> None:
        self._relay = relay
        self._exchange = relay.names.exchange
        self._frame_max = relay.link.frame_max
        self._ack = ack
        self._later = later
        self._on_pause = on_pause
        self._window = PublishWindow()
        self._frames: list[bytes] = []
        self._tokens: list[Any] = []
        self._withdrawn: list[Dispatched] = []  # copies that nobody waits for any more: never sent

    @property
    def unanswered(self) -> int:
        """How many publishes the broker has not answered yet."""
        return len(self._window)

    def perform(self, actions: Iterable[Action]) -> None:
        """Carry out actions in order; everything published in one write."""
        for action in actions:
            kind = type(action)
            if kind is Dispatched:
                self._copy(action)  # type: ignore[arg-type]
            elif kind is AckInbound:
                ack = self._ack
                for message in action.messages:  # type: ignore[union-attr]
                    ack(message.queue, message.tag)
            else:
                self._perform_rare(action)
        self.flush()

    def _perform_rare(self, action: Action) -> None:
        match action:
            case SendCopy():
                self._copy(action.copy)
            case SendNotice():
                self._notice(action)
            case DeadLetter():
                self._dead_letter(action)
            case PublishMarker():
                self._marker(action)
            case Reply():
                self.reply(action)
            case PauseInbound():
                self._on_pause(action.inbound, action.paused)
            case Tell():
                log.info(action.event, lane=self._relay.names.lane, **action.fields)

    # -- publishes --

    def _copy(self, copy: Dispatched) -> None:
        message = copy.message
        content = message.content
        if content is None:  # settled while its commit was under way
            self._withdrawn.append(copy)
            return
        relay = self._relay
        frames = copy_frames(
            content, channel=relay.channel, exchange=self._exchange, routing_key=copy.queue,
            group=message.group_id if copy.group_seq else None, seq=copy.seq, group_seq=copy.group_seq,
            epoch=copy.epoch, attempt=copy.attempt, deadline_at_ms=message.deadline_at_ms,
            first_header=relay.first_header if copy.first else None, frame_max=self._frame_max,
        )  # fmt: skip
        if frames is None:  # refused when it arrived, see Intake
            raise InvalidTransition(f"the headers of {message!r} don't fit into a frame")
        self._frames.append(frames)
        self._tokens.append(copy)

    def _notice(self, notice: SendNotice) -> None:
        body = json.dumps({"lane": self._relay.names.lane, **notice.body}).encode()
        properties = commands.Basic.Properties(
            content_type="application/json", message_type=notice.type, delivery_mode=_TRANSIENT
        )  # fmt: skip
        token = PingToken(notice.queue) if notice.type == TYPE_PING else None
        self._publish(self._relay.names.exchange, notice.queue, properties, body, token)

    def _marker(self, order: PublishMarker) -> None:
        body = encode(Marker(incarnation=order.incarnation, lane_epoch=self._relay.lane_epoch, n=order.n))
        properties = commands.Basic.Properties(content_type="application/json", delivery_mode=_PERSISTENT)
        token = RetryToken(lambda: self.perform([order]))
        self._publish(self._relay.names.control_exchange, KEY_CONTROL, properties, body, token)

    def reply(self, order: Reply) -> None:
        """Answer a command where its sender waits; a reply to nobody is confirmed and lost."""
        reply_to, correlation_id = order.token
        if not reply_to:
            return
        answer = {"error": order.error} if order.error is not None else {"result": order.result}
        properties = commands.Basic.Properties(content_type="application/json", correlation_id=correlation_id)
        # Not mandatory: RabbitMQ delivers a mandatory direct reply AND returns it.
        self._publish("", reply_to, properties, json.dumps(answer).encode(), None, mandatory=False)

    def _dead_letter(self, order: DeadLetter) -> None:
        message, relay = order.message, self._relay
        epoch, tag = message.arrival
        frames = dead_frames(
            message.content, channel=relay.channel, exchange=relay.names.exchange,
            routing_key=relay.names.dead, reason=order.reason, attempt=message.attempt,
            group=message.group_id,
            origin=f"{relay.inbound_queues[message.queue]} {epoch}.{tag}", frame_max=relay.link.frame_max,
        )  # fmt: skip
        self._frames.append(frames)
        self._tokens.append(DeadToken(order))

    def _publish(
        self, exchange: str, key: str, properties: commands.Basic.Properties, body: bytes, token: Any,
        *, mandatory: bool = True,
    ) -> None:  # fmt: skip
        link, channel = self._relay.link, self._relay.channel
        self.flush()
        tag = link.publish(
            channel, exchange=exchange, routing_key=key, properties=properties.marshal(), body=body,
            mandatory=mandatory,
        )  # fmt: skip
        self._window.add(tag, token)

    def store(
        self, queue: str, properties: commands.Basic.Properties, body: bytes, done: Callable[[], None]
    ) -> None:
        """Store something in a queue of the lane; `done` is called when the broker has it."""
        token = StoreToken(done, lambda: self.store(queue, properties, body, done))
        self._publish(self._relay.names.exchange, queue, properties, body, token)

    def flush(self) -> None:
        """Write what has been gathered."""
        if not self._frames:
            return
        relay = self._relay
        count = len(self._tokens)
        last = relay.link.write(relay.channel, b"".join(self._frames), count)
        add = self._window.add
        for tag, token in enumerate(self._tokens, last - count + 1):
            add(tag, token)
        self._frames, self._tokens = [], []

    # -- answers --

    def answered(self, confirmed: Confirmed, events: list[Event]) -> None:
        """Tell the core what this confirm or nack means."""
        copies = size = 0
        for token in self._window.answered(confirmed):
            if type(token) is Dispatched:
                copies += 1
                size += token.message.size
                if confirmed.nacked:
                    events.append(QueueNacked(token.queue))
            elif token is not None:
                self._answered_rare(token, confirmed.nacked, events)
        if copies:
            events.append(CopiesConfirmed(copies, size))

    def _answered_rare(self, token: Any, nacked: bool, events: list[Event]) -> None:
        match token:
            case PingToken():
                events.append(QueueNacked(token.queue) if nacked else PingRouted(token.queue))
            case DeadToken():
                if nacked:
                    self._later(lambda: self.perform([token.order]))
                else:
                    events.append(DeadLetterConfirmed(token.order.message))
            case StoreToken():
                if nacked:
                    self._later(token.again)
                else:
                    token.done()
            case RetryToken():
                if nacked:
                    self._later(token.again)

    def take_withdrawn(self, events: list[Event]) -> None:
        """Copies that were never sent count as answered."""
        if self._withdrawn:
            size = sum(copy.message.size for copy in self._withdrawn)
            events.append(CopiesConfirmed(len(self._withdrawn), size))
            self._withdrawn = []
