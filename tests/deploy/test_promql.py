"""The reader of PromQL sees what an expression names."""

from __future__ import annotations

import pytest

from tests.deploy.live_metrics import problems
from tests.deploy.promql import named

EXPORTED = {"a_total": {"lane"}, "b": {"lane", "queue"}}


def test_metrics_their_labels_and_groupings_are_told_apart() -> None:
    found = named('sum by (lane) (rate(a_total{lane="x", job!=""}[5m])) / on (queue) b > 1 and absent(b)')
    assert found.selected == [("a_total", {"lane", "job"}), ("b", set()), ("b", set())]
    assert found.grouped == {"lane", "queue"}
    assert found.is_aggregated


def test_a_subquery_is_read() -> None:
    assert named("changes(max by (lane) (b)[30m:30s]) > 4").selected == [("b", set())]


@pytest.mark.parametrize(
    "wrong", ['sum by (lane) (c{lane="x"})', 'b{consumer="x"}', "sum by (group) (b)", "1 > 0", "rate(b[5m])"]
)
def test_what_no_dispatcher_exports_is_found(wrong: str) -> None:
    assert problems([wrong], EXPORTED)


@pytest.mark.parametrize("wrong", ["sum(b", "rat(b[5m])", "b?"])
def test_what_is_no_promql_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"known function|match|not PromQL"):
        named(wrong)
