"""A span around each call of a handler, inside the dispatcher's span of the message.

This module needs OpenTelemetry's API; nothing else of the client imports it.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

from dispatcher.client.copies import Copy
from dispatcher.client.handler_kinds import is_asynchronous
from dispatcher.client.retries import RetryLater

try:
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider, get_tracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:
    raise ImportError(
        "dispatcher.client.traces needs OpenTelemetry: pip install 'rabbitmq-group-dispatcher[traces]'"
    ) from missing

H = TypeVar("H", bound=Callable[..., object])
_PROPAGATOR = TraceContextTextMapPropagator()


@contextmanager
def handler_span(message: Copy, tracer_provider: TracerProvider | None = None) -> Iterator[Span]:
    """For iteration: what runs inside is traced as the work on this message, and is the current span.

    Its parent is the dispatcher's span of the message, or the producer's where the dispatcher does not trace.
    """
    tracer = get_tracer("dispatcher.client", tracer_provider=tracer_provider)
    attributes: dict[str, str | int] = {
        "messaging.system": "rabbitmq", "messaging.operation.type": "process",
        "messaging.message.body.size": len(message.body), "dispatcher.id": message.fingerprint.hex(),
        "dispatcher.seq": message.seq, "dispatcher.epoch": message.epoch,
        "dispatcher.attempt": message.attempt, "dispatcher.calls": message.calls,
    }  # fmt: skip
    if message.group_text is not None:
        attributes["dispatcher.group"] = message.group_text
    context = _PROPAGATOR.extract(message.trace_headers)
    with tracer.start_as_current_span(
        "process", context, SpanKind.CONSUMER, attributes, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except Exception as error:
            if not isinstance(error, RetryLater):  # it is asked for, not an error
                span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
            raise
        finally:
            if message.lost:
                span.set_attribute("dispatcher.lost", True)


def traced(handler: H, tracer_provider: TracerProvider | None = None) -> H:
    """The handler, with a span around each of its calls: `consumer.run(traced(handle))`.

    For the handlers of both consumers. The provider is OpenTelemetry's global one unless it is given.
    """
    if is_asynchronous(handler):

        @functools.wraps(handler)
        async def call_async(message: Copy) -> object:
            with handler_span(message, tracer_provider):
                return await cast(Awaitable[object], handler(message))

        return call_async  # type: ignore[return-value]

    @functools.wraps(handler)
    def call(message: Copy) -> object:
        with handler_span(message, tracer_provider):
            return handler(message)

    return call  # type: ignore[return-value]
