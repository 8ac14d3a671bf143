"""Makes the core's messages from what inbound queues and parking queues deliver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from dispatcher.amqp.events import Delivery, Fetched
from dispatcher.amqp.grouping import Grouping
from dispatcher.amqp.identity import SentBack, id_of
from dispatcher.amqp.parked import read_parked
from dispatcher.amqp.pricing import kind_of, pricing
from dispatcher.amqp.relay import delivery_count, read_content
from dispatcher.core.model import Original
from dispatcher.core.operations.events import BarrierMark
from dispatcher.core.queue_ids import FIRST_INBOUND, QueueId, inbound_id
from dispatcher.errors import ProtocolViolation
from dispatcher.ledger.recorder import Recorder
from dispatcher.settings import SHORT_STRING_BYTES_MAX, LaneSettings, SequenceCheck
from dispatcher.wire.protocol import LaneNames

#: Room that the added headers take in a header frame, the group id apart.
ADDED_HEADERS_BYTES_MAX: Final = 512


def by_queue(
    events: list[Any], queues: Mapping[int, QueueId]
) -> tuple[dict[QueueId, list[Delivery]], list[Any]]:
    """Deliveries of the inbound queues, by queue, and all other events; `queues`: those of the channels."""
    deliveries: dict[QueueId, list[Delivery]] = {}
    others = []
    for event in events:
        queue = queues.get(event.channel) if type(event) is Delivery else None
        if queue is None:
            others.append(event)
        else:
            deliveries.setdefault(queue, []).append(event)
    return deliveries, others


class MessageReader:
    """Makes the core's messages from deliveries of the inbound queues."""

    def __init__(
        self, lane: LaneSettings, recorder: Recorder, *, lane_epoch: int, frame_max: int,
        now_ms: Callable[[], int], names: LaneNames, user: str | None = None,
    ) -> None:  # fmt: skip
        self._exchange = names.exchange.encode()  # that of parked messages
        self._grouping = Grouping(
            lane.group_header, lane.sequence_header, lane.first_header,
            reads_numbers=lane.sequence_check is not SequenceCheck.OFF, prefix=names.prefix,
        )  # fmt: skip
        self.sent_back = SentBack(self._grouping, user)
        self._lane_epoch = lane_epoch
        self._headers_bytes_max = frame_max - ADDED_HEADERS_BYTES_MAX - len(lane.first_header or "")
        self._price = pricing(lane.cost)
        self._has_kinds = lane.cost.name == "measured" or recorder.reads_kinds
        self._hands_over = lane.handover
        self._reads_ids = lane.dedup is not None
        self._now_ms = now_ms
        self._recorder = recorder
        self._inbound_index = {inbound.queue: inbound_id(index) for index, inbound in enumerate(lane.inbound)}
        self._names_bytes_max = max(len(inbound.queue.encode()) for inbound in lane.inbound)
        # A group is among the headers or a routing key: these bytes leave room for any group.
        names_bytes_max = self._names_bytes_max + 2 * SHORT_STRING_BYTES_MAX
        self._surely_fits = (self._headers_bytes_max - names_bytes_max) // 2

    def messages(self, inbound: QueueId, deliveries: list[Delivery]) -> list[Original]:
        """One message per delivery; what can't be understood carries its `refusal`."""
        grouping, epoch, now_ms = self._grouping, self._lane_epoch, self._now_ms()
        messages = []
        for delivery in deliveries:
            content = read_content(delivery, grouping)
            expiration_ms = content.expiration_ms
            message = Original(
                inbound, delivery.tag, (epoch, delivery.tag), content.fingerprint, content.group,
                content, content.size, now_ms, delivery.redelivered,
                content.closing and not self._hands_over,  # its settle is unknown in a hand-over lane
                None if expiration_ms is None else now_ms + expiration_ms, content.refusal,
            )  # fmt: skip
            if content.marker is not None:
                message = _marker(message, content.marker)
            if delivery.redelivered and message.refusal is None:
                message.deliveries = delivery_count(delivery.properties)
            if len(content.properties) > self._surely_fits:
                self._refuse_too_large(message)
            messages.append(message)
            if self._reads_ids and not self.sent_back.has(delivery):
                message.message_id = id_of(content)
            if content.number is not None and not self.sent_back.has(delivery):
                message.number = content.number
        if self._price is not None or self._has_kinds:
            self._read_costs(messages)
        self._recorder.arrived(messages)
        return messages

    def _refuse_too_large(self, message: Original) -> None:
        """If its headers leave no room for the group; or, when it is parked, for these names instead."""
        content = message.content
        names = len(content.exchange) + len(content.routing_key) + self._names_bytes_max
        group = len(message.group_id or b"")
        added = names + group if self._hands_over else max(names, group)
        if len(content.properties) + added > self._headers_bytes_max:
            message.refusal = (
                f"unpublishable: {len(content.properties)} bytes of headers leave no room for ours"
            )
            message.group_id = None

    def _read_costs(self, messages: list[Original]) -> None:
        for message in messages:
            if message.refusal is not None:
                continue
            if self._price is not None:
                message.cost = self._price(message.content)
            if self._has_kinds:
                message.kind = kind_of(message.content)

    def parked(self, queue: QueueId, fetched: list[Fetched]) -> list[Original]:
        """One message per original that was read from a parking queue. Those that came through an inbound
        queue that the lane no longer lists count for the first one."""
        messages = [self._parked(queue, one) for one in fetched]
        if self._price is not None or self._has_kinds:
            self._read_costs(messages)
        self._recorder.read_back(messages)
        return messages

    def _parked(self, queue: QueueId, fetched: Fetched) -> Original:
        now_ms, arrival = self._now_ms(), (self._lane_epoch, fetched.tag)
        try:
            content, name, root, term, attempt, deadline_at_ms, since_ms = read_parked(
                fetched, self._grouping, self._exchange
            )
        except ProtocolViolation as problem:
            return self._stranger(queue, fetched, str(problem))
        message = Original(
            self._inbound_index.get(name, FIRST_INBOUND), fetched.tag, arrival, content.fingerprint,
            content.group, content, content.size, now_ms, fetched.redelivered,
            content.closing and not self._hands_over, deadline_at_ms, content.refusal,
        )  # fmt: skip
        message.queue, message.origin_arrival, message.term, message.attempt = queue, root, term, attempt
        message.waits_since_ms = now_ms if since_ms is None else since_ms
        return message

    def _stranger(self, queue: QueueId, fetched: Fetched, problem: str) -> Original:
        """Somebody else put it there."""
        delivery = Delivery(0, b"", *fetched[:4], fetched.properties, fetched.body)
        (message,) = self.messages(FIRST_INBOUND, [delivery])
        message.queue, message.refusal, message.group_id = queue, problem, None
        return message


def _marker(message: Original, command: str) -> BarrierMark:
    """This message as what it is: the marker of an operation. What is not here means nothing of one."""
    marker = BarrierMark(
        message.inbound, message.tag, message.arrival, message.fingerprint, message.group_id, message.content,
        message.size, message.received_at_ms, message.redelivered,
    )  # fmt: skip
    marker.command = command
    return marker
