"""What comes in goes to the lane's history too; its ack waits until RabbitMQ has it there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dispatcher.amqp.events import Confirmed, Delivery
from dispatcher.amqp.identity import was_here
from dispatcher.amqp.kept import kept_frames
from dispatcher.core.model import BarrierMark, Message
from dispatcher.errors import BrokerUnavailable, ChannelRefused
from dispatcher.origin import origin_text
from dispatcher.service.confirms import PublishWindow
from dispatcher.service.inbound_feed import InboundFeed
from dispatcher.service.publications import Relay


class History:
    """Publishes every original once for each delivery, on a channel of its own; 0: the lane keeps none.

    `fail` ends the session: what was not taken is delivered again, and kept in order.
    """

    def __init__(
        self,
        relay: Relay,
        channel: int,
        feeds: Sequence[InboundFeed],
        *,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._relay = relay
        self._channel = channel
        self._feeds = feeds
        self._fail = fail
        self._window = PublishWindow()

    def keep(self, deliveries: Iterable[Delivery], messages: Iterable[Message]) -> None:
        """Have these kept; they are not acked before they are."""
        if not self._channel:
            return
        frames: list[bytes] = []
        kept: list[Message] = []
        for delivery, message in zip(deliveries, messages, strict=True):
            if type(message) is BarrierMark or was_here(delivery.properties):
                continue
            frames.append(self._frames(message))
            kept.append(message)
            self._feeds[message.inbound].await_history(message.tag)
        if not kept:
            return
        try:
            last = self._relay.link.write(self._channel, b"".join(frames), len(kept))
        except (ChannelRefused, BrokerUnavailable):
            return  # the event that says so ends the session
        for tag, message in enumerate(kept, last - len(kept) + 1):
            self._window.add(tag, (message.inbound, message.tag))

    def _frames(self, message: Message) -> bytes:
        relay = self._relay
        return kept_frames(
            message.content, channel=self._channel, exchange=relay.names.exchange,
            routing_key=relay.names.history, group=message.group_id,
            origin=origin_text(relay.inbound_queues[message.inbound], message.arrival),
            kept_at_ms=message.received_at_ms, redelivered=message.redelivered,
            frame_max=relay.link.frame_max,
        )  # fmt: skip

    def receive(self, event: Any) -> bool:
        """Take in an answer of RabbitMQ; False when it is none to a publish of ours."""
        if type(event) is not Confirmed or event.channel != self._channel:
            return False
        if event.nacked:
            self._fail(BrokerUnavailable(f"{self._relay.names.history} did not take what came in"))
            return True
        for inbound, tag in self._window.answered(event):
            self._feeds[inbound].in_history(tag)
        return True
