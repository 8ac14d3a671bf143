"""One span for each message, from its arrival to its settle, and the handler's span inside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from dispatcher.client import (
    GroupConsumer,
    GroupProducer,
    Message,
)
from dispatcher.client.traces import traced
from tests.service.harness import LANE, Bench, lane
from tests.traces.conftest import Spans, event, events, trace_id

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
        await asyncio.wait_for(task, 10)
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
    (dispatched,) = spans.named(DISPATCH)
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
