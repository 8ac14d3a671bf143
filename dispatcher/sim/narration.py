"""The last events of a run, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dispatcher.core.effects import Effects
from dispatcher.core.events import MessagesArrived
from dispatcher.core.parking.events import ParkingQueueRead
from dispatcher.sim.history import RunHistory

_LINE_CHARACTERS_MAX: Final = 400


def narrate(history: RunHistory, begun_at_ms: int, count: int | None) -> Iterator[str]:
    """One line per event: ms since the beginning, who, what."""
    events = list(history.events)
    for at_ms, who, what, details in events if count is None else events[-count:]:
        text = _step(*details) if what == "step" else " ".join(map(str, details))
        line = f"{at_ms - begun_at_ms:7d}  {who:12s} {what} {text}"
        yield line if count is None else line[:_LINE_CHARACTERS_MAX]


def _step(events: list[Any], effects: Effects) -> str:
    shown = []
    for event in events:
        if type(event) is ParkingQueueRead:
            flags = "".join("*" if message.redelivered else "." for message in event.messages)
            shown.append(f"read[{event.queue}: {flags}{' end' if event.is_end else ''}]")
        elif type(event) is MessagesArrived:
            flags = "".join("*" if message.redelivered else "." for message in event.messages)
            first = event.messages[0]
            shown.append(f"arrived[{first.inbound}:{first.tag}… {flags}]")
        else:
            shown.append(str(event))
    return f"{', '.join(shown)} → {_short(effects.records)} then {_short(effects.actions)}"


def _short(items: list[Any]) -> str:
    return "[" + ", ".join(f"{type(item).__name__}{_fields(item)}" for item in items) + "]"


def _fields(item: Any) -> str:
    named = item._asdict() if hasattr(item, "_asdict") else {}
    named = {name: _shown(value) for name, value in named.items() if name not in ("fingerprint", "content")}
    return "(" + ", ".join(f"{name}={value}" for name, value in named.items()) + ")"


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)) and len(value) > 4:
        return f"{len(value)} items"
    return str(value)
