"""What the views say of a lane and of its groups, beside `groups why`."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.views.group_listing import GroupListing
from dispatcher.core.views.views import Views
from dispatcher.errors import CommandRefused
from tests.spec.lane_bench import LaneBench


def rows(bench: LaneBench, **arguments: Any) -> dict[str, dict[str, Any]]:
    views = Views(bench.lane.state)
    listing = views.listing(arguments)
    assert listing.look_at(1_000)
    listed = views.listed(listing)
    assert listed["total"] >= len(listed["groups"])
    return {row["group"]: row for row in listed["groups"]}


def test_a_row_says_why_a_group_waits_as_why_does_and_since_when_it_is_out() -> None:
    bench = LaneBench()
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.arrive("b1", after_ms=300)
    bench.step(after_ms=200)
    found = rows(bench)
    views = Views(bench.lane.state)
    for group, row in found.items():
        why = views.why({"group": group})
        assert (row["reason"], row["verdict"]) == (why["reason"], why["verdict"])
    assert found["b"]["reason"] == "no_capacity"
    assert (found["a"]["reason"], found["a"]["in_flight"]) == (None, 1)
    assert found["a"]["oldest_in_flight_ms"] == 500
    assert found["b"]["oldest_in_flight_ms"] is None


def test_groups_that_can_not_go_on_are_filtered_by_their_reason() -> None:
    bench = LaneBench()
    bench.join("one", prefetch=2)
    bench.arrive("p1")
    bench.settle("one", "p1")
    bench.command("groups.pause", group="p")
    bench.arrive("p2", "a1", "b1")
    bench.arrive("c1", "d1")
    assert set(rows(bench)) == {"p", "a", "b", "c", "d"}
    assert set(rows(bench, reason="any")) == {"p", "c", "d"}
    assert set(rows(bench, reason="paused")) == {"p"}
    assert set(rows(bench, reason="no_capacity")) == {"c", "d"}
    assert rows(bench, reason="stopped") == {}
    with pytest.raises(CommandRefused, match="no reason 'odd'"):
        GroupListing(bench.lane.state, {"reason": "odd"})


def test_the_busiest_groups_come_with_their_shares_also_when_nothing_of_them_is_left() -> None:
    bench = LaneBench("sequenced")
    bench.join("one", prefetch=10)
    bench.arrive("a1", "a2", "a3", "b1", "b2", "c1")
    bench.settle("one", "a1", "a2", "a3")
    views = Views(bench.lane.state)
    busiest = views.busiest_groups(2)
    assert busiest["total"] == 2
    assert [(row["group"], row["share"], row["in_flight"]) for row in busiest["groups"]] == [
        ("a", 0.5, 0),
        ("b", pytest.approx(1 / 3), 2),
    ]
    assert views.busiest_groups(10)["total"] == 3
    assert Views(LaneBench().lane.state).busiest_groups(3) == {"total": 0, "groups": []}


def test_status_says_what_holds_the_lane() -> None:
    bench = LaneBench()
    assert bench.status()["hold"] is None
    bench.command("groups.pause", all=True)
    assert bench.status()["hold"]["reason"] == "lane_paused"


def test_operations_are_listed_while_they_are_under_way() -> None:
    bench = LaneBench()
    bench.arrive("a1", "a2")
    views = Views(bench.lane.state)
    assert views.operations() == []
    bench.command("groups.purge", group="a")
    (operation,) = views.operations()
    facts = {"uuid": bench.command_uuids[-1], "operation": "purge", "group": "a", "waits_for": ["in0"]}
    assert operation.items() >= facts.items()
    bench.mark()
    assert views.operations() == []


def test_totals_are_those_of_the_status() -> None:
    bench = LaneBench(weights=(1, 1))
    bench.join("one", prefetch=3)
    bench.arrive("a1", "a2", "a3", "a4", "b1")
    bench.arrive("c1", inbound=1)
    bench.settle("one", "a1")
    totals, status = Views(bench.lane.state).totals(), bench.status()
    assert totals.settled == status["counters"]["settled"] == 1
    assert totals.dispatched == sum(row["dispatched"] for row in status["inbound"]) == 4
    assert (totals.waiting, totals.in_flight) == (status["held"], status["in_flight"]) == (2, 3)
    assert (totals.parked, totals.lane_epoch) == (status["parked"], status["lane_epoch"])
