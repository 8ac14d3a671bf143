"""Plain values over a pipe, each with its length before it."""

from __future__ import annotations

import marshal
from typing import Any, BinaryIO, Final

HEAD_BYTES: Final = 4
#: Later ones look for values that come twice, which takes longer than to write them twice.
VERSION: Final = 2


def write_frame(stream: BinaryIO, value: Any) -> None:
    """Raises OSError when the other side has stopped reading."""
    content = marshal.dumps(value, VERSION)
    stream.write(len(content).to_bytes(HEAD_BYTES) + content)
    stream.flush()


def read_frame(stream: BinaryIO) -> Any:
    """What `write_frame` wrote; None at the end, also in the middle of a frame."""
    head = _read(stream, HEAD_BYTES)
    if head is None:
        return None
    content = _read(stream, int.from_bytes(head))
    return None if content is None else marshal.loads(content)


def _read(stream: BinaryIO, count: int) -> bytes | None:
    parts = []
    while count:
        part = stream.read(count)
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
