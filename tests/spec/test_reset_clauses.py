"""docs/semantics.md, O-13: however many groups are reset, the lane goes on in between."""

from __future__ import annotations

import pytest

from dispatcher.core.bounds import STALE_OWNERS_PER_STEP
from dispatcher.core.effects import Snapshot
from dispatcher.core.events import PingRouted, RedeliveriesEnded
from dispatcher.core.lane import Lane
from dispatcher.core.options import LaneOptions, policy
from dispatcher.core.records import OpenEntry
from dispatcher.core.tables import IncarnationRow, OwnerRow
from dispatcher.wire.protocol import Settle
from tests.core.slow_lane import SlowlyResetting
from tests.spec.lane_bench import START_MS, LaneBench, clause, names

GROUPS = "abcdefgh"
RESET = b"reset"


class OneByOne(SlowlyResetting):
    groups_at_once = 1


def owned_by_one(*settled: str) -> LaneBench:
    """One owns all groups, and has the first message of each in hand but for those that are settled."""
    bench = LaneBench(lane_type=OneByOne)
    bench.join("one", prefetch=50)
    bench.arrive(*(f"{group}1" for group in GROUPS))
    bench.settle("one", *(f"{group}1" for group in settled))
    bench.join("two", prefetch=50)
    return bench


def owners(bench: LaneBench) -> int:
    return sum(group.owner is not None for group in bench.lane.state.groups.values())


def finish(bench: LaneBench) -> None:
    """Steps that nothing but the core's own deadline asks for."""
    for _ in GROUPS:
        if bench.lane.state.reset_until is not None:
            assert bench.lane.next_deadline_ms() == bench.now_ms + 1
            bench.step()


@pytest.mark.parametrize("pause", ["group", "none"])
def test_o13_the_lane_goes_on_while_groups_are_reset(pause: str) -> None:
    clause("O-13", "A few hundred groups change their owners at a time, and the lane goes on in between")
    bench = owned_by_one(*GROUPS)
    bench.command(reset=True, pause=pause)
    result = bench.replies[-1].result
    assert (result["groups"], len(result["moves"]), result["applied"]) == (8, 8, True)
    assert 0 < owners(bench) < 8
    assert names(bench.arrive("z1")) == ["z1"]
    finish(bench)
    assert owners(bench) == 1, "the new one"
    assert bench.lane.state.counters["groups_moved"] == 8
    bench.arrive(*(f"{group}2" for group in GROUPS))
    assert {bench.holder(f"{group}2") for group in GROUPS} == {"one", "two"}


def test_o13_what_has_a_new_owner_keeps_it() -> None:
    bench = owned_by_one(*GROUPS)
    bench.command(reset=True)
    free = [group for group in GROUPS if group.encode() not in bench.lane.state.groups]
    assert free
    for group in free:
        bench.arrive(f"{group}2")
    first = {group: bench.latest(f"{group}2").epoch for group in free}
    finish(bench)
    for group in free:
        bench.settle(bench.holder(f"{group}2"), f"{group}2")
        bench.arrive(f"{group}3")
    assert {group: bench.latest(f"{group}3").epoch for group in free} == first


def test_o13_what_is_in_flight_is_waited_for() -> None:
    bench = owned_by_one()
    bench.command(reset=True)
    finish(bench)
    assert bench.arrive(*(f"{group}2" for group in GROUPS)) == []
    sent = bench.settle("one", *(f"{group}1" for group in GROUPS))
    assert sorted(names(sent)) == [f"{group}2" for group in GROUPS]


def test_o13_a_lane_that_waits_goes_on_when_all_are_reset_and_settled() -> None:
    bench = owned_by_one(*GROUPS[1:])
    bench.command(reset=True, pause="lane")
    bench.settle("one", "a1")
    assert bench.arrive("z1") == [], "some are not reset yet"
    finish(bench)
    assert bench.holder("z1") in ("one", "two")


def test_o13_one_reset_at_a_time_and_no_other_move() -> None:
    clause("O-13", "A second rebalance is refused until the first one has finished")
    bench = owned_by_one(*GROUPS)
    bench.command(reset=True)
    for arguments in ({"reset": True}, {}, {"group": "a", "to": "two"}):
        bench.command(**arguments)
        assert bench.replies[-1].error == "all groups are being reset: try again when that is done"
    finish(bench)
    bench.command(reset=True)
    assert bench.replies[-1].error is None


def test_o13_the_count_leaves_out_what_is_pinned_or_moves_already() -> None:
    bench = owned_by_one("a", "b", "c")
    bench.command("groups.pin", group="a", consumer="one")
    bench.command(group="d", to="two")
    bench.command(reset=True, dry_run=True)
    result = bench.replies[-1].result
    assert result["groups"] == len(result["moves"]) == 6
    assert {move["group"] for move in result["moves"]} == set("bcefgh")
    bench.command(reset=True)
    finish(bench)
    assert bench.lane.state.counters["groups_moved"] == 6 + 1
    assert bench.lane.state.groups[b"a"].owner is not None


def test_o13_a_small_reset_is_over_at_once() -> None:
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "b1")
    bench.command(reset=True)
    assert bench.lane.state.reset_until is None
    assert bench.flags == {}


def test_o13_a_restoration_says_that_it_is_under_way() -> None:
    bench = owned_by_one(*GROUPS)
    bench.command(reset=True)
    assert bench.flags.keys() == {RESET}
    assert bench.lane.checkpoint(everything=True).operator_rows == {
        RESET: {"until": bench.lane.state.epoch_counter}
    }
    finish(bench)
    assert bench.flags == {}
    assert bench.lane.checkpoint(everything=True).operator_rows == {}


def test_o13_the_next_leader_goes_on_with_it() -> None:
    clause("O-13", "until the first one has finished, also after a take-over by another dispatcher")
    owners = {b"old": OwnerRow(1, 5), b"busy": OwnerRow(1, 5), b"new": OwnerRow(1, 6)}
    entry = OpenEntry(0, (7, 1), b"b" * 16, 1, 1, b"busy", 1, 5, 1)
    snapshot = Snapshot(
        8, complete=True, broker_restarted=False, records=[entry], owners=owners,
        incarnations={1: IncarnationRow("one", "uuid", "q1", 1, 10, "live")},
        operator_rows={RESET: {"until": 5}},
    )  # fmt: skip
    lane = Lane(LaneOptions(policy=policy("exclusive"), inbounds=(("in", 1),)), snapshot, START_MS)
    gone, flags = set(), {}
    for effects in (
        lane.start(START_MS), lane.step([PingRouted("q1"), RedeliveriesEnded(0)], START_MS + 1),
        lane.step([Settle(consumer="one", incarnation="uuid", acked=((1, 1),))], START_MS + 2),
    ):  # fmt: skip
        gone |= {group for group, row in effects.owners.items() if row is None}
        flags |= effects.operator_rows
    assert gone == {b"old", b"busy"}
    assert set(lane.state.groups) == {b"new"}
    assert flags == {RESET: None}
    assert lane.state.reset_until is None


def test_o13_it_is_through_only_when_redis_names_no_owner_that_it_means() -> None:
    """A third leader would give them back."""
    count = 2 * STALE_OWNERS_PER_STEP
    snapshot = Snapshot(
        8, complete=True, broker_restarted=False, operator_rows={RESET: {"until": 5}},
        owners={b"%d" % number: OwnerRow(1, 5) for number in range(count)},
        incarnations={1: IncarnationRow("one", "uuid", "q1", 1, 10, "live")},
    )  # fmt: skip
    lane = Lane(LaneOptions(policy=policy("exclusive"), inbounds=(("in", 1),)), snapshot, START_MS)
    gone = len(lane.start(START_MS).owners)
    for step in range(1, 6):
        effects = lane.step([], START_MS + step)
        assert (RESET in effects.operator_rows) is (gone == count)
        gone += len(effects.owners)
        if RESET in effects.operator_rows:
            return
    pytest.fail("it is never through")


def test_o13_a_group_that_changed_hands_before_its_turn_keeps_its_new_owner() -> None:
    bench = owned_by_one(*GROUPS[1:])
    bench.command(reset=True)
    bench.command("groups.close", group="a")
    bench.arrive("a2")
    bench.settle("one", "a1")
    assert bench.holder("a2") == "two", "it has fewer"
    assert bench.lane.state.reset_until is not None, "the test needs one under way"
    finish(bench)
    assert names(bench.arrive("a3")) == ["a3"]
    assert bench.latest("a3").epoch == bench.latest("a2").epoch


def test_o13_all_consumers_lose_their_groups_at_the_same_time() -> None:
    """Else what is new meanwhile all went to the first one."""
    bench = LaneBench(lane_type=OneByOne)
    bench.join("one")
    bench.join("two")
    for group in GROUPS:
        bench.arrive(f"{group}1")
    bench.settle("one", *(f"{group}1" for group in GROUPS if bench.holder(f"{group}1") == "one"))
    bench.settle("two", *(f"{group}1" for group in GROUPS if bench.holder(f"{group}1") == "two"))
    bench.command(reset=True)
    bench.step()
    left = {name: len(consumer.groups) for name, consumer in bench.lane.state.by_id.items()}
    assert sum(left.values()) < len(GROUPS)
    assert abs(left["one"] - left["two"]) <= 1
