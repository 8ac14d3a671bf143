"""Every message that arrives goes to the lane's history too; its ack waits until RabbitMQ has it there.

RabbitMQ closes the channel over a message that is too large together with the headers that are added. History
finds it by publishing the unconfirmed messages again, one at a time; that message goes on without being kept.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import structlog

from dispatcher.amqp.events import ChannelClosed, Confirmed, Delivery
from dispatcher.amqp.history_message import kept_frames
from dispatcher.amqp.identity import SentBack
from dispatcher.amqp.relay import Content
from dispatcher.core.model import Original
from dispatcher.core.operations.events import BarrierMark
from dispatcher.core.queue_ids import QueueId
from dispatcher.errors import BrokerUnavailable, ChannelRefused
from dispatcher.service.channels import Channels
from dispatcher.service.confirms import PublishWindow
from dispatcher.service.inbound_feed import InboundFeed
from dispatcher.service.publications import Relay
from dispatcher.service.publish_bisect import BLAMES_A_PUBLISH
from dispatcher.wire.origin import origin_text

log = structlog.get_logger()


class _Original(NamedTuple):
    """The parts of one delivery that are kept."""

    inbound: QueueId
    tag: int
    origin: str
    content: Content
    group: bytes | None
    received_at_ms: int
    is_repeated: bool  # the history may have it already


class History:
    """Publishes every original once for each delivery, on a channel of its own, if the lane keeps any.

    `fail` ends the session: messages that the stream did not take are delivered again, and kept in order.
    """

    def __init__(
        self,
        relay: Relay,
        channels: Channels,
        feeds: Sequence[InboundFeed],
        counters: Counter[str],
        *,
        sent_back: SentBack,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._relay = relay
        self._sent_back = sent_back
        self._channels = channels
        self._channel = channels.history  # 0: none, or not yet again
        self._keeps = channels.history != 0
        self._feeds = feeds
        self._counters = counters
        self._fail = fail
        self._window = PublishWindow()
        self._waiting: deque[_Original] = deque()  # behind one that is published alone
        self._reopening: asyncio.Task[None] | None = None  # asyncio itself keeps only weak references

    def keep(self, deliveries: Iterable[Delivery], messages: Iterable[Original]) -> None:
        """Have these kept; they are not acked before they are."""
        if not self._keeps:
            return
        originals = [
            self._original(message)
            for delivery, message in zip(deliveries, messages, strict=True)
            if type(message) is not BarrierMark and not self._sent_back.has(delivery)
        ]
        for original in originals:
            self._feeds[original.inbound].await_history(original.tag)
        if self._waiting or not self._channel:
            self._waiting.extend(originals)
        elif originals:
            self._publish(originals)

    def _original(self, message: Original) -> _Original:
        return _Original(
            message.inbound, message.tag,
            origin_text(self._relay.inbound_queues[message.inbound], message.arrival),
            message.content, message.group_id, message.received_at_ms, message.redelivered,
        )  # fmt: skip

    def _publish(self, originals: list[_Original]) -> None:
        frames = b"".join(map(self._frames, originals))
        try:
            last = self._relay.link.write(self._channel, frames, len(originals))
        except ChannelRefused:  # the event that says so is on its way
            self._waiting.extend(originals)
            return
        except BrokerUnavailable:
            return  # the event that says so ends the session
        for tag, original in enumerate(originals, last - len(originals) + 1):
            self._window.add(tag, original)

    def _frames(self, original: _Original) -> bytes:
        relay = self._relay
        return kept_frames(
            original.content, channel=self._channel, exchange=relay.names.exchange,
            routing_key=relay.names.history, group=original.group, origin=original.origin,
            kept_at_ms=original.received_at_ms, redelivered=original.is_repeated,
            frame_max=relay.link.frame_max,
        )  # fmt: skip

    def receive(self, event: Any) -> bool:
        """Take in an answer of RabbitMQ; False when it is none to a publish of ours."""
        if not self._channel or getattr(event, "channel", 0) != self._channel:
            return False
        if type(event) is ChannelClosed and event.code in BLAMES_A_PUBLISH:
            self._closed(event)
            return True
        if type(event) is not Confirmed:
            return False
        if event.nacked:
            self._fail(BrokerUnavailable(f"{self._relay.names.history} refused messages that came in"))
            return True
        for original in self._window.answered(event):
            self._feeds[original.inbound].in_history(original.tag)
        self._go_on()
        return True

    # -- what RabbitMQ does not take --

    def _closed(self, closed: ChannelClosed) -> None:
        unanswered = self._window.take_all()
        self._channel = self._channels.history = 0
        if len(unanswered) == 1:
            self._give_up(unanswered[0], closed)
        else:  # of those before the one that it was RabbitMQ may have stored some
            again = [original._replace(is_repeated=True) for original in unanswered]
            self._waiting.extendleft(reversed(again))
        reopen = self._channels.reopen_history(self._use, fail=self._fail)
        self._reopening = asyncio.get_running_loop().create_task(reopen)

    def _give_up(self, original: _Original, closed: ChannelClosed) -> None:
        """It goes on all the same: else it would stop the lane."""
        log.warning(
            "history_refused", lane=self._relay.names.lane, origin=original.origin,
            problem=f"{closed.code} {closed.text}",
        )  # fmt: skip
        self._counters["history_refused"] += 1
        self._feeds[original.inbound].in_history(original.tag)

    def _use(self, channel: int) -> None:
        self._channel = channel
        self._go_on()

    def _go_on(self) -> None:
        """One at a time, until all that waited is there."""
        if self._waiting and self._channel and not self._window:
            self._publish([self._waiting.popleft()])
