"""docs/semantics.md, O-34: who has free capacity takes groups over that wait for room at their owner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher.core.bounds import ORIGINAL_BYTES
from dispatcher.core.events import QueueReturned
from dispatcher.core.model import Group
from dispatcher.core.optional.work_stealing import WorkStealing
from dispatcher.core.ordered import OrderedSet
from dispatcher.core.parking.policy import BLOCKED_MS, RETRY_MS
from tests.spec.lane_bench import LaneBench, clause, names
from tests.spec.parking_bench import ParkingBench

AFTER_MS = 1_000
LOOK_MS = AFTER_MS // 4


def stuck(waiting: str = "b", *, prefetch: int = 1, free: int = 1, **options: Any) -> LaneBench:
    """Consumer one owns group a and the waiting ones. It is full with messages of a that it does not settle;
    consumer two has so much free capacity."""
    bench = LaneBench(**{"steal_after_ms": AFTER_MS, "heartbeat_ms": 3_600_000, **options})
    bench.join("one", prefetch=100)
    groups = "a" + waiting
    bench.arrive(*(f"{group}1" for group in groups))
    bench.settle("one", *(f"{group}1" for group in groups))
    bench.join("one", prefetch=prefetch, n=2)
    bench.arrive(*(f"a{n}" for n in range(2, prefetch + 2)))
    bench.arrive(*(f"{group}2" for group in waiting))
    bench.join("two", prefetch=free)
    return bench


def wait(bench: LaneBench, wait_ms: int) -> list[str]:
    """Time passes, and the lane steps when it wants to; what was dispatched."""
    sent: list[str] = []
    until_ms = bench.now_ms + wait_ms
    while bench.now_ms < until_ms:
        due_ms = bench.lane.next_deadline_ms()
        next_ms = until_ms if due_ms is None else min(until_ms, max(due_ms, bench.now_ms + 1))
        sent += names(bench.step(after_ms=next_ms - bench.now_ms))
    return sent


def owner(bench: LaneBench, group: str) -> str:
    found = bench.lane.state.groups[group.encode()].owner
    assert found is not None
    return found.id


def test_o34_a_group_that_waits_for_room_at_its_owner_goes_to_who_has_some() -> None:
    clause("O-34", "takes a group over that waits only for room at its owner")
    bench = stuck()
    assert wait(bench, AFTER_MS - LOOK_MS) == []
    assert wait(bench, AFTER_MS) == ["b2"]
    assert (owner(bench, "a"), owner(bench, "b")) == ("one", "two")
    assert bench.lane.state.counters["groups_stolen"] == 1


def test_o34_within_one_and_a_half_times_that() -> None:
    clause("O-34a", "so a group moves at most one and a half times `steal_after` after its wait began")
    for late_ms in (1, LOOK_MS // 2, LOOK_MS - 1, LOOK_MS + 1):
        bench = stuck()
        wait(bench, late_ms)
        bench.arrive("b3")
        assert wait(bench, AFTER_MS * 3 // 2 - late_ms)[:1] == ["b2"]


def test_o34_however_slowly_the_lane_steps() -> None:
    clause("O-34a", "A look comes later while Redis has not answered the lane's commits")
    bench = stuck()
    assert names(bench.step(after_ms=2 * LOOK_MS + 1)) == []
    assert names(bench.step(after_ms=2 * LOOK_MS + 1)) == ["b2"]


def test_o34_an_owner_that_others_fill_at_once_is_full() -> None:
    """It has room when a settle comes, and none when the lane has handed out what may go."""
    clause("O-34", "its owner is connected, and has its whole prefetch")
    bench = LaneBench(weights=(1, 100), steal_after_ms=AFTER_MS, heartbeat_ms=3_600_000)
    bench.join("one", prefetch=100)
    bench.arrive("a1", "b1")
    bench.settle("one", "a1", "b1")
    bench.join("one", prefetch=1, n=2)
    bench.arrive(*(f"a{n}" for n in range(2, 12)), inbound=1)
    bench.arrive("b2")
    bench.join("three", prefetch=1)
    bench.arrive("c1")  # three is full
    bench.join("two", prefetch=1)
    for n in range(2, 6):
        assert owner(bench, "b") == "one", n
        bench.settle_seqs("one", bench.latest(f"a{n}").seq, after_ms=LOOK_MS)
    assert bench.holder("b2") == "two"


def test_o34_it_is_a_new_assignment() -> None:
    """As after each change of owner (O-7, D-12)."""
    bench = stuck()
    before = bench.latest("b1")
    wait(bench, 2 * AFTER_MS)
    moved = bench.latest("b2")
    assert moved.epoch > before.epoch
    assert (moved.group_seq, moved.first) == (1, True)
    assert [fields for event, fields in bench.told if event == "group_stolen"] == [
        {"group": "b", "former": "one", "consumer": "two", "waited_ms": AFTER_MS}
    ]


def test_o34_a_group_with_something_out_stays() -> None:
    clause("O-34", "nothing of the group is out")
    bench = stuck(prefetch=3, waiting="b")
    bench.arrive("a9")
    assert wait(bench, 10 * AFTER_MS) == ["b2"]
    assert owner(bench, "a") == "one"


def test_o34_without_free_capacity_nothing_moves() -> None:
    clause("O-34", "and another consumer may get new groups")
    bench = stuck()
    bench.arrive("c1")  # two is full as well
    assert wait(bench, 10 * AFTER_MS) == []
    assert owner(bench, "b") == "one"


def test_o34_it_must_wait_without_a_break() -> None:
    clause("O-34", "All of this must hold for `steal_after` without a break")
    bench = stuck()
    wait(bench, AFTER_MS - LOOK_MS)
    bench.settle("one", "a2")  # b2 goes, and is settled: then one is full again
    bench.settle("one", "b2")
    bench.arrive("a3", "b3")
    assert bench.holder("a3") == "one"
    assert wait(bench, AFTER_MS - LOOK_MS) == []
    assert wait(bench, AFTER_MS) == ["b3"]


def test_o34_free_capacity_must_be_there_without_a_break() -> None:
    bench = stuck()
    wait(bench, AFTER_MS - LOOK_MS)
    bench.arrive("c1")
    wait(bench, 2 * AFTER_MS)
    bench.settle("two", "c1")
    assert wait(bench, AFTER_MS - LOOK_MS) == []
    assert wait(bench, AFTER_MS) == ["b2"]


def test_o34_those_that_wait_longest_and_not_more_than_there_is_room_for() -> None:
    clause("O-34b", "The groups that wait longest move first")
    clause("O-34c", "and not more than there is free capacity for")
    bench = stuck(waiting="bcdef", free=2)
    assert wait(bench, 2 * AFTER_MS) == ["b2", "c2"]
    assert [owner(bench, group) for group in "abcdef"] == ["one", "two", "two", "one", "one", "one"]


def test_o34_to_who_owns_the_fewest() -> None:
    clause("O-34b", "Each goes to the consumer that owns the fewest groups")
    bench = stuck(waiting="b", free=10)
    bench.arrive("c1", "d1")
    assert (owner(bench, "c"), owner(bench, "d")) == ("two", "two")
    bench.join("three")
    assert wait(bench, 2 * AFTER_MS) == ["b2"]
    assert owner(bench, "b") == "three"


def test_o34_at_most_a_hundred_at_one_look() -> None:
    clause("O-34c", "One look moves at most 100 groups")
    bench = LaneBench(steal_after_ms=AFTER_MS, heartbeat_ms=3_600_000)
    bench.join("one", prefetch=1_000)
    groups = [chr(0x4E00 + n) for n in range(150)]
    bench.arrive(*(f"{group}1" for group in groups))
    bench.settle("one", *(f"{group}1" for group in groups))
    bench.join("one", prefetch=1, n=2)
    bench.arrive("a1", *(f"{group}2" for group in groups))
    bench.join("two", prefetch=1_000)
    looks = [len(wait(bench, LOOK_MS)) for _ in range(8)]
    assert max(looks) == 100
    assert sum(looks) == 150


def test_o34_it_stays_with_its_new_owner_for_a_while() -> None:
    clause("O-34d", "stays with its new owner for four times `steal_after`")
    bench = stuck()
    wait(bench, AFTER_MS + LOOK_MS)
    assert owner(bench, "b") == "two"
    bench.settle("two", "b2")
    bench.arrive("c1", "b3")  # two is full with c
    assert bench.holder("c1") == "two"
    bench.settle("one", "a2")  # one has free capacity
    assert wait(bench, 4 * AFTER_MS - 2 * LOOK_MS) == []
    assert wait(bench, 2 * AFTER_MS) == ["b3"]


def test_o34_a_pinned_group_stays() -> None:
    clause("O-34f", "A pinned group does not move")
    bench = stuck()
    bench.command("groups.pin", group="b", consumer="one")
    assert wait(bench, 10 * AFTER_MS) == []


@pytest.mark.parametrize("command", ["groups.pause", "consumers.drain"])
def test_o34_what_else_holds_it_or_who_gets_nothing_new(command: str) -> None:
    bench = stuck()
    bench.command(command, **({"group": "b"} if command == "groups.pause" else {"consumer": "two"}))
    assert wait(bench, 10 * AFTER_MS) == []
    assert owner(bench, "b") == "one"


def test_o34_who_is_not_connected_keeps_its_groups() -> None:
    clause("O-34", "its owner is connected")
    bench = stuck(reconnect_grace_ms=20 * AFTER_MS)
    bench.step(QueueReturned("one-1.2"))
    wait(bench, 10 * AFTER_MS)
    assert owner(bench, "b") == "one"


def test_o34_never_without_steal_after() -> None:
    clause("O-34f", "With `steal_after: null` no group moves in this way")
    bench = stuck(steal_after_ms=None)
    assert wait(bench, 10 * AFTER_MS) == []


def test_o34_a_group_whose_messages_are_all_parked_waits_too() -> None:
    bench = ParkingBench(steal_after_ms=20 * AFTER_MS, heartbeat_ms=3_600_000, park_after_ms=AFTER_MS)
    bench.join("one", prefetch=100)
    bench.arrive("a1", "b1")
    bench.settle("one", "a1", "b1")
    bench.join("one", prefetch=1, n=2)
    bench.arrive("a2")
    bench.arrive(*(f"b{n}" for n in range(2, 11)))
    bench.run(AFTER_MS + RETRY_MS)
    waiting = [f"b{n}" for n in range(2, 11)]
    assert bench.in_parking() == waiting
    bench.join("two", prefetch=100)
    bench.run(30 * AFTER_MS)
    assert bench.handed()[3:] == waiting
    assert {bench.holder(name) for name in waiting} == {"two"}


def test_o34_while_the_look_ahead_is_full_a_group_moves_at_once_and_is_not_parked() -> None:
    clause("O-34e", "it moves at once, and is not parked")
    clause("P-1", "no group can change its owner (O-34)")
    bench = ParkingBench(steal_after_ms=AFTER_MS, heartbeat_ms=3_600_000, look_ahead=10)
    bench.join("one", prefetch=100)
    bench.arrive("a1", "b1", "c1")
    bench.settle("one", "a1", "b1", "c1")
    bench.join("one", prefetch=1, n=2)
    bench.arrive("a2")
    bench.join("two", prefetch=5)
    bench.arrive(*(f"b{n}" for n in range(2, 6)), *(f"c{n}" for n in range(2, 7)))
    bench.run(BLOCKED_MS)
    assert {bench.holder(name) for name in ("b2", "c2")} == {"two"}
    assert not bench.moved, "what two does not take yet waits for room there"


def test_o34_without_stealing_what_fills_the_look_ahead_is_parked() -> None:
    bench = ParkingBench(steal_after_ms=None, heartbeat_ms=3_600_000, look_ahead=10)
    bench.join("one", prefetch=100)
    bench.arrive("a1", "b1")
    bench.settle("one", "a1", "b1")
    bench.join("one", prefetch=1, n=2)
    bench.arrive("a2")
    bench.join("two", prefetch=100)
    bench.arrive(*(f"b{n}" for n in range(2, 11)))
    bench.run(BLOCKED_MS)
    assert bench.in_parking() == [f"b{n}" for n in range(2, 11)]


def test_o34_one_look_sees_what_waits_and_not_what_a_consumer_owns() -> None:
    """An owner keeps idle groups for ever; looking at all of them would cost more with each."""
    bench = stuck()
    one = bench.lane.state.by_id["one"]

    class Counted(OrderedSet[Group]):
        def __iter__(self) -> Iterator[Group]:
            raise AssertionError("walks over all groups of a consumer")

    one.groups = Counted(one.groups)
    assert wait(bench, 2 * AFTER_MS) == ["b2"]


def test_p1_where_no_group_can_move_a_byte_budget_is_kept() -> None:
    """A quorum queue's consumer is never replaced, so only parking keeps its messages within the budget."""
    clause("P-1", "no group can change its owner (O-34)")
    budget = 100 * ORIGINAL_BYTES
    for steal_after_ms in (None, AFTER_MS):
        bench = ParkingBench(
            steal_after_ms=steal_after_ms, heartbeat_ms=3_600_000, look_ahead=1_000, look_ahead_bytes=budget
        )
        bench.lane.state.inbounds[0].replaceable = False
        bench.join("one", prefetch=100)
        bench.arrive("a1", "b1")
        bench.settle("one", "a1", "b1")
        bench.join("one", prefetch=1, n=2)
        bench.join("two", prefetch=1)
        bench.arrive("a2", "c1", *(f"b{n}" for n in range(2, 200)))
        bench.run(BLOCKED_MS)
        assert bench.lane.state.bytes_held <= budget
        assert len(bench.moved) > 100


def test_why_tells_of_no_wait_that_has_ended() -> None:
    bench = stuck(free=0)
    stealing = bench.lane.state.find(WorkStealing)
    assert stealing is not None
    group = bench.lane.state.groups[b"b"]
    bench.join("two", prefetch=1, n=2)
    wait(bench, LOOK_MS)
    assert "waits for room at one" in stealing.details(group)[0]
    bench.arrive("c1")  # nobody has free capacity any more, so nobody looks
    bench.settle("one", "a2")
    bench.settle("one", "b2")
    bench.settle("two", "c1")  # and now all have some
    wait(bench, 20 * AFTER_MS)
    assert stealing.details(group) == []


def test_why_tells_of_a_change_of_owner_as_long_as_the_group_stays() -> None:
    bench = stuck()
    wait(bench, 2 * AFTER_MS)
    stealing = bench.lane.state.find(WorkStealing)
    assert stealing is not None
    group = bench.lane.state.groups[b"b"]
    assert "taken over" in stealing.details(group)[0]
    wait(bench, 20 * AFTER_MS)
    assert stealing.details(group) == []
