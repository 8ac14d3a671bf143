"""Deliveries leave the stream whole and in order; everything else passes unchanged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, commands, frame, header, heartbeat

from dispatcher.client.properties import Properties, write
from dispatcher.client.tap import DeliveryTap, TappedDelivery


class RawProperties(commands.Basic.Properties):
    def __init__(self, raw: bytes) -> None:
        super().__init__()
        self.raw = raw

    def marshal(self) -> bytes:
        return self.raw


def content(properties: bytes, payload: bytes, channel: int, frame_max: int) -> bytes:
    raw_header = header.ContentHeader(body_size=len(payload), properties=RawProperties(properties))
    raw = frame.marshal(raw_header, channel)
    for start in range(0, len(payload), frame_max):
        raw += frame.marshal(body.ContentBody(payload[start : start + frame_max]), channel)
    return raw


def deliver(tag: str, properties: bytes, payload: bytes, channel: int = 1, frame_max: int = 4096) -> bytes:
    method = commands.Basic.Deliver(tag, 7, False, "dispatch.orders", "amq.gen-x")
    return frame.marshal(method, channel) + content(properties, payload, channel, frame_max)


def returned(payload: bytes) -> bytes:
    method = commands.Basic.Return(312, "NO_ROUTE", "x", "y")
    return frame.marshal(method, 1) + content(b"\0\0", payload, 1, 4096)


ACK = frame.marshal(commands.Basic.Ack(3, True), 1)
HEARTBEAT = frame.marshal(heartbeat.Heartbeat(), 0)
PROPERTIES = write(Properties(message_id="m"), {"h": 1.5})

PIECES = st.lists(
    st.one_of(
        st.tuples(st.just("delivery"), st.binary(max_size=300), st.integers(1, 100)),
        st.tuples(st.sampled_from([ACK, HEARTBEAT, returned(b"mine"), returned(b"")])),
    ),
    max_size=8,
)


@given(PIECES, st.integers(1, 500))
def test_any_stream_in_any_chunks(pieces: list[tuple[object, ...]], chunk: int) -> None:
    stream, passed, expected = b"", b"", []
    for piece in pieces:
        match piece:
            case ("delivery", bytes(payload), int(frame_max)):
                stream += deliver("copies-1", PROPERTIES, payload, frame_max=frame_max)
                expected.append(TappedDelivery(b"copies-1", PROPERTIES, payload))
            case (bytes(other),):
                stream += other
                passed += other
    tap, got, rest = DeliveryTap(), [], b""
    for start in range(0, len(stream), chunk):
        through, deliveries = tap.feed(stream[start : start + chunk])
        rest += through
        got += deliveries
    assert got == expected
    assert rest == passed


def test_deliveries_of_two_channels_may_interleave() -> None:
    one, two = deliver("a", PROPERTIES, b"1", channel=1), deliver("b", b"\0\0", b"2", channel=2)
    tap = DeliveryTap()
    rest, got = tap.feed(one[:-9] + two + one[-9:])
    assert rest == b""
    assert [delivery.consumer_tag for delivery in got] == [b"b", b"a"]


def test_bytes_that_are_no_frames_pass_through_untouched() -> None:
    for raw in (b"AMQP\0\0\x09\x01", b"HTTP/1.1 400 Bad Request\r\n\r\n", ACK[:-1] + b"\0" + ACK):
        tap = DeliveryTap()
        assert tap.feed(raw) == (raw, [])
        assert tap.feed(deliver("a", b"\0\0", b"")) == (deliver("a", b"\0\0", b""), [])


@given(st.binary(max_size=100), st.integers(1, 20))
def test_any_bytes_come_out_or_are_waited_for(raw: bytes, chunk: int) -> None:
    tap = DeliveryTap()
    rest = b"".join(tap.feed(raw[start : start + chunk])[0] for start in range(0, len(raw), chunk))
    assert len(rest) <= len(raw)


def test_a_large_body_over_many_frames() -> None:
    payload = bytes(range(256)) * 4_000
    stream = deliver("a", PROPERTIES, payload, frame_max=131_064)
    tap, got = DeliveryTap(), []
    for start in range(0, len(stream), 65_536):
        got += tap.feed(stream[start : start + 65_536])[1]
    assert got == [TappedDelivery(b"a", PROPERTIES, payload)]
