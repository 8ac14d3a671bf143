"""What traces cost a message: `python -m bench.traces`.

The core hands over messages and tells a recorder of them: one that forgets everything (traces are off), and
those of several samples. What counts is the CPU of the calls in the dispatcher's loop; that of the thread
which encodes the spans for a collector (and sends them nowhere) is told apart.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from bench.ledger import LANE, Timed, Traffic
from dispatcher.amqp.properties import HEADERS, string_field
from dispatcher.amqp.relay import Content
from dispatcher.core.model import Original
from dispatcher.ledger.recorder import NO_LEDGER, OpensRecorders, Recorder
from dispatcher.service.process import GC_THRESHOLDS
from dispatcher.settings import TraceSettings
from dispatcher.traces.exporting import Traces, wall_clock_us

_CONTEXT: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"
#: What is measured: the traces' sample (None: off), and the flags of the producer's context (none: "").
CASES: Final[dict[str, tuple[float | None, str]]] = {
    "off": (None, ""),
    "off, producers trace": (None, "01"),
    "sample 0": (0.0, ""),
    "sample 0.01": (0.01, ""),
    "the producer said no": (1.0, "00"),
    "sample 1": (1.0, ""),
    "the producer said yes": (0.0, "01"),
}


class _Encodes(SpanExporter):
    """Does what an exporter does, and sends nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


class _Producers(Traffic):
    """Traffic with a `traceparent`, or without one."""

    def __init__(self, recorder: Recorder, batch: int, flags: str) -> None:
        super().__init__(recorder, batch)
        fields = [string_field(b"x-group-id", b"g"), string_field(b"customer", b"c" * 20)]
        if flags:
            fields.append(string_field(b"traceparent", f"{_CONTEXT}{flags}".encode()))
        table = b"".join(fields)
        self._properties = bytes((HEADERS, 0)) + len(table).to_bytes(4) + table

    def _message(self, now_ms: int) -> Original:
        message, properties = super()._message(now_ms), self._properties
        message.content = Content(
            message.group_id,
            False,
            None,
            message.fingerprint,
            b"",
            b"in",
            properties,
            6,
            len(properties),
            b"",
        )
        return message


def round_of(messages: int, batch: int, sample: float | None, flags: str) -> tuple[float, float, float]:
    """µs of CPU a message: of the core with the making of messages, of the calls, of the thread."""
    gc.collect()
    place: OpensRecorders = NO_LEDGER
    if sample is not None:
        place = Traces(TraceSettings(sample=sample), _Encodes(), wall_clock_us)
    timed = Timed(place.recorder(LANE))
    traffic = _Producers(timed, batch, flags)
    process_s, loop_s, timed.spent_s = time.process_time(), time.thread_time(), 0.0
    traffic.run(messages, rate=1_000_000)
    process_s, loop_s = time.process_time() - process_s, time.thread_time() - loop_s
    calls_s = timed.spent_s
    timed.ended(None)
    if isinstance(place, Traces):
        place.stop(10)
    used = (loop_s - calls_s, calls_s, process_s - loop_s)
    return tuple(each / messages * 1e6 for each in used)  # type: ignore[return-value]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.traces", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000, help="in each round (10000)")
    parser.add_argument("--rounds", type=int, default=5, help="medians of so many (5)")
    parser.add_argument("--batch", type=int, default=32, help="messages that arrive at a time (32)")
    given = parser.parse_args()
    if min(given.messages, given.rounds, given.batch) < 1 or given.batch > given.messages:
        parser.error("all must be at least 1, and --batch at most --messages")
    gc.set_threshold(*GC_THRESHOLDS)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CASES}
    for _ in range(given.rounds):
        for name, case in CASES.items():  # in turn, so that a drift of the machine hits all alike
            found[name].append(round_of(given.messages, given.batch, *case))
    print(f"{'µs of CPU a message':<24} {'core':>8} {'traces':>8} {'thread':>8}")
    for name, rounds in found.items():
        core, calls, thread = (median(column) for column in zip(*rounds, strict=True))
        print(f"{name:<24} {core:>8.2f} {calls:>8.2f} {thread:>8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
