"""JSON that people see too: in a log, on a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def dumps(value: Any, *, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """The value as JSON, in the characters that it has, except those that are not printable: they are escaped
    (`\\u009b`), so that no text of others steers a terminal or looks like a line of ours."""
    text = json.dumps(value, indent=indent, default=default, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
