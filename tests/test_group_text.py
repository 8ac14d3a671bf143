"""Group ids are shown readably and come back byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dispatcher.wire.group_text import format_group, parse_group


@given(st.binary(max_size=64))
@example(b"%25")
@example(b"%%0141")
@example(b"%2\x01")
@example(b"\xe2\x80\xae%e2")
def test_every_group_comes_back(group: bytes) -> None:
    text = format_group(group)
    assert text.isprintable()
    assert parse_group(text) == group


@given(st.binary(max_size=16), st.binary(max_size=16))
def test_two_groups_never_look_the_same(one: bytes, other: bytes) -> None:
    assert (format_group(one) == format_group(other)) == (one == other)


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (b"orders/eu.#*", "orders/eu.#*"),
        ("Zürich 7".encode(), "Zürich 7"),
        (b"100%", "100%"),
        (b"a%20b", "a%2520b"),
        (b"\xff\x00x", "%FF%00x"),
        ("a\u202eb\n".encode(), "a%E2%80%AEb%0A"),
    ],
)
def test_how_groups_look(group: bytes, text: str) -> None:
    assert format_group(group) == text
