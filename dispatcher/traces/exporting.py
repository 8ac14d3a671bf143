"""Where finished spans go: by OTLP over HTTP, in batches, from a thread of OpenTelemetry's SDK."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from dispatcher.ledger.recorder import Recorder
from dispatcher.settings import TraceSettings
from dispatcher.traces.recorder import SpanRecorder

#: Spans of a lane that have not ended: messages that come beyond that have none.
OPEN_SPANS_MAX: Final = 50_000
#: Finished spans that wait for the thread: beyond that OpenTelemetry drops them, and says so in the log.
QUEUE_SPANS_MAX: Final = 16_384
BATCH_SPANS_MAX: Final = 1_024
BATCH_AGE_MS: Final = 1_000
#: How long the collector may take for one batch.
EXPORT_S: Final = 5


def wall_clock_us() -> int:
    """µs since 1970."""
    return time.time_ns() // 1_000


def otlp_exporter(settings: TraceSettings) -> SpanExporter:
    """Sends spans to the collector. OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_HEADERS and others) say
    what the configuration does not."""
    return OTLPSpanExporter(endpoint=settings.traces_url, timeout=EXPORT_S)


class Traces:
    """Lanes get their recorders from here (`OpensRecorders`). `now_us` is the clock of all of them."""

    def __init__(
        self, settings: TraceSettings, exporter: SpanExporter, now_us: Callable[[], int],
        open_max: int = OPEN_SPANS_MAX,
    ) -> None:  # fmt: skip
        self._open_max = open_max
        self._sample = settings.sample
        self._now_us = now_us
        # Which messages have a span is decided by the recorder, before a span costs anything. The settings
        # name the service: OTEL_SERVICE_NAME would be that of every program that reads this environment.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create({SERVICE_NAME: settings.service_name}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(
            exporter, max_queue_size=QUEUE_SPANS_MAX, max_export_batch_size=BATCH_SPANS_MAX,
            schedule_delay_millis=BATCH_AGE_MS,
        ))  # fmt: skip

    def recorder(self, lane: str) -> Recorder:
        tracer = self._provider.get_tracer("dispatcher")
        return SpanRecorder(lane, tracer, self._sample, self._now_us, self._open_max)

    def counters(self, lane: str) -> dict[str, float]:
        return {}

    def flush(self, timeout_s: float) -> bool:
        """Send what there is; False when that takes longer."""
        return self._provider.force_flush(int(timeout_s * 1_000))

    def stop(self, timeout_s: float) -> bool:
        """The same, and nothing is sent any more: a collector that hangs does not keep the process."""
        ending = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        ending.start()
        ending.join(timeout_s)
        return not ending.is_alive()
