"""docs/semantics.md, D-9: groups that stop at a message that failed (`retry.on_exhausted: stop`)."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.effects import Snapshot
from dispatcher.core.holds import HoldKind
from dispatcher.core.lane import Lane
from dispatcher.core.options import Cost
from dispatcher.core.views.views import Views
from tests.spec.flag_bench import BOTH, facts, refused, row, said, says, why
from tests.spec.lane_bench import LaneBench, clause, names
from tests.spec.parking_bench import blocked


def stopping(name: str = "exclusive", **options: Any) -> LaneBench:
    bench = LaneBench(name, stops_failed=True, heartbeat_ms=3_600_000, **options)
    bench.join("one")
    return bench


def stopped(name: str = "exclusive", **options: Any) -> LaneBench:
    """Of group a the first message has failed, two wait behind it."""
    bench = stopping(name, **options)
    bench.arrive("a1", "a2", "a3")
    bench.fail("one", "a1", "no stock")
    return bench


@BOTH
def test_d9_a_failed_message_stops_its_group_only(name: str) -> None:
    clause(
        "D-9",
        "stops its group instead: it waits in front of its group, and no message of the group",
    )
    bench = stopped(name)
    assert names(bench.arrive("a4", "b1")) == ["b1"]
    assert (bench.dead, bench.acked) == ([], [])
    assert row(bench, "a")["stopped"] == "no stock"
    assert why(bench, "a") is HoldKind.STOPPED
    told = facts(bench, "a")
    assert (told["failure"], told["attempt"], told["calls"], told["consumer"]) == ("no stock", 1, 1, "one")
    assert bench.told[-1][0] == "group_stopped"
    assert bench.status()["groups_stopped"] == 1


@BOTH
@pytest.mark.parametrize("cost", [Cost.ONE, Cost.SAID])
def test_d9_of_a_group_one_message_is_out_at_a_time(name: str, cost: Cost) -> None:
    clause("D-9b", "a group has one message in flight at a time")
    bench = stopping(name, weights=(1, 1), cost=cost)
    bench.arrive("a1", "a2", "b1", "b2")
    bench.arrive("a3", inbound=1)
    assert names(bench.sent) == ["a1", "b1"]
    assert why(bench, "a") is HoldKind.ONE_AT_A_TIME
    assert facts(bench, "a")["in_flight"] == 1
    assert names(bench.settle("one", "b1")) == ["b2"]
    assert names(bench.settle("one", "a1")) in (["a2"], ["a3"])
    rest = {"a2", "a3"} - {names(bench.sent)[-1]}
    assert set(names(bench.settle("one", names(bench.sent)[-1]))) == rest


@BOTH
def test_d9_released_it_goes_first(name: str) -> None:
    clause("D-9a", "`dead release`: the group goes on, that message first")
    bench = stopped(name)
    assert said(bench, "dead.release", group="a") == {
        "group": "a", "reason": "no stock", "verdict": "release", "behind": 2,
    }  # fmt: skip
    assert (names(bench.sent), bench.sent[-1].attempt) == (["a1", "a1"], 2)
    assert names(bench.settle("one", "a1")) == ["a2"]
    assert names(bench.settle("one", "a2")) == ["a3"]
    assert bench.flags == {}


@BOTH
def test_d9_skipped_it_goes_to_the_dead_queue(name: str) -> None:
    clause("D-9a", "`dead skip`: it goes to the dead queue")
    bench = stopped(name)
    said(bench, "dead.skip", group="a")
    assert bench.dead == [(b"a1", "no stock")]
    assert names(bench.sent) == ["a1", "a2"]
    assert bench.flags == {}


@BOTH
def test_d9_dropped_it_is_deleted(name: str) -> None:
    clause("D-9a", "`dead drop`: it is deleted, and the group goes on behind it")
    bench = stopped(name)
    said(bench, "dead.drop", group="a")
    assert (bench.dead, bench.acked) == ([], [b"a1"])
    assert names(bench.sent) == ["a1", "a2"]
    assert (bench.flags, bench.status()["held"]) == ({}, 1)


def test_d9_of_the_last_message_nothing_is_left() -> None:
    bench = stopping("sequenced")
    for verdict in ("skip", "drop"):
        bench.arrive("a1")
        bench.fail("one", "a1", "no stock")
        said(bench, f"dead.{verdict}", group="a")
    assert b"a" not in bench.lane.state.groups
    assert bench.status()["held"] == 0


def test_d9_it_may_stop_again_and_again() -> None:
    bench = stopped()
    for attempt in (2, 3, 4, 5):
        said(bench, "dead.release", group="a")
        assert (names(bench.sent)[-1], bench.sent[-1].attempt) == ("a1", attempt)
        bench.fail("one", "a1", f"still none {attempt}")
        assert row(bench, "a")["stopped"] == f"still none {attempt}"
    assert bench.dead == []


def test_d9_poison_stops_its_group_too() -> None:
    clause("D-9", "or that is poison")
    bench = stopping(attempts=2)
    bench.join("two")
    bench.arrive("a1", "a2", "b1")
    bench.settle(bench.holder("b1"), "b1")
    for _ in range(2):
        holder = bench.holder("a1")
        bench.die(holder, uuid=bench.lane.state.by_id[holder].uuid)
        bench.join("three")
        bench.arrive("c1")
        bench.settle(bench.holder("c1"), "c1")
    assert row(bench, "a")["stopped"] == "poison"
    assert (bench.dead, names(bench.sent).count("a2")) == ([], 0)


def test_m1_a_failure_that_was_released_counts_and_kills_nobody() -> None:
    """It is tried alone at once; what was settled since it failed says nothing about its first death."""
    clause("M-1b", "So does a hand-over that its consumer failed")
    bench = stopping(attempts=2)
    bench.join("two")
    bench.arrive("a1")
    bench.fail(bench.holder("a1"), "a1", "no stock")
    said(bench, "dead.release", group="a")
    holder = bench.holder("a1")
    assert bench.lane.state.by_id[holder].alone_with is bench.latest("a1").message
    bench.arrive("b1")
    bench.settle(bench.holder("b1"), "b1")
    bench.die(holder, uuid=bench.lane.state.by_id[holder].uuid)
    assert row(bench, "a")["stopped"] is None
    bench.join("three")
    bench.arrive("c1")
    bench.settle(bench.holder("c1"), "c1")
    holder = bench.holder("a1")
    bench.die(holder, uuid=bench.lane.state.by_id[holder].uuid)
    assert row(bench, "a")["stopped"] == "poison"


def test_d9_it_goes_to_another_consumer_when_its_own_is_gone() -> None:
    bench = stopped()
    bench.join("two")
    bench.die("one")
    assert row(bench, "a")["stopped"] == "no stock"
    said(bench, "dead.release", group="a")
    assert bench.holder("a1") == "two"


def test_d9_what_expires_or_has_no_group_goes_to_the_dead_queue() -> None:
    clause("D-9d", "expires, or that can't be delivered at all, goes to the dead queue as always")
    bench = stopping()
    bench.arrive("a1", "a2", "-1")
    bench.fail("one", "a1", "expired")
    bench.fail("one", "-1", "no stock")
    assert bench.dead == [(b"a1", "expired"), (b"-1", "no stock")]
    assert names(bench.sent)[-1] == "a2"


def test_d9_a_paused_group_stays_paused() -> None:
    bench = stopped()
    said(bench, "groups.pause", group="a")
    said(bench, "dead.release", group="a")
    assert names(bench.sent) == ["a1"]
    said(bench, "groups.resume", group="a")
    assert names(bench.sent) == ["a1", "a1"]


def test_d9_it_is_committed_and_holds_under_the_next_leader() -> None:
    clause("D-9c", "committed with the failure and holds under every later leader")
    bench = stopped()
    assert bench.lane.checkpoint(everything=True).operator_rows == bench.flags, (
        "written back to an empty Redis"
    )
    later = LaneBench(stops_failed=True, flags=bench.flags)
    later.join("one")
    later.arrive("a1", "a2", "b1")
    assert names(later.sent) == ["b1"]
    said(later, "dead.release", group="a")
    assert names(later.sent) == ["b1", "a1"]


def test_d9_a_lane_that_skips_again_skips_it() -> None:
    clause("D-9e", "is `skip` again skips the messages that had stopped its groups")
    bench = stopped()
    later = Lane(
        LaneBench().lane.state.options,
        Snapshot(lane_epoch=8, complete=True, broker_restarted=False, operator_rows=bench.flags),
        bench.now_ms,
    )  # fmt: skip
    later.start(bench.now_ms)
    (group,) = later.state.groups_with_flags
    assert group.flags is not None
    assert group.flags.stop is not None
    assert group.flags.stop.decision == "skip"


def test_d9_what_is_not_stopped_is_refused() -> None:
    bench = stopped()
    bench.arrive("b1")
    assert says(refused(bench, "dead.release", group="b"), "group 'b'", "stopped", "dispatcher dead list")
    assert says(refused(bench, "dead.drop", group="z"), "no group 'z'")
    assert says(refused(bench, "dead.skip"), "group")
    assert says(refused(LaneBench("concurrent"), "dead.skip", group="a"), "concurrent")
    assert "a" in {group.id.decode() for group in bench.lane.state.groups_with_flags}, (
        "it has stopped as before"
    )


def test_d9_stopped_groups_are_listed_by_their_ids_in_pages() -> None:
    bench = stopping()
    groups = [f"g{chr(97 + n)}" for n in range(5)]
    bench.arrive(*(f"{group}1" for group in reversed(groups)))
    for group in groups:
        bench.fail("one", f"{group}1", f"of {group}")
    views = Views(bench.lane.state)
    rows = views.stopped({})["groups"]
    assert [r["group"] for r in rows] == groups
    assert [r["group"] for r in views.stopped({"after": "gc"})["groups"]] == ["gd", "ge"]
    assert rows[0] | {"since_ms": 0} == {
        "group": "ga", "inbound": "in0", "origin": "in0 7.5", "reason": "of ga", "attempt": 1, "calls": 1,
        "consumer": "one", "since_ms": 0, "behind": 0, "verdict": None,
    }  # fmt: skip


def test_what_is_parked_is_behind_a_stopped_group_too() -> None:
    bench = blocked(stops_failed=True)
    parked = len(bench.in_parking())
    assert parked > 0
    bench.fail("one", "a1", "no stock")
    bench.run()
    assert Views(bench.lane.state).stopped({})["groups"][0]["behind"] == 9
