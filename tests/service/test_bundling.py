"""Which copies travel together, and what happens when RabbitMQ refuses a bundle for its size."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.amqp.events import Confirmed
from dispatcher.amqp.relay import Content
from dispatcher.core.model import Original
from dispatcher.core.orders import SendNotice
from dispatcher.core.queue_ids import inbound_id
from dispatcher.core.records import Dispatched
from dispatcher.ledger.recorder import Recorder
from dispatcher.service.bundling import Bundle
from dispatcher.service.outbox import Outbox
from dispatcher.service.publications import Relay
from dispatcher.service.publish_bisect import NOTHING_REJECTED
from dispatcher.wire.bundle import BundleLimits
from dispatcher.wire.protocol import LaneNames

BODY_BYTES = 500


class FakeLink:
    """Takes frames, and counts publishes."""

    frame_max = 131_072

    def __init__(self) -> None:
        self.tag = 0

    def write(self, _channel: int, _frames: bytes, publishes: int) -> int:
        self.tag += publishes
        return self.tag


class Out:
    """The real outbox of one leader, and a broker that answers when it is told to."""

    def __init__(self, limits: BundleLimits | None = None) -> None:
        limits = limits or BundleLimits(64, 65_536)
        self.link = FakeLink()
        self.events: list[Any] = []
        self.numbers = 0
        relay = Relay(self.link, LaneNames("l"), 7, None, ("in",), ())  # type: ignore[arg-type]

        def ignore(*_: Any) -> None: ...

        self.box = Outbox(
            relay, 1, NOTHING_REJECTED, Recorder(), ack=ignore, later=ignore, on_window=ignore,
            on_parking=ignore, on_target=ignore, on_forwarding=ignore, bundle_limits=lambda _: limits,
            report=self.events.append,
        )  # fmt: skip

    def copy(self, queue: str = "q", size: int = BODY_BYTES) -> Dispatched:
        self.numbers += 1
        number = self.numbers
        content = Content(
            b"g", False, None, number.to_bytes(16), b"", b"in", b"\x20\x00\x00\x00\x00\x00", 6, 6, bytes(size)
        )
        message = Original(
            inbound_id(0), number, (7, number), number.to_bytes(16), b"g", content, content.size, 0
        )
        message.consumer, message.seq, message.epoch = object(), number, 1  # type: ignore[assignment]
        return Dispatched(message, 1, queue, number, number, 1, 1)

    def published(self) -> list[Any]:
        """What has no answer, in order: copies, bundles, other orders."""
        return self.box._window.tokens()

    def shape(self) -> list[tuple[str, int]]:
        """Queue and number of copies of each publish."""
        return [(p.queue, len(p.copies) if type(p) is Bundle else 1) for p in self.published()]

    def answer(self) -> None:
        """Confirm everything."""
        self.box.answered(Confirmed(1, self.link.tag, True, False), self.events)


def size(publish: Any) -> int:
    return int(publish.bytes if type(publish) is Bundle else publish.message.size)


def test_another_publish_for_a_queue_ends_its_bundle_and_that_of_no_other_queue() -> None:
    out = Out()
    small = [out.copy("small", 20) for _ in range(6)]
    large = [out.copy("large", 70_000) for _ in range(3)]
    out.box.perform([small[0], large[0], small[1], small[2], large[1], large[2], small[3]])
    assert sorted(out.shape()) == [("large", 1), ("large", 1), ("large", 1), ("small", 4)]
    out.answer()
    out.box.perform([small[4], SendNotice("small", "dispatch.ping", {}), small[5], out.copy("small", 20)])
    assert out.shape() == [("small", 1), ("small", 1), ("small", 2)]


def test_a_bundle_has_no_more_than_its_consumer_takes() -> None:
    out = Out(BundleLimits(4, 3_000))
    out.box.perform([out.copy() for _ in range(9)])
    assert out.shape() == [("q", 4), ("q", 4), ("q", 1)]
    assert all(size(publish) <= 3_000 for publish in out.published())


@pytest.mark.parametrize("arrive_meanwhile", [False, True])
def test_the_size_that_rabbitmq_takes_is_found_on_a_busy_lane_too(arrive_meanwhile: bool) -> None:
    limit, out = 4_000, Out()
    closed = 0
    for _ in range(30):
        out.box.perform([out.copy() for _ in range(30)])
        while publishes := out.published():
            if max(map(size, publishes)) > limit:
                closed += 1
                out.box.channel_closed("406 PRECONDITION_FAILED")
                out.link.tag = 0
                out.box.use(1)
            elif arrive_meanwhile and out.box._bisector.is_needed:
                out.box.perform([out.copy()])
                out.answer()
            else:
                out.answer()
    assert closed == 3, "20, 10 and 5 kB were too many"
    out.box.perform([out.copy() for _ in range(30)])
    assert max(count for _, count in out.shape()) > 1


def test_a_bundle_is_not_to_blame_for_a_larger_message() -> None:
    out = Out()
    large = out.copy("other", 70_000)
    out.box.perform([*(out.copy() for _ in range(10)), large])
    out.box.channel_closed("406 PRECONDITION_FAILED")
    large.message.consumer = None  # taken back before it was tried
    out.link.tag = 0
    out.box.use(1)
    while out.published():
        out.answer()
    out.box.perform([out.copy() for _ in range(60)])
    assert out.shape() == [("q", 60)]
