"""A report's tables for the terminal: the same ones as on its page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from dispatcher.cli.output import table
from dispatcher.pipeline.page import LaneSection, ReportView, wording
from dispatcher.pipeline.page.lane_view import STAGE_NAMES, STALL_COLUMNS
from dispatcher.pipeline.page.what_if_view import PlanView, Sweep
from dispatcher.pipeline.statistics import PERCENTILES

_STAGES = tuple(f"p{percent}" for percent in PERCENTILES)


def parts(view: ReportView) -> Iterator[RenderableType]:
    """What to print, one after the other; the verdict last, where one looks first."""
    yield from _of_lanes_with_shards(view)
    for lane in view.lanes:
        yield from _of_lane(lane)
    verdict = view.verdict
    if view.lanes_count > len(view.lanes):
        yield Text(f"{view.lanes_count - len(view.lanes):,} lanes more are in the tables")
    for broken in verdict.violations.rows:
        yield Text(wording.sentence(broken["sentence"]))
    yield from _more(verdict.violations.more, "violations")
    if verdict.reasons.rows:
        rows = [
            (_name(each["lane"]), wording.sentence(each["because"]), each["groups"])
            for each in verdict.reasons.rows
        ]
        yield from _titled("Unknown", ("lane", "because", "groups"), rows)
    if verdict.gaps.rows:
        rows = [
            (_name(gap["lane"]), "boundary" if gap["is_boundary"] else "gap", wording.sentence(gap["text"]))
            for gap in verdict.gaps.rows
        ]
        yield from _titled("What the ledger does not have", ("lane", "kind", "what"), rows)
        yield from _more(verdict.gaps.more, "gaps")
    for file in verdict.bad_files.rows:
        yield Text(f"not read: {wording.clipped(file['path'], 400)} {wording.sentence(file['problem'])}")
    yield from _more(verdict.bad_files.more, "files")
    yield from (Text(f"remark: {wording.sentence(remark)}") for remark in verdict.remarks)
    yield from (Text(f"beside the verdict: {each}") for each in verdict.beside)
    yield Text(f"Verdict: {verdict.sentence}")


def _of_lanes_with_shards(view: ReportView) -> Iterator[RenderableType]:
    """Of their shards together; each shard has a part of its own."""
    for row in view.listed:
        if row["shards"]:
            groups = ", ".join(f"{row[each]:,} {each}" for each in ("kept", "violated", "unknown"))
            facts = f"{row['shards']} with {row['hand_overs']:,} hand-overs; groups: {groups}"
            yield Text(f"Lane {_name(str(row['name']))}: {row['verdict']}; {facts}", style="bold")


def _of_lane(lane: LaneSection) -> Iterator[RenderableType]:
    verdict = "nothing to judge" if lane.verdict == "nothing" else lane.verdict
    yield Text(f"Lane {wording.clipped(lane.name)}: {verdict}", style="bold")
    yield Text("; ".join(f"{title} {value}" for title, value in lane.facts))
    yield from _titled(
        "Latency by stage", ("stage", *_STAGES),
        [(title, *values) for title, _, values in lane.stages],
    )  # fmt: skip
    if lane.waited_for:
        yield Text("Waited for: " + ", ".join(f"{what} {part}" for what, part in lane.waited_for))
    if lane.points:
        ends = [f"{stage} {name}" for stage in STAGE_NAMES for name in ("p50", "p99")]
        yield from _titled(
            f"Over time, one line: {lane.step}", ("from (UTC)", "a second", *ends), lane.points
        )
    yield from _titled("When it stood still", STALL_COLUMNS, lane.stalls)
    yield from _more(lane.stalls_count - len(lane.stalls), "stalls")
    if lane.heat_map:
        rows = [(_name(group), *(cell.text for cell in cells)) for group, cells in lane.heat_map.rows]
        consumers = [_name(each) for each in lane.heat_map.consumers]
        yield from _titled("Hottest groups by consumer, of all hand-overs", ("group", *consumers), rows)
    hot = [
        (row["rank"], _name(row["group"]), row["messages"], wording.percent(row["share"]),
         wording.percent(row["busy_share"]))
        for row in lane.hot
    ]  # fmt: skip
    yield from _titled("Hot groups", ("rank", "group", "messages", "share", "of the work"), hot)
    yield from _shares(lane)
    yield from _consumers(lane)
    costs = [
        (_name(row["inbound"]), _name(row["type"]), wording.size(row["size_below"]), row["messages"],
         wording.duration(row["mean_us"]), wording.duration(row["error_us"]))
        for row in lane.costs
    ]  # fmt: skip
    names = ("inbound queue", "type", "size below", "messages", "mean time", "± (95 %)")
    yield from _titled("What messages cost", names, costs)
    for sweep in lane.sweeps:
        yield from _sweep(sweep)
    if lane.plan is not None:
        yield from _plan(lane.plan)


def _shares(lane: LaneSection) -> Iterator[RenderableType]:
    rows = [
        (_name(row["inbound"]), row["weight"], wording.percent(row["got_part"]),
         wording.percent(row["entitled_part"]), wording.duration(row["contested_s"] * 1e6),
         wording.duration(row["starved_s"] * 1e6))
        for row in lane.shares
    ]  # fmt: skip
    names = ("inbound queue", "weight", "got", "by weight", "backlog", "longest without")
    title = "Shares against weights"
    if lane.jain is not None:
        title += f", Jain's index {wording.decimal(lane.jain, 3)}"
    yield from _titled(title, names, rows)


def _consumers(lane: LaneSection) -> Iterator[RenderableType]:
    columns = ("hand_overs", "settled", "failed", "taken_back")
    rows = [
        (_name(row["consumer"]), *(row[each] for each in columns), wording.duration(row["busy_us"]),
         wording.decimal(row["speed"], 1))
        for row in lane.consumers
    ]  # fmt: skip
    names = ("consumer", "hand-overs", "settled", "failed", "taken back", "busy", "speed")
    yield from _titled("Consumers", names, rows)
    yield from _more(lane.consumers_count - len(lane.consumers), "consumer_stats")


def _sweep(sweep: Sweep) -> Iterator[RenderableType]:
    rows = [
        (_name(row["value"]), row["p50"], row["p99"], wording.percent(row["utilisation"]), row["marks"])
        for row in sweep.rows
    ]  # fmt: skip
    names = (sweep.option, "wait p50", "wait p99", "consumers busy", " ")
    of_burst = f", in a burst: {sweep.sample}" if sweep.sample else ""
    yield from _titled(f"What other {sweep.option} would do{of_burst}", names, rows)
    yield from _more(sweep.left_out, "advise")


def _plan(plan: PlanView) -> Iterator[RenderableType]:
    rows = [
        (_name(row["consumer"]), row["groups_now"], row["groups_planned"], wording.duration(row["now"]),
         wording.duration(row["planned"]))
        for row in plan.consumers
    ]  # fmt: skip
    title = f"Planned: {plan.moved:,} of {wording.plural(plan.groups, 'group')} move"
    yield from _titled(title, ("consumer", "groups now", "planned", "work now", "work planned"), rows)
    moves = [
        (_name(row["group"]), wording.duration(row["work_us"]), _name(row["from_consumer"]),
         _name(row["to_consumer"]))
        for row in plan.moves
    ]  # fmt: skip
    yield from _titled("The moves with most work", ("group", "work", "from", "to"), moves)


def _titled(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Iterator[RenderableType]:
    """A table with its title, or nothing if it has no rows; a column of numbers is set to the right."""
    found, names = [list(row) for row in rows], list(columns)
    if found:
        cells = dict(zip(names, zip(*found, strict=True), strict=True))
        yield Text(f"\n{title}")
        yield table(names, found, numbers=[name for name in names if all(map(_is_number, cells[name]))])


def _is_number(cell: Any) -> bool:
    """Also with its unit, or none at all."""
    return isinstance(cell, int) or str(cell)[:1] in "0123456789-–<"


def _more(count: int, where: str) -> Iterator[RenderableType]:
    if count > 0:
        yield Text(f"{count:,} more (table {where})")


def _name(text: str | None) -> str:
    return wording.NOTHING if text is None else wording.clipped(text)
