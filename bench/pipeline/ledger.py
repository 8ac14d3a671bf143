"""A ledger of given size, in the files that the dispatcher would write, with planted faults."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from bench.pipeline.traffic import (
    CONSUMERS,
    FAILED,
    INBOUNDS,
    OUTCOMES,
    SECOND,
    Columns,
    Numbers,
    counted,
    phase,
)
from dispatcher.ledger.files import FileWriter
from dispatcher.ledger.rows import TYPES
from dispatcher.ledger.schema import RECORD_COLUMNS, Event
from dispatcher.ledger.store import Store

START_US: Final = int(datetime(2026, 3, 1, 11, tzinfo=UTC).timestamp()) * SECOND
HOUR: Final = 3_600 * SECOND
DAY: Final = 24 * HOUR
#: Hours since a leadership began. The third one goes on over midnight: a lane leads from 11:00 to 11:00.
STINTS: Final = (0.99, 6.99, 12.9972, 18.99)
FILE_ROWS: Final = 100_000
RECEIVED_PER_FILE: Final = 20
WEIGHTS: Final = (3, 1)
_KINDS: Final = {column.name: TYPES[column.kind] for column in RECORD_COLUMNS}
#: Of the rows; the last lane has gaps.
LANES: Final = {"orders": 0.5, "billing": 0.4, "torn": 0.1}
TORN: Final = "torn"


class Made(NamedTuple):
    """What a ledger holds, and what must be found in it."""

    rows: int
    bytes: int
    violations: set[tuple[str, str, str, int]]  # lane, group, rule, arrival
    gaps: Counter[str]  # of the last lane, by kind
    days: int


def make_ledger(
    folder: Path, rows: int, groups: int, planted: int, seed: int = 1, hot_share: float = 0.0
) -> Made:
    """Write it, with `planted` violations of each rule in each whole lane, and `hot_share` of each lane's
    messages in one group. Raises ValueError if they have no room in so few rows."""
    days = max(3, round(rows / 1_000_000))
    violations: set[tuple[str, str, str, int]] = set()
    gaps: Counter[str] = Counter()
    for place, (lane, share) in enumerate(LANES.items()):
        numbers = Numbers(groups, seed + place, hot_share)
        made = _Lane(folder, lane, numbers, int(rows * share), days, 0 if lane == TORN else planted)
        made.write()
        violations |= {(lane, name_of(each.group), each.rule, each.arrival) for each in numbers.planted}
        gaps += made.gaps
    files = [file for lane in LANES for file in folder.glob(f"lane={lane}/*/*.parquet")]
    counts = sum(pa.parquet.read_metadata(file).num_rows for file in files)
    return Made(counts, sum(file.stat().st_size for file in files), violations, gaps, days + 1)


def name_of(group: int) -> str:
    """As the ledger shows it."""
    return f"customer-{group:06d}"


class _Lane:
    """Its leaderships, one a day."""

    def __init__(self, folder: Path, lane: str, numbers: Numbers, rows: int, days: int, planted: int) -> None:
        self._folder, self._lane, self._numbers = folder, lane, numbers
        self._per_phase = max(50, rows // (days * len(STINTS) * 2))
        self._days, self._planted = days, planted
        self.gaps: Counter[str] = Counter()

    def write(self) -> None:
        former: int | None = None
        phases = self._days * len(STINTS) * 2
        for day in range(self._days):
            start_us = START_US + day * DAY
            lane_epoch = start_us // SECOND
            # What finds no room in a phase goes into a later one.
            due = np.minimum(np.arange(phases + 1) * self._planted * 4 // (phases * 3), self._planted)
            spread = np.diff(due[day * 8 : day * 8 + 9])
            leadership = _Leadership(self._lane, lane_epoch, former, start_us, self._numbers)
            for place in range(len(STINTS) * 2):
                self._numbers.due.update(order=int(spread[place]), overlap=int(spread[place]))
                leadership.go_on(place, self._per_phase)
            records = leadership.records()
            self._tear(records, day) if self._lane == TORN else self._put(records, lane_epoch)
            former = lane_epoch
        if self._numbers.due.total():
            raise ValueError(
                f"lane {self._lane} is too small to plant {self._planted} violations of each rule"
            )

    def _put(self, records: Records, lane_epoch: int, leave_out: str = "") -> None:
        writer = f"{lane_epoch}-{lane_epoch % 2**32:08x}"
        files = FileWriter(Store(str(self._folder)), lane=self._lane, writer=writer, lane_epoch=lane_epoch)
        rows = FILE_ROWS if not leave_out else len(records.table) // 5 + 1
        for part, begun_us in records.parts(rows):
            files.add(part, begun_us)
            files.close()
        mine = sorted(self._folder.glob(f"lane={self._lane}/*/{writer}-*"), key=lambda path: path.name)
        match leave_out:
            case "middle":
                mine[2].unlink()
            case "end":
                mine[-1].unlink()
            case "all":
                for path in mine:
                    path.unlink()

    def _tear(self, records: Records, day: int) -> None:
        """A file that is missing, a leader that was killed, or a leadership without a ledger."""
        leave_out = ("end", "all", "middle")[day % 3]
        if day == self._days - 1:
            leave_out = "middle"  # how the last one ended is a boundary, no gap
        self._put(records, records.lane_epoch, leave_out)
        self.gaps[{"middle": "ordinals", "end": "no_end", "all": "no_ledger"}[leave_out]] += 1


class Records(NamedTuple):
    """All of one leadership, in order."""

    lane_epoch: int
    table: pa.Table
    hands: pa.Table  # hand-overs, by their dispatch
    begun: Columns  # their dispatch, their end, and the receipt of what was handed over for the first time

    def parts(self, rows: int) -> Any:
        """The columns of each file, with what has not ended when it is closed, and when it was begun."""
        times = self.table.column("time").cast(pa.int64()).to_numpy()
        told = np.zeros(len(self.hands), bool)
        waits = told.copy()
        for first in range(0, len(times), rows):
            part, closed_us = self.table.slice(first, rows), times[min(first + rows, len(times)) - 1]
            parts = [part]
            if first + rows < len(times):
                begun = self.begun["dispatched_at"] <= closed_us
                out = np.flatnonzero(begun & (self.begun["ended_at"] > closed_us) & ~told)
                held = (self.begun["received_at"] <= closed_us) & ~begun & ~waits
                held = np.flatnonzero(held)[:RECEIVED_PER_FILE]
                told[out], waits[held] = True, True
                parts += [_begun(self.hands.take(out)), _received(self.hands.take(held))]
            whole = pa.concat_tables(parts).combine_chunks()
            yield [whole.column(name).combine_chunks() for name in _KINDS], int(times[first])


def _begun(hands: pa.Table) -> pa.Table:
    """As they are told before they end."""
    nothing = pa.nulls(len(hands), pa.string())
    known = {
        "time": hands.column("dispatched_at"),
        "event": _text([Event.DISPATCHED], np.zeros(len(hands), int)),
    }
    known |= {"reason": nothing, "calls": pa.nulls(len(hands), pa.int32())}
    return _changed(hands, known)


def _received(hands: pa.Table) -> pa.Table:
    known = {"time": hands.column("received_at"), "event": _text([Event.RECEIVED], np.zeros(len(hands), int))}
    kept = {"inbound", "arrival_epoch", "arrival", "group", "size", "cost", "received_at", *known}
    return _changed(
        hands, known | {name: pa.nulls(len(hands), _KINDS[name]) for name in _KINDS.keys() - kept}
    )


def _changed(table: pa.Table, columns: dict[str, Any]) -> pa.Table:
    return pa.table({name: columns.get(name, table.column(name)) for name in _KINDS}, _schema())


def _schema() -> pa.Schema:
    return pa.schema(list(_KINDS.items()))


def _text(names: list[str], places: np.ndarray) -> pa.Array:
    return pa.array(names, pa.string()).take(pa.array(places, pa.int32()))


class _Leadership:
    """Gathers its phases, and makes records of them."""

    def __init__(
        self, lane: str, lane_epoch: int, former: int | None, start_us: int, numbers: Numbers
    ) -> None:
        self._lane, self._lane_epoch, self._former = lane, lane_epoch, former
        self._start_us, self._numbers = start_us, numbers
        self._phases: list[Columns] = []
        self._end_us = start_us

    def go_on(self, place: int, count: int) -> None:
        start_us = max(self._end_us, self._start_us + int(STINTS[place // 2] * HOUR)) + SECOND
        former = self._phases[-1] if self._phases else None
        found, self._end_us = phase(self._numbers, place, count, start_us, former)
        self._phases.append(found)

    def records(self) -> Records:
        last = self._phases[-1]
        last["outcome"] = np.where(last["outcome"] == OUTCOMES.index("taken_back"), 0, last["outcome"])
        found = {name: np.concatenate([each[name] for each in self._phases]) for name in last}
        found["seq"] = counted(found["consumer"]) + 1
        hands = self._hand_overs(found)
        first_time = np.where(found["attempt"] == 1, found["received_at"], np.iinfo(np.int64).max)
        parts = [hands, self._dead(hands), self._parked(hands, found), self._samples(found), self._frame()]
        table = pa.concat_tables(parts).sort_by("time")
        begun = {name: found[name] for name in ("dispatched_at", "ended_at")} | {"received_at": first_time}
        return Records(self._lane_epoch, table, hands, begun)

    def _hand_overs(self, found: Columns) -> pa.Table:
        size = len(found["group"])
        incarnations = [f"{self._lane}-{self._lane_epoch}-{n:012d}" for n in range(CONSUMERS)]
        failed = found["outcome"] == FAILED
        causes = np.where(found["attempt"] > 1, 0, np.where(found["was_parked"], 1, 2))
        names = sorted(set(found["group"].tolist()))
        columns: dict[str, Any] = {
            "time": found["ended_at"], "event": _text(list(OUTCOMES), found["outcome"]),
            "inbound": _text(list(INBOUNDS), found["inbound"]),
            "arrival_epoch": np.full(size, START_US // SECOND),
            "group": _text([name_of(n) for n in names], np.searchsorted(names, found["group"])),
            "epoch": (self._lane_epoch << 20) + 1 + found["phase"].astype(np.int64),
            "consumer": _text([f"worker-{n:02d}" for n in range(CONSUMERS)], found["consumer"]),
            "incarnation": _text(incarnations, found["consumer"]),
            "calls": pa.array(np.full(size, 3), mask=~failed),
            "dispatch_id": _random_ids(self._numbers, size),
            "wait_cause": _text(["retry", "parked", "turn"], causes),
            "reason": pa.array(["no such customer"]).take(pa.array(np.zeros(size, int), mask=~failed)),
        }  # fmt: skip
        for name in ("arrival", "group_seq", "seq", "attempt", "size", "cost", "received_at", "dispatched_at",
                     "committed_at", "confirmed_at"):  # fmt: skip
            columns[name] = found[name]
        return _table(columns)

    def _dead(self, hands: pa.Table) -> pa.Table:
        failed = hands.filter(pa.compute.equal(hands.column("event"), Event.FAILED))
        kept = {"time", "inbound", "arrival_epoch", "arrival", "group", "reason", "size"}
        columns = {name: failed.column(name) for name in kept}
        return _table(columns | {"event": _text([Event.DEAD_LETTERED], np.zeros(len(failed), int))})

    def _parked(self, hands: pa.Table, found: Columns) -> pa.Table:
        parked = hands.take(np.flatnonzero(found["was_parked"] & (found["attempt"] == 1)))
        kept = {"inbound", "arrival_epoch", "arrival", "group", "size", "received_at"}
        columns = {name: parked.column(name) for name in kept}
        zeros = np.zeros(len(parked), int)
        return _table(columns | {
            "time": parked.column("received_at"), "event": _text([Event.PARKED], zeros),
            "queue": _text([f"dispatch.{self._lane}.parking.0"], zeros),
        })  # fmt: skip

    def _samples(self, found: Columns) -> pa.Table:
        """Once a second and queue while anything happens. Both have a backlog half of the time."""
        seconds = (found["dispatched_at"] - self._start_us) // SECOND
        told, last = np.unique(seconds, return_index=False), []
        ends = np.searchsorted(seconds, told, side="right")
        for place, name in enumerate(INBOUNDS):
            mine = found["inbound"] == place
            totals = {"messages": np.cumsum(mine), "cost": np.cumsum(np.where(mine, found["cost"], 0))}
            waiting = np.where((told + place) % 4 < 3, 500, 0)
            last.append(_table({
                "time": self._start_us + (told + 1) * SECOND, "event": [Event.SAMPLED] * len(told),
                "inbound": [name] * len(told), "waiting": waiting, "in_flight": np.full(len(told), 100),
                "messages": totals["messages"][ends - 1], "cost": totals["cost"][ends - 1],
                "detail": ['{"full":false}'] * len(told),
            }))  # fmt: skip
        return pa.concat_tables(last)

    def _frame(self) -> pa.Table:
        """Its start and its end."""
        weights = zip(INBOUNDS, WEIGHTS, strict=True)
        start = {
            "lane": self._lane, "policy": "exclusive", "rebalance_pause": "group",
            "former_epoch": self._former,
            "inbounds": [{"queue": name, "weight": weight} for name, weight in weights],
        }  # fmt: skip
        return _table({
            "time": [self._start_us, self._end_us + 2 * SECOND],
            "event": [Event.LANE_STARTED, Event.LANE_ENDED], "detail": [json.dumps(start), None],
        })  # fmt: skip


def _random_ids(numbers: Numbers, count: int) -> pa.Array:
    offsets = pa.py_buffer((np.arange(count + 1, dtype=np.int32) * 16).tobytes())
    values = pa.py_buffer(numbers.random.bytes(16 * count))
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, values])


def _table(columns: dict[str, Any]) -> pa.Table:
    """With all columns of a record; those that are not given are null."""
    count = len(next(iter(columns.values())))
    made = []
    for name, kind in _KINDS.items():
        values = columns.get(name)
        if values is None:
            values = pa.nulls(count, kind)
        elif not isinstance(values, pa.Array | pa.ChunkedArray):
            values = pa.array(values)
        made.append(values.cast(kind))
    return pa.table(made, _schema())
