"""Every counter of a lane has a metric."""

from __future__ import annotations

import re
from pathlib import Path

from dispatcher.http.metrics import COUNTERS

PACKAGE = Path(__file__).parents[2] / "dispatcher"


def test_every_counter_of_the_lanes_is_a_metric() -> None:
    counted = {
        name
        for folder in ("core", "service")
        for path in (PACKAGE / folder).rglob("*.py")
        for name in re.findall(r'counters\["(\w+)"\]', path.read_text())
    }
    assert set(COUNTERS) == counted
