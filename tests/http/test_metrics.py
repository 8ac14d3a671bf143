"""Every counter of a lane has a metric, and names are as Prometheus wants them."""

from __future__ import annotations

import re
from pathlib import Path

from dispatcher.http.metrics import COUNTERS, registry

PACKAGE = Path(__file__).parents[2] / "dispatcher"
#: What Prometheus' conventions want as seconds, bytes and ratios.
OTHER_UNITS = re.compile(r"_(ms|millis|milliseconds|minutes|hours|kb|mb|kib|mib|percent)(_|$)")


def test_every_counter_of_the_lanes_is_a_metric() -> None:
    counted = {
        name
        for folder in ("core", "service")
        for path in (PACKAGE / folder).rglob("*.py")
        for name in re.findall(r'counters\["(\w+)"\]', path.read_text())
    }
    assert set(COUNTERS) == counted


def test_no_two_metrics_share_a_name_in_openmetrics_where_a_counter_has_its_name_without_total() -> None:
    names = [family.name for family in registry([]).collect()]
    assert len(names) == len(set(names))


def test_names_have_base_units_and_only_counters_are_totals() -> None:
    for family in registry([]).collect():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name)
        assert not OTHER_UNITS.search(family.name), family.name
        assert family.documentation, family.name
        assert not family.name.endswith(("_total", "_info", "_count", "_sum", "_bucket")), family.name
