"""deploy/grafana/: every query of the dashboards names what a live dispatcher exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.live_metrics import TARGET_LABELS, Exported, check_with, problems
from tests.deploy.prometheus import program
from tests.deploy.promql import named

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
BOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))
}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: Of Grafana's own; they are no variables of the dashboard.
BUILT_IN = {"__all", "__rate_interval", "__value", "__url_time_range"}

boards = pytest.mark.parametrize("name", BOARDS)


def _panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in BOARDS[name]["panels"] if panel["type"] != "row"]


def _variables(name: str) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in BOARDS[name]["templating"]["list"]}


def queries(name: str) -> Iterator[tuple[str, str]]:
    """Each expression as Prometheus would get it, with its legend."""
    for panel in _panels(name):
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "1m"), target["legendFormat"]


def test_there_are_a_dashboard_of_a_lane_and_one_of_all() -> None:
    assert set(BOARDS) == {"lane", "fleet"}
    assert len({board["uid"] for board in BOARDS.values()}) == 2


@boards
def test_every_metric_and_label_is_one_of_a_live_dispatcher(name: str, exported: Exported) -> None:
    assert problems((expression for expression, _ in queries(name)), exported) == []
    for variable in _variables(name).values():
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found is not None, variable["query"]
            assert problems([found[1]], exported) == []
            (metric, _), *_ = named(found[1]).selected
            assert found[2] in exported[metric] | TARGET_LABELS


@boards
def test_legends_name_labels_that_the_result_has(name: str, exported: Exported) -> None:
    for expression, legend in queries(name):
        found = named(expression)
        there = (
            found.grouped
            if found.is_aggregated
            else TARGET_LABELS.union(*(exported[m] for m, _ in found.selected))
        )
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= there, expression


@boards
def test_the_data_source_is_a_variable_everywhere(name: str) -> None:
    variables = _variables(name)
    assert variables["datasource"]["type"] == "datasource"
    places = [*_panels(name), *(target for panel in _panels(name) for target in panel["targets"])]
    places += [variable for variable in variables.values() if variable["type"] == "query"]
    assert all(place["datasource"] == DATASOURCE for place in places)


@boards
def test_variables_that_are_used_exist_and_those_that_exist_are_used(name: str) -> None:
    text = json.dumps(BOARDS[name])
    used = {a or b for a, b in re.findall(r"\$(?:\{(\w+)[:.\w]*\}|(\w+))", text)} - BUILT_IN
    assert used == set(_variables(name))


@boards
def test_panels_have_ids_and_places_of_their_own_and_say_what_they_are(name: str) -> None:
    panels = BOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] for panel in panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for a, b in combinations(places, 2):
        apart_x = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart_y = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart_x or apart_y, (a, b)


def test_the_link_of_the_fleet_leads_to_the_dashboard_of_a_lane() -> None:
    (link,) = re.findall(r'"url": "(/d/[^"]+)"', json.dumps(BOARDS["fleet"]))
    path, _, query = link.partition("?")
    assert path == f"/d/{BOARDS['lane']['uid']}"
    assert set(re.findall(r"var-(\w+)=|\$\{(\w+):queryparam\}", query)) == {
        ("lane", ""), ("", "job"), ("", "datasource")
    }  # fmt: skip
    assert {"lane", "job", "datasource"} <= set(_variables("lane"))


@boards
def test_prometheus_can_read_every_query(name: str, tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{number}", "expr": expression}
        for number, (expression, _) in enumerate(queries(name))
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    check_with(program("promtool"), "check", "rules", file)
