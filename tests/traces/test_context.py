"""The producer's context in the property lists that brokers and bridges make."""

from __future__ import annotations

import pytest
from opentelemetry.context import Context
from opentelemetry.trace import get_current_span

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.grouping import Grouping
from dispatcher.amqp.properties import split_table
from dispatcher.amqp.relay import Content, read_content
from dispatcher.traces.context import give_to_consumer, producers_context
from tests.amqp.samples import properties, text
from tests.amqp.test_amqp1 import carried

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{SPAN}-01"


def content(raw: bytes) -> Content:
    delivery = Delivery(1, b"", 1, False, b"", b"in", raw, b"body")
    return read_content(delivery, Grouping(("x-group-id",), None))


@pytest.mark.parametrize(
    "raw",
    [
        properties(text("traceparent", SAMPLED)),
        properties(b"\x0btraceparentx" + len(SAMPLED).to_bytes(4) + SAMPLED.encode()),
        properties(text("a", "b"), text("traceparent", f"cc-{TRACE}-{SPAN}-01-what-comes-later")),
        carried(traceparent=SAMPLED),
    ],
    ids=["string", "bytes", "a later version", "AMQP 1.0"],
)
def test_a_sampled_context_is_read(raw: bytes) -> None:
    context = producers_context(content(raw))
    assert isinstance(context, Context)
    span = get_current_span(context).get_span_context()
    assert (f"{span.trace_id:032x}", f"{span.span_id:016x}") == (TRACE, SPAN)


@pytest.mark.parametrize("state", ["no member", ",".join(f"k{n}=1" for n in range(33)), "k=" + "v" * 9_000])
def test_a_tracestate_that_can_not_be_read_is_left_out_in_silence(
    state: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a producer could fill the log."""
    context = producers_context(content(properties(text("traceparent", SAMPLED), text("tracestate", state))))
    assert isinstance(context, Context)
    assert not get_current_span(context).get_span_context().trace_state
    assert caplog.records == []


@pytest.mark.parametrize("version", ["00", "cc"])
def test_one_that_is_not_sampled_is_known_as_that(version: str) -> None:
    raw = properties(text("traceparent", f"{version}-{TRACE}-{SPAN}-02"))
    assert producers_context(content(raw)) is False


@pytest.mark.parametrize(
    "raw",
    [
        properties(),
        properties(text("note", f"traceparent {SAMPLED}")),
        properties(text("traceparent", "")),
        properties(text("traceparent", f"ff-{TRACE}-{SPAN}-01")),
        properties(text("traceparent", f"00-{'0' * 32}-{SPAN}-00")),
        properties(text("traceparent", f"00-{TRACE}-{'0' * 16}-00")),
        properties(b"\x0btraceparentt\x01"),
        properties(b"\x0btraceparentV"),
        properties(b"\x01tF" + len(text("traceparent", SAMPLED)).to_bytes(4) + text("traceparent", SAMPLED)),
    ],
)
def test_whatever_else_says_nothing(raw: bytes) -> None:
    assert producers_context(content(raw)) is True


def test_the_copys_header_stands_beside_the_producers() -> None:
    one = content(properties(text("traceparent", SAMPLED), text("z", "last"), delivery_mode=2))
    before, tail = split_table(one.properties)[0], one.properties[one.table_end :]
    context = producers_context(one)
    assert isinstance(context, Context)
    give_to_consumer(one, get_current_span(context).get_span_context())
    fields, table_at, table_end = split_table(one.properties)
    assert fields == [*before, text("x-dispatch-traceparent", SAMPLED)]
    assert (one.table_at, one.table_end, one.properties[table_end:]) == (table_at, table_end, tail)
