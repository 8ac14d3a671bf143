"""The broker's bytes become events, however they are cut, or a ProtocolViolation."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pamqp.commands import Basic, Channel, Queue
from pamqp.heartbeat import Heartbeat

from dispatcher.amqp.decoder import BODY_BYTES_MAX, FRAME_MAX, Decoder
from dispatcher.amqp.events import Confirmed, ConnectionEvent, Delivery, Fetched, Returned
from dispatcher.errors import ProtocolViolation
from tests.amqp import samples
from tests.amqp.samples import content, cut, deliver, method, raw_frame, returned

HEARTBEAT = Heartbeat().marshal()


class Listener:
    """A decoder with channels 1 and 2 open, and everything that it said."""

    def __init__(self) -> None:
        self.events: list[ConnectionEvent] = []
        self.methods: list[tuple[int, int, bytes]] = []
        self.fetched: list[tuple[int, Fetched]] = []
        self.decoder = Decoder(self._on_method, lambda *found: self.fetched.append(found))
        self.decoder.open_channel(1)
        self.decoder.open_channel(2)

    def _on_method(self, channel: int, index: int, arguments: bytes, events: list[ConnectionEvent]) -> None:
        self.methods.append((channel, index, arguments))

    def feed(self, *pieces: bytes) -> list[ConnectionEvent]:
        for piece in pieces:
            self.decoder.feed(piece, self.events)
        return self.events

    def everything(self) -> tuple[Any, ...]:
        return self.events, self.methods, self.fetched


def test_a_delivery_carries_everything_raw() -> None:
    properties = samples.properties(samples.text("h", b"\xff"), delivery_mode=2)
    data = deliver(
        7, b"hello", channel=2, properties=properties, consumer_tag="in", redelivered=True,
        exchange="events", routing_key="a.b",
    )  # fmt: skip
    expected = Delivery(2, b"in", 7, True, b"events", b"a.b", properties, b"hello")
    assert Listener().feed(data) == [expected]


def test_many_deliveries_in_one_read() -> None:
    events = Listener().feed(b"".join(deliver(tag, b"%d" % tag) for tag in range(1, 101)))
    assert [(event.tag, event.body) for event in events if isinstance(event, Delivery)] == [
        (tag, b"%d" % tag) for tag in range(1, 101)
    ]


def test_an_empty_body_is_complete_with_its_header() -> None:
    assert [event.body for event in Listener().feed(deliver(1, b""))] == [b""]
    assert [event.body for event in Listener().feed(deliver(1, b"") + deliver(2, b"x"))] == [b"", b"x"]


@pytest.mark.parametrize("size", [1, FRAME_MAX - 8, FRAME_MAX - 7, 1_000_000])
def test_a_body_over_several_frames(size: int) -> None:
    body = bytes(range(250)) * (size // 250) + b"e" * (size % 250)
    data = deliver(1, body) + deliver(2, b"next")
    listener = Listener()
    listener.feed(*(data[at : at + 65_536] for at in range(0, len(data), 65_536)))
    assert [event.body for event in listener.events] == [body, b"next"]


def test_body_frames_may_be_empty_or_smaller_than_they_need_to_be() -> None:
    start = method(1, Basic.Deliver("c", 1, False, "", "q"))
    pieces = [raw_frame(3, 1, piece) for piece in (b"", b"ab", b"", b"c")]
    data = start + content(1, b"\0\0", b"abc").split(b"\x03\x00\x01")[0] + b"".join(pieces)
    assert [event.body for event in Listener().feed(data + deliver(2))] == [b"abc", b"body"]


def test_contents_of_two_channels_may_be_interleaved() -> None:
    one = method(1, Basic.Deliver("a", 1, False, "", "q")), content(1, b"\0\0", b"one")
    two = method(2, Basic.Deliver("b", 1, False, "", "q")), content(2, b"\0\0", b"two")
    events = Listener().feed(one[0] + two[0] + HEARTBEAT + one[1] + two[1])
    assert [(event.channel, event.body) for event in events] == [(1, b"one"), (2, b"two")]


def test_confirms() -> None:
    data = (
        method(1, Basic.Ack(5, False)) + method(1, Basic.Ack(9, True))
        + method(2, Basic.Nack(1, False, True)) + method(2, Basic.Nack(2, True, False))
    )  # fmt: skip
    assert Listener().feed(data) == [
        Confirmed(1, 5, False, False), Confirmed(1, 9, True, False),
        Confirmed(2, 1, False, True), Confirmed(2, 2, True, True),
    ]  # fmt: skip


def test_a_return_comes_with_its_content_and_before_its_confirm() -> None:
    data = returned(b"gone", routing_key="amq.gen-1") + method(1, Basic.Ack(1, False))
    assert Listener().feed(data) == [
        Returned(1, 312, "NO_ROUTE", b"dispatch.lane", b"amq.gen-1", b"\0\0", b"gone"),
        Confirmed(1, 1, False, False),
    ]


def test_text_of_a_return_need_not_be_utf_8() -> None:
    payload = b"\x00\x3c\x00\x32" + b"\x01\x38" + b"\x02\xff\xfe" + b"\x00" + b"\x01\xff"
    (event,) = Listener().feed(raw_frame(1, 1, payload) + content(1, b"\0\0", b"x"))
    assert event == Returned(1, 312, "\ufffd\ufffd", b"", b"\xff", b"\0\0", b"x")


def test_a_fetched_message_is_a_reply_and_no_event() -> None:
    listener = Listener()
    listener.feed(method(1, Basic.GetOk(3, True, "e", "k", 12)) + content(1, b"\0\0", b"got"))
    assert listener.events == []
    assert listener.fetched == [(1, Fetched(3, True, b"e", b"k", 12, b"\0\0", b"got"))]


def test_other_methods_go_to_the_owner() -> None:
    listener = Listener()
    listener.feed(method(1, Queue.DeclareOk("q", 1, 2)) + deliver(1) + method(0, Channel.CloseOk()))
    assert [(channel, index) for channel, index, _ in listener.methods] == [(1, 0x32000B), (0, 0x140029)]
    assert len(listener.events) == 1


def test_nothing_is_read_after_stop_and_only_channel_0_when_muted() -> None:
    listener = Listener()
    listener.decoder.mute()
    listener.feed(deliver(1) + method(1, Basic.Ack(1)) + method(0, Channel.CloseOk()))
    assert (listener.events, len(listener.methods)) == ([], 1)
    listener.decoder.stop()
    listener.feed(method(0, Channel.CloseOk()))
    assert len(listener.methods) == 1


def test_muting_in_the_middle_of_a_message_drops_it() -> None:
    listener, data = Listener(), deliver(1, b"x" * 1_000)
    listener.feed(data[:-500])
    listener.decoder.mute()
    assert listener.feed(data[-500:] + method(0, Channel.CloseOk())) == []
    assert len(listener.methods) == 1


HEADER = content(1, b"\0\0", b"body")[: -len(raw_frame(3, 1, b"body"))]
DELIVER = method(1, Basic.Deliver("c", 1, False, "", "q"))
VIOLATIONS = {
    "other protocol": (b"HTTP/1.1 400 Bad Request\r\n", "does not speak AMQP 0-9-1: it sent b'HTTP/1.1"),
    "other version": (b"AMQP\x00\x01\x00\x00", "does not speak AMQP 0-9-1: it sent b'AMQP"),
    "tls alert": (b"\x15\x03\x01\x00\x02\x02\x28", "perhaps it expects TLS"),
    "no end mark": (deliver(1)[:-1] + b"\x00", "without its end mark"),
    "huge body frame": (b"\x03\x00\x01\x00\x02\x00\x01", "frame of 131073 bytes"),
    "huge method frame": (b"\x01\x00\x01\xff\xff\xff\xff", "frame of 4294967295 bytes"),
    "short method": (raw_frame(1, 1, b"\x00\x3c"), "too short"),
    "short ack": (raw_frame(1, 1, b"\x00\x3c\x00\x50\x00"), "too short"),
    "short deliver": (raw_frame(1, 1, b"\x00\x3c\x00\x3c\x09c"), "too short"),
    "long deliver": (raw_frame(1, 1, DELIVER[7:-1] + b"x"), "too long"),
    "body without header": (DELIVER + raw_frame(3, 1, b"body"), "content out of order"),
    "header without method": (HEADER, "content out of order"),
    "two headers": (DELIVER + HEADER + HEADER, "content out of order"),
    "method inside": (DELIVER + DELIVER, "method inside a message"),
    "ack inside": (DELIVER + HEADER + method(1, Basic.Ack(1)), "method inside a message"),
    "short header": (DELIVER + raw_frame(2, 1, b"\x00\x3c\x00\x00"), "header frame that is too short"),
    "other class": (DELIVER + raw_frame(2, 1, b"\x00\x3d" + bytes(12)), "announced a body"),
    "endless body": (
        DELIVER + raw_frame(2, 1, b"\x00\x3c\0\0" + (BODY_BYTES_MAX + 1).to_bytes(8) + b"\0\0"),
        "announced a body of 536870913 bytes",
    ),
    "more body": (DELIVER + HEADER + raw_frame(3, 1, b"bodyb"), "more of a body"),
    "closed channel": (deliver(1, channel=3), "channel 3, which is not open"),
    "ack on closed channel": (method(3, Basic.Ack(1)), "channel 3, which is not open"),
    "heartbeat on channel": (raw_frame(8, 1, b""), "heartbeat"),
    "heartbeat with content": (raw_frame(8, 0, b"x"), "heartbeat"),
}  # fmt: skip


@pytest.mark.parametrize("name", VIOLATIONS)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_violations_are_named(name: str, step: int) -> None:
    data, text = VIOLATIONS[name]
    listener = Listener()
    with pytest.raises(ProtocolViolation, match=text if step > 20 else None):
        listener.feed(*(data[at : at + step] for at in range(0, len(data), step)), b"\x00" * 16)


def test_a_header_frame_may_be_larger_than_negotiated() -> None:
    # The broker adds headers to a message whose table filled a frame, and sends it like that.
    properties = samples.properties(samples.text("big", b"x" * (FRAME_MAX + 1_000)))
    assert [event.properties for event in Listener().feed(deliver(1, properties=properties))] == [properties]


# --- properties ---------------------------------------------------------------------------------------

_short = st.text(max_size=20)
_tags = st.integers(0, 2**63 - 1)
_properties = st.sampled_from([b"\0\0", samples.properties(*samples.EVERY_TYPE.values())])
_frames = st.one_of(
    st.builds(
        deliver, _tags, st.binary(max_size=300), channel=st.sampled_from([1, 2]),
        consumer_tag=_short, redelivered=st.booleans(), exchange=st.sampled_from(["", "dispatch.x"]),
        routing_key=_short, properties=_properties, frame_max=st.sampled_from([20, 4096]),
    ),
    st.builds(returned, st.binary(max_size=30), channel=st.sampled_from([1, 2])),
    st.builds(lambda tag, multiple: method(1, Basic.Ack(tag, multiple)), _tags, st.booleans()),
    st.builds(lambda count: method(2, Queue.DeclareOk("q", count, 1)), st.integers(0, 2**31 - 1)),
    st.just(HEARTBEAT),
)  # fmt: skip
_streams = st.lists(_frames, max_size=12).map(b"".join)
_places = st.lists(st.integers(0, 2**20), max_size=20)


@settings(deadline=None)
@given(_streams, _places)
@example(deliver(1) + deliver(2, b""), list(range(400)))
def test_where_the_stream_is_cut_changes_nothing(data: bytes, places: list[int]) -> None:
    whole, pieces = Listener(), Listener()
    whole.feed(data)
    pieces.feed(*cut(data, places))
    assert pieces.everything() == whole.everything()


@settings(deadline=None)
@given(st.binary(max_size=500), _places)
def test_any_bytes_give_events_or_a_violation(data: bytes, places: list[int]) -> None:
    with contextlib.suppress(ProtocolViolation):
        Listener().feed(*cut(data, places))


_mutations = st.lists(
    st.tuples(st.integers(0, 2**20), st.integers(0, 4), st.binary(max_size=4)), min_size=1, max_size=4
)


@settings(deadline=None, max_examples=300)
@given(_streams, _mutations, _places)
def test_damaged_streams_give_events_or_a_violation(
    data: bytes, mutations: list[tuple[int, int, bytes]], places: list[int]
) -> None:
    for place, removed, inserted in mutations:
        at = place % (len(data) + 1)
        data = data[:at] + inserted + data[at + removed :]
    outcomes = []
    for pieces in ([data], cut(data, places)):
        listener, violation = Listener(), ""
        try:
            listener.feed(*pieces)
        except ProtocolViolation as error:
            violation = str(error).partition(": it sent")[0]
        outcomes.append((listener.everything(), violation))
    assert outcomes[0] == outcomes[1]
