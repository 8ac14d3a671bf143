"""The page, from a report's tables."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from dispatcher import __version__
from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.page import wording
from dispatcher.pipeline.page.histories import histories
from dispatcher.pipeline.page.history_view import HistoryChart, history_chart
from dispatcher.pipeline.page.lane_view import STALL_COLUMNS, LaneSection, add_consumers, lane_view
from dispatcher.pipeline.page.missing import missing_s
from dispatcher.pipeline.page.source import ReportRow, Source, judged
from dispatcher.pipeline.page.verdict_view import VerdictView, verdict_view
from dispatcher.pipeline.statistics import PERCENTILES
from dispatcher.pipeline.whole_lanes import WORST_FIRST, by_whole_lane, of_shards, together
from dispatcher.wire.plain_text import printable_lines
from dispatcher.wire.shards import shard_number

#: Lanes with pictures; the others have a row of the table of lanes.
LANES_SHOWN: Final = 12
LANES_LISTED: Final = 200


@dataclass(frozen=True)
class ReportView:
    """`listed`: what the table of lanes has. In `lanes` and there the shards of a lane stand together."""

    verdict: VerdictView
    lanes: list[LaneSection]
    listed: list[dict[str, object]]
    lanes_count: int


def write_page(source: Source, path: Path) -> None:
    """Write the page, as a whole or not at all. Raises ConfigurationError."""
    page = render(source)
    unfinished = path.with_name(f".{path.name}.part")
    try:
        unfinished.write_text(page, encoding="utf-8")
        unfinished.replace(path)
    except OSError as problem:
        raise ConfigurationError(f"{path}: can't be written: {problem.strerror}") from None


def view_of(source: Source) -> ReportView:
    """What the page shows, as text and places in pictures. Raises ConfigurationError."""
    names = _worst_first(source)
    lanes = [lane_view(source, name, number) for number, name in enumerate(shown_lanes(source), 1)]
    add_consumers(source, lanes)
    keys = {lane.name: lane.key for lane in lanes}
    return ReportView(verdict_view(source), lanes, _listed(source, names[:LANES_LISTED], keys), len(names))


def render(source: Source) -> str:
    """The page as text. Raises ConfigurationError."""
    environment = _environment()
    style = environment.get_template("page.css").render()
    view = view_of(source)
    _add_histories(source, view)
    return environment.get_template("page.html").render(
        version=__version__,
        style=style,
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        verdict=view.verdict,
        lanes=view.lanes,
        listed=view.listed,
        lanes_count=view.lanes_count,
        percentiles=PERCENTILES,
        stall_columns=STALL_COLUMNS,
    )


def _add_histories(source: Source, view: ReportView) -> None:
    """Pictures of the groups that have most messages, and of those in which order was violated. Raises
    ConfigurationError."""
    violated: dict[str, dict[str, list[int]]] = {}
    for place, row in enumerate(view.verdict.violations.rows, 1):
        if row["group"] is not None:
            violated.setdefault(row["lane"], {}).setdefault(row["group"], []).append(place)
    sections = {lane.name: lane for lane in view.lanes}
    for name in {**sections, **violated}:
        places = violated.get(name, {})
        hot = [row["group"] for row in sections[name].hot] if name in sections else []
        times = {group: [view.verdict.violated_at[place - 1] for place in of] for group, of in places.items()}
        drawn = _charts(source, name, hot, times)
        for group, (first, *_) in places.items():
            if (chart := drawn(group, f"violation-{first}-history")) is not None:
                view.verdict.histories[first] = chart
        if name in sections:
            key = f"{sections[name].key}-history"
            charts = [drawn(group, f"{key}-{rank}") for rank, group in enumerate(hot, 1)]
            sections[name].histories = [chart for chart in charts if chart is not None]


def _charts(
    source: Source, lane: str, hot: list[str], violated_at: dict[str, list[datetime | None]]
) -> Callable[[str, str], HistoryChart | None]:
    """Draws the history of one of these groups with a key; None: the report has nothing of it."""
    found = histories(source, lane, list(dict.fromkeys([*hot, *violated_at])))
    missing = missing_s(source, lane, [each.until_s for each in found.values()])

    def drawn(group: str, key: str) -> HistoryChart | None:
        times = [at for at in violated_at.get(group, ()) if at is not None]
        return history_chart(key, found[group], missing, times) if group in found else None

    return drawn


def shown_lanes(source: Source) -> list[str]:
    """Names of the lanes that are shown in full."""
    return together(_worst_first(source)[:LANES_SHOWN])


def _environment() -> Environment:
    # Everything is escaped, the style sheet too: it has no values.
    environment = Environment(
        loader=PackageLoader("dispatcher.pipeline.page"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_shown,
    )  # fmt: skip
    for word in (
        wording.clipped, wording.sentence, wording.count, wording.decimal, wording.percent, wording.duration,
        wording.size, wording.moment,
    ):  # fmt: skip
        environment.filters[word.__name__] = word
    return environment


def _shown(value: object) -> object:
    """What others named, in characters that can be seen."""
    return printable_lines(value) if type(value) is str else value


def _worst_first(source: Source) -> list[str]:
    """Names of lanes: those with violations first, then those with most messages."""
    lanes = source.summary["lanes"]
    return sorted(
        lanes,
        key=lambda name: (WORST_FIRST.index(lanes[name]["verdict"]), -lanes[name]["hand_overs"], name),
    )


def _listed(source: Source, names: list[str], keys: dict[str, str]) -> list[dict[str, object]]:
    """A row for each lane; `keys` has the anchor of the section of each lane that is shown in full. Before
    the rows of a lane's shards stands one for the whole lane."""
    rows = []
    for whole, parts in by_whole_lane(names).items():
        if (all_shards := of_shards(source.summary["lanes"], whole)) is not None:
            shards = wording.plural(all_shards["shards"], "shard")
            rows.append(_row(whole, all_shards, shards=shards))
        rows += [_row(name, source.summary["lanes"][name], key=keys.get(name)) for name in parts]
    return rows


def _row(name: str, facts: ReportRow, *, shards: str = "", key: str | None = None) -> dict[str, object]:
    return {
        "name": name, "key": key, "shards": shards, "is_shard": shard_number(name) is not None,
        "verdict": judged(facts), "hand_overs": facts["hand_overs"], **facts["groups"],
    }  # fmt: skip
