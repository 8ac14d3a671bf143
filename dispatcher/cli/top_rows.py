"""The lines of `dispatcher top`: what of each answer stands in which column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from dispatcher.cli.consumers import state_text
from dispatcher.cli.groups import flags_text
from dispatcher.cli.output import counted, shown, span
from dispatcher.cli.status import attention
from dispatcher.cli.top_source import LaneNow, View
from dispatcher.wire.shards import lane_order

#: What `s` goes through, by view.
SORTS: Final = {
    View.LANES: ("lane", "waiting", "settled/s"),
    View.GROUPS: ("depth", "age", "group"),
    View.CONSUMERS: ("consumer", "in flight", "oldest"),
}
#: A cell of an id is cut, so that the numbers stay in view.
_ID_WIDTH: Final = 24


class Line(NamedTuple):
    """One row of the table."""

    key: str  # the lane's, group's or consumer's id
    cells: tuple[str, ...]


COLUMNS: Final = {
    View.LANES: (
        "lane", "state", "settled/s", "out/s", "waiting", "in flight", "consumers", "groups", "attention",
    ),
    View.GROUPS: ("group", "owner", "held", "in flight", "parked", "oldest", "reason", "flags"),
    View.CONSUMERS: ("consumer", "state", "out/s", "in flight", "groups", "oldest", "last heard"),
}  # fmt: skip


def waiting(lane: LaneNow) -> int | None:
    """Messages that no consumer has yet."""
    if lane.status is None:
        return None
    return int(lane.status.get("held", 0)) + int(lane.status.get("parked", 0)) + (lane.ready or 0)


def lane_lines(lanes: Sequence[LaneNow], sort: str, pattern: str | None) -> list[Line]:
    orders: dict[str, Callable[[LaneNow], Any]] = {
        "lane": lambda lane: lane_order(lane.lane),
        "waiting": lambda lane: -(waiting(lane) or 0),
        "settled/s": lambda lane: -(lane.settled_per_s or 0.0),
    }
    chosen = [lane for lane in lanes if _matches(lane.lane, pattern)]
    return [_lane_line(lane) for lane in sorted(chosen, key=orders[sort])]


def _lane_line(lane: LaneNow) -> Line:
    status = lane.status
    if status is None:
        return Line(lane.lane, (_cut(lane.lane), "no answer", *["-"] * 6, ""))
    state = "paused" if status.get("paused") else status.get("state")
    return Line(lane.lane, (
        _cut(lane.lane), shown(state), _rate(lane.settled_per_s), _rate(lane.dispatched_per_s),
        shown(waiting(lane)), shown(status.get("in_flight")), shown(status.get("consumers")),
        shown(status.get("groups")), status.get("problem") or attention(status) or "",
    ))  # fmt: skip


def group_lines(rows: Sequence[dict[str, Any]]) -> list[Line]:
    """In the leader's order."""
    return [
        Line(str(row.get("group")), (
            _cut(row.get("group")), _cut(row.get("owner")), shown(row.get("held")),
            shown(row.get("in_flight")), shown(row.get("parked")), shown(span(row.get("oldest_ms"))),
            shown(row.get("reason")), flags_text(row) or "",
        ))
        for row in rows
    ]  # fmt: skip


def consumer_lines(rows: Sequence[dict[str, Any]], sort: str, pattern: str | None) -> list[Line]:
    orders: dict[str, Callable[[dict[str, Any]], Any]] = {
        "consumer": lambda row: str(row.get("consumer")),
        "in flight": lambda row: -int(row.get("in_flight") or 0),
        "oldest": lambda row: -int(row.get("oldest_in_flight_ms") or 0),
    }
    chosen = [row for row in rows if _matches(str(row.get("consumer")), pattern)]
    return [
        Line(str(row.get("consumer")), (
            _cut(row.get("consumer")), state_text(row), _rate(row.get("per_s")),
            f"{shown(row.get('in_flight'))} of {shown(row.get('prefetch'))}", shown(row.get("groups")),
            shown(span(row.get("oldest_in_flight_ms"))), shown(span(row.get("last_heartbeat_ms"))),
        ))
        for row in sorted(chosen, key=orders[sort])
    ]  # fmt: skip


def summary(lane: LaneNow) -> str:
    """Of one lane, in two lines, and a third one if something is not normal."""
    status = lane.status
    if status is None:
        return f"{lane.lane}: no answer"
    head = (
        f"{shown(lane.lane)}: {shown(status.get('policy'))}, {shown(status.get('state'))}"
        f"{', paused' if status.get('paused') else ''} at {shown(status.get('dispatcher'))} "
        f"for {shown(span(status.get('since_ms')))}"
    )
    numbers = (
        f"settled {_rate(lane.settled_per_s)}/s, out {_rate(lane.dispatched_per_s)}/s, "
        f"{shown(waiting(lane))} waiting, {shown(status.get('in_flight'))} in flight, "
        f"{counted(status.get('consumers'), 'consumer')}, {counted(status.get('groups'), 'group')}"
    )
    odd = status.get("problem") or attention(status)
    return "\n".join([head, numbers, *([shown(odd)] if odd else [])])


def _matches(name: str, pattern: str | None) -> bool:
    return pattern is None or fnmatchcase(name, pattern)


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:,.1f}" if per_s < 10 else f"{per_s:,.0f}"


def _cut(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= _ID_WIDTH else text[: _ID_WIDTH - 1] + "…"
