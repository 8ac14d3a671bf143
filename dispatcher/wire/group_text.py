"""Group ids as people and JSON see them: any bytes, and back without loss.

Printable UTF-8 stays as it is; every other byte is shown as `%xx`. So is a `%` that would otherwise
be read as the beginning of one.
"""

from __future__ import annotations

import re
from typing import Final

_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")


def format_group(group: bytes) -> str:
    """The group id as text; parse_group gives it back."""
    text = _ESCAPE.sub(rb"%25\1", group).decode(errors="surrogateescape")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def parse_group(text: str) -> bytes:
    """The group id that this text means."""
    return _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode(errors="surrogateescape"))


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode(errors="surrogateescape"))
