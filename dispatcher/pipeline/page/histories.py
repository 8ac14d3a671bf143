"""What happened to single groups over time: who had each, and how many of its messages waited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dispatcher.pipeline.lifecycle import WAITING
from dispatcher.pipeline.page.source import Source, equals

#: Of the time over which a group's history reaches.
SLOTS: Final = 60
#: Consumers with a line of their own, those with most hand-overs; the others share one.
HOLDERS_MAX: Final = 6
_READ: Final = ("group", "consumer", "attempt", "received_at", "dispatched_at", "ended_at")


class HolderTimes(NamedTuple):
    """A consumer of a group, or several that share a line. `held`: whether it had any of the group's messages
    in each slot."""

    consumers: list[str]
    hand_overs: int
    held: list[bool]


@dataclass(frozen=True)
class GroupTimes:
    """Of `SLOTS` slots, `step_us` long each. `waiting`: how many of the group's messages waited for their
    first hand-over at the end of each slot."""

    group: str
    since_us: int
    step_us: int
    holders: list[HolderTimes]
    waiting: list[int]

    @property
    def until_s(self) -> float:
        return (self.since_us + self.step_us * SLOTS) / 1e6


class _Span(NamedTuple):
    since_us: int
    step_us: int


def histories(source: Source, lane: str, groups: Sequence[str]) -> dict[str, GroupTimes]:
    """Those of these groups of a lane that any message of is in the report. Messages that came back to their
    queue because their leader ended count under the arrival that the next leader gave them. Raises
    ConfigurationError."""
    if not groups:
        return {}
    here = equals("lane", lane)
    waits = source.summed(
        "lifecycle", ("group", "received_at"), (), here & equals("outcome", WAITING) & _among(groups)
    )
    spans = _spans(source, lane, groups, {row["group"] for row in waits})
    places = {group: place for place, group in enumerate(spans)}
    counts = _Counts()
    for part in source.parts("hand_overs", _READ, here & _among(list(spans))) if spans else ():
        counts.add(part, spans)
    for row in waits:
        if row["group"] in spans and row["received_at"] is not None:
            slot = _slot(_micros(row["received_at"]), spans[row["group"]])
            counts.came[places[row["group"]], slot] += row["rows"]
    found = [
        GroupTimes(group, *span, counts.holders(places[group]), counts.waiting(places[group]))
        for group, span in spans.items()
    ]
    return {each.group: each for each in found if each.holders or any(each.waiting)}


def _among(groups: Sequence[str]) -> Any:
    return pc.field("group").isin(list(groups))


def _spans(source: Source, lane: str, groups: Sequence[str], wait_on: set[str]) -> dict[str, _Span]:
    """From a group's first hand-over to its last one; to the lane's end where it has not come to rest. Lanes
    whose groups have no order have no other times than the lane's."""
    points = source.rows("timeline", ("at", "step_ms"), equals("lane", lane))
    ends = [_micros(point["at"]) + part * point["step_ms"] * 1_000 for point in points for part in (0, 1)]
    columns = ("group", "first_at", "last_at", "open")
    known = {
        row["group"]: row for row in source.rows("groups", columns, equals("lane", lane) & _among(groups))
    }
    found = {}
    for group in groups:
        row = known.get(group, {})
        own = [_micros(row[name]) for name in ("first_at", "last_at") if row.get(name) is not None]
        if ends and (not own or row["open"] or group in wait_on):
            own = [min(own, default=min(ends)), max(*ends, *own)]
        if own:
            found[group] = _Span(min(own), max(1, -(-(max(own) - min(own) + 1) // SLOTS)))
    return found


class _Counts:
    """What began and ended in which slot: by the group's place and the consumer, or by the group's place."""

    def __init__(self) -> None:
        self.began: Counter[tuple[int, str, int]] = Counter()
        self.ended: Counter[tuple[int, str, int]] = Counter()
        self.came: Counter[tuple[int, int]] = Counter()
        self.went: Counter[tuple[int, int]] = Counter()

    def add(self, part: pa.Table, spans: dict[str, _Span]) -> None:
        """Hand-overs of some of these groups."""
        place = pc.index_in(part["group"], value_set=pa.array(list(spans), pa.string()))
        since, step = (
            pc.take(pa.array(each, pa.int64()), place) for each in zip(*spans.values(), strict=True)
        )

        def slots(times: pa.ChunkedArray) -> pa.ChunkedArray:
            passed = pc.divide(pc.subtract(pc.cast(times, pa.int64()), since), step)
            return pc.min_element_wise(
                pc.max_element_wise(passed, 0, skip_nulls=False), SLOTS - 1, skip_nulls=False
            )

        consumer = pc.fill_null(part["consumer"], "")
        began = slots(pc.coalesce(part["dispatched_at"], part["ended_at"]))
        _count(self.began, place, consumer, began)
        _count(self.ended, place, consumer, slots(part["ended_at"]))
        waited = pc.and_(pc.equal(part["attempt"], 1), pc.is_valid(part["received_at"]))
        waited = pc.and_(waited, pc.is_valid(part["dispatched_at"]))
        for counter, name in (self.came, "received_at"), (self.went, "dispatched_at"):
            _count(counter, place, pc.if_else(waited, slots(part[name]), None))

    def holders(self, place: int) -> list[HolderTimes]:
        """Those with most hand-overs, by when they had the group first, and then all others together."""
        totals: Counter[str] = Counter()
        for (of, consumer, _), number in self.began.items():
            if of == place:
                totals[consumer] += number
        ranked = sorted(totals, key=lambda each: (-totals[each], each))
        shown = [self._holder(place, [each], totals) for each in ranked[:HOLDERS_MAX]]
        shown.sort(key=lambda holder: (holder.held.index(True), holder.consumers))
        if rest := ranked[HOLDERS_MAX:]:
            shown.append(self._holder(place, rest, totals))
        return shown

    def _holder(self, place: int, consumers: list[str], totals: Counter[str]) -> HolderTimes:
        held, in_hand = [], 0
        for slot in range(SLOTS):
            began = sum(self.began[place, each, slot] for each in consumers)
            held.append(bool(in_hand or began))
            in_hand += began - sum(self.ended[place, each, slot] for each in consumers)
        return HolderTimes(consumers, sum(totals[each] for each in consumers), held)

    def waiting(self, place: int) -> list[int]:
        found, now = [], 0
        for slot in range(SLOTS):
            now += self.came[place, slot] - self.went[place, slot]
            found.append(max(0, now))
        return found


def _count(counter: Counter[Any], *columns: pa.ChunkedArray) -> None:
    """Add how many rows have which values; those with a null don't count."""
    names = [str(number) for number in range(len(columns))]
    rows = pa.table(list(columns), names).drop_null()
    for row in rows.group_by(names).aggregate([([], "count_all")]).to_pylist():
        counter[tuple(row[name] for name in names)] += row["count_all"]


def _slot(time_us: int, span: _Span) -> int:
    return min(max((time_us - span.since_us) // span.step_us, 0), SLOTS - 1)


def _micros(time: datetime) -> int:
    return round(time.timestamp() * 1e6)
