"""What has happened to groups lately, for people: in memory, bounded, of this leadership only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from dispatcher.core.effects import Effects
from dispatcher.core.orders import LogEvent
from dispatcher.core.tables import OwnerRow
from dispatcher.wire.group_text import format_group

#: Changes of owners, of all groups together; and as many of what the log says about groups.
EVENTS_KEPT: Final = 20_000
#: Of one group.
EVENTS_SHOWN: Final = 30
#: Groups of which it is known how many dead letters they have had.
DEAD_LETTERED_KEPT: Final = 20_000
#: The latest dead letters of the lane, with their reasons.
DEAD_LETTERS_SHOWN: Final = 50
DEAD_LETTERED: Final = "message_dead_lettered"
OWNER_CHANGED: Final = "owner_changed"
_DEAD_LETTER: Final = ("group", "reason", "attempt", "calls")


class _Owner(NamedTuple):
    """A group has another owner, or none."""

    at_ms: int
    group: bytes
    consumer: str | None


class GroupHistory:
    """Remembers what the lane has committed. `consumer_of` names the consumer of an incarnation's number."""

    def __init__(self, now_ms: Callable[[], int], consumer_of: Callable[[int], str | None]) -> None:
        self._now_ms = now_ms
        self._consumer_of = consumer_of
        self._owners: deque[_Owner] = deque(maxlen=EVENTS_KEPT)
        self._told: deque[tuple[int, LogEvent]] = deque(maxlen=EVENTS_KEPT)
        self._dead_lettered: dict[str, int] = {}  # messages of a group, the group of the latest one last
        self._dead_letters: deque[tuple[int, LogEvent]] = deque(maxlen=DEAD_LETTERS_SHOWN)

    def committed(self, effects: Effects) -> None:
        """A step is committed."""
        if effects.owners:
            now_ms = self._now_ms()
            self._owners += [_Owner(now_ms, *each) for each in self._changes(effects.owners)]
        for action in effects.actions:
            if type(action) is LogEvent:
                self._tell(action)

    def _tell(self, told: LogEvent) -> None:
        group, is_dead = told.fields.get("group"), told.event == DEAD_LETTERED
        if group is not None:
            self._told.append((self._now_ms(), told))
            if is_dead:
                self._count_dead(group)
        if is_dead:
            self._dead_letters.append((self._now_ms(), told))

    def _count_dead(self, group: str) -> None:
        self._dead_lettered[group] = self._dead_lettered.pop(group, 0) + 1
        if len(self._dead_lettered) > DEAD_LETTERED_KEPT:
            del self._dead_lettered[next(iter(self._dead_lettered))]

    def dead_lettered(self, group_id: bytes) -> int:
        """So many messages of the group were sent to the dead queue, at least: former leaderships are not
        known here."""
        return self._dead_lettered.get(format_group(group_id), 0)

    def dead_letters(self) -> list[dict[str, Any]]:
        """The latest messages that went to the dead queue, the newest first, whether they still lie there or
        not; `group` is None for one without a group."""
        return [
            {"at": _instant(at_ms), **{name: told.fields.get(name) for name in _DEAD_LETTER}}
            for at_ms, told in reversed(self._dead_letters)
        ]

    def _changes(self, owners: dict[bytes, OwnerRow | None]) -> list[tuple[bytes, str | None]]:
        return [
            (group, self._consumer_of(row.incarnation) if row is not None else None)
            for group, row in owners.items()
        ]

    def of(self, group_id: bytes, key: bytes) -> list[dict[str, Any]]:
        """The newest first. With buckets the key is that of the bucket."""
        names = {format_group(group_id), format_group(key)}
        rows = [_owner_row(each) for each in self._owners if each.group == key]
        rows += [_told_row(at_ms, tell) for at_ms, tell in self._told if tell.fields["group"] in names]
        newest_first = sorted(reversed(rows), key=lambda row: row["at"], reverse=True)
        return newest_first[:EVENTS_SHOWN]


def _owner_row(change: _Owner) -> dict[str, Any]:
    return {"at": _instant(change.at_ms), "event": OWNER_CHANGED, "consumer": change.consumer, "detail": ""}


def _told_row(at_ms: int, tell: LogEvent) -> dict[str, Any]:
    fields = {name: value for name, value in tell.fields.items() if name not in ("group", "consumer")}
    return {
        "at": _instant(at_ms), "event": tell.event, "consumer": tell.fields.get("consumer"),
        "detail": ", ".join(f"{name} {value}" for name, value in fields.items() if value not in (None, {})),
    }  # fmt: skip


def _instant(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
