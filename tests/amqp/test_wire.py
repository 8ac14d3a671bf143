"""What is written per message is what pamqp reads."""

from __future__ import annotations

import pytest
from pamqp import body, frame, header
from pamqp.commands import Basic

from dispatcher.amqp import wire
from tests.amqp.samples import read_publish, sent_methods


def test_publish_frame_is_mandatory_and_names_exchange_and_key() -> None:
    assert sent_methods(wire.publish_frame(3, "dispatch.orders", "größe")) == [
        (3, "Basic.Publish", {
            "ticket": 0, "exchange": "dispatch.orders", "routing_key": "größe",
            "mandatory": True, "immediate": False,
        })
    ]  # fmt: skip
    _, value = frame.unmarshal(wire.publish_frame(3, "", "q", mandatory=False))[1:]
    assert isinstance(value, Basic.Publish)
    assert not value.mandatory


def test_names_above_255_bytes_are_refused() -> None:
    wire.publish_frame(1, "", "q" * 255)
    with pytest.raises(ValueError, match="at most 255 bytes, this one has 256"):
        wire.publish_frame(1, "", "ö" * 128)


@pytest.mark.parametrize("multiple", [False, True])
def test_ack_frame(multiple: bool) -> None:
    assert sent_methods(wire.ack_frame(2, 2**40, multiple)) == [
        (2, "Basic.Ack", {"delivery_tag": 2**40, "multiple": multiple})
    ]


def test_heartbeat_and_method_frames() -> None:
    assert sent_methods(wire.HEARTBEAT) == [(0, "Heartbeat", {})]
    assert sent_methods(wire.method_frame(7, wire.CHANNEL_CLOSE_OK)) == [(7, "Channel.CloseOk", {})]


def test_an_empty_body_has_no_body_frame() -> None:
    consumed, channel, value = frame.unmarshal(data := wire.content_frames(5, b"\x00\x00", b"", 4096))
    assert (consumed, channel) == (len(data), 5)
    assert isinstance(value, header.ContentHeader)
    assert value.body_size == 0


@pytest.mark.parametrize("size", [1, 4088, 4089, 8176, 20_000])
def test_a_body_takes_as_many_frames_as_the_limit_asks_for(size: int) -> None:
    data = b"".join(wire.body_frames(1, b"b" * size, 4096))
    pieces = []
    while data:
        consumed, _, value = frame.unmarshal(data)
        assert isinstance(value, body.ContentBody)
        assert consumed <= 4096
        pieces.append(value.value)
        data = data[consumed:]
    assert b"".join(pieces) == b"b" * size
    assert len(pieces) == -(-size // 4088)


def test_publish_round_trip() -> None:
    properties = b"\x10\x00\x02"
    data = wire.publish_frame(1, "e", "k") + wire.content_frames(1, properties, b"x" * 9_000, 4096)
    publish, raw, content = read_publish(data)
    assert (publish.exchange, publish.routing_key, raw, content) == ("e", "k", properties, b"x" * 9_000)


def test_properties_that_need_more_than_a_frame_are_refused() -> None:
    wire.content_frames(1, bytes(4096 - 20), b"", 4096)
    with pytest.raises(ValueError, match="don't fit in a frame of 4096"):
        wire.content_frames(1, bytes(4096 - 19), b"", 4096)
