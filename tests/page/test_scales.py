"""Labels beside the axes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dispatcher.pipeline.page.charts import LEFT, RIGHT
from dispatcher.pipeline.page.scales import AxisTick, time_axis

#: Of 11 units' size in a wide font.
DIGIT, OTHER = 7.0, 3.7
DAY_S = 86_400
SINCE_S = 1_764_000_000


def extent(tick: AxisTick) -> tuple[float, float]:
    """From where to where a label reaches: as macros.html places it."""
    width = sum(OTHER if each in ": " else DIGIT for each in tick.label)
    end = tick.at if tick.at > RIGHT - 18 else tick.at + width / 2
    return end - width, end


@pytest.mark.parametrize(
    "span_s", [0.3, 2, 5, 25, 50, 75, 149, 299, 3_000, 18_000, DAY_S, 5 * DAY_S, 70 * DAY_S, 449 * DAY_S,
               1_825 * DAY_S, 12_000 * DAY_S],
)  # fmt: skip
def test_times_do_not_overlap(span_s: float) -> None:
    for part in range(50):
        first_s = SINCE_S + span_s * part / 50
        _, ticks = time_axis(first_s, first_s + span_s, LEFT, RIGHT)
        for one, other in pairwise(map(extent, ticks)):
            assert other[0] - one[1] >= 1, ticks
        assert len({tick.label for tick in ticks}) == len(ticks) or DAY_S // 2 <= span_s <= 2 * DAY_S


def test_over_years_labels_say_which() -> None:
    _, ticks = time_axis(SINCE_S, SINCE_S + 3_650 * DAY_S, LEFT, RIGHT)
    assert [tick.label for tick in ticks] == ["Dec 2026", "Dec 2029", "Dec 2032"]
