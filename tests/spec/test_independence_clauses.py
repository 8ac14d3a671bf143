"""docs/semantics.md, G-5: what a stuck or slow group, consumer or look-ahead costs other groups at most."""

from __future__ import annotations

import pytest

from dispatcher.core.consumer_life import ConsumerState
from dispatcher.core.events import QueueReturned
from dispatcher.core.options import GroupWindow
from dispatcher.core.parking.policy import BLOCKED_MS
from tests.spec.lane_bench import LaneBench, clause, names
from tests.spec.parking_bench import ParkingBench
from tests.spec.test_group_map_clauses import in_one_bucket
from tests.spec.test_stealing_clauses import AFTER_MS, owner, stuck, wait
from tests.spec.test_window_clauses import backlog, one_by_one, out_of, rounds, windowed


def test_g5_a_group_that_is_stuck_at_once_takes_its_first_window() -> None:
    clause("G-5", "That is `group_window.initial` if nothing of it was settled before")
    bench = windowed(initial=3, prefetch=4)
    backlog(bench, 100)
    assert len(out_of(bench)) == 3
    assert names(bench.arrive("b1")) == ["b1"]


def test_g5_a_group_that_is_always_slow_takes_two_places() -> None:
    clause("G-5", "for a group that is always slow 2 messages")
    bench = windowed(prefetch=3)
    backlog(bench, 1_000)
    assert one_by_one(bench, 50, 1_000)[-10:] == [2] * 10
    assert names(bench.arrive("b1")) == ["b1"]


@pytest.mark.parametrize("each_ms", [5, 20])
def test_g5_a_quick_group_takes_what_its_consumer_does_in_100_ms(each_ms: int) -> None:
    clause("G-5", "has as much out as its consumer did in the 100 ms before")
    bench = windowed(prefetch=500)
    backlog(bench, 3_000)
    sizes = one_by_one(bench, 2_000, each_ms)[-500:]
    assert max(sizes) <= 100 / each_ms + 3, "one in hand, one that comes and one that grows"


def test_g5_then_it_is_stuck_and_no_more_of_it_goes() -> None:
    clause("G-5", "of its consumer's prefetch it takes no more than its window")
    bench = windowed(prefetch=50)
    backlog(bench, 1_000)
    (out,) = rounds(bench, 4)[-1:]
    assert wait(bench, 60_000) == []
    assert len(out_of(bench)) == out
    assert names(bench.arrive("b1")) == ["b1"]


def test_g5_other_groups_of_a_full_consumer_wait_for_one_and_a_half_times_steal_after() -> None:
    clause("G-5", "they wait for 1.5 times `steal_after` while another consumer has free capacity")
    bench = stuck()
    assert wait(bench, AFTER_MS * 3 // 2) == ["b2"]


def test_g5_after_a_move_for_five_and_a_half_times_that() -> None:
    clause("G-5", "for 5.5 times `steal_after` if they have moved less than 4 times `steal_after` ago")
    bench = stuck()
    wait(bench, AFTER_MS * 3 // 2)
    bench.settle("two", "b2")
    bench.arrive("c1", "b3")  # two is full with c
    bench.settle("one", "a2")  # one has free capacity
    assert wait(bench, AFTER_MS * 2) == []
    assert wait(bench, AFTER_MS * 7 // 2) == ["b3"]


def test_g5_when_more_groups_wait_than_there_are_places() -> None:
    clause("G-5", "If n groups wait for fewer places, add n / 4 times `steal_after`")
    bench = stuck(waiting="bcdefghi", free=1)
    sent: list[str] = []
    until_ms = bench.now_ms + AFTER_MS * 3 // 2 + 8 * AFTER_MS // 4
    while bench.now_ms < until_ms:
        sent += (moved := wait(bench, 10))
        for name in moved:  # each one leaves its place to the next one
            bench.settle("two", name)
    assert sorted(sent) == [f"{group}2" for group in "bcdefghi"]


def test_g5_without_steal_after_they_wait_for_room() -> None:
    clause("G-5", "With `steal_after: null` they wait until that consumer has room")
    bench = stuck(steal_after_ms=None)
    assert wait(bench, 100 * AFTER_MS) == []
    assert names(bench.settle("one", "a2")) == ["b2"]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("sequenced", "a group with nothing out has no owner, and waits for no other"),
        ("concurrent", "Under `concurrent` no message waits for another one"),
    ],
)
def test_g5_in_other_lanes_nothing_waits_for_a_stuck_consumer(policy: str, words: str) -> None:
    clause("G-5", words)
    bench = LaneBench(policy)
    bench.join("one", prefetch=1)
    bench.arrive("b1")
    bench.settle("one", "b1")
    bench.arrive("a1")
    bench.join("two")
    assert names(bench.arrive("b2")) == ["b2"]
    assert names(bench.arrive("a2")) == (["a2"] if policy == "concurrent" else [])


def test_g5_a_frozen_consumer_still_gets_messages_of_its_groups() -> None:
    clause("G-5", "A stuck or frozen consumer whose prefetch is not full still gets messages of its groups")
    bench = LaneBench(steal_after_ms=AFTER_MS, heartbeat_ms=1_000)
    bench.join("one")
    bench.arrive("a1", "b1")
    bench.settle("one", "a1", "b1")
    wait(bench, 60_000)
    bench.join("two")
    assert bench.lane.state.by_id["one"].state is ConsumerState.FROZEN
    bench.arrive("b2")
    wait(bench, 10 * AFTER_MS)
    assert bench.holder("b2") == "one"
    bench.arrive("b3")
    assert bench.holder("b3") == "one"


def test_g5_no_group_leaves_a_consumer_that_may_come_back() -> None:
    clause("G-5", "No group leaves a consumer that has lost its connection, for `reconnect_grace`")
    bench = stuck(reconnect_grace_ms=20 * AFTER_MS)
    bench.step(QueueReturned("one-1.2"))
    assert wait(bench, 19 * AFTER_MS) == []
    assert owner(bench, "b") == "one"


def test_g5_a_full_look_ahead_is_parked_in_time() -> None:
    """The parking queue is new: RabbitMQ is asked at once, and its answer counts after 3 s."""
    clause("G-5", "That is 3 s if the consumer has no parking queue yet, and 20 ms")
    bench = ParkingBench(look_ahead=10, heartbeat_ms=3_600_000)
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two")
    bench.opens_parking = False
    backlog_of_a = [f"a{n}" for n in range(2, 11)]
    bench.arrive(*backlog_of_a)
    bench.run(BLOCKED_MS)
    assert bench.opening, "it is asked for after 20 ms"
    bench.run(3_000)
    assert bench.in_parking() == []
    bench.open_parking()
    bench.run(BLOCKED_MS)
    assert bench.in_parking() == backlog_of_a
    assert names(bench.arrive("b1")) == ["b1"]


def test_g5_with_a_parking_queue_after_20_ms() -> None:
    bench = ParkingBench(look_ahead=10, heartbeat_ms=3_600_000)
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two")
    bench.arrive(*(f"a{n}" for n in range(2, 11)))
    bench.run(BLOCKED_MS)
    assert len(bench.in_parking()) == 9
    assert names(bench.arrive("b1")) == ["b1"]


def test_g5_ids_of_one_bucket_wait_for_each_other() -> None:
    clause("G-5", "the ids of one bucket are one group here, and wait for each other")
    first, second = in_one_bucket(2, 2)
    bench = LaneBench(buckets=2, group_window=GroupWindow(1, 1))
    bench.join("one", prefetch=10)
    bench.arrive(f"{first}1")
    bench.join("two", prefetch=10)
    assert bench.arrive(f"{second}1") == []
    assert names(bench.settle("one", f"{first}1")) == [f"{second}1"]
