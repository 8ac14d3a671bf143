"""What the page shows of one lane."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dispatcher.pipeline.page import wording
from dispatcher.pipeline.page.charts import Chart, Timeline, durations_over_time, heat, rate_over_time
from dispatcher.pipeline.page.history_view import HistoryChart
from dispatcher.pipeline.page.missing import missing_s
from dispatcher.pipeline.page.source import ReportRow, Source, equals, judged
from dispatcher.pipeline.page.verdict_view import waited_for
from dispatcher.pipeline.page.what_if_view import PlanView, Sweep, plan_view, sweeps

GROUPS_SHOWN: Final = 20
CONSUMERS_SHOWN: Final = 12
#: Of a table with one row for each consumer, inbound queue or size band.
ROWS_SHOWN: Final = 40
#: The stages of a hand-over: name, and what it spans.
STAGE_NAMES: Final = {
    "wait": ("Wait", "from received to handed to a consumer"),
    "commit": ("Commit", "until Redis had the decision"),
    "confirm": ("Confirm", "until RabbitMQ had the copy"),
    "process": ("Process", "from committed to settled, with the time in the consumer's prefetch"),
}
_SERIES: Final = ("p50", "p99")
#: Of the table of stalls, on the page and on the terminal.
STALL_COLUMNS: Final = (
    "from (UTC)", "to", "lasted", "waited", "groups held", "at consumers", "ended by them",
)  # fmt: skip


@dataclass(frozen=True)
class HeatCell:
    heat: int | None  # None: nothing
    text: str
    title: str


@dataclass(frozen=True)
class HeatMap:
    consumers: list[str]
    rows: list[tuple[str, list[HeatCell]]]
    left_out: int  # consumers


@dataclass
class LaneSection:
    """Everything is text already, or a place in a picture."""

    key: str
    name: str
    verdict: str
    facts: list[tuple[str, str]]
    stages: list[tuple[str, str, list[str]]]
    waited_for: list[tuple[str, str]] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    points: list[list[str]] = field(default_factory=list)
    step: str = ""
    has_missing: bool = False
    stalls: list[list[str]] = field(default_factory=list)
    stalls_count: int = 0
    heat_map: HeatMap | None = None
    hot: list[ReportRow] = field(default_factory=list)
    histories: list[HistoryChart] = field(default_factory=list)  # of these groups
    shares: list[ReportRow] = field(default_factory=list)
    jain: float | None = None
    consumers: list[ReportRow] = field(default_factory=list)
    consumers_count: int = 0
    costs: list[ReportRow] = field(default_factory=list)
    sweeps: list[Sweep] = field(default_factory=list)
    plan: PlanView | None = None


def lane_view(source: Source, name: str, number: int) -> LaneSection:
    """Raises ConfigurationError."""
    facts = source.summary["lanes"][name]
    view = LaneSection(
        f"lane-{number}", name, judged(facts), _facts(facts), _stages(facts.get("stages") or {}),
        waited_for(facts),
    )  # fmt: skip
    _add_timeline(source, view)
    of_lane = equals("lane", name)
    stalls = source.rows("stalls", (), of_lane)
    view.stalls, view.stalls_count = _stalls(stalls)[:ROWS_SHOWN], len(stalls)
    hot = sorted(source.rows("hot_groups", (), of_lane), key=lambda row: row["rank"])
    view.hot = hot[:GROUPS_SHOWN]
    view.heat_map = _heat_map(source.rows("holders", (), of_lane), facts.get("hand_overs") or 0)
    view.shares = sorted(source.rows("fairness", (), of_lane), key=lambda row: row["inbound"])[:ROWS_SHOWN]
    _add_parts(view)
    view.costs = _costs(source, name)
    view.sweeps, view.plan = sweeps(source, name, view.key), plan_view(source, name)
    return view


def _costs(source: Source, lane: str) -> list[ReportRow]:
    """The rows with most messages, in the order of queues, types and sizes. Older reports had no types."""
    rows: list[ReportRow] = [
        {"type": None, **row} for row in source.rows("cost_model", (), equals("lane", lane))
    ]
    rows.sort(key=lambda row: -row["messages"])
    return sorted(
        rows[:ROWS_SHOWN], key=lambda row: (row["inbound"] or "", row["type"] or "", row["size_below"])
    )


def add_consumers(source: Source, views: list[LaneSection]) -> None:
    """All lanes' at once: the table has a row for every hour of every consumer."""
    by_name = {view.name: view for view in views}
    sums = ("hand_overs", "settled", "failed", "taken_back", "cost", "busy_us")
    for row in source.summed("consumer_stats", ("lane", "consumer"), sums):
        if row["lane"] in by_name:
            by_name[row["lane"]].consumers.append(row)
    for view in views:
        view.consumers.sort(key=lambda row: (-row["hand_overs"], row["consumer"] or ""))
        view.consumers_count = len(view.consumers)
        del view.consumers[ROWS_SHOWN:]
        for row in view.consumers:
            busy_us = row["busy_us"] or 0
            row["speed"] = (row["cost"] or 0) * 1e6 / busy_us if busy_us else None


def _facts(facts: ReportRow) -> list[tuple[str, str]]:
    shape = facts.get("shape") or {}
    found = [("hand-overs", wording.count(facts["hand_overs"]))]
    if facts.get("first"):
        found.append(("from", f"{facts['first']} UTC"))
        found.append(("to", f"{facts['last']} UTC"))
    if "left_waiting" in facts:
        found.append(("left waiting at the end", wording.count(facts["left_waiting"])))
    found += [
        (f"messages {outcome.replace('_', ' ')}", wording.count(number))
        for outcome, number in facts["messages"].items()
    ]
    if shape:
        found += [
            ("groups handed over", wording.count(shape["groups"])),
            ("top 10 groups' share", wording.percent(shape["top_share"])),
            ("Gini of the groups", wording.decimal(shape["gini"])),
            ("consumers busy at most", wording.decimal(shape["parallelism_max"], 1)),
        ]
    return found


def _stages(stages: ReportRow) -> list[tuple[str, str, list[str]]]:
    """Name, meaning and percentiles of each stage over the whole time."""
    return [
        (title, about, [wording.duration(value) for value in stages[f"{stage}_us"]])
        for stage, (title, about) in STAGE_NAMES.items() if stages.get(f"{stage}_us")
    ]  # fmt: skip


def _add_timeline(source: Source, view: LaneSection) -> None:
    rows = sorted(source.rows("timeline", (), equals("lane", view.name)), key=lambda row: row["at"])
    if not rows:
        return
    starts_s, step_s = [_seconds(row["at"]) for row in rows], rows[0]["step_ms"] / 1e3
    line = Timeline(starts_s, step_s, missing_s(source, view.name, [*starts_s, starts_s[-1] + step_s]))
    view.step, view.has_missing = wording.duration(line.step_s * 1e6), bool(line.shades())
    charts: list[Chart | None] = [
        rate_over_time(f"{view.key}-rate", "Hand-overs a second", line, [row["per_s"] for row in rows])
    ]
    for stage, (title, about) in STAGE_NAMES.items():
        series = {name: [row[f"{stage}_{name}_us"] for row in rows] for name in _SERIES}
        words = f"{about}; {_in_words(rows, series['p99'])}"
        charts.append(durations_over_time(f"{view.key}-{stage}", title, words, line, series))
    view.charts = [chart for chart in charts if chart is not None]
    view.points = [
        [wording.moment(row["at"]), wording.decimal(row["per_s"], 1)]
        + [wording.duration(row[f"{stage}_{name}_us"]) for stage in STAGE_NAMES for name in _SERIES]
        for row in rows
    ]


def _stalls(rows: list[ReportRow]) -> list[list[str]]:
    """The longest first, each as `STALL_COLUMNS` names its cells."""
    return [
        [
            wording.moment(row["since"]), wording.moment(row["until"]),
            wording.duration((row["until"] - row["since"]).total_seconds() * 1e6),
            *(wording.count(row[name]) for name in ("waiting", "held_groups", "in_flight", "ended")),
        ]
        for row in sorted(rows, key=lambda row: (row["since"] - row["until"], row["since"]))
    ]  # fmt: skip


def _in_words(rows: list[ReportRow], values: list[float | None]) -> str:
    known = [(value, row["at"]) for value, row in zip(values, rows, strict=True) if value is not None]
    if not known:
        return "not known"
    highest, at = max(known, key=lambda each: each[0])
    lowest = min(value for value, _ in known)
    span = f"{wording.duration(lowest)} to {wording.duration(highest)}"
    return f"p99 from {span}, highest at {at:%Y-%m-%d %H:%M:%S}"


def _seconds(time: datetime) -> float:
    return time.timestamp()


def _heat_map(rows: list[ReportRow], all_hand_overs: int) -> HeatMap | None:
    """The hottest groups by consumers: those that had most of them."""
    if not rows or not all_hand_overs:
        return None
    by_consumer: dict[str, int] = {}
    by_group: dict[tuple[int, str], dict[str, int]] = {}
    for row in rows:
        consumer = row["consumer"] or ""
        by_consumer[consumer] = by_consumer.get(consumer, 0) + row["hand_overs"]
        by_group.setdefault((row["rank"], row["group"]), {})[consumer] = row["hand_overs"]
    most = sorted(by_consumer, key=lambda each: (-by_consumer[each], each))[:CONSUMERS_SHOWN]
    shown = sorted(most)
    highest = max(number for numbers in by_group.values() for number in numbers.values())

    def cell(number: int) -> HeatCell:
        if not number:
            return HeatCell(None, "", "no hand-over")
        return HeatCell(
            heat(number, highest), wording.percent(number / all_hand_overs),
            wording.plural(number, "hand-over"),
        )  # fmt: skip

    cells = [
        (group, [cell(by_group[rank, group].get(consumer, 0)) for consumer in shown])
        for rank, group in sorted(by_group)[:GROUPS_SHOWN]
    ]
    return HeatMap(shown, cells, len(by_consumer) - len(shown))


def _add_parts(view: LaneSection) -> None:
    """Of each queue, which part of the contested cost it got, and which one its weight entitled it to."""
    all_got = sum(row["got"] or 0 for row in view.shares)
    for row in view.shares:
        row["got_part"] = (row["got"] or 0) / all_got if all_got else None
        row["entitled_part"] = (row["entitled"] or 0) / all_got if all_got else None
    view.jain = view.shares[0]["jain"] if view.shares else None
