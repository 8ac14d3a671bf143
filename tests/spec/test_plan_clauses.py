"""docs/semantics.md, O-33: a plan is carried out as far as it is still true."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dispatcher.core.operators.rebalance_plan import DONE, ON_ITS_WAY, PLANNED_AT_ONCE
from tests.spec.flag_bench import refused, said
from tests.spec.lane_bench import LaneBench, clause, names

ROUND_TRIP = ["a", "one", "two"]


def bench_of(groups: str = "abcd", **options: Any) -> LaneBench:
    """Each group belongs to one, and has a message in flight there; two and three have nothing."""
    bench = LaneBench(**options)
    bench.join("one")
    bench.arrive(*(f"{group}1" for group in groups))
    bench.join("two")
    bench.join("three")
    return bench


def applied(bench: LaneBench, *moves: list[Any], **arguments: Any) -> dict[str, Any]:
    return said(bench, "rebalance.plan", moves=list(moves), **arguments)


def owner(bench: LaneBench, group: str) -> str | None:
    found = bench.lane.state.groups.get(group.encode())
    return found.owner.id if found is not None and found.owner is not None else None


def skipped(result: dict[str, Any]) -> dict[str, str]:
    assert Counter(each["why"] for each in result["skipped_groups"]) == result["skipped"]
    return {each["group"]: each["why"] for each in result["skipped_groups"]}


def test_o33_groups_move_when_they_are_settled() -> None:
    clause("O-33", "The dispatcher carries out a move, as in O-13, if it still applies")
    bench = bench_of()
    bench.settle("one", "b1")
    result = applied(bench, ROUND_TRIP, ["b", "one", "three"])
    assert result == {
        "groups": 2, "applied": True, "pause": "group", "skipped": {}, "skipped_groups": [],
        "moves": [
            {"group": "a", "from": "one", "to": "two", "waits_for": 1},
            {"group": "b", "from": "one", "to": "three", "waits_for": 0},
        ],
    }  # fmt: skip
    assert names(bench.arrive("a2", "b2", "c2")) == ["b2", "c2"], "a waits until a1 is settled"
    assert [bench.holder("b2"), bench.holder("c2")] == ["three", "one"]
    assert names(bench.settle("one", "a1")) == ["a2"]
    assert bench.holder("a2") == "two"


def test_o33_applied_again_it_changes_nothing_more() -> None:
    clause("O-33b", "a plan that is applied again changes nothing more")
    bench = bench_of()
    assert applied(bench, ROUND_TRIP)["groups"] == 1
    assert skipped(applied(bench, ROUND_TRIP)) == {"a": ON_ITS_WAY}
    bench.settle("one", "a1")
    assert skipped(applied(bench, ROUND_TRIP)) == {"a": DONE}
    assert owner(bench, "a") == "two"
    assert bench.lane.state.counters["groups_moved"] == 1


def test_o33_what_is_not_true_is_left_as_it_is() -> None:
    clause("O-33b", "A move that no longer applies is skipped and counted with the reason")
    bench = bench_of("abcdef")
    said(bench, "groups.pin", group="b", consumer="one")
    said(bench, "groups.purge", group="c")
    said(bench, "rebalance", group="d", to="two")
    said(bench, "consumers.drain", consumer="three")
    before = {group: owner(bench, group) for group in "abcdef"}
    result = applied(
        bench, ["a", "two", "one"], ["b", "one", "two"], ["c", "one", "two"], ["d", "one", "four"],
        ["e", "one", "three"], ["f", None, "two"], ["g", "one", "two"],
    )  # fmt: skip
    assert skipped(result) == {
        "a": DONE, "b": "is pinned", "c": "has an open operation",
        "d": "consumer four is not there", "e": "consumer three is drained",
        "f": "belongs to another consumer by now", "g": "has no owner by now",
    }  # fmt: skip
    assert (result["groups"], result["moves"]) == (0, [])
    assert {group: owner(bench, group) for group in "abcdef"} == before
    assert skipped(applied(bench, ["a", "three", "two"], ["d", "one", "one"])) == {
        "a": "belongs to another consumer by now", "d": "is in transition",
    }  # fmt: skip


def test_o33_a_consumer_that_left_meanwhile_gets_nothing() -> None:
    bench = bench_of()
    bench.leave("two")
    bench.die("three")
    result = applied(bench, ROUND_TRIP, ["b", "one", "three"], ["c", "one", "two"])
    assert result["skipped"] == {"consumer two is not there": 2, "consumer three is not there": 1}
    assert [owner(bench, group) for group in "abc"] == ["one"] * 3


def test_o33_a_group_that_nobody_owns_is_given_at_once() -> None:
    clause("O-33a", "A group without an owner gets its new owner at once")
    bench = LaneBench()
    bench.join("one", prefetch=1)
    bench.join("two")
    result = applied(bench, ["a", None, "two"], ["b", None, "one"], ["c", None, "nobody"])
    assert [(move["group"], move["from"], move["to"]) for move in result["moves"]] == [
        ("a", None, "two"), ("b", None, "one"),
    ]  # fmt: skip
    assert skipped(result) == {"c": "consumer nobody is not there"}
    assert bench.lane.state.groups.get(b"c") is None
    bench.arrive("a1", "b1", "b2")
    assert [bench.holder("a1"), bench.holder("b1"), owner(bench, "b")] == ["two", "one", "one"]


def test_o33_a_given_group_takes_what_waits_of_it() -> None:
    bench = LaneBench()
    bench.join("one", prefetch=1)
    bench.arrive("a1", "b1")
    bench.join("two", prefetch=1)
    bench.arrive("c1")
    assert [bench.holder("a1"), owner(bench, "c")] == ["one", None]
    applied(bench, ["c", None, "one"])
    assert names(bench.settle("one", "a1")) == ["c1"]
    assert bench.holder("c1") == "one"


def test_o33_what_is_only_asked_changes_nothing() -> None:
    bench = bench_of()
    result = applied(bench, ROUND_TRIP, ["z", None, "two"], dry_run=True)
    assert (result["groups"], result["applied"]) == (2, False)
    assert owner(bench, "a") == "one"
    assert bench.lane.state.groups.get(b"z") is None
    assert names(bench.arrive("a2")) == ["a2"]


@pytest.mark.parametrize("pause", ["lane", "none"])
def test_o33_its_pause_is_that_of_the_command(pause: str) -> None:
    bench = bench_of("ab")
    assert applied(bench, ROUND_TRIP, pause=pause)["pause"] == pause
    went = names(bench.arrive("a2", "b2"))
    assert went == ([] if pause == "lane" else ["a2", "b2"])
    if pause == "none":
        assert bench.holder("a2") == "two", "while a1 is still at one (O-19)"


def test_o33_with_buckets_buckets_move() -> None:
    bench = bench_of("a", buckets=4)
    (bucket,) = bench.lane.state.groups
    applied(bench, [bucket.decode(), "one", "two"], buckets=4)
    assert bench.lane.state.groups[bucket].target is bench.lane.state.by_id["two"]
    bench.settle("one", "a1")
    bench.arrive("a2")
    assert bench.holder("a2") == "two"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"moves": [], "buckets": 4}, "the plan is for a lane with 4 buckets, and this lane is one without"),
        ({}, f"moves: must be a list of at most {PLANNED_AT_ONCE}"),
        ({"moves": [["a", "one", "two"]] * (PLANNED_AT_ONCE + 1)}, "moves: must be a list of at most"),
        ({"moves": [["a", "one"]]}, "moves: each must be [group, owner or null, consumer]"),
        ({"moves": [["a", "one", None]]}, "moves: each must be"),
        ({"moves": [[7, "one", "two"]]}, "moves: each must be"),
        ({"moves": "abc"}, "moves: must be a list"),
        ({"moves": [["a", "one", "two"], ["a", "one", "three"]]}, "moves: a is named twice"),
        ({"moves": [], "pause": "all"}, "pause: must be group, lane or none"),
        ({"moves": [], "buckets": True}, "buckets: must be a whole number"),
    ],
)  # fmt: skip
def test_o33_what_can_not_be_meant_is_refused_as_a_whole(arguments: dict[str, Any], error: str) -> None:
    clause("O-33d", "A plan for another number of buckets is refused as a whole")
    clause("O-33c", "Up to 500 moves are one decision")
    assert PLANNED_AT_ONCE == 500
    bench = bench_of("ab")
    assert error in refused(bench, "rebalance.plan", **arguments)
    assert [owner(bench, group) for group in "ab"] == ["one", "one"]
    assert names(bench.arrive("a2")) == ["a2"]


def test_o33_only_where_owners_last() -> None:
    bench = LaneBench("sequenced")
    assert "have no lasting owner" in refused(bench, "rebalance.plan", moves=[])
