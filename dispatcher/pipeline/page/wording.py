"""Values as people read them, with their units."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

#: Of a name; longer ones are cut, and their length is given.
NAME_MAX: Final = 80
#: Of a sentence.
TEXT_MAX: Final = 400
NOTHING: Final = "–"
#: What a message waited for last, by `wait_cause` of the ledger.
WAITS: Final = {
    "retry": "the hand-over before",
    "parked": "its parking queue",
    "paused": "an operator, who had paused it",
    "group": "others of its group",
    "window": "its consumer, whose prefetch was full",
    "consumer": "a consumer to come",
    "turn": "its turn",
}
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SPANS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def clipped(text: Any, length: int = NAME_MAX) -> str:
    """The whole text, or its beginning and how long it is; without what would control a terminal."""
    whole = _CONTROLS.sub("\ufffd", str(text))
    if len(whole) <= length:
        return whole
    return f"{whole[: length - 1]}… ({len(whole):,} characters)"


def sentence(text: Any) -> str:
    return clipped(text, TEXT_MAX)


def count(number: int | None) -> str:
    return NOTHING if number is None else f"{number:,}"


def decimal(number: float | None, places: int = 2) -> str:
    return NOTHING if number is None else f"{number:,.{places}f}"


def percent(part: float | None) -> str:
    """`12.3 %`"""
    if part is None:
        return NOTHING
    return "< 0.1 %" if 0 < part < 0.0005 else f"{part:.1%}".replace("%", " %")


def duration(us: float | None) -> str:
    """`740 µs`, `1.2 ms`, `59.6 ms`, `416 ms`, `6.94 s`, `3 min 20 s`, `2 d 4 h`"""
    if not us:
        return NOTHING if us is None else "0 s"
    if abs(us) < 1_000:
        return f"{us:.0f} µs"
    if abs(us) < 999_500:
        return f"{_three_digits(us / 1_000)} ms"
    if abs(us) < 60_000_000:
        return f"{_three_digits(us / 1_000_000)} s"
    seconds = round(us / 1_000_000)
    place = next((i for i, (_, length) in enumerate(_SPANS) if seconds >= length), len(_SPANS) - 1)
    unit, length = _SPANS[place]
    whole, rest = divmod(seconds, length)
    if place == len(_SPANS) - 1 or not (lower := rest // _SPANS[place + 1][1]):
        return f"{whole:,} {unit}"
    return f"{whole:,} {unit} {lower} {_SPANS[place + 1][0]}"


def size(number: float) -> str:
    """`512 B`, `4 KiB`"""
    for unit in ("B", "KiB", "MiB"):
        if number < 1_024:
            return f"{number:,.0f} {unit}"
        number /= 1_024
    return f"{number:,.0f} GiB"


def moment(time: datetime | None) -> str:
    """`2026-11-22 11:34:21.827`, UTC, the fraction only where there is one."""
    if time is None:
        return NOTHING
    utc = time.astimezone(UTC) if time.tzinfo else time
    text = utc.strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{utc.microsecond // 1_000:03d}" if utc.microsecond else text


def plural(number: int, noun: str) -> str:
    """`1 group`, `2,000 groups`"""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _three_digits(number: float) -> str:
    text = f"{number:.2f}" if number < 9.995 else f"{number:.1f}" if number < 99.95 else f"{number:.0f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
