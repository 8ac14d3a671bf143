"""docs/semantics.md, O-25 to O-27: operations on what waits of a group."""

from __future__ import annotations

import pytest

from dispatcher.core.model import GroupState
from dispatcher.core.operations.operations import BARRIER_TIMEOUT_MS, OPERATIONS_OPEN_MAX
from tests.spec.flag_bench import BOTH, refused, row, said, says
from tests.spec.lane_bench import LaneBench, clause, names


def result(bench: LaneBench) -> dict[str, object]:
    """What the latest command is answered when it is asked again."""
    bench.repeat_command()
    assert bench.replies[-1].error is None
    return bench.replies[-1].result


def error(bench: LaneBench) -> str:
    bench.repeat_command()
    return bench.replies[-1].error or "none"


@BOTH
def test_o25_what_waits_is_taken_and_what_is_in_flight_stays(name: str) -> None:
    clause("O-25", "Messages in flight are settled as always")
    bench = LaneBench(name)
    bench.join("one", prefetch=2)
    bench.arrive("a1", "b1")
    bench.arrive("a2", "b2", "a3")
    assert said(bench, "groups.purge", group="a") == {
        "operation": "purge", "group": "a", "open": True, "waits_for": ["in0"],
    }  # fmt: skip
    bench.arrive("a4")
    assert bench.mark() == []
    assert result(bench) == {
        "operation": "purge", "group": "a", "open": False, "applied": True, "messages": 3, "in_flight": 1,
    }  # fmt: skip
    assert sorted(bench.acked) == [b"a2", b"a3", b"a4", b"mark7"]
    assert names(bench.settle("one", "a1", "b1")) == ["b2"]
    assert names(bench.arrive("a5")) == ["a5"]
    assert bench.lane.state.counters["purged"] == 3
    assert bench.flags == {}


def test_o25_until_the_markers_are_back_the_group_goes_on() -> None:
    clause("O-25", "Until then the group goes on as always, and nothing is changed")
    bench = LaneBench(weights=(1, 1))
    bench.join("one", prefetch=1)
    bench.arrive("a1", "a2", "a3")
    bench.arrive("a4", inbound=1)
    said(bench, "groups.purge", group="a")
    assert bench.mark(1) == []
    assert names(bench.settle("one", "a1")) != []
    assert row(bench, "a")["held"] == 2
    bench.mark(0)
    assert (result(bench)["messages"], row(bench, "a")["held"]) == (2, 0)


def test_o25_the_first_n_are_the_longest_here() -> None:
    clause("O-25", "With `--first N` it removes only the first N of them")
    bench = LaneBench(weights=(1, 1))
    bench.arrive("a1", "a2")
    bench.arrive("a3", inbound=1)
    bench.arrive("a4", inbound=0)
    said(bench, "groups.purge", group="a", first=3)
    bench.mark(0)
    bench.mark(1)
    assert result(bench)["messages"] == 3
    assert names(bench.join("one")) == ["a4"]


def test_o25_a_dry_run_only_counts() -> None:
    clause("O-25", "with `--dry-run` it only counts them")
    bench = LaneBench()
    bench.arrive("a1", "a2")
    said(bench, "groups.purge", group="a", dry_run=True)
    bench.mark()
    assert (result(bench)["messages"], result(bench)["applied"]) == (2, False)
    assert names(bench.join("one")) == ["a1", "a2"]


def test_o25_what_a_dead_consumer_had_waits_too() -> None:
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "b1")
    bench.die("one")
    said(bench, "groups.purge", group="a")
    bench.mark()
    assert result(bench)["messages"] == 1
    assert names(bench.join("two")) == ["b1"]
    assert not bench.lane.state.revoked


def test_o25_a_suspect_waits_too() -> None:
    bench = LaneBench(attempts=2)
    bench.join("one", prefetch=1)
    bench.arrive("a1", "a2", "b1")
    bench.die("one")
    said(bench, "groups.purge", group="a", first=1)
    bench.mark()
    assert not any(message.fingerprint.startswith(b"a1") for message in bench.lane.state.suspects)
    assert "a2" in names(bench.join("two"))


def test_o25_what_expires_after_it_expires_once() -> None:
    bench = LaneBench()
    bench.arrive("a1", deadline_at_ms=bench.now_ms + 500)
    said(bench, "groups.purge", group="a")
    bench.mark()
    bench.step(after_ms=1_000)
    assert (result(bench)["messages"], bench.dead) == (1, [])


@BOTH
def test_o26_a_second_one_is_refused(name: str) -> None:
    clause("O-26", 'another operation on it is open ("in transition by" its uuid)')
    bench = LaneBench(name)
    bench.join("one")
    bench.arrive("a1")
    said(bench, "groups.purge", group="a")
    by = "the group is in transition by uuid-0; try again when that is done"
    assert refused(bench, "groups.purge", group="a") == by
    clause(
        "O-26a", "While an operation is open, `groups close` and a rebalance of its group alone are refused"
    )
    assert refused(bench, "groups.close", group="a") == by
    if name == "exclusive":
        assert refused(bench, "rebalance", group="a") == by
    said(bench, "groups.pause", group="a")
    said(bench, "groups.resume", group="a")
    assert refused(bench, "groups.purge", group="a") == by
    bench.mark()
    said(bench, "groups.purge", group="a")


def test_o26_a_group_that_changes_hands_is_left_alone() -> None:
    clause("O-26", "refused while its group changes its owner")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1")
    bench.join("two")
    said(bench, "rebalance", group="a", to="two")
    for command, arguments in (
        ("groups.close", {}), ("groups.purge", {}), ("groups.move", {"to": "elsewhere"}),
        ("groups.reroute", {"exchange": "amq.direct", "key": "k"}), ("rebalance", {"to": "one"}),
        ("groups.pin", {"consumer": "one"}),
    ):  # fmt: skip
        assert says(refused(bench, command, group="a", **arguments), GroupState.DRAINING.value), command
    assert not bench.barriers


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"group": "b"}, "no group 'b'"),
        ({}, "name a group"),
        ({"group": "a", "first": 0}, "first: must be at least 1"),
        ({"group": "a", "first": True}, "first: must be a whole number"),
        ({"group": "a", "first": "2"}, "first: must be a whole number"),
        ({"group": "a", "first": 10**26}, "first: must be at most 1000000000"),
        ({"group": "a", "dry_run": 1}, "dry_run: must be true or false"),
    ],
)
def test_bad_arguments_change_nothing(arguments: dict[str, object], text: str) -> None:
    bench = LaneBench()
    bench.arrive("a1")
    assert says(refused(bench, "groups.purge", **arguments), text)
    assert not bench.barriers
    assert names(bench.join("one")) == ["a1"]


def test_a_lane_without_groups_has_none_to_purge() -> None:
    bench = LaneBench("concurrent")
    bench.arrive("a1")
    assert says(refused(bench, "groups.purge", group="a"), "concurrent")
    assert not bench.barriers


def test_there_may_be_so_many_at_a_time() -> None:
    bench = LaneBench()
    for number in range(OPERATIONS_OPEN_MAX + 1):
        bench.arrive(f"g{'x' * number}1")
    for number in range(OPERATIONS_OPEN_MAX):
        said(bench, "groups.purge", group=f"g{'x' * number}")
    more = refused(bench, "groups.purge", group=f"g{'x' * OPERATIONS_OPEN_MAX}")
    assert says(more, OPERATIONS_OPEN_MAX, "operations")
    assert len(bench.barriers) == OPERATIONS_OPEN_MAX


def test_o26_it_fails_when_nothing_moves() -> None:
    clause("O-26c", "when nothing has moved for 60 s in an inbound queue that still holds its marker")
    bench = LaneBench(weights=(1, 1))
    bench.arrive("a1")
    said(bench, "groups.purge", group="a")
    bench.mark(1)
    bench.step(after_ms=BARRIER_TIMEOUT_MS - 1_000)
    bench.arrive("b1")
    bench.step(after_ms=BARRIER_TIMEOUT_MS - 1_000)
    assert result(bench)["open"]
    deadline_ms = bench.lane.next_deadline_ms()
    assert deadline_ms is not None
    bench.step(after_ms=deadline_ms - bench.now_ms)
    assert says(error(bench), "purge uuid-0", "in0", "60 s")
    assert sorted(names(bench.join("one"))) == ["a1", "b1"]
    bench.mark(0)
    assert bench.acked == [b"mark1", b"mark3"], "a marker that comes too late is none of the messages"
    said(bench, "groups.purge", group="a")


def test_o26_a_stop_ends_it() -> None:
    clause("O-26c", "and when the dispatcher stops")
    bench = LaneBench()
    bench.arrive("a1")
    said(bench, "groups.purge", group="a")
    bench.lane.suspend()
    bench.step()
    assert says(error(bench), "purge uuid-0", "stops")
    assert bench.flags == {}


def test_o26_a_later_leader_goes_on() -> None:
    clause("O-26d", "every later leader goes on with it")
    row = {"kind": "purge", "group": "a", "first": None, "dry_run": False}
    bench = LaneBench(flags={b"operation:u1": row})
    bench.command_uuids.append("u1")
    assert [(order.inbound, order.command) for order in bench.barriers] == [(0, "u1")]
    bench.arrive("a1", "b1", "a2")
    assert result(bench)["open"]
    bench.mark()
    assert result(bench)["messages"] == 2
    assert names(bench.join("one")) == ["b1"]
    assert bench.flags == {}


def test_o26_it_is_written_back_to_a_redis_that_lost_it() -> None:
    bench = LaneBench()
    bench.arrive("a1")
    said(bench, "groups.purge", group="a", first=2)
    row = {"kind": "purge", "group": "a", "first": 2, "dry_run": False}
    assert bench.lane.checkpoint(everything=True).operator_rows == {b"operation:uuid-0": row} == bench.flags
    bench.mark()
    assert bench.lane.checkpoint(everything=True).operator_rows == {}
    assert bench.lane.checkpoint(everything=True).commands["uuid-0"]["messages"] == 1


def test_o26_not_where_groups_are_others_now() -> None:
    row = {"kind": "purge", "group": "a", "first": None, "dry_run": False}
    bench = LaneBench(flags={b"operation:u1": row}, buckets=3)
    bench.command_uuids.append("u1")
    assert says(error(bench), "groups otherwise")
    assert names(bench.arrive("a1")) == [] == bench.acked
    assert bench.flags == {}


def test_o26_it_waits_while_consumers_are_asked() -> None:
    row = {"kind": "purge", "group": "a", "first": None, "dry_run": False}
    bench = LaneBench(flags={b"operation:u1": row}, complete=False)
    bench.command_uuids.append("u1")
    bench.arrive("a1")
    bench.mark()
    assert result(bench)["open"], "somebody may still say that it has some of it"
    bench.step(after_ms=60_000)
    assert result(bench)["messages"] == 1


def test_o27_a_marker_of_no_open_operation_is_nobodys() -> None:
    clause("O-27", "The dispatcher obeys it only if its operation is open; else the log names it")
    bench = LaneBench(ungrouped="reject")
    bench.join("one")
    bench.arrive("a1")
    said(bench, "groups.purge", group="a")
    assert bench.mark(command="of long ago") == []
    assert bench.dead == []
    assert result(bench)["open"]
    assert ("marker_ignored", {"operation": "of long ago", "queue": "in0"}) in bench.told


def test_a_bucket_is_purged_as_one() -> None:
    bench = LaneBench(buckets=1)
    bench.arrive("a1", "b1")
    said(bench, "groups.purge", group="a")
    bench.mark()
    assert (result(bench)["group"], result(bench)["messages"]) == ("bucket:0/1", 2)
