"""What the core orders to be published, as frames."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pamqp import commands

from dispatcher.amqp.link import Link
from dispatcher.amqp.parked import park_frames
from dispatcher.amqp.relay import bundle_entry, copy_frames, dead_frames
from dispatcher.amqp.wire import content_frames, publish_frame
from dispatcher.core.forwarding.orders import DeadLetterReclaimed, ForwardReclaimed
from dispatcher.core.model import Original
from dispatcher.core.operations.orders import PublishBarrier
from dispatcher.core.orders import DeadLetter, PublishMarker, Reply, SendNotice
from dispatcher.core.parking.orders import ParkCopy
from dispatcher.core.queue_ids import QueueId, parking_place
from dispatcher.core.records import Dispatched
from dispatcher.errors import InvalidTransition
from dispatcher.service.bundling import Bundle
from dispatcher.wire.bundle import split_bundle
from dispatcher.wire.origin import origin_text
from dispatcher.wire.protocol import HEADER_MARKER, TYPE_BUNDLE, TYPE_MARKER, LaneNames, Marker, encode

_PERSISTENT: Final = 2
_TRANSIENT: Final = 1
_BUNDLE_PROPERTIES: Final = commands.Basic.Properties(
    message_type=TYPE_BUNDLE, delivery_mode=_TRANSIENT
).marshal()  # fmt: skip


class StoreInQueue(NamedTuple):
    """Put something that is no message of the lane into a queue of it; `done` is called when it is there."""

    queue: str
    properties: commands.Basic.Properties
    body: bytes
    done: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Relay:
    """Where copies go, and how they look: fixed for one connection."""

    link: Link
    names: LaneNames
    lane_epoch: int
    first_header: str | None
    inbound_queues: tuple[str, ...]
    parking_queues: tuple[str, ...]
    hands_over: bool = False  # copies are persistent, and say where they came from


class Publications:
    """Encodes orders for the publish channel."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._exchange = relay.names.exchange
        self._frame_max = relay.link.frame_max

    def of(self, order: Any, channel: int) -> bytes:
        """The frames of one order; none: it has no receiver."""
        match order:
            case ParkCopy():
                return self._parked(order, channel)
            case DeadLetter():
                return self._dead(order, channel)
            case ForwardReclaimed():
                return self._handed_on(order, channel)
            case DeadLetterReclaimed():
                return self._buried(order, channel)
            case SendNotice():
                return self._notice(order, channel)
            case PublishMarker():
                return self._marker(order, channel)
            case PublishBarrier():
                return self._barrier(order, channel)
            case Reply():
                return self._reply(order, channel)
            case StoreInQueue():
                return self._plain(channel, self._exchange, order.queue, order.properties, order.body)
        raise InvalidTransition(f"{order!r} is nothing to publish")

    def copy(self, copy: Dispatched, channel: int) -> bytes:
        """A message's copy for its consumer."""
        message, relay = copy.message, self._relay
        frames = copy_frames(
            message.content, channel=channel, exchange=self._exchange, routing_key=copy.queue,
            group=message.group_id if copy.group_seq else None, seq=copy.seq, group_seq=copy.group_seq,
            epoch=copy.epoch, attempt=copy.attempt, deadline_at_ms=message.deadline_at_ms,
            first_header=relay.first_header if copy.first else None, frame_max=self._frame_max,
            origin=self._origin(message) if relay.hands_over else None,
        )  # fmt: skip
        if frames is None:  # refused when it arrived, see Intake
            raise InvalidTransition(f"the headers of {message!r} don't fit into a frame")
        return frames

    def entry(self, copy: Dispatched) -> bytes:
        """A message's copy as it stands in a bundle."""
        message = copy.message
        return bundle_entry(
            message.content, group=message.group_id if copy.group_seq else None, seq=copy.seq,
            group_seq=copy.group_seq, epoch=copy.epoch, attempt=copy.attempt,
            deadline_at_ms=message.deadline_at_ms,
            first_header=self._relay.first_header if copy.first else None,
        )  # fmt: skip

    def bundle(self, bundle: Bundle, channel: int) -> bytes:
        """The copies of a bundle; one that is alone looks as if it had never been in one."""
        publish = publish_frame(channel, self._exchange, bundle.queue)
        if len(bundle.entries) > 1:
            body = b"".join(bundle.entries)
            return publish + content_frames(channel, _BUNDLE_PROPERTIES, body, self._frame_max)
        ((properties, body),) = split_bundle(bundle.entries[0])
        return publish + content_frames(channel, properties, body, self._frame_max)

    def _dead(self, order: DeadLetter, channel: int) -> bytes:
        message, relay = order.message, self._relay
        return dead_frames(
            message.content, channel=channel, exchange=self._exchange, routing_key=relay.names.dead,
            reason=order.reason, attempt=message.attempt, calls=message.calls, group=message.group_id,
            origin=self._origin(message), frame_max=self._frame_max,
        )  # fmt: skip

    def _handed_on(self, order: ForwardReclaimed, channel: int) -> bytes:
        """Another copy of a message that was handed over before."""
        handed, relay = order.handed, self._relay
        frames = copy_frames(
            handed.content, channel=channel, exchange=self._exchange, routing_key=order.queue,
            group=handed.group, seq=order.seq, group_seq=order.group_seq, epoch=order.epoch,
            attempt=order.attempt, deadline_at_ms=handed.deadline_at_ms,
            first_header=relay.first_header if order.first else None, frame_max=self._frame_max,
            origin=handed.content.origin,
        )  # fmt: skip
        if frames is None:  # it fitted when it was handed over first
            raise InvalidTransition(f"the headers of {handed!r} don't fit into a frame")
        return frames

    def _buried(self, order: DeadLetterReclaimed, channel: int) -> bytes:
        handed = order.handed
        return dead_frames(
            handed.content, channel=channel, exchange=self._exchange, routing_key=self._relay.names.dead,
            reason=order.reason, attempt=handed.attempt, calls=0, group=handed.group,
            origin=handed.content.origin, frame_max=self._frame_max,
        )  # fmt: skip

    def _parked(self, order: ParkCopy, channel: int) -> bytes:
        message = order.message
        return park_frames(
            message.content, channel=channel, exchange=self._exchange,
            routing_key=self._parking_queue(order.queue), origin=self._origin(message), term=order.term,
            attempt=message.attempt, deadline_at_ms=message.deadline_at_ms,
            waits_since_ms=message.waits_since_ms, frame_max=self._frame_max,
        )  # fmt: skip

    def _origin(self, message: Original) -> str:
        """Where it was first."""
        if not message.is_parked:
            return origin_text(self._relay.inbound_queues[message.queue], message.arrival)
        origin: str | None = message.content.origin
        return origin or origin_text(self._parking_queue(message.queue), message.arrival)

    def _parking_queue(self, index: QueueId) -> str:
        return self._relay.parking_queues[parking_place(index)]

    def _notice(self, notice: SendNotice, channel: int) -> bytes:
        body = json.dumps({"lane": self._relay.names.lane, **notice.body}).encode()
        properties = commands.Basic.Properties(
            content_type="application/json", message_type=notice.type, delivery_mode=_TRANSIENT
        )  # fmt: skip
        return self._plain(channel, self._exchange, notice.queue, properties, body)

    def _marker(self, order: PublishMarker, channel: int) -> bytes:
        body = encode(Marker(incarnation=order.incarnation, lane_epoch=self._relay.lane_epoch, n=order.n))
        properties = commands.Basic.Properties(content_type="application/json", delivery_mode=_PERSISTENT)
        # Behind the settles in the control queue, by a way that no consumer may take.
        return self._plain(channel, self._exchange, self._relay.names.control, properties, body)

    def _barrier(self, order: PublishBarrier, channel: int) -> bytes:
        """To the end of an inbound queue, past all exchanges that it may be bound to."""
        body = f"{order.command} {self._relay.lane_epoch}".encode()
        properties = commands.Basic.Properties(
            headers={HEADER_MARKER: order.command}, message_type=TYPE_MARKER, delivery_mode=_PERSISTENT
        )  # fmt: skip
        queue = self._relay.inbound_queues[order.inbound]
        return self._plain(channel, "", queue, properties, body, mandatory=False)

    def _reply(self, order: Reply, channel: int) -> bytes:
        """Answer a command in the queue of its sender; RabbitMQ confirms and drops a reply without a
        queue."""
        receiver, properties, body = answer_to(order)
        if not receiver:
            return b""
        # Not mandatory: RabbitMQ delivers a mandatory direct reply AND returns it.
        frames = publish_frame(channel, "", receiver, mandatory=False)
        return frames + content_frames(channel, properties, body, self._frame_max)

    def _plain(
        self, channel: int, exchange: str, key: str, properties: commands.Basic.Properties, body: bytes,
        *, mandatory: bool = True,
    ) -> bytes:  # fmt: skip
        frames = publish_frame(channel, exchange, key, mandatory)
        return frames + content_frames(channel, properties.marshal(), body, self._frame_max)


def answer_to(order: Reply) -> tuple[str, bytes, bytes]:
    """Where an answer goes, empty if nobody wants it; its properties and body."""
    receiver, correlation_id = order.token
    answer = {"error": order.error} if order.error is not None else {"result": order.result}
    properties = commands.Basic.Properties(content_type="application/json", correlation_id=correlation_id)
    return receiver, properties.marshal(), json.dumps(answer).encode()
