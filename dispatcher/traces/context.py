"""The producer's trace context, and that of our span on its way to the consumer (W3C Trace Context)."""

from __future__ import annotations

from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dispatcher.amqp.grouping import readable_fields
from dispatcher.amqp.properties import split_table, string_field
from dispatcher.amqp.relay import Content
from dispatcher.errors import ProtocolViolation
from dispatcher.wire.protocol import HEADER_TRACEPARENT, TRACEPARENT, TRACESTATE

_PARENT: Final = TRACEPARENT.encode()
_STATE: Final = TRACESTATE.encode()
_OURS: Final = HEADER_TRACEPARENT.encode()
_STRING_TYPES: Final = b"Sx"
_PROPAGATOR: Final = TraceContextTextMapPropagator()


def producers_context(content: Content) -> Context | None:
    """What the producer's headers say; None: nothing, or nothing that the standard knows."""
    properties = content.properties
    if _PARENT not in properties:
        return None
    try:
        fields, _, _ = split_table(properties)
    except ProtocolViolation:  # such a message is refused anyway
        return None
    carrier = {}
    for one in readable_fields(fields, properties):
        name, kind, text = one[1 : 1 + one[0]], one[1 + one[0] : 2 + one[0]], one[6 + one[0] :]
        if name in (_PARENT, _STATE) and kind and kind in _STRING_TYPES:
            carrier[name.decode()] = text.decode("latin-1")
    context = _PROPAGATOR.extract(carrier, Context())
    return context if get_current_span(context).get_span_context().is_valid else None


def give_to_consumer(content: Content, span: SpanContext) -> None:
    """From now on copies of this message say that their handler runs inside this span."""
    text = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    content.add_field(string_field(_OURS, text.encode()))
