"""docs/semantics.md, O-22: groups pinned to a consumer."""

from __future__ import annotations

import pytest

from dispatcher.core.holds import HoldKind
from tests.spec.flag_bench import BOTH, facts, owner, refused, row, said, why
from tests.spec.lane_bench import LaneBench, clause, names


@pytest.mark.parametrize("top_up", [None, False, True], ids=["exclusive", "sequenced", "top_up"])
def test_o22_only_that_consumer_gets_it(top_up: bool | None) -> None:
    clause("O-22", "The group changes its owner when its messages in flight at other consumers are settled")
    bench = LaneBench("exclusive") if top_up is None else LaneBench("sequenced", top_up=top_up)
    bench.join("one")
    bench.arrive("a1")
    bench.join("two")
    assert said(bench, "groups.pin", group="a", consumer="two") == {
        "group": "a", "consumer": "two", "changed": True, "owner": "one", "in_flight": 1,
    }  # fmt: skip
    assert bench.arrive("a2") == []
    assert names(bench.settle("one", "a1")) == ["a2"]
    bench.settle("two", "a2")
    for number in range(3, 9):
        bench.arrive(f"a{number}")
        bench.settle("two", f"a{number}")
    assert {bench.holder(f"a{number}") for number in range(2, 9)} == {"two"}
    assert row(bench, "a")["pin"] == "two", "also while nothing of it is here"


@BOTH
def test_o22_it_waits_for_its_consumer(name: str) -> None:
    clause("O-22", "only the named consumer gets the group, in this incarnation and later ones")
    clause("O-22", "While the named consumer is away, is leaving or is drained, the group waits")
    bench = LaneBench(name)
    bench.join("one")
    bench.arrive("a1")
    bench.join("two")
    said(bench, "groups.pin", group="a", consumer="one")
    assert bench.die("one") == []
    assert names(bench.arrive("a2", "b1")) == ["b1"]
    assert why(bench, "a") is HoldKind.PIN_ABSENT
    assert (facts(bench, "a")["pin"], facts(bench, "a")["is_there"]) == ("one", False)
    assert names(bench.join("one", uuid="one-2")) == ["a1", "a2"]
    assert bench.holder("a2") == "one"


@BOTH
def test_o22_it_waits_while_its_consumer_leaves_or_is_drained(name: str) -> None:
    bench = LaneBench(name)
    bench.join("one")
    bench.arrive("a1")
    bench.join("two")
    said(bench, "groups.pin", group="a", consumer="one")
    assert said(bench, "consumers.drain", consumer="one")["pinned"] == 1
    bench.settle("one", "a1")
    assert bench.arrive("a2") == []
    assert why(bench, "a") is HoldKind.PIN_ABSENT
    assert facts(bench, "a")["is_there"], "it is drained"
    said(bench, "consumers.drain", consumer="one", undo=True)
    assert bench.holder("a2") == "one"
    bench.leave("one")
    assert bench.settle("one", "a2") == []
    assert bench.arrive("a3") == []
    assert names(bench.join("one", uuid="one-2")) == ["a3"]


def test_o22_a_full_consumer_is_named() -> None:
    bench = LaneBench()
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two", prefetch=1)
    said(bench, "groups.pin", group="a", consumer="two")
    bench.arrive("b1")
    bench.settle("one", "a1")
    bench.arrive("a2")
    assert why(bench, "a") is HoldKind.PREFETCH_FULL
    assert (facts(bench, "a")["consumer"], facts(bench, "a")["in_flight"]) == ("two", 1)
    bench.die("two")
    bench.join("two", prefetch=1, uuid="two-2")
    assert bench.holder("a2") == "two"


def test_o22_rebalances_leave_it_alone() -> None:
    clause("O-22", "Rebalances don't move the group, and closing it does not end the pin")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "b1", "c1")
    bench.settle("one", "a1", "b1", "c1")
    bench.join("two")
    said(bench, "groups.pin", group="a", consumer="one")
    bench.command(reset=True)
    bench.arrive("a2", "b2", "c2")
    assert (owner(bench, "a"), bench.holder("a2")) == ("one", "one")
    assert "the group is pinned to one; " in refused(bench, "rebalance", group="a", to="two")
    bench.settle("one", "a2")
    bench.command("groups.close", group="a")
    assert owner(bench, "a") is None
    bench.arrive("a3")
    assert bench.holder("a3") == "one"


def test_o22_undone_its_owner_keeps_it() -> None:
    clause("O-22", "`--undo` makes it a group like others: its owner keeps it")
    bench = LaneBench()
    bench.join("one")
    bench.join("two")
    bench.arrive("a1")
    said(bench, "groups.pin", group="a", consumer="two")
    bench.settle("one", "a1")
    said(bench, "groups.pin", group="a", undo=True)
    bench.arrive("a2")
    assert bench.holder("a2") == "two"
    bench.die("two")
    assert bench.holder("a2") == "one", "now it goes to others"


def test_o22_undone_while_it_waits_it_goes_to_anybody() -> None:
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1")
    said(bench, "groups.pin", group="a", consumer="one")
    bench.join("two")
    bench.die("one")
    said(bench, "groups.pin", group="a", undo=True)
    assert bench.holder("a1") == "two"
