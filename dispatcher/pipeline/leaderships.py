"""Who led a lane when, and what the ledger does not have: from files' footers and the records of leaderships.

Instants across hosts are ordered by `turn` first: that of a leadership is twice its lane epoch, so that it
is the same whatever else the ledger has; the odd turn before stands for the time between two leaderships.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.ledger_files import Found, LedgerFile

#: Records of leaderships: few, and needed as a whole.
LEADERSHIP_EVENTS: Final = (
    Event.LANE_STARTED, Event.LANE_CHANGED, Event.LANE_ENDED, Event.RECORDS_DROPPED,
    Event.TOLD_AGAIN,
)  # fmt: skip
GROUPS_MOVING: Final = "groups_moving"
#: Epochs and numbers of a leadership begin with its lane epoch × 2^20 (docs/ledger.md).
COUNTER_SHIFT: Final = 20
#: The turn of a leadership is this many times its lane epoch.
TURNS_PER_EPOCH: Final = 2


class Fact(NamedTuple):
    """One record of a leadership."""

    lane: str
    writer: str
    ordinal: int
    time_us: int
    event: str
    reason: str | None
    messages: int | None
    detail: dict[str, Any]


class Extent(NamedTuple):
    """What a writer's records reach over."""

    lane: str
    writer: str
    first_us: int
    last_us: int
    epoch_max: int | None  # of the groups' epochs


class RecordedLeadership(NamedTuple):
    """One writer of a lane. Without records (`first_us` None) all its files are bad."""

    lane: str
    turn: int
    writer: str
    lane_epoch: int
    first_us: int | None
    last_us: int | None
    epoch_max: int
    ranges: list[tuple[int, int]]  # of ordinals, joined and in order
    started: Fact | None
    ended: Fact | None
    facts: list[Fact]

    @property
    def options(self) -> dict[str, Any]:
        return self.started.detail if self.started is not None else {}

    def follows(self, former: RecordedLeadership) -> bool:
        """Whether that was the one before, as far as Redis knew when this one began. Redis may have lost the
        epoch of the former one."""
        before = self.options.get("former_epoch")
        return isinstance(before, int) and before <= max(former.lane_epoch, former.epoch_max)

    def tells_again(self, former: RecordedLeadership) -> bool:
        """Whether all that the former one's files don't have was told by this one, from the journal."""
        told = [each.detail for each in self.facts if each.event == Event.TOLD_AGAIN]
        return bool(former.ranges) and any(
            each.get("writer") == former.writer and each.get("missing") == 0
            and isinstance(each.get("ordinal"), int) and each["ordinal"] <= former.ranges[-1][1]
            for each in told
        )  # fmt: skip


def fact(row: Any) -> Fact:
    """From a row of the records; a detail that is no JSON object says nothing."""
    try:
        detail = json.loads(row["detail"] or "{}")
    except ValueError:
        detail = {}
    return Fact(
        row["lane"], row["writer"], row["ordinal"], row["time_us"], row["event"], row["reason"],
        row["messages"], detail if isinstance(detail, dict) else {},
    )  # fmt: skip


def order_writers(found: Found) -> dict[tuple[str, str], int]:
    """The turn of each lane's writers."""
    epochs = {(each.lane, each.writer): each.lane_epoch for each in found.files}
    for bad in found.bad:
        if bad.lane is not None and bad.writer is not None and bad.lane_epoch is not None:
            epochs.setdefault((bad.lane, bad.writer), bad.lane_epoch)
    return {
        each: TURNS_PER_EPOCH * epochs[each]
        for each in sorted(epochs, key=lambda key: (key[0], epochs[key], key[1]))
    }


def extents(found: Found) -> list[Extent]:
    """Of all writers, as their files' footers tell."""
    files: dict[tuple[str, str], list[LedgerFile]] = defaultdict(list)
    for file in found.files:
        files[file.lane, file.writer].append(file)
    return [
        Extent(
            lane, writer, min(file.first_us for file in mine), max(file.last_us for file in mine),
            max(file.epoch_max for file in mine),
        )
        for (lane, writer), mine in files.items()
    ]  # fmt: skip


def leaderships(found: Found, facts: Iterable[Fact], extents: Iterable[Extent]) -> list[RecordedLeadership]:
    """All writers of all lanes, by lane and turn."""
    by_writer: dict[tuple[str, str], list[Fact]] = defaultdict(list)
    for each in sorted(facts, key=lambda fact: fact.ordinal):
        by_writer[each.lane, each.writer].append(each)
    reached = {(each.lane, each.writer): each for each in extents}
    files: dict[tuple[str, str], list[LedgerFile]] = defaultdict(list)
    for file in found.files:
        files[file.lane, file.writer].append(file)
    made = []
    for (lane, writer), turn in order_writers(found).items():
        known, extent = by_writer[lane, writer], reached.get((lane, writer))
        made.append(RecordedLeadership(
            lane, turn, writer, int(writer.partition("-")[0]),
            extent.first_us if extent else None, extent.last_us if extent else None,
            (extent.epoch_max or 0) >> COUNTER_SHIFT if extent else 0,
            joined((file.first, file.last) for file in files[lane, writer]),
            next((each for each in known if each.event == Event.LANE_STARTED), None),
            next((each for each in known if each.event == Event.LANE_ENDED), None), known,
        ))  # fmt: skip
    return sorted(made, key=lambda each: (each.lane, each.turn))


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of whole numbers, those that touch made one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def written_twice(found: Found) -> set[tuple[str, str]]:
    """Writers of which some ordinals are in more than one file."""
    twice = set()
    last: dict[tuple[str, str], int] = {}
    for file in sorted(found.files, key=lambda file: (file.lane, file.writer, file.first)):
        key = file.lane, file.writer
        if file.first <= last.get(key, 0):
            twice.add(key)
        last[key] = max(last.get(key, 0), file.last)
    return twice
