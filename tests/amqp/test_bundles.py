"""How copies stand in a bundle: each byte for byte as it would come alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.amqp.relay import bundle_entry
from dispatcher.wire.bundle import split_bundle, write_bundle
from tests.amqp.samples import EVERY_TYPE, properties, text
from tests.amqp.test_relay import ADDED, content, copied


@pytest.mark.parametrize("body", [b"", b"body", bytes(300_000)])
@pytest.mark.parametrize(
    "raw",
    [
        properties(),
        properties(text("x-group-id", "g"), *EVERY_TYPE.values(), delivery_mode=2),
        properties(text("a", "b"), content_type=b"text/plain", message_id=b"m", app_id=b"a"),
    ],
)
@pytest.mark.parametrize(
    "added", [{}, {"group": b"\xff\x00"}, {"deadline_at_ms": 17, "first_header": "first"}, {"group": None}]
)
def test_a_part_is_the_copy_that_would_come_alone(raw: bytes, body: bytes, added: dict[str, Any]) -> None:
    original = content(raw, body)
    arguments: dict[str, Any] = {"group": b"g", **ADDED, **added}
    entry = bundle_entry(original, **arguments)
    assert split_bundle(entry) == [copied(original, **arguments)]
    assert split_bundle(entry * 3) == [copied(original, **arguments)] * 3


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40))))
def test_what_was_written_is_read(copies: list[tuple[bytes, bytes]]) -> None:
    assert split_bundle(write_bundle(copies)) == copies


@given(st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), min_size=1), st.data())
def test_one_that_was_cut_short_is_refused_as_a_whole(
    copies: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    whole = write_bundle(copies)
    ends, at = {0}, 0
    for raw, body in copies:
        at += 8 + len(raw) + len(body)
        ends.add(at)
    cut = data.draw(st.integers(0, len(whole)).filter(lambda end: end not in ends))
    with pytest.raises(ValueError, match="ends within copy"):
        split_bundle(whole[:cut])
