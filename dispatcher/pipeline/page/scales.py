"""From values to places in a picture, and which of them to write beside the axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from dispatcher.pipeline.page.wording import duration

_TICKS_MAX: Final = 5
_TIME_STEPS_S: Final = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400,
    2 * 86_400, 7 * 86_400, 14 * 86_400, 30 * 86_400, 90 * 86_400,
)  # fmt: skip
_DAY_S: Final = 86_400
_YEAR_S: Final = 365 * _DAY_S
#: Of the picture's units: one and a half labels of a time. The last label may end at the border, where the
#: others are centred.
_TIMES_APART: Final = 82


@dataclass(frozen=True)
class AxisTick:
    """A place on an axis, and what stands there."""

    at: float
    label: str


@dataclass(frozen=True)
class Scale:
    """A straight one, or one of powers: `low` and `high` are values, `start` and `end` are places."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value; what lies outside is put at the border."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        part = (at - low) / (high - low) if high > low else 0.5
        return round(self.start + part * (self.end - self.start), 1)


def time_axis(first_s: float, last_s: float, start: float, end: float) -> tuple[Scale, list[AxisTick]]:
    """Of seconds since 1970; labels are UTC."""
    scale = Scale(first_s, last_s, start, end)
    span_s = last_s - first_s
    least_s = span_s * _TIMES_APART / (end - start)
    step_s = next((each for each in _TIME_STEPS_S if each >= least_s), _YEAR_S * math.ceil(least_s / _YEAR_S))
    shapes = ((60, "%H:%M:%S"), (_DAY_S, "%H:%M"), (_YEAR_S, "%d %b"))
    shape = next((shape for below_s, shape in shapes if step_s < below_s), "%b %Y")
    ticks, at_s = [], math.ceil(first_s / step_s) * step_s
    while at_s <= last_s:
        ticks.append(AxisTick(scale(at_s), datetime.fromtimestamp(at_s, UTC).strftime(shape)))
        at_s += step_s
    return scale, ticks


def duration_axis(values: list[float], start: float, end: float) -> tuple[Scale, list[AxisTick]]:
    """Of µs, in powers of ten; 0 is put where 1 µs is."""
    positive = [max(value, 1.0) for value in values] or [1.0]
    low = math.floor(math.log10(min(positive)))
    high = max(math.ceil(math.log10(max(positive))), low + 1)
    scale = Scale(10.0**low, 10.0**high, start, end, is_log=True)
    every = 1 + (high - low - 1) // _TICKS_MAX
    ticks = [AxisTick(scale(10.0**power), _power(power)) for power in range(low, high + 1, every)]
    return scale, ticks


def _power(power: int) -> str:
    """10 ** power µs, short: there is little room beside an axis."""
    return duration(10.0**power) if power < 8 else f"{10 ** (power - 6):,} s"


def number_axis(highest: float, start: float, end: float, unit: str = "") -> tuple[Scale, list[AxisTick]]:
    """From 0 to a round number that is not below `highest`."""
    step = _round_step(highest / 4) if highest > 0 else 1.0
    top = max(1, math.ceil(highest / step - 1e-9)) * step
    scale = Scale(0.0, top, start, end)
    steps = round(top / step)
    return scale, [AxisTick(scale(step * place), _number(step * place) + unit) for place in range(steps + 1)]


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return float(next(each for each in (1, 2, 2.5, 5, 10) if each * power >= least * (1 - 1e-9)) * power)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"
