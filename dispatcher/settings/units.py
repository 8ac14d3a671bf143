"""Durations and sizes as people write them: `500ms`, `5s`, `2m`, `256MiB`."""

from __future__ import annotations

import re
from typing import Final

DURATION_PATTERN: Final = r"[0-9]+(ms|s|m|h|d)"
SIZE_PATTERN: Final = r"[0-9]+(B|KiB|MiB|GiB)"

_DURATION_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_UNITS_BYTES: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
#: Longer digits can't be meant, and Python refuses to convert very long ones with a text of its own.
_DIGITS_MAX: Final = 15


def a_duration(*, may_be_0: bool = True) -> str:
    """What text must be to be read as a duration, in words."""
    return "a duration such as 500ms, 5s" + (", 2m or 0" if may_be_0 else " or 2m")


def parse_duration_ms(text: str, *, may_be_0: bool = True) -> int:
    """Milliseconds of `500ms`, `5s`, `2m`, `1h`, `7d` or `0`. Raises ValueError with what it must be, which
    names 0 only where it `may_be_0`."""
    if text == "0":
        return 0
    return _parse(text, DURATION_PATTERN, _DURATION_UNITS_MS, a_duration(may_be_0=may_be_0))


def parse_size_bytes(text: str) -> int:
    """Bytes of `512B`, `64KiB`, `256MiB` or `1GiB`. Raises ValueError with what it must be."""
    return _parse(text, SIZE_PATTERN, _SIZE_UNITS_BYTES, "a size such as 64KiB, 256MiB or 1GiB")


def format_duration(duration_ms: int) -> str:
    """The shortest exact way to write it; parse_duration_ms reads it back."""
    return "0" if duration_ms == 0 else _format(duration_ms, _DURATION_UNITS_MS)


def format_size(size_bytes: int) -> str:
    """The shortest exact way to write it; parse_size_bytes reads it back."""
    return _format(size_bytes, _SIZE_UNITS_BYTES)


def _parse(text: str, pattern: str, units: dict[str, int], wanted: str) -> int:
    found = re.fullmatch(pattern, text)
    if found is None or len(text) > _DIGITS_MAX:
        raise ValueError(f"must be {wanted}")
    unit = found.group(1)
    return int(text.removesuffix(unit)) * units[unit]


def _format(value: int, units: dict[str, int]) -> str:
    for unit, factor in sorted(units.items(), key=lambda item: -item[1]):
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return f"{value}{min(units, key=lambda unit: units[unit])}"
