"""docs/semantics.md, O-18: what a lane waits for before it hands anything out."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.holds import HoldKind
from tests.core.world import world
from tests.spec.flag_bench import facts, why
from tests.spec.lane_bench import LaneBench, clause, names


def waiting(**options: int) -> LaneBench:
    """Nobody has come, and three groups wait."""
    bench = LaneBench(**options)
    bench.arrive(*(f"{group}{n}" for group in "abc" for n in range(10)))
    bench.step(after_ms=60_000)
    return bench


def test_o18_nothing_goes_out_before_enough_consumers_are_here() -> None:
    """C11, C16: and then the groups are spread evenly."""
    clause("O-18", "hands out nothing before `start.consumers` consumers have joined")
    bench = waiting(start_consumers=3, start_wait_ms=5_000)
    assert bench.join("one", prefetch=100) == []
    assert bench.join("two", prefetch=100) == []
    sent = bench.join("three", prefetch=100)
    assert len(sent) == 30
    by_group = {group: {bench.holder(f"{group}{n}") for n in range(10)} for group in "abc"}
    assert all(len(holders) == 1 for holders in by_group.values())
    assert set.union(*by_group.values()) == {"one", "two", "three"}, "10 messages and 1 group each"


def test_o18_a_time_alone_counts_from_the_first_consumer() -> None:
    """C12"""
    clause("O-18", "`start.wait` has passed since the first one joined")
    bench = waiting(start_wait_ms=200)
    bench.join("one", prefetch=100)
    joined_at_ms = bench.now_ms
    bench.join("two", prefetch=100)
    assert bench.lane.next_deadline_ms() == joined_at_ms + 200
    assert bench.step(after_ms=198) == []
    assert len(bench.step(after_ms=1)) == 30


@pytest.mark.parametrize("late", [False, True])
def test_o18_the_sooner_of_both_counts(late: bool) -> None:
    """C13: the number after 300 ms of 2,000, or the time."""
    clause("O-18", "whichever comes first")
    bench = waiting(start_consumers=2, start_wait_ms=2_000)
    bench.join("one", prefetch=100)
    assert bench.step(after_ms=300) == []
    if late:
        assert bench.step(after_ms=1_699) == []
        assert len(bench.step(after_ms=1)) == 30
    else:
        assert len(bench.join("two", prefetch=100)) == 30


def test_o18_a_number_alone_waits_a_second() -> None:
    """C14"""
    clause("O-18", "Without `start.wait` it waits 1 s")
    bench = waiting(start_consumers=3)
    bench.join("one", prefetch=100)
    assert bench.step(after_ms=999) == []
    assert len(bench.step(after_ms=1)) == 30


@pytest.mark.parametrize("end", ["leave", "die"])
def test_o18_when_all_have_gone_the_wait_begins_again(end: str) -> None:
    """C15"""
    clause("O-18", "When no consumer is left (all have left or were taken back), the next one begins")
    bench = LaneBench(start_consumers=2, start_wait_ms=500)
    bench.join("one")
    bench.join("two")
    for name, number in (("one", 1), ("two", 2)):
        assert names(bench.arrive(f"a{number}")) == [f"a{number}"], "it goes on as long as one is left"
        if bench.holder(f"a{number}") == name:
            bench.settle(name, f"a{number}")
        getattr(bench, end)(name)
    bench.arrive("b1")
    bench.step(after_ms=10_000)
    assert bench.join("three") == []
    assert bench.step(after_ms=499) == []
    assert "b1" in names(bench.step(after_ms=1))


def test_o18_why_says_so() -> None:
    bench = waiting(start_consumers=3, start_wait_ms=2_000)
    bench.join("one")
    bench.step(after_ms=500)
    assert why(bench, "a") is HoldKind.NOT_BEGUN
    assert facts(bench, "a") == {"consumers": 1, "wanted": 3, "left_ms": 1_500}


def test_o18_before_anybody_came_no_time_runs() -> None:
    bench = waiting(start_consumers=3, start_wait_ms=2_000)
    assert why(bench, "a") is HoldKind.NOT_BEGUN
    assert facts(bench, "a") == {"consumers": 0, "wanted": 3}


@pytest.mark.parametrize(
    ("policy", "settled", "waits"),
    [("exclusive", True, False), ("sequenced", False, False), ("sequenced", True, True)],
)
def test_o18_a_take_over_goes_on_with_what_is_known_to_have_begun(
    policy: str, settled: bool, waits: bool
) -> None:
    clause("O-18", "only if nothing is in flight and no group has an owner")
    options: dict[str, Any] = {"start_consumers": 2, "start_wait_ms": 700}
    lane = world(policy, **options)
    members = [lane.join(name) for name in ("one", "two")]
    lane.publish("a")
    lane.run()
    members[1].die()
    lane.wait(1_000)
    if settled:
        for member in members:
            member.ack(list(member.in_hand))
        lane.run()
    lane.fail_over()
    lane.publish("b")
    lane.run()
    assert any(copy.group == b"b" for copy in members[0].in_hand.values()) is not waits
    lane.wait(1_000)
    assert any(copy.group == b"b" for copy in members[0].in_hand.values())
