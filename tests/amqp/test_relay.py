"""Copies are the original byte for byte, apart from what the contract takes out and adds (section 5)."""

from __future__ import annotations

import struct
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import header

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.grouping import Grouping
from dispatcher.amqp.relay import Content, copy_frames, read_content
from tests.amqp.samples import EVERY_TYPE, field, long, properties, read_publish, table_of, text

GROUPING = Grouping(("x-group-id",), "x-group-seq")
FRAME_MAX = 131_072
ADDED: dict[str, Any] = {"seq": 2**53 - 1, "group_seq": 7, "epoch": 2**50 + 1, "attempt": 3}


def delivery(
    raw: bytes, body: bytes = b"body", *, exchange: bytes = b"events", key: bytes = b"k"
) -> Delivery:
    return Delivery(1, b"in", 5, False, exchange, key, raw, body)


def content(raw: bytes, body: bytes = b"body") -> Content:
    return read_content(delivery(raw, body), GROUPING)


def copied(original: Content, frame_max: int = FRAME_MAX, **added: Any) -> tuple[bytes, bytes]:
    """Raw properties and body of its copy."""
    arguments: dict[str, Any] = {"group": original.group, **ADDED, **added}
    frames = copy_frames(
        original,
        channel=2,
        exchange="dispatch.orders",
        routing_key="amq.gen-x",
        frame_max=frame_max,
        **arguments,
    )
    assert frames is not None
    publish, raw, body = read_publish(frames)
    assert (publish.exchange, publish.routing_key) == ("dispatch.orders", "amq.gen-x")
    assert publish.mandatory
    return raw, body


def number(name: str, value: int) -> bytes:
    return field(name, "l", value.to_bytes(8, signed=True))


def added_fields(original: Content, group: bytes | None = b"g") -> bytes:
    fields = [
        number("x-dispatch-seq", ADDED["seq"]), number("x-dispatch-epoch", ADDED["epoch"]),
        number("x-dispatch-attempt", ADDED["attempt"]), text("x-dispatch-id", original.fingerprint.hex()),
    ]  # fmt: skip
    if group is not None:
        fields += [number("x-dispatch-group-seq", ADDED["group_seq"]), text("x-dispatch-group", group)]
        if group.decode(errors="replace").encode() != group:
            fields.append(text("x-dispatch-group-base64", b64encode(group)))
    return b"".join(fields)


FULL: dict[str, Any] = {
    "content_type": b"text/plain", "content_encoding": b"gzip", "delivery_mode": 2, "priority": 5,
    "correlation_id": b"\xff\xfe", "reply_to": b"rep", "message_id": b"", "timestamp": 2**64 - 1,
    "type_": b"typ", "app_id": b"app", "cluster_id": b"clu",
}  # fmt: skip


@pytest.mark.parametrize("name", EVERY_TYPE)
def test_a_header_of_every_type_survives(name: str) -> None:
    original = content(properties(EVERY_TYPE[name], text("x-group-id", "g"), EVERY_TYPE[name]))
    raw, body = copied(original)
    before, fields, after = table_of(raw)
    assert fields == EVERY_TYPE[name] + text("x-group-id", "g") + EVERY_TYPE[name] + added_fields(original)
    assert (before[:2], after, body) == (b"\x20\x00", b"", b"body")


def test_all_properties_survive_and_a_copy_is_transient() -> None:
    raw = properties(*EVERY_TYPE.values(), **FULL)
    original = content(raw)
    before, fields, after = table_of(copied(original)[0])
    expected_before, expected_fields, expected_after = table_of(raw)
    assert fields == expected_fields + added_fields(original, None)
    assert before[:-4] == expected_before[:-4]
    assert after == b"\x01" + expected_after[1:]


@pytest.mark.parametrize("name", FULL)
def test_an_absent_property_stays_absent(name: str) -> None:
    one = {name: FULL[name]}
    for raw in (properties(text("x-group-id", "g"), **one), properties(table=False, **one)):
        original = content(raw)
        before, _, after = table_of(copied(original)[0])
        whole = properties(text("x-group-id", "g"), **one)
        expected_before, _, expected_after = table_of(whole)
        expected = b"\x01" if name == "delivery_mode" else expected_after
        assert (before[:-4], after) == (expected_before[:-4], expected)


def test_pamqp_reads_what_was_added() -> None:
    original = content(properties(text("x-group-id", b"g"), EVERY_TYPE["double"], message_id=b"m"))
    raw, _ = copied(original, deadline_at_ms=1_790_000_000_123, first_header="x-first")
    parsed = header.ContentHeader()
    parsed.unmarshal(struct.pack(">HHQ", 60, 0, 4) + raw)
    assert parsed.properties.message_id == "m"
    assert parsed.properties.headers == {
        "x-group-id": "g", "double": 1.1, "x-dispatch-group": "g", "x-dispatch-seq": 2**53 - 1,
        "x-dispatch-group-seq": 7, "x-dispatch-epoch": 2**50 + 1, "x-dispatch-attempt": 3,
        "x-dispatch-id": original.fingerprint.hex(), "x-dispatch-deadline": 1_790_000_000_123,
        "x-first": True,
    }  # fmt: skip


def test_the_group_is_added_as_it_came_or_as_it_is_given() -> None:
    original = content(properties(field("x-group-id", "I", b"\x00\x00\x00\x2a")))
    assert original.group == b"42"
    assert text("x-dispatch-group", b"42") in copied(original)[0]
    assert text("x-dispatch-group", b"\xff" * 1_024) in copied(original, group=b"\xff" * 1_024)[0]


@pytest.mark.parametrize(
    ("group", "added"), [(b"g", None), ("größe".encode(), None), (b"\xff\xfe", b"//4="), (b"a\xc3", b"YcM=")]
)
def test_a_group_that_is_not_utf8_is_added_in_base64_too(group: bytes, added: bytes | None) -> None:
    """There are libraries that take every string for UTF-8, and change what is none."""
    raw, _ = copied(content(properties(text("x-group-id", "g"))), group=group)
    assert text("x-dispatch-group", group) in raw
    assert (b"x-dispatch-group-base64" in raw) == (added is not None)
    assert added is None or text("x-dispatch-group-base64", added) in raw


def test_without_a_group_nothing_of_a_group_is_added() -> None:
    original = content(properties(table=False, message_id=b"m"))
    assert (original.group, original.closing, original.refusal) == (None, False, None)
    assert table_of(copied(original)[0])[1] == added_fields(original, None)


def test_headers_of_ours_and_of_the_broker_are_taken_out() -> None:
    kept = [text("a", "x-dispatch-seq"), text("x-dispatch", "1"), text("x-delivery-counts", "1")]
    gone = [
        number("x-dispatch-seq", 1), text("x-dispatch-", ""), field("x-dispatch-first", "t", b"\x01"),
        number("x-delivery-count", 3), number("x-acquired-count", 1), text("x-dispatch-origin", "q 1.1"),
    ]  # fmt: skip
    mixed = [gone[0], kept[0], *gone[1:4], kept[1], gone[4], kept[2], gone[5]]
    original = content(properties(*mixed, delivery_mode=2, message_id=b"m"))
    before, fields, after = table_of(copied(original)[0])
    assert fields == b"".join(kept) + added_fields(original, None)
    assert after == b"\x01\x01m"
    assert before[:2] == b"\x30\x80"


def test_headers_that_only_look_like_ours_stay_in_their_place() -> None:
    fields = [text("z", "x-dispatch-"), field("m", "F", long(number("x-delivery-count", 1))), text("a", "")]
    original = content(properties(*fields))
    assert table_of(copied(original)[0])[1] == b"".join(fields) + added_fields(original, None)


def test_expiration_becomes_a_deadline() -> None:
    raw = properties(text("x-group-id", "g"), **FULL, expiration=b"60000")
    original = content(raw)
    assert original.expiration_ms == 60_000
    copy = copied(original, deadline_at_ms=1_790_000_060_000)[0]
    assert number("x-dispatch-deadline", 1_790_000_060_000) in copy
    before, _, after = table_of(copy)
    expected_before, _, expected_after = table_of(properties(text("x-group-id", "g"), **FULL))
    assert (before[:-4], after) == (expected_before[:-4], b"\x01" + expected_after[1:])


@pytest.mark.parametrize(("text_", "value"), [(b"0", 0), (b"+5", 5), (b"05", 5), (b"4294967296", 2**32)])
def test_expirations_that_rabbitmq_takes(text_: bytes, value: int) -> None:
    assert content(properties(expiration=text_)).expiration_ms == value


@pytest.mark.parametrize("text_", [b"", b"-1", b" 5", b"5.0", b"soon", b"\xff", b"9" * 30])
def test_other_expirations_are_refused(text_: bytes) -> None:
    refused = content(properties(expiration=text_))
    assert (
        refused.refusal
        == f"its expiration {text_.decode(errors='replace')!r} is not a number of milliseconds"
    )
    assert refused.expiration_ms is None


def test_user_id_becomes_a_header() -> None:
    raw = properties(text("x-group-id", "g"), **FULL, user_id=b"app1", expiration=b"5")
    original = content(raw)
    before, fields, after = table_of(copied(original)[0])
    assert fields == text("x-group-id", "g") + text("x-dispatch-user-id", "app1") + added_fields(original)
    expected_before, _, expected_after = table_of(properties(text("x-group-id", "g"), **FULL))
    assert (before[:-4], after) == (expected_before[:-4], b"\x01" + expected_after[1:])


def test_a_forged_user_id_header_is_replaced() -> None:
    original = content(properties(text("x-dispatch-user-id", "root"), user_id=b"app1"))
    assert table_of(copied(original)[0])[1] == text("x-dispatch-user-id", "app1") + added_fields(
        original, None
    )


@pytest.mark.parametrize(
    ("exchange", "is_relayed"),
    [(b"dispatch.orders.ops", True), (b"", False), (b"dispatcher", False), (b"orders", False)],
)
def test_only_operators_say_that_a_message_is_a_replay(exchange: bytes, is_relayed: bool) -> None:
    grouping = Grouping(("x-group-id",), None, prefix="dispatch")
    mark = number("x-dispatch-replay", 7)
    original = read_content(delivery(properties(mark))._replace(exchange=exchange), grouping)
    expected = (mark if is_relayed else b"") + added_fields(original, None)
    assert table_of(copied(original)[0])[1] == expected


def test_only_we_set_the_first_header() -> None:
    grouping = Grouping(("x-group-id",), None, "x-first")
    forged = [field("x-first", "t", b"\x01"), text("x-first-other", ""), text("a", "x-first")]
    original = read_content(delivery(properties(*forged)), grouping)
    fields = b"".join(forged[1:]) + added_fields(original, None)
    assert table_of(copied(original)[0])[1] == fields
    assert table_of(copied(original, first_header="x-first")[0])[1] == fields + forged[0]
    assert original.fingerprint == content(properties(*forged)).fingerprint


def test_cc_and_bcc_are_relayed() -> None:
    fields = [field("CC", "A", long(b"S" + long(b"audit"))), field("BCC", "A", long(b"S" + long(b"x")))]
    original = content(properties(*fields, text("x-group-id", "g")))
    assert table_of(copied(original)[0])[1].startswith(b"".join(fields))


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 100_000])
def test_bodies_of_any_size(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert copied(content(properties(), body), frame_max=4096)[1] == body


def test_a_header_frame_that_would_be_too_large_is_none() -> None:
    original = content(properties(text("x-group-id", "g"), text("pad", b"")))
    room = 4096 - 20 - len(copied(original)[0])
    assert copied(content(properties(text("x-group-id", "g"), text("pad", b"x" * room))), frame_max=4096)
    large = content(properties(text("x-group-id", "g"), text("pad", b"x" * (room + 1))))
    frames = copy_frames(
        large, channel=1, exchange="", routing_key="q", group=b"g", frame_max=4096, **ADDED
    )  # fmt: skip
    assert frames is None


@pytest.mark.parametrize("raw", [b"", b"\x20\x00\x00", properties(field("a", "U", b"\0")), b"\x01\x00\x09"])
def test_malformed_properties_are_refused_and_kept_whole(raw: bytes) -> None:
    refused = content(raw)
    assert refused.refusal is not None
    assert refused.refusal.startswith(("its header table", "its property list"))
    assert (refused.group, refused.closing, refused.expiration_ms) == (None, False, None)
    assert field("x-dispatch-properties", "x", long(raw)) in refused.properties
    assert content(raw).fingerprint == refused.fingerprint != content(raw + b"\x00").fingerprint


def test_a_refused_group_is_named() -> None:
    refused = content(properties(EVERY_TYPE["table"].replace(b"\x05table", b"\x0ax-group-id", 1)))
    assert refused.refusal == "its group header x-group-id is a table, not a string or integer"
    assert refused.group is None


def test_a_closing_message() -> None:
    assert content(properties(text("x-group-id", "g"), number("x-group-seq", -1))).closing
    assert not content(properties(text("x-group-id", "g"), number("x-group-seq", 1))).closing


def test_size_counts_what_is_kept() -> None:
    original = content(properties(text("x-group-id", "g")), b"x" * 1_000)
    assert original.size == 1_000 + len(original.properties) + len(b"events" + b"k")


# --- properties -----------------------------------------------------------------------------------------

_fields = st.lists(st.sampled_from([*EVERY_TYPE.values(), text("x-group-id", "g"), text("x-group-id", "h")]))
_shorts = st.none() | st.binary(max_size=255)
property_lists = st.builds(
    lambda fields, table, **given: properties(*fields, table=table or bool(fields), **given),
    _fields, st.booleans(), content_type=_shorts, content_encoding=_shorts,
    delivery_mode=st.none() | st.sampled_from([0, 1, 2, 255]), priority=st.none() | st.integers(0, 255),
    correlation_id=_shorts, reply_to=_shorts, message_id=_shorts,
    timestamp=st.none() | st.integers(0, 2**64 - 1), type_=_shorts, app_id=_shorts,
    expiration=st.none() | st.just(b"1000"), user_id=st.none() | st.just(b"app"),
)  # fmt: skip


def _without(raw: bytes, *gone: int) -> bytes:
    """The original's flags less these bits, in the first two bytes."""
    (flags,) = struct.unpack_from(">H", raw)
    for bit in gone:
        flags &= ~(1 << bit)
    return struct.pack(">H", flags | 1 << 13)


@settings(deadline=None)
@given(property_lists, st.binary(max_size=300), st.none() | st.binary(max_size=300))
def test_a_copy_changes_nothing_else(raw: bytes, body: bytes, group: bytes | None) -> None:
    original = content(raw, body)
    copy, copied_body = copied(original, group=group)
    before, fields, after = table_of(copy)
    assert copied_body == body
    assert before[:2] == _without(raw, 8, 4)
    user = text("x-dispatch-user-id", "app") if raw[1] & 0x10 else b""
    given_fields = table_of(raw)[1] if raw[0] & 0x20 else b""
    assert fields == given_fields + user + added_fields(original, group)
    rest = after[1:] if raw[0] & 0x10 else after
    assert rest == _rest_of(raw)


def _rest_of(raw: bytes) -> bytes:
    """What follows the delivery mode, less expiration and user id, taken apart by hand."""
    at, kept = 2, b""
    for bit in (15, 14):
        if raw[0] & (1 << bit - 8):
            at += 1 + raw[at]
    if raw[0] & 0x20:
        at += 4 + struct.unpack_from(">I", raw, at)[0]
    (flags,) = struct.unpack_from(">H", raw)
    sizes = {12: 1, 11: 1, 6: 8}
    for bit in range(12, 1, -1):
        if flags & (1 << bit):
            size = sizes.get(bit) or 1 + raw[at]
            if bit not in (12, 8, 4):
                kept += raw[at : at + size]
            at += size
    assert at == len(raw)
    return kept


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_property_list_is_read(raw: bytes) -> None:
    original = content(raw)
    assert len(original.fingerprint) == 16
    copied(original)
