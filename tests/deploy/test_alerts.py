"""deploy/prometheus/alerts.yaml: each rule can fire, says where to read on, and that place exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.live_metrics import TARGET_LABELS, Exported, check_with, problems
from tests.deploy.prometheus import program
from tests.deploy.promql import named

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
CASES = Path(__file__).parent / "alert_cases.yaml"
(GROUP,) = yaml.safe_load(ALERTS.read_text())["groups"]
RULES: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in GROUP["rules"]}


def _anchors(page: Path) -> set[str]:
    """The names by which the headings of a page can be linked to."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_every_name_is_there_once() -> None:
    assert len(RULES) == len(GROUP["rules"])


def test_every_metric_and_label_is_one_of_a_live_dispatcher(exported: Exported) -> None:
    assert problems((rule["expr"] for rule in RULES.values()), exported) == []


@pytest.mark.parametrize("name", RULES)
def test_a_rule_has_a_severity_a_text_and_a_section_of_the_same_name(name: str) -> None:
    rule = RULES[name]
    assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url"}
    page, anchor = annotations["runbook_url"].split("#")
    assert anchor in _anchors(ROOT / page)
    assert anchor == name.lower()


@pytest.mark.parametrize("name", RULES)
def test_texts_name_only_labels_that_the_result_has(name: str) -> None:
    rule = RULES[name]
    texts = " ".join(rule["annotations"].values())
    used = set(re.findall(r"\$labels\.(\w+)", texts))
    assert texts.count("{{") == texts.count("}}") == len(re.findall(r"\{\{ \$\w+[^{}]*\}\}", texts))
    expression = named(rule["expr"])
    assert used <= (expression.grouped if expression.is_aggregated else TARGET_LABELS | {"lane"})


def test_a_lane_without_any_replica_is_noticed() -> None:
    assert "absent(" in RULES["DispatcherAbsent"]["expr"]


def test_every_rule_has_a_case() -> None:
    cases = yaml.safe_load(CASES.read_text())["tests"]
    firing = [
        sample["labels"]
        for case in cases
        for test in case["promql_expr_test"]
        for sample in test["exp_samples"]
    ]
    assert {name for labels in firing for name in re.findall(r'alertname="(\w+)"', labels)} == set(RULES)


def test_promtool_takes_the_rules_and_they_fire_when_they_should() -> None:
    check_with(program("promtool"), "check", "rules", "--lint-fatal", ALERTS)
    check_with(program("promtool"), "test", "rules", CASES)
