"""The producer's trace context, and that of our span on its way to the consumer (W3C Trace Context)."""

from __future__ import annotations

import logging
import re
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
#: How fields with the producer's headers begin.
_FIELDS: Final = tuple(bytes((len(name),)) + name.encode() for name in (TRACEPARENT, TRACESTATE))
#: A context that is not sampled. It is most of them where producers sample, so it is told at once.
_NOT_SAMPLED: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][02468ace]")
_OURS: Final = HEADER_TRACEPARENT.encode()
_STRING_TYPES: Final = b"Sx"
_PROPAGATOR: Final = TraceContextTextMapPropagator()
#: They warn of each header that they can't read. A producer could fill the log with such lines.
for _name in ("opentelemetry.trace.span", "opentelemetry.trace.propagation.tracecontext"):
    logging.getLogger(_name).setLevel(logging.ERROR)


def producers_context(content: Content) -> Context | bool:
    """What the producer's headers say: the context of a trace, False for one that is not sampled, and True
    where they say nothing, or nothing that the standard knows."""
    properties = content.properties
    if _PARENT not in properties:
        return True
    try:
        fields = readable_fields(split_table(properties)[0], properties)
    except ProtocolViolation:  # such a message is refused anyway
        return True
    carrier = {}
    for one in fields:
        if one.startswith(_FIELDS):
            kind_at = 1 + one[0]
            if one[kind_at] in _STRING_TYPES:
                carrier[one[1:kind_at].decode()] = one[kind_at + 5 :].decode("latin-1")
    if _NOT_SAMPLED.fullmatch(carrier.get(TRACEPARENT, "")):
        return False
    context = _PROPAGATOR.extract(carrier, Context())
    span = get_current_span(context).get_span_context()
    if not span.is_valid:
        return True
    return context if span.trace_flags.sampled else False


def give_to_consumer(content: Content, span: SpanContext) -> None:
    """From now on copies of this message say that their handler runs inside this span."""
    text = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    content.add_field(string_field(_OURS, text.encode()))
