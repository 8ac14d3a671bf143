"""What a consumer sees of a message, and that no stranger's header can hide the dispatcher's numbers."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.client import properties as amqp_properties
from dispatcher.client.copies import REASON_CHARACTERS_MAX, BlockingMessage, Copy, Message, read_numbers
from dispatcher.client.properties import Properties
from dispatcher.client.tables import write_table
from tests.client.copies_on_wire import copy_properties, only_headers, string_entry


class Settlements(list[tuple[int, str | None, int]]):
    def settle(self, message: Copy, reason: str | None, attempts: int) -> bool:
        self.append((message.seq, reason, attempts))
        return True


def message(raw: bytes, body: bytes = b"", settlements: Settlements | None = None) -> Message:
    numbers = read_numbers(raw)
    assert numbers is not None
    return Message(numbers, raw, body, (settlements if settlements is not None else Settlements()).settle)


def test_the_numbers_of_a_copy() -> None:
    raw = copy_properties(
        2**50, b"g", group_seq=1, epoch=2**40, attempt=2, deadline_at_ms=17, table=string_entry("h", b"v")
    )
    got = message(raw)
    assert (got.seq, got.group, got.group_seq, got.epoch, got.attempt) == (2**50, b"g", 1, 2**40, 2)
    assert got.deadline_at_ms == 17
    assert got.fingerprint == (2**50).to_bytes(16)
    assert got.first_for_consumer


def test_only_the_first_of_an_epoch_is_the_first_for_the_consumer() -> None:
    assert not message(copy_properties(5, b"g", group_seq=2, epoch=1)).first_for_consumer
    assert not message(copy_properties(5)).first_for_consumer


def test_the_dispatchers_headers_are_not_among_the_producers() -> None:
    got = message(copy_properties(5, b"g", group_seq=1, epoch=1, table=string_entry("h", b"v")))
    assert got.headers == {"h": "v"}


def test_the_user_id_comes_back_from_its_header() -> None:
    got = message(copy_properties(5, table=string_entry("x-dispatch-user-id", b"shop")))
    assert got.properties.user_id == "shop"


def test_properties_before_the_headers_are_skipped_exactly() -> None:
    properties = Properties(content_type="text/plain", content_encoding="x", message_id="m")
    raw = amqp_properties.write(properties, {"x-dispatch-seq": 5, "x-dispatch-id": "00" * 16})
    got = message(raw)
    assert got.seq == 5
    assert got.properties == properties


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (b"IBM_NASDAQ_20/4/05", "IBM_NASDAQ_20/4/05"),
        ("grün".encode(), "grün"),
        (b"a\xff", "a%FF"),
        (None, None),
    ],
)
def test_groups_are_bytes_with_a_text_for_people(group: bytes | None, text: str | None) -> None:
    got = message(copy_properties(5, group, group_seq=1, epoch=1))
    assert (got.group, got.group_text) == (group, text)


ODD = {
    "a timestamp beyond the calendar": b"\1hT" + b"\x7f" * 8,
    "a name that is not UTF-8": b"\1\xffS\0\0\0\1a",
    "a broken table inside": b"\1hF\0\0\0\3\5ab",
    "an array of nothing known": b"\1hA\0\0\0\2??",
}


@pytest.mark.parametrize("table", ODD.values(), ids=ODD)
def test_odd_headers_are_handed_over(table: bytes) -> None:
    got = message(copy_properties(5, b"g", group_seq=1, epoch=1, table=table))
    assert got.seq == 5
    assert len(got.headers) == 1


def test_what_is_no_copy_has_no_numbers() -> None:
    assert read_numbers(b"\0\0") is None
    assert read_numbers(amqp_properties.write(Properties(type="dispatch.ping"), {})) is None
    assert read_numbers(only_headers(write_table({"x-dispatch-seq": "five"})[4:])) is None


@pytest.mark.parametrize("name", ["x-dispatch-group-seq", "x-dispatch-epoch", "x-dispatch-deadline"])
def test_numbers_of_another_type_are_a_value_error(name: str) -> None:
    with pytest.raises(ValueError, match="types that the dispatcher does not write"):
        read_numbers(only_headers(write_table({"x-dispatch-seq": 5, name: "7"})[4:]))


@given(st.binary(max_size=80))
def test_any_bytes_have_numbers_or_none_or_are_a_value_error(raw: bytes) -> None:
    with contextlib.suppress(ValueError):
        read_numbers(raw)


@given(st.binary(max_size=40))
def test_any_malformed_table_before_the_numbers_is_a_value_error_or_harmless(table: bytes) -> None:
    with contextlib.suppress(ValueError):
        numbers = read_numbers(copy_properties(5, table=table))
        assert numbers is None or isinstance(numbers.seq, int)


async def test_a_message_is_settled_once() -> None:
    settlements = Settlements()
    got = message(copy_properties(5), settlements=settlements)
    assert await got.ack()
    assert not await got.ack()
    assert not await got.fail("too late")
    assert settlements == [(5, None, 1)]


async def test_a_lost_message_can_not_be_settled() -> None:
    settlements = Settlements()
    got = message(copy_properties(5), settlements=settlements)
    got.lost = True
    assert not await got.ack()
    assert not settlements


@pytest.mark.parametrize("reason", [None, 7, ["x"], ValueError("x"), b"x"])
@pytest.mark.parametrize("kind", [Message, BlockingMessage])
async def test_a_reason_that_is_no_text_settles_nothing(kind: type[Any], reason: Any) -> None:
    """The dispatcher would refuse it with all that is settled with it; and None would ack."""
    settlements = Settlements()
    raw = copy_properties(5)
    got = kind(read_numbers(raw), raw, b"", settlements.settle)
    with pytest.raises(TypeError, match="reason: must be text, not "):
        await got.fail(reason) if kind is Message else got.fail(reason)
    with pytest.raises(ValueError, match="attempts: must be at least 1"):
        got.settle("x", attempts=0)
    assert not settlements
    assert got.settle("x")


async def test_a_reason_is_cut_to_the_size_of_a_header() -> None:
    settlements = Settlements()
    await message(copy_properties(5), settlements=settlements).fail("x" * 5_000)
    assert settlements == [(5, "x" * REASON_CHARACTERS_MAX, 1)]


@pytest.mark.parametrize(("in_ms", "expired"), [(-1, True), (60_000, False), (None, False)])
def test_a_deadline_passes(in_ms: Any, expired: bool) -> None:
    deadline_at_ms = None if in_ms is None else int(time.time() * 1000) + in_ms
    assert message(copy_properties(5, deadline_at_ms=deadline_at_ms)).expired is expired
