"""What copies of an existing flow show: groups, skew, and numbers or times that are out of order."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

#: Of the groups with most messages, and of those who published late.
SHOWN: Final = 10
UNGROUPED: Final = -1


class SeenMessage(NamedTuple):
    """One message as it was published."""

    at_s: float  # when its copy came, on the observer's clock
    group: str | None
    size: int
    number: int | None  # its producer's
    stamp_s: int | None  # its AMQP timestamp
    producer: str  # who says to have published it


@dataclass(slots=True)
class Order:
    """Numbers or times within groups, in the order of publishing."""

    counted: int = 0  # messages that have one
    late: int = 0  # smaller than one before it
    repeated: int = 0
    gaps: int = 0  # numbers left out
    by: Counter[tuple[str, str]] = field(default_factory=Counter)  # who was late, and who was before it
    _last: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, group: str, value: int, producer: str) -> None:
        """The next message of that group has this."""
        self.counted += 1
        last = self._last.get(group)
        if last is not None:
            highest, before = last
            if value < highest:
                self.late += 1
                self.by[producer, before] += 1
                return
            self.repeated += value == highest
            self.gaps += max(0, value - highest - 1)
        self._last[group] = value, producer

    def as_json(self) -> dict[str, Any]:
        by = [{"by": who, "after": before, "messages": n} for (who, before), n in self.by.most_common(SHOWN)]
        return {"messages": self.counted, "late": self.late, "repeated": self.repeated, "gaps": self.gaps,
                "late_by": by}  # fmt: skip


class Observation:
    """Everything seen so far."""

    def __init__(self) -> None:
        self.at_s = array("d")
        self.group_of = array("q")  # place in `groups`, or UNGROUPED
        self.groups: dict[str, int] = {}
        self.bytes = 0
        self.numbers, self.stamps = Order(), Order()

    def __len__(self) -> int:
        return len(self.at_s)

    def add(self, copy: SeenMessage) -> None:
        """Copies come in the order of publishing."""
        self.at_s.append(copy.at_s)
        self.bytes += copy.size
        if copy.group is None:
            self.group_of.append(UNGROUPED)
            return
        self.group_of.append(self.groups.setdefault(copy.group, len(self.groups)))
        if copy.number is not None:
            self.numbers.add(copy.group, copy.number, copy.producer)
        if copy.stamp_s is not None:
            self.stamps.add(copy.group, copy.stamp_s, copy.producer)

    def busiest(self) -> list[tuple[str, int]]:
        """The groups with most messages, and how many."""
        counts = Counter(self.group_of)
        counts.pop(UNGROUPED, None)
        names = list(self.groups)
        return [(names[place], count) for place, count in counts.most_common(SHOWN)]

    def as_json(self, seconds: float) -> dict[str, Any]:
        """The numbers, of an observation that lasted so long. The times in `stamps` are whole seconds, so
        what repeats there and what is left out means nothing."""
        messages = len(self)
        stamps = self.stamps.as_json()
        return {
            "seconds": round(seconds, 3),
            "messages": messages,
            "messages_per_s": round(messages / seconds, 3) if seconds else None,
            "bytes": self.bytes,
            "groups": len(self.groups),
            "without_group": self.group_of.count(UNGROUPED),
            "busiest": [
                {"group": group, "messages": count, "share": round(count / messages, 4)}
                for group, count in self.busiest()
            ],
            "numbers": self.numbers.as_json(),
            "timestamps": {name: stamps[name] for name in ("messages", "late", "late_by")},
        }
