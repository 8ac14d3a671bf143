"""Turns what the connection reports into events for the core."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.grouping import Grouping
from dispatcher.amqp.pricing import kind_of, pricing
from dispatcher.amqp.relay import read_content
from dispatcher.core.model import BarrierMark, Message
from dispatcher.settings import LaneSettings

#: Room that the added headers take in a header frame, the group id apart.
ADDED_HEADERS_BYTES_MAX: Final = 512


class Clock:
    """Milliseconds since 1970 that never go back: the wall clock at start, then a monotonic one."""

    def __init__(
        self, wall_s: Callable[[], float] = time.time, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic_s = monotonic_s
        self._offset_s = wall_s() - monotonic_s()

    def now_ms(self) -> int:
        return int((self._monotonic_s() + self._offset_s) * 1000)


class Intake:
    """Makes the core's messages from deliveries of the inbound queues."""

    def __init__(
        self, lane: LaneSettings, *, lane_epoch: int, frame_max: int, now_ms: Callable[[], int]
    ) -> None:
        self._grouping = Grouping(lane.group_header, lane.sequence_header, lane.first_header)
        self._lane_epoch = lane_epoch
        self._headers_bytes_max = frame_max - ADDED_HEADERS_BYTES_MAX - len(lane.first_header or "")
        self._price = pricing(lane.cost)
        self._has_kinds = lane.cost.name == "measured"
        self._now_ms = now_ms

    def messages(self, inbound: int, deliveries: list[Delivery]) -> list[Message]:
        """One message per delivery; what can't be understood carries its `refusal`."""
        grouping, epoch, now_ms = self._grouping, self._lane_epoch, self._now_ms()
        room = self._headers_bytes_max
        messages = []
        for delivery in deliveries:
            content = read_content(delivery, grouping)
            expiration_ms = content.expiration_ms
            group = content.group
            message = (Message if content.marker is None else BarrierMark)(
                inbound, delivery.tag, (epoch, delivery.tag), content.fingerprint, group, content,
                content.size, now_ms, delivery.redelivered, content.closing,
                None if expiration_ms is None else now_ms + expiration_ms, content.refusal,
            )  # fmt: skip
            if type(message) is BarrierMark:
                message.command = content.marker or ""
            if len(content.properties) + len(group or b"") > room:
                message.refusal = (
                    f"unpublishable: {len(content.properties)} bytes of headers leave no room for ours"
                )
                message.group_id = None
            messages.append(message)
        if self._price is not None or self._has_kinds:
            self._read_costs(messages)
        return messages

    def _read_costs(self, messages: list[Message]) -> None:
        for message in messages:
            if message.refusal is not None:
                continue
            if self._price is not None:
                message.cost = self._price(message.content)
            else:
                message.kind = kind_of(message.content)
