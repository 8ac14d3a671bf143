"""One span for each message, from its arrival to its settle, and the handler's span inside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode, format_trace_id, get_current_span

from dispatcher.client import (
    BlockingGroupConsumer,
    BlockingMessage,
    GroupConsumer,
    GroupProducer,
    Message,
    RetryLater,
)
from dispatcher.client.traces import handler_span, traced
from dispatcher.ledger.recorder import Both
from dispatcher.ledger.writer import Ledger
from dispatcher.settings import LedgerSettings
from tests.ledger import reading
from tests.service.harness import LANE, Bench, lane
from tests.service.reader import Reader
from tests.traces.conftest import Spans, event, events, outcome, trace_id
from tests.waiting import TIMEOUT_S, eventually

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
UNSAMPLED = f"00-{TRACE}-{PARENT}-00"
DISPATCH = f"dispatch {LANE}"


async def send(bench: Bench, *bodies: bytes, group: str | None = "g", **headers: str) -> None:
    async with GroupProducer(bench.vhost.amqp_url, queue="in") as producer:
        for body in bodies:
            await producer.send(body, group, headers=headers)


@contextlib.asynccontextmanager
async def consuming(bench: Bench, handler: Any, **options: Any) -> AsyncIterator[GroupConsumer]:
    consumer = GroupConsumer(bench.vhost.amqp_url, LANE, "c1", prefix=bench.vhost.redis_prefix)
    await consumer.open()
    task = asyncio.create_task(consumer.run(handler, stop_on_signals=False, **options))
    try:
        await consumer.joined()
        yield consumer
        consumer.stop()
        await asyncio.wait_for(task, TIMEOUT_S)
    finally:
        task.cancel()


def is_inside(inner: ReadableSpan, outer: ReadableSpan) -> bool:
    """Whether it is its child, and took place while that lasted."""
    assert inner.parent is not None
    assert None not in (inner.start_time, inner.end_time, outer.start_time, outer.end_time)
    return (
        inner.context.trace_id == outer.context.trace_id
        and inner.parent.span_id == outer.context.span_id
        and outer.start_time <= inner.start_time <= inner.end_time <= outer.end_time  # type: ignore[operator]
    )


async def test_a_message_is_traced_from_its_producer_to_its_handler(bench: Bench, spans: Spans) -> None:
    bench.ledger = spans.traces()
    await bench.run(orders=lane())
    received: list[Message] = []

    async def handle(message: Message) -> None:
        received.append(message)

    async with consuming(bench, traced(handle, spans.application)):
        await send(bench, b"body", group="g1", traceparent=SAMPLED, tracestate="vendor=1")
        await bench.acked()
    (dispatched,) = await spans.ended(DISPATCH, 1)
    (handled,) = spans.named("process")
    assert (trace_id(dispatched), dispatched.parent and dispatched.parent.span_id) == (TRACE, int(PARENT, 16))
    assert dispatched.context.trace_state.get("vendor") == "1"
    assert is_inside(handled, dispatched)
    assert handled.context.trace_state.get("vendor") == "1"
    assert received[0].headers["traceparent"] == SAMPLED
    assert received[0].body == b"body"
    told = dispatched.attributes or {}
    assert [told[f"dispatcher.{key}"] for key in ("lane", "group", "outcome")] == [LANE, "g1", "settled"]
    assert told["messaging.destination.name"] == "in"
    assert told["dispatcher.id"] == (handled.attributes or {})["dispatcher.id"]
    assert events(dispatched) == ["handed_over"], event(dispatched, "waited_for")
    handed = event(dispatched, "handed_over")
    assert (handed["consumer"], handed["attempt"], handed["seq"]) == ("c1", 1, received[0].seq)


async def test_a_blocking_handler_has_its_span_too(bench: Bench, spans: Spans) -> None:
    bench.ledger = spans.traces()
    await bench.run(orders=lane())
    current: list[str] = []

    def handle(message: BlockingMessage) -> None:
        current.append(format_trace_id(get_current_span().get_span_context().trace_id))

    consumer = BlockingGroupConsumer(bench.vhost.amqp_url, LANE, "c1", prefix=bench.vhost.redis_prefix)
    run = asyncio.create_task(asyncio.to_thread(consumer.run, traced(handle, spans.application)))
    await send(bench, b"1", traceparent=SAMPLED)
    await bench.acked()
    consumer.stop()
    await asyncio.wait_for(run, TIMEOUT_S)
    (dispatched,), (handled,) = await spans.ended(DISPATCH, 1), spans.named("process")
    assert is_inside(handled, dispatched)
    assert current == [trace_id(dispatched)] == [TRACE]


async def test_each_call_of_a_handler_is_a_span_and_an_error_is_told(bench: Bench, spans: Spans) -> None:
    bench.ledger = spans.traces()
    await bench.run(orders=lane(retry={"attempts": 2, "backoff": "1ms"}))

    async def handle(message: Message) -> None:
        if message.calls == 1:
            raise RetryLater(1, "not yet", counts=False)
        raise ValueError("no such customer")

    async with consuming(bench, traced(handle, spans.application)):
        await send(bench, b"1", traceparent=SAMPLED)
        await eventually(lambda: bench.counter("dead_lettered") == 1)
    (dispatched,) = await spans.ended(DISPATCH, 1)
    calls = spans.named("process")
    assert all(is_inside(call, dispatched) for call in calls)
    assert [(call.attributes or {})["dispatcher.calls"] for call in calls] == [1, 2, 3]
    told = [(call.status.status_code, call.status.description) for call in calls]
    error = "ValueError: no such customer"
    assert told == [(StatusCode.UNSET, None), (StatusCode.ERROR, error), (StatusCode.ERROR, error)]
    assert events(dispatched)[-2:] == ["handed_over", "failed"]
    assert event(dispatched, "failed") == {"reason": error, "calls": 3}
    assert dispatched.status.status_code is StatusCode.ERROR
    assert outcome(dispatched) == "dead_lettered"
    client = await bench.client()
    (dead,) = await client.take(bench.names().dead)
    assert b"x-dispatch-traceparent" in dead.properties


async def test_iteration_has_a_span_around_the_work(bench: Bench, spans: Spans) -> None:
    bench.ledger = spans.traces()
    await bench.run(orders=lane())
    async with GroupConsumer(bench.vhost.amqp_url, LANE, "c1", prefix=bench.vhost.redis_prefix) as consumer:
        await send(bench, b"1", traceparent=SAMPLED)
        message = await asyncio.wait_for(anext(consumer), 10)
        with handler_span(message, spans.application):
            await message.ack()
        await bench.acked()
    (dispatched,), (handled,) = await spans.ended(DISPATCH, 1), spans.named("process")
    assert handled.parent is not None
    assert handled.parent.span_id == dispatched.context.span_id


@pytest.mark.parametrize(
    ("sample", "headers", "is_traced"),
    [
        (0.0, {"traceparent": SAMPLED}, True),
        (1.0, {"traceparent": UNSAMPLED}, False),
        (0.0, {}, False),
        (1.0, {}, True),
        (1.0, {"traceparent": "00-nothing-that-the-standard-knows-01"}, True),
        (0.0, {"traceparent": f"00-{'0' * 32}-{PARENT}-01"}, False),
    ],
)
async def test_who_began_the_trace_decides_and_else_the_setting(
    sample: float, headers: dict[str, str], is_traced: bool, bench: Bench, spans: Spans
) -> None:
    bench.ledger = spans.traces(sample=sample)
    await bench.run(orders=lane())
    received: list[Message] = []

    async def handle(message: Message) -> None:
        received.append(message)

    async with consuming(bench, handle):
        await send(bench, b"1", **headers, **{"x-dispatch-traceparent": "forged"})
        await bench.acked()
    found = await spans.ended(DISPATCH, int(is_traced))
    told = received[0].trace_headers
    if is_traced:
        (span,) = found
        context = span.context
        parent, _, flags = told["traceparent"].rpartition("-")
        assert parent == f"00-{context.trace_id:032x}-{context.span_id:016x}"
        assert int(flags, 16) & 1, "sampled"
        assert (trace_id(span) == TRACE) is (headers.get("traceparent") == SAMPLED)
    else:
        assert told == headers, "the producer's word counts"


async def test_about_the_share_that_is_set_is_traced(bench: Bench, spans: Spans) -> None:
    bench.ledger = spans.traces(sample=0.5)
    await bench.run(orders=lane())
    client = await bench.client()
    for number in range(400):
        client.send("in", b"%d" % number, f"g{number}")
    await bench.joined("c1", prefetch=400)
    await bench.acked()
    await bench.stop()
    assert 130 < len(spans.named(DISPATCH)) < 270, "seven standard deviations"


async def test_a_message_says_what_it_waited_for_and_whose_it_was(bench: Bench, spans: Spans) -> None:
    bench.ledger = spans.traces()
    await bench.run(orders=lane(policy="sequenced", reconnect_grace=0))
    client = await bench.client()
    client.send("in", b"1", "g")
    await eventually(lambda: bench.status()["held"] == 1)
    first = await bench.joined("c1", hold=True)
    await first.has(1)
    client.send("in", b"2", "g")
    await eventually(lambda: bench.status()["held"] == 1)
    first.settle([first.received[0].seq])
    await first.has(2)
    await first.drop()
    await bench.joined("c2")
    await bench.acked()
    one, two = await spans.ended(DISPATCH, 2)
    assert events(one) == ["waited_for", "handed_over"]
    assert event(one, "waited_for")["cause"] == "consumer"
    assert events(two) == ["waited_for", "handed_over", "taken_back", "waited_for", "handed_over"]
    facts = [dict(each.attributes or {}) for each in two.events]
    assert [facts[at]["dispatcher.cause"] for at in (0, 3)] == ["group", "retry"]
    handed = [(facts[at]["dispatcher.consumer"], facts[at]["dispatcher.attempt"]) for at in (1, 4)]
    assert handed == [("c1", 1), ("c2", 2)]
    assert facts[2]["dispatcher.consumer"] == "c1"
    assert all(span.parent is None for span in (one, two))
    times = [each.timestamp for each in two.events]
    assert [two.start_time, *times, two.end_time] == sorted([two.start_time or 0, *times, two.end_time or 0])


async def test_a_full_prefetch_is_told_as_a_window(bench: Bench, spans: Spans) -> None:
    bench.ledger = spans.traces()
    await bench.run(orders=lane())
    client = await bench.client()
    consumer = await bench.joined("c1", prefetch=1, hold=True)
    client.send("in", b"1", "g")
    await consumer.has(1)
    client.send("in", b"2", "h")
    await eventually(lambda: bench.status()["held"] == 1)
    consumer.release()
    await bench.acked()
    one, two = await spans.ended(DISPATCH, 2)
    assert events(one) == ["handed_over"]
    assert event(two, "waited_for")["cause"] == "window"


async def test_a_parked_message_keeps_its_span(bench: Bench, spans: Spans) -> None:
    bench.ledger = spans.traces()
    await bench.run(orders=lane(park_after="200ms"))
    await send(bench, b"1", traceparent=SAMPLED)
    await eventually(lambda: bench.counter("parked") == 1)
    received: list[Message] = []

    async def handle(message: Message) -> None:
        received.append(message)

    async with consuming(bench, traced(handle, spans.application)):
        await eventually(lambda: bench.counter("settled") == 1)
    (dispatched,), (handled,) = await spans.ended(DISPATCH, 1), spans.named("process")
    assert events(dispatched) == ["parked", "read_back", "waited_for", "handed_over"]
    assert event(dispatched, "waited_for")["cause"] == "parked"
    assert event(dispatched, "waited_for")["ms"] >= 200
    assert is_inside(handled, dispatched)
    assert received[0].headers == {"x-group-id": "g", "traceparent": SAMPLED}
    assert outcome(dispatched) == "settled"


async def test_the_next_leader_begins_spans_of_its_own(bench: Bench, spans: Spans) -> None:
    bench.ledger = spans.traces()
    await bench.run(orders=lane(park_after="200ms"))
    await send(bench, b"parked", group="p", traceparent=SAMPLED)
    await eventually(lambda: bench.counter("parked") == 1)
    consumer = await bench.joined("c1", hold=True)
    await send(bench, b"1", traceparent=SAMPLED)
    await consumer.has(2)
    await bench.crash()
    await bench.run(orders=lane(park_after="200ms"))

    async def recovered() -> bool:
        rows = (await bench.ask("groups.list"))["groups"]
        return len(rows) == 2 and all(row["state"] != "recovering" for row in rows)

    await eventually(recovered)
    consumer.release()
    await eventually(lambda: bench.counter("settled") == 2)
    found = await spans.ended(DISPATCH, 4)
    assert [outcome(span) for span in found] == ["not_settled", "not_settled", "settled", "settled"]
    assert {(trace_id(span), span.parent and span.parent.span_id) for span in found} == {
        (TRACE, int(PARENT, 16))
    }


async def test_every_other_end_is_told(bench: Bench, spans: Spans) -> None:
    bench.ledger = spans.traces()
    stops = {"attempts": 1, "on_exhausted": "stop"}
    await bench.run(orders=lane(dedup={"window": "5m"}, retry=stops))
    client = await bench.client()
    await client.declare("elsewhere")
    await bench.ask("groups.pause", all=True)
    for group in ("purged", "moved", "failing"):
        client.send("in", group.encode(), group, message_id=group.encode())
    client.send("in", b"again", "purged", message_id=b"purged")
    await eventually(lambda: bench.status()["held"] == 3)
    await bench.ask("groups.purge", group="purged")
    await bench.ask("groups.move", group="moved", to="elsewhere")
    await eventually(lambda: bench.counter("deduplicated") == 1)
    await eventually(lambda: bench.status()["held"] == 1)
    await bench.ask("groups.resume", all=True)
    consumer = await bench.joined("c1", hold=True)
    await consumer.has(1)
    consumer.fail(consumer.received[0].seq, "broken", attempts=2)
    await eventually(lambda: bench.status()["groups_stopped"] == 1)
    await bench.ask("dead.release", group="failing")
    consumer.release()
    await bench.acked()
    found = await spans.ended(DISPATCH, 4)
    groups = [(span.attributes or {})["dispatcher.group"] for span in found]
    ended = list(zip(groups, map(outcome, found), strict=True))
    assert sorted(ended) == [
        ("failing", "settled"), ("moved", "moved"), ("purged", "deduplicated"), ("purged", "purged"),
    ]  # fmt: skip
    failing = found[groups.index("failing")]
    assert event(failing, "failed") == {"reason": "broken", "calls": 2}
    assert events(failing)[-3:] == ["failed", "waited_for", "handed_over"]


async def test_a_message_that_cannot_be_understood_is_traced_to_the_dead_queue(
    bench: Bench, spans: Spans
) -> None:
    bench.ledger = spans.traces()
    await bench.run(orders=lane())
    client = await bench.client()
    client.send("in", b"1", None, b"\x0ax-group-idt\x01")
    await eventually(lambda: bench.counter("dead_lettered") == 1)
    (span,) = await spans.ended(DISPATCH, 1)
    assert outcome(span) == "dead_lettered"
    assert "x-group-id" in str((span.attributes or {})["dispatcher.reason"])


async def test_in_a_hand_over_lane_the_span_ends_with_the_copy(bench: Bench, spans: Spans) -> None:
    bench.ledger = spans.traces()
    inbound = [{"queue": "in", "declare": True}]
    consumers = [{"id": "one", "prefetch": 50}]
    await bench.run(orders={"inbound": inbound, "handover": True, "consumers": consumers})
    await send(bench, b"1", traceparent=SAMPLED)
    reader = await Reader.open(bench.rabbitmq, bench.names().consumer("one"))
    await reader.has(1)
    await bench.acked()
    reader.die()
    (span,) = await spans.ended(DISPATCH, 1)
    assert outcome(span) == "handed_over"


async def test_too_many_open_spans_are_bounded_and_told_once(bench: Bench, spans: Spans) -> None:
    bench.ledger = spans.traces(open_max=3)
    await bench.run(orders=lane())
    client = await bench.client()
    with structlog.testing.capture_logs() as said:
        for number in range(6):
            client.send("in", b"%d" % number, "g")
        await eventually(lambda: bench.status()["held"] == 6)
    consumer = await bench.joined("c1")
    await consumer.has(6)
    await bench.acked()
    await spans.ended(DISPATCH, 3)
    assert [record["event"] for record in said].count("spans_skipped") == 1


async def test_ledger_and_traces_hear_the_same(bench: Bench, spans: Spans, tmp_path: Path) -> None:
    ledger = Ledger(LedgerSettings(path=str(tmp_path / "ledger")))
    ledger.start()
    bench.ledger = Both(ledger, spans.traces())
    await bench.run(orders=lane(park_after="200ms"))
    client = await bench.client()
    client.send("in", b"1", "g", type_=b"invoice")
    await eventually(lambda: bench.counter("parked") == 1)
    await bench.joined("c1")
    await eventually(lambda: bench.counter("settled") == 1)
    await bench.stop()
    assert ledger.stop(TIMEOUT_S)
    record = reading.one(reading.records(tmp_path / "ledger", "settled"))
    (span,) = await spans.ended(DISPATCH, 1)
    assert record["type"] == "invoice"
    assert record["wait_cause"] == event(span, "waited_for")["cause"] == "parked"
    told_us = (record["dispatched_at"] - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
    assert told_us * 1_000 == span.events[-1].timestamp
    assert "ledger_records" in bench.ledger.counters(LANE)
