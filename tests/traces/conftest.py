"""Fixtures of the traces' tests: those of the running dispatcher, and spans that stay in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_trace_id

from dispatcher.settings import TraceSettings
from dispatcher.traces.exporting import OPEN_SPANS_MAX, Traces, wall_clock_us
from tests.service.conftest import _plain_log, bench, dispatcher_process
from tests.waiting import eventually

__all__ = ["_plain_log", "bench", "dispatcher_process"]


class Spans:
    """The dispatcher's traces, a consumer's provider, and what both have finished."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.application = TracerProvider()
        self.application.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._traces: list[Traces] = []

    def traces(self, open_max: int = OPEN_SPANS_MAX, **settings: Any) -> Traces:
        made = Traces(TraceSettings(**settings), self._exporter, wall_clock_us, open_max)
        self._traces.append(made)
        return made

    def named(self, name: str) -> list[ReadableSpan]:
        """Those that have ended, the earliest begun first."""
        for traces in self._traces:
            assert traces.flush(10)
        found = [span for span in self._exporter.get_finished_spans() if span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)

    async def ended(self, name: str, count: int) -> list[ReadableSpan]:
        """So many of that name, once they have: a span ends when the settle is committed."""
        await eventually(lambda: len(self.named(name)) >= count, what=f"{count} spans of {name}")
        found = self.named(name)
        assert len(found) == count
        return found

    def close(self) -> None:
        for traces in self._traces:
            traces.stop(10)


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.close()


def trace_id(span: ReadableSpan) -> str:
    return format_trace_id(span.context.trace_id)


def events(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


def event(span: ReadableSpan, name: str) -> dict[str, Any]:
    """What the one event of that name says, without the prefix of its keys."""
    (found,) = [event for event in span.events if event.name == name]
    return {key.removeprefix("dispatcher."): value for key, value in (found.attributes or {}).items()}


def outcome(span: ReadableSpan) -> str:
    return str((span.attributes or {})["dispatcher.outcome"])
