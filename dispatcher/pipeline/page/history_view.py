"""Pictures of single groups' histories: a line for each consumer that had the group, and below them how many
messages waited."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

from dispatcher.pipeline.page import wording
from dispatcher.pipeline.page.charts import LEFT, RIGHT, TOP, WIDTH, Bar
from dispatcher.pipeline.page.histories import SLOTS, GroupTimes, HolderTimes
from dispatcher.pipeline.page.scales import AxisTick, Scale, number_axis, time_axis

_LINE: Final = 14
_WAITING: Final = 52
_BELOW: Final = 24
#: Of a consumer's name in the list beside its picture.
_NAME_MAX: Final = 40


@dataclass(frozen=True)
class HolderLine:
    """When a consumer had the group: `label` stands beside the line, `about` in the list below."""

    label: str
    about: str
    y: float
    path: str


@dataclass(frozen=True)
class HistoryChart:
    """One picture; what it shows is told by `description`, too."""

    key: str  # of this picture alone on the page
    title: str
    description: str
    lines: Sequence[HolderLine]
    waiting: str
    bottom: float
    height: float
    x_ticks: Sequence[AxisTick]
    y_ticks: Sequence[AxisTick]
    shades: Sequence[Bar] = ()  # stretches of time of which records are missing
    marks: Sequence[float] = ()  # violations
    width: int = WIDTH
    left: int = LEFT
    right: int = RIGHT


def history_chart(
    key: str,
    history: GroupTimes,
    missing: Sequence[tuple[float, float]] = (),
    violated_at: Sequence[datetime] = (),
) -> HistoryChart:
    """`missing`: from when until when records are missing, in seconds."""
    first_s, step_s = history.since_us / 1e6, history.step_us / 1e6
    last_s = first_s + step_s * SLOTS
    x, x_ticks = time_axis(first_s, last_s, LEFT, RIGHT)
    # Whole units: a page has hundreds of these pictures.
    places = [round(x(first_s + step_s * slot)) for slot in range(SLOTS + 1)]
    lines = [
        HolderLine(*_named(number, holder), y := TOP + _LINE * (number - 0.5), _runs(holder.held, places, y))
        for number, holder in enumerate(history.holders, 1)
    ]
    top = TOP + _LINE * len(lines) + 8
    bottom = top + _WAITING
    most = max(history.waiting)
    scale, y_ticks = number_axis(most, bottom, top)
    return HistoryChart(
        key, wording.clipped(history.group), _in_words(history, first_s, last_s, most), lines,
        _steps(history.waiting, places, scale, bottom), bottom, bottom + _BELOW, x_ticks,
        [y_ticks[0], y_ticks[-1]], [*_shades(x, missing, bottom)],
        sorted({x(at.timestamp()) for at in violated_at}),
    )  # fmt: skip


def _named(number: int, holder: HolderTimes) -> tuple[str, str]:
    names, count = holder.consumers, wording.plural(holder.hand_overs, "hand-over")
    if len(names) > 1:
        return "others", f"others: {wording.plural(len(names), 'consumer')}, {count}"
    return str(number), f"{number}: {wording.clipped(names[0], _NAME_MAX)}, {count}"


def _runs(held: Sequence[bool], places: Sequence[int], y: float) -> str:
    """A stroke for each stretch of slots."""
    found, slot = [], 0
    for is_held, run in groupby(held):
        length = len([*run])
        if is_held:
            found.append(f"M{places[slot]},{y:g}H{places[slot + length]}")
        slot += length
    return "".join(found)


def _steps(waiting: Sequence[int], places: Sequence[int], y: Scale, bottom: float) -> str:
    """The area below them; nothing where nothing waited."""
    if not any(waiting):
        return ""
    path, before = [f"M{places[0]},{bottom:g}"], None
    for slot, number in enumerate(waiting):
        if number != before:
            path.append(f"V{round(y(number))}")
            before = number
        if slot + 1 == len(waiting) or waiting[slot + 1] != number:
            path.append(f"H{places[slot + 1]}")
    return "".join([*path, f"V{bottom:g}Z"])


def _shades(x: Scale, missing: Sequence[tuple[float, float]], bottom: float) -> Iterator[Bar]:
    for since, until in missing:
        if until >= x.low and since <= x.high:
            yield Bar(x(since), TOP, max(round(x(until) - x(since), 1), 2.0), bottom - TOP)


def _in_words(history: GroupTimes, first_s: float, last_s: float, most: int) -> str:
    had = sum(len(holder.consumers) for holder in history.holders)
    since, until = (wording.moment(datetime.fromtimestamp(int(each), UTC)) for each in (first_s, last_s))
    step = wording.duration(history.step_us)
    waited = f"at most {most:,} waited" if most else "none waited"
    return (
        f"{wording.plural(had, 'consumer')} had it, {since} to {until}, in steps of {step}; at their ends "
        f"{waited}"
    )
