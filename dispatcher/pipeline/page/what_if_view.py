"""What other options would do (`pipeline advise`), as curves, and the planned moves (`pipeline plan`)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc

from dispatcher.pipeline.page import wording
from dispatcher.pipeline.page.charts import Chart, durations_by_number
from dispatcher.pipeline.page.source import ReportRow, Source, equals

#: Of one option, and how many options.
SCENARIOS_SHOWN: Final = 40
OPTIONS_SHOWN: Final = 8
MOVES_SHOWN: Final = 20
CONSUMERS_SHOWN: Final = 40
_FIRST: Final = ("consumers", "prefetch", "buckets", "policy", "weights")
UNBOUNDED: Final = "grows without bound"


@dataclass(frozen=True)
class Sweep:
    """One option with the values that were tried."""

    option: str
    chart: Chart | None  # where the values are numbers
    rows: list[ReportRow]
    left_out: int
    sample: str | None  # what was replayed, if that was not all: then its load is not the lane's mean


@dataclass(frozen=True)
class PlanView:
    """Of a lane: `consumers` with their work now and as planned, the costliest moves, how many there are."""

    consumers: list[ReportRow]
    moves: list[ReportRow]
    moved: int
    given: int
    groups: int


def sweeps(source: Source, lane: str, key: str) -> list[Sweep]:
    """Raises ConfigurationError."""
    by_option: dict[str, list[ReportRow]] = defaultdict(list)
    for row in source.rows("advise", (), equals("lane", lane)):
        by_option[row["option"]].append(row)
    order = sorted(by_option, key=lambda each: (_FIRST.index(each) if each in _FIRST else len(_FIRST), each))
    return [_sweep(option, by_option[option], key) for option in order[:OPTIONS_SHOWN]]


def _sweep(option: str, rows: list[ReportRow], key: str) -> Sweep:
    is_number = all(row["number"] is not None for row in rows if row["value"] != "exact")
    if is_number:
        rows = sorted(rows, key=lambda row: (row["number"] is None, row["number"]))
    shown = rows[:SCENARIOS_SHOWN]
    numbered = [row for row in shown if row["number"]]
    chart = _chart(option, numbered, key) if is_number and len(numbered) > 1 else None
    return Sweep(option, chart, [_told(row) for row in shown], len(rows) - len(shown), _sample(rows[0]))


def _sample(row: ReportRow) -> str | None:
    """Older tables don't say it."""
    replayed, count = row.get("replayed"), row.get("of_messages")
    if replayed is None or count is None or replayed >= count:
        return None
    return f"the busiest {wording.count(replayed)} of {wording.count(count)} messages"


def _told(row: ReportRow) -> ReportRow:
    is_known = row["wait_p99_us"] is not None
    return {
        "value": row["value"],
        "p50": wording.duration(row["wait_p50_us"]),
        "p99": wording.duration(row["wait_p99_us"]) if is_known else UNBOUNDED,
        "utilisation": row["utilisation"],
        "marks": _marks(row),
    }


def _marks(row: ReportRow) -> str:
    return ", ".join(
        word for word, is_so in (("now", row["is_current"]), ("recommended", row["is_recommended"])) if is_so
    )


def _chart(option: str, rows: list[ReportRow], key: str) -> Chart | None:
    series = {name: [row[f"wait_{name}_us"] for row in rows] for name in ("p50", "p99")}
    marks = {
        place: ("recommended" if row["is_recommended"] else "current", f"{row['value']}: {_marks(row)}")
        for place, row in enumerate(rows) if _marks(row)
    }  # fmt: skip
    chosen = [f"{row['value']} is {_marks(row)}" for row in rows if _marks(row)]
    words = "; ".join([f"expected wait over {option}, {rows[0]['value']} to {rows[-1]['value']}", *chosen])
    numbers = [float(row["number"]) for row in rows]
    return durations_by_number(f"{key}-if-{option}", f"Wait over {option}", words, numbers, series, marks)


def plan_view(source: Source, lane: str) -> PlanView | None:
    """None for a lane without a plan. Raises ConfigurationError."""
    of_lane = equals("lane", lane)
    columns = ("from_consumer", "to_consumer", "moves")
    # Those of an earlier version have only the work of a consumer of speed 1.
    times = ("now_us", "planned_us") if source.has_column("plan", "now_us") else ("cost_us", "cost_us")
    sums = source.summed("plan", columns, tuple(dict.fromkeys(times)), of_lane)
    if not sums:
        return None
    amounts = ("now", "planned", "groups_now", "groups_planned")
    work: dict[str | None, ReportRow] = defaultdict(lambda: dict.fromkeys(amounts, 0))
    for row in sums:
        sides = (("now", row["from_consumer"]), ("planned", row["to_consumer"]))
        for (side, name), time in zip(sides, times, strict=True):
            work[name][side] += row[time]
            work[name][f"groups_{side}"] += row["rows"]
    most = max(max(row["now"], row["planned"]) for row in work.values()) or 1
    named = [{"consumer": name, "most": most, **row} for name, row in work.items() if name is not None]
    is_move = of_lane & pc.field("moves")
    return PlanView(
        consumers=sorted(named, key=lambda row: (-row["now"], row["consumer"]))[:CONSUMERS_SHOWN],
        moves=[
            {**row, "work_us": row[times[1]]}
            for row in source.highest("plan", "cost_us", MOVES_SHOWN, is_move)
        ],
        moved=sum(row["rows"] for row in sums if row["moves"] and row["from_consumer"] is not None),
        given=sum(row["rows"] for row in sums if row["moves"] and row["from_consumer"] is None),
        groups=sum(row["rows"] for row in sums),
    )
