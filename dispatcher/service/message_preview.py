"""What an original says of itself, for operators: headers and properties, never its body."""

from __future__ import annotations

from typing import Any, Final

from dispatcher.amqp.relay import Content
from dispatcher.client import properties as amqp_properties
from dispatcher.wire.group_text import format_group

#: An answer is one message with many previews: longer texts, and more headers, are left out.
HEADERS_SHOWN: Final = 20
TEXT_SHOWN: Final = 200
_PROPERTIES: Final = ("message_id", "correlation_id", "type", "app_id", "content_type", "priority")


def preview(content: Content | None) -> dict[str, Any]:
    """Names, headers and some properties as JSON can hold them; nothing while the original is not here.

    Headers that are not relayed (`x-dispatch-…`) are not shown.
    """
    if content is None:
        return {}
    try:
        properties, headers = amqp_properties.read(content.properties)
    except ValueError:  # a header inside a nested table, which was not checked before
        return {"exchange": _shown(content.exchange), "routing_key": _shown(content.routing_key)}
    present = {name: getattr(properties, name) for name in _PROPERTIES}
    return {
        "exchange": _shown(content.exchange),
        "routing_key": _shown(content.routing_key),
        "properties": {name: _shown(value) for name, value in present.items() if value is not None},
        "headers": {str(_shown(name)): _shown(headers[name]) for name in list(headers)[:HEADERS_SHOWN]},
        "headers_left_out": max(0, len(headers) - HEADERS_SHOWN),
    }


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = format_group(bytes(value)) if isinstance(value, bytes | bytearray) else str(value)
    return text if len(text) <= TEXT_SHOWN else text[:TEXT_SHOWN] + "…"
