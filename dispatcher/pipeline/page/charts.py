"""Pictures as shapes with places; the templates draw them as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dispatcher.pipeline.page.scales import AxisTick, Scale, duration_axis, number_axis, time_axis

#: Of the picture's own units; it is drawn as wide as there is room.
WIDTH: Final = 340
HEIGHT: Final = 170
LEFT: Final = 52
RIGHT: Final = WIDTH - 10
TOP: Final = 10
BOTTOM: Final = HEIGHT - 24

Point = tuple[float, float]


@dataclass(frozen=True)
class ChartLine:
    """Joined points of one kind; `kind` chooses its colour."""

    name: str
    kind: str
    path: str


@dataclass(frozen=True)
class Bar:
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Mark:
    """A point that stands out, with its meaning."""

    x: float
    y: float
    kind: str
    text: str


@dataclass(frozen=True)
class Chart:
    """One picture: `description` says in words what it shows."""

    key: str  # of this chart alone on the page
    title: str
    description: str
    x_ticks: Sequence[AxisTick]
    y_ticks: Sequence[AxisTick]
    lines: Sequence[ChartLine] = ()
    bars: Sequence[Bar] = ()
    shades: Sequence[Bar] = ()  # stretches of time of which records are missing
    marks: Sequence[Mark] = ()
    area: str = ""
    x_title: str = ""
    width: int = field(default=WIDTH, init=False)
    height: int = field(default=HEIGHT, init=False)
    left: int = field(default=LEFT, init=False)
    right: int = field(default=RIGHT, init=False)
    top: int = field(default=TOP, init=False)
    bottom: int = field(default=BOTTOM, init=False)


@dataclass(frozen=True)
class Timeline:
    """The time that a lane's pictures share: when its points begin, in seconds since 1970."""

    starts_s: Sequence[float]
    step_s: float
    missing_s: Sequence[tuple[float, float]] = ()

    @property
    def scale(self) -> tuple[Scale, list[AxisTick]]:
        return time_axis(self.starts_s[0], self.starts_s[-1] + self.step_s, LEFT, RIGHT)

    def shades(self) -> list[Bar]:
        scale, _ = self.scale
        first_s, last_s = scale.low, scale.high
        inside = [(since, until) for since, until in self.missing_s if until >= first_s and since <= last_s]
        # A short one must be seen, too.
        return [
            Bar(scale(since), TOP, max(scale(until) - scale(since), 2.0), BOTTOM - TOP)
            for since, until in inside
        ]


def rate_over_time(key: str, title: str, timeline: Timeline, per_s: Sequence[float]) -> Chart:
    """Bars, one for each point of time."""
    x, x_ticks = timeline.scale
    y, y_ticks = number_axis(max(per_s), BOTTOM, TOP)
    bars = [
        Bar(x(start), y(rate), max(round(x(start + timeline.step_s) - x(start) - 0.5, 1), 0.7),
            round(BOTTOM - y(rate), 1))
        for start, rate in zip(timeline.starts_s, per_s, strict=True)
    ]  # fmt: skip
    highest = max(per_s)
    description = f"{sum(per_s) / len(per_s):,.0f} a second on average, {highest:,.0f} at most"
    return Chart(key, title, description, x_ticks, y_ticks, bars=bars, shades=timeline.shades())


def durations_over_time(
    key: str, title: str, description: str, timeline: Timeline, series: Mapping[str, Sequence[float | None]]
) -> Chart | None:
    """A line for each of the series (the lower one first), and the area between the first and the last; None
    when no value is known."""
    known = [value for values in series.values() for value in values if value is not None]
    if not known:
        return None
    x, x_ticks = timeline.scale
    y, y_ticks = duration_axis(known, BOTTOM, TOP)
    middle = timeline.step_s / 2
    points = {
        name: [
            (x(start + middle), y(max(value, 1.0))) if value is not None else None
            for start, value in zip(timeline.starts_s, values, strict=True)
        ]
        for name, values in series.items()
    }
    apart = _apart(timeline)
    lines = [ChartLine(name, name, " ".join(_path(run) for run in _runs(places, apart)))
             for name, places in points.items()]  # fmt: skip
    lowest, *_, highest = points.values()
    area = " ".join(
        _closed([*low, *reversed(high)])
        for low, high in zip(_runs(lowest, apart), _runs(highest, apart), strict=True)
        if len(low) > 1
    )
    return Chart(key, title, description, x_ticks, y_ticks, lines, shades=timeline.shades(), area=area)


def durations_by_number(
    key: str,
    title: str,
    description: str,
    numbers: Sequence[float],
    series: Mapping[str, Sequence[float | None]],
    marks: dict[int, tuple[str, str]],
) -> Chart | None:
    """Lines over numbers of which each is about twice the one before. `marks` are (kind, text) by place, on
    the last of the series."""
    known = [value for values in series.values() for value in values if value is not None]
    if not known:
        return None
    x = Scale(max(numbers[0], 0.5), max(numbers[-1], 1.0), LEFT + 8, RIGHT - 8, is_log=True)
    y, y_ticks = duration_axis(known, BOTTOM, TOP)
    every = 1 + (len(numbers) - 1) // 6
    x_ticks = [AxisTick(x(number), f"{number:,.0f}") for number in numbers[::every]]
    places = {
        name: [(x(number), y(max(value, 1.0))) if value is not None else None
               for number, value in zip(numbers, values, strict=True)]
        for name, values in series.items()
    }  # fmt: skip
    lines = [ChartLine(name, name, " ".join(_path(run) for run in _runs(found, lambda place: False)))
             for name, found in places.items()]  # fmt: skip
    *_, last = places.values()
    drawn = [
        Mark(point[0], point[1], kind, text)
        for place, (kind, text) in marks.items() if (point := last[place]) is not None
    ]  # fmt: skip
    return Chart(key, title, description, x_ticks, y_ticks, lines, marks=drawn)


def _apart(timeline: Timeline) -> Callable[[int], bool]:
    """Whether nothing ended between a point and the one before it."""
    starts = timeline.starts_s
    return lambda place: starts[place] - starts[place - 1] > 1.5 * timeline.step_s


def _runs(points: Sequence[Point | None], apart: Callable[[int], bool]) -> Iterator[list[Point]]:
    """The stretches without a hole."""
    run: list[Point] = []
    for place, point in enumerate(points):
        if run and (point is None or apart(place)):
            yield run
            run = []
        if point is not None:
            run.append(point)
    if run:
        yield run


def _path(points: Sequence[Point]) -> str:
    """Of a line; a single point is one of no length, which round ends make a dot."""
    (x, y), *others = points
    if not others:
        return f"M{_place(x, y)}h.01"
    return f"M{_place(x, y)}L" + " ".join(_place(*point) for point in others)


def _closed(points: Iterable[Point]) -> str:
    return "M" + "L".join(_place(*point) for point in points) + "Z"


def _place(x: float, y: float) -> str:
    return f"{x:g},{y:g}"


def heat(value: float, highest: float) -> int:
    """Which of ten colours: even in the root, for a few groups have most."""
    return min(9, int(10 * math.sqrt(value / highest))) if highest > 0 else 0
