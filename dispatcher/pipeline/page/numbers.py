"""What the page shows, as plain values for programs: numbers in the units of the tables, names in full."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from dispatcher.pipeline.page.histories import histories
from dispatcher.pipeline.page.lane_view import add_consumers, lane_view
from dispatcher.pipeline.page.render import shown_lanes
from dispatcher.pipeline.page.source import ReportRow, Source, equals
from dispatcher.pipeline.page.verdict_view import verdict_view

#: Tables of which a lane has few rows, and what they are sorted by.
_SMALL = {
    "timeline": ("at",),
    "hot_groups": ("rank",),
    "holders": ("rank", "consumer"),
    "fairness": ("inbound",),
    "stalls": ("since",),
    "cost_model": ("inbound", "type", "size_below"),
    "advise": ("option", "number", "value"),
}


def as_numbers(source: Source) -> dict[str, Any]:
    """The summary, the lists beside the verdict, and of each lane that is shown its tables. Raises
    ConfigurationError."""
    views = [lane_view(source, name, number) for number, name in enumerate(shown_lanes(source), 1)]
    add_consumers(source, views)
    verdict = verdict_view(source)
    groups: dict[str, list[str]] = {view.name: [row["group"] for row in view.hot] for view in views}
    for row in verdict.violations.rows:
        if row["group"] is not None and row["group"] not in groups.setdefault(row["lane"], []):
            groups[row["lane"]].append(row["group"])
    lists = ("violations", "reasons", "unknown", "gaps", "bad_files")
    return {
        "summary": source.summary,
        **{name: _plain(getattr(verdict, name).rows) for name in lists},
        "histories": {lane: _histories(source, lane, names) for lane, names in groups.items()},
        "lanes": {
            view.name: {
                **{name: _plain(_rows(source, name, view.name)) for name in _SMALL},
                "consumers": _plain(view.consumers),
                "plan": None if view.plan is None else _plain(asdict(view.plan)),
            }
            for view in views
        },
    }


def _histories(source: Source, lane: str, groups: list[str]) -> list[dict[str, Any]]:
    """`held` and `waiting` have a value for each step."""
    return [
        {
            "group": each.group, "since": datetime.fromtimestamp(each.since_us / 1e6, UTC).isoformat(),
            "step_us": each.step_us, "holders": [holder._asdict() for holder in each.holders],
            "waiting": each.waiting,
        }
        for each in histories(source, lane, groups).values()
    ]  # fmt: skip


def _rows(source: Source, name: str, lane: str) -> list[ReportRow]:
    found = source.rows(name, (), equals("lane", lane))
    found.sort(key=lambda row: [(row.get(each) is None, row.get(each)) for each in _SMALL[name]])
    return [{column: value for column, value in row.items() if column != "lane"} for row in found]


def _plain(value: Any) -> Any:
    """Instants as text, in UTC."""
    match value:
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case datetime():
            return (value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    return value
