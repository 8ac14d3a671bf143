"""Parking in the core, by the smallest thing that shows each of its rules."""

from __future__ import annotations

import pytest

from dispatcher.core.bounds import DELIVERIES_MAX
from dispatcher.core.events import PublishersBlocked
from dispatcher.core.parking.policy import BLOCKED_MS, LINGER_MS, RETRY_MS
from tests.spec.flag_bench import said
from tests.spec.lane_bench import clause
from tests.spec.parking_bench import FIRST, ParkingBench, blocked, numbers


def test_a_look_ahead_full_of_a_stuck_consumers_group_is_parked() -> None:
    clause("P-1", "It parks the backlogs of the consumer that has the longest one there")
    clause("P-3", "all messages of the group go to its parking queue, none directly to a consumer")
    clause("G-5", "more than the time to park its backlog")
    bench = blocked()
    assert bench.in_parking() == [f"a{n}" for n in range(2, 11)]
    assert bench.lane.state.inbounds[0].unacked == 1
    bench.arrive("b1", "a11", "b2")
    bench.run()
    assert bench.handed() == ["a1", "b1", "b2"]
    assert bench.holder("b1") == "two"
    assert bench.in_parking()[-1] == "a11"


def test_p1_groups_go_on_until_their_parking_queue_is_open() -> None:
    clause("P-1", "Until then its groups are not parked, and go on as others do")
    bench = ParkingBench(look_ahead=10)
    bench.opens_parking = False
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two")
    bench.arrive(*(f"a{n}" for n in range(2, 11)))
    bench.run(1_000)
    assert [queue.consumer for queue in bench.lane.state.parking.values()] == ["one"]
    for number in range(1, 4):
        bench.settle("one", f"a{number}")
        bench.run()
    assert bench.handed() == ["a1", "a2", "a3", "a4"]
    bench.arrive("a11", "a12", "a13")
    bench.run(1_000)
    bench.open_parking()
    assert bench.in_parking() == [f"a{n}" for n in range(5, 14)]


def three_stuck(*, opens_parking: bool = True) -> ParkingBench:
    """The look-ahead is full of groups of three stuck consumers; the first two have parking queues."""
    bench = ParkingBench(look_ahead=20, steal_after_ms=None)
    bench.opens_parking = opens_parking
    for name, group in (("one", "a"), ("two", "b"), ("three", "c")):
        bench.join(name, prefetch=1)
        bench.arrive(f"{group}1")
    bench.join("four")
    bench.arrive(*(f"a{n}" for n in range(2, 12)), *(f"b{n}" for n in range(2, 8)), "c2")
    bench.run(BLOCKED_MS)
    assert [queue.consumer for queue in bench.lane.state.parking.values()] == ["one", "two"]
    return bench


def test_p1_the_queues_of_several_consumers_are_opened_together() -> None:
    bench = three_stuck(opens_parking=False)
    bench.open_parking()
    assert bench.in_parking(FIRST) == [f"a{n}" for n in range(2, 12)]
    assert bench.in_parking(FIRST + 1) == []
    bench.run(LINGER_MS + 1)
    assert list(bench.lane.state.parking) == [FIRST], "what nobody needed is gone"


def test_p1_an_open_queue_with_nothing_in_it_goes_to_the_consumer_that_needs_one() -> None:
    clause("P-1", "An open one in which nothing is goes from one consumer to another")
    bench = three_stuck()
    bench.opens_parking = False
    bench.arrive(*(f"c{n}" for n in range(3, 14)))
    bench.run(BLOCKED_MS + RETRY_MS)
    assert bench.in_parking(FIRST + 1) == [f"c{n}" for n in range(2, 14)]
    assert [queue.consumer for queue in bench.lane.state.parking.values()] == ["one", "three", "two"]
    bench.fail_over()
    assert [queue.consumer for queue in bench.lane.state.parking.values()] == ["one", "three", "two"]


def test_p2_an_old_message_goes_if_it_can_while_its_parking_queue_is_being_opened() -> None:
    bench = ParkingBench(park_after_ms=1_000)
    bench.opens_parking = False
    bench.arrive("a1", "-1")
    bench.run(2_000)
    assert not bench.moved
    bench.join("one", prefetch=1)
    assert bench.handed() == ["a1"]
    bench.open_parking()
    assert bench.moved == ["-1"]


def test_nothing_is_parked_while_nobody_has_free_capacity() -> None:
    clause("P-1", "While no consumer has free capacity nothing is parked for want of room")
    bench = ParkingBench(look_ahead=10)
    bench.join("one", prefetch=1)
    bench.arrive(*(f"a{n}" for n in range(1, 11)))
    bench.run(1_000)
    assert not bench.moved


def test_nothing_is_parked_before_the_look_ahead_is_full() -> None:
    bench = ParkingBench(look_ahead=10)
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two")
    bench.arrive("a2", "a3")
    bench.run(1_000)
    assert not bench.moved


def test_a_parked_group_is_read_back_in_order_and_unparked() -> None:
    clause("P-4", "The dispatcher reads a parked group back")
    clause("P-3", "until that queue was read to its end. So G-1 holds")
    bench = blocked()
    for number in range(1, 11):
        bench.settle("one", f"a{number}")
        bench.run()
    assert numbers(bench) == list(range(1, 11))
    assert not bench.lane.state.groups[b"a"].route
    bench.arrive("a11")
    bench.run()
    assert "a11" not in bench.moved
    bench.settle("one", "a11")
    bench.run(LINGER_MS)
    assert bench.deleted == [FIRST]
    assert not bench.lane.state.parking


def test_what_arrives_while_the_end_is_read_waits_and_goes_directly() -> None:
    bench = blocked()
    for number in range(1, 10):
        bench.settle("one", f"a{number}")
        bench.run()
    bench.hold_reads = True
    bench.settle("one", "a10")
    bench.arrive("a11", "a12")
    bench.run()
    bench.hold_reads = False
    bench.run()
    bench.settle("one", "a11")
    bench.run()
    assert numbers(bench) == list(range(1, 13))


def test_every_group_of_the_stuck_consumer_is_parked_in_one_queue() -> None:
    bench = ParkingBench(look_ahead=10)
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.settle("one", "a1")
    bench.arrive("b1")
    bench.settle("one", "b1")
    bench.arrive("a2")
    bench.join("two")
    bench.arrive(*(name for n in range(3, 8) for name in (f"a{n}", f"b{n}")))
    bench.run(BLOCKED_MS)
    assert list(bench.lane.state.parking) == [FIRST]
    assert set(bench.lane.state.parking[FIRST].members) == {b"a", b"b"}


def test_at_the_bound_nothing_more_is_parked_and_the_log_says_so() -> None:
    clause("P-6", "When all are in use, nothing more is parked")
    bench = blocked(parking=1)
    bench.join("three", prefetch=1)
    bench.arrive("c1")
    bench.command(group="c", to="three")
    bench.settle(bench.holder("c1"), "c1")
    bench.arrive("c2", *(f"c{n}" for n in range(3, 13)))
    bench.run(BLOCKED_MS)
    assert ("parking_bound_reached", {"queues": 1}) in bench.told
    assert not any(name.startswith("c") for name in bench.moved)


def test_a_moved_group_is_not_held_up_by_another_in_its_parking_queue() -> None:
    """a and b are parked with consumer one; b moves to two, behind more of a than fits into a look-ahead."""
    bench = ParkingBench(look_ahead=6)
    bench.join("one", prefetch=1)
    bench.arrive("b1")
    bench.settle("one", "b1")
    bench.arrive("a1")
    bench.join("two")
    bench.arrive("b2", *(f"a{n}" for n in range(2, 6)))
    bench.run(BLOCKED_MS)
    bench.arrive(*(f"a{n}" for n in range(6, 30)), "b3")
    bench.run()
    assert "b3" in bench.in_parking()
    bench.command(group="b", to="two")
    bench.run(20 * BLOCKED_MS)
    assert numbers(bench, "b") == [1, 2, 3]
    assert bench.lane.state.groups[b"a"].route[-1] == FIRST + 1
    for number in range(1, 30):
        bench.settle("one", f"a{number}")
        bench.run(20 * BLOCKED_MS)
    assert numbers(bench) == list(range(1, 30))


def test_what_waits_for_too_long_is_parked_even_without_consumers() -> None:
    clause("P-2", "with its whole group; a message without a group alone")
    bench = ParkingBench(park_after_ms=60_000)
    bench.arrive("a1", "-1")
    bench.run(59_000)
    bench.arrive("a2")
    assert not bench.moved
    bench.run(2_000)
    assert bench.moved == ["a1", "a2", "-1"] or bench.moved == ["-1", "a1", "a2"]
    bench.join("one")
    bench.run()
    assert numbers(bench) == [1, 2]
    assert "-1" in bench.handed()


def test_what_was_read_and_waits_for_too_long_is_given_back_in_its_place() -> None:
    bench = blocked(park_after_ms=60_000)
    bench.join("one", prefetch=2, n=2, in_hand=())
    bench.run()
    bench.settle("one", "a1")
    bench.run()
    bench.step()
    parking = bench.lane.state.parking[FIRST]
    bench.run(200_000)
    held = [m for m in parking.here.values() if m.state.value == "held"]
    assert not held
    for number in range(2, 11):
        bench.settle("one", f"a{number}")
        bench.run()
    assert numbers(bench) == list(range(1, 11))


def test_an_expired_message_ends_when_it_is_read() -> None:
    clause("P-7", "its deadline, its attempts and its origin go with it")
    bench = ParkingBench(look_ahead=4)
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two")
    bench.arrive("a2")
    bench.arrive("a3", deadline_at_ms=bench.now_ms + 5_000)
    bench.arrive("a4")
    bench.run(6_000)
    assert "a3" in bench.in_parking()
    for number in (1, 2, 4):
        bench.settle("one", f"a{number}")
        bench.run()
    assert numbers(bench) == [1, 2, 4]
    assert [reason for _, reason in bench.dead] == ["expired"]


def test_sequenced_batches_come_out_of_a_parking_queue_in_order() -> None:
    bench = ParkingBench("sequenced", look_ahead=6)
    bench.join("one", prefetch=2)
    bench.arrive("a1", "a2")
    bench.join("two", prefetch=2)
    bench.arrive(*(f"a{n}" for n in range(3, 7)))
    bench.run(BLOCKED_MS)
    assert bench.in_parking() == ["a3", "a4", "a5", "a6"]
    for number in range(1, 7):
        bench.settle(bench.holder(f"a{number}"), f"a{number}")
        bench.run()
    assert numbers(bench) == list(range(1, 7))


def test_an_unparked_group_may_idle_and_loses_its_owner() -> None:
    bench = blocked(look_ahead=11, group_idle_timeout_ms=1_000)
    bench.die("two")
    for number in range(1, 12):
        assert bench.lane.state.groups[b"a"].route, "it is unparked when nothing of it is left"
        bench.settle("one", f"a{number}")
        bench.run()
    group = bench.lane.state.groups[b"a"]
    assert (group.owner, group.route) == (bench.lane.state.by_id["one"], ())
    bench.run(LINGER_MS)
    assert not bench.lane.state.groups


def test_a_parking_queue_of_messages_without_a_group_is_read_to_its_end_and_deleted() -> None:
    clause("P-5", "deleted 2 s after its last original is settled")
    bench = ParkingBench(park_after_ms=1_000)
    bench.arrive("-1", "-2")
    bench.run(1_000)
    assert bench.in_parking() == ["-1", "-2"]
    bench.join("one", prefetch=1)
    bench.run()
    for name in ("-1", "-2"):
        bench.settle("one", name)
        bench.run()
    bench.run(LINGER_MS)
    assert bench.deleted == [FIRST]
    assert not bench.lane.state.parking


def test_what_was_given_back_expires_once_when_it_is_read_again() -> None:
    bench = ParkingBench(look_ahead=4, park_after_ms=60_000)
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two")
    deadline_at_ms = bench.now_ms + 90_000
    bench.arrive(*(f"a{n}" for n in range(2, 5)), deadline_at_ms=deadline_at_ms)
    bench.run(BLOCKED_MS)
    bench.settle("one", "a1")
    bench.hold_reads = True
    bench.run()
    bench.lane.state.by_id["one"].prefetch = 1
    bench.hold_reads = False
    bench.run(200_000)
    bench.settle("one", "a2")
    bench.run()
    assert [reason for _, reason in bench.dead] == ["expired", "expired"]


def test_what_may_be_poison_waits_for_what_is_being_read() -> None:
    bench = ParkingBench(park_after_ms=1_000, attempts=2)
    bench.arrive("a1")
    bench.run(1_000)
    bench.hold_reads = True
    bench.join("one")
    bench.arrive("-1")
    bench.die("one")
    bench.join("two")
    bench.die("two")
    bench.join("three")
    bench.run()
    assert bench.latest("-1").attempt == 2
    bench.hold_reads = False
    bench.run()
    assert bench.holder("a1") == "three"
    bench.settle("three", "a1")
    bench.run()
    assert (bench.holder("-1"), bench.latest("-1").attempt) == ("three", 3)


def test_a_parking_queue_that_has_just_run_empty_is_used_again() -> None:
    bench = blocked()
    for number in range(1, 11):
        bench.settle("one", f"a{number}")
        bench.run()
    bench.arrive(*(f"a{number}" for number in range(11, 21)))
    bench.run(BLOCKED_MS)
    assert bench.in_parking() == [f"a{number}" for number in range(12, 21)]
    assert bench.lane.state.counters["groups_parked"] == 2


def test_over_the_byte_budget_a_stuck_backlog_is_parked_until_half_of_it_is_free() -> None:
    """Nothing is fetched meanwhile, so nothing else would ever make room."""
    clause("P-1", "(or `look_ahead_bytes`)")
    bench = ParkingBench(look_ahead_bytes=10_560)  # six of them
    bench.join("one", prefetch=1)
    bench.arrive(*(f"a{n}" for n in range(1, 7)))
    bench.run(1_000)
    assert bench.lane.state.inbounds[0].paused
    assert not bench.moved, "nobody could take what is behind it"
    bench.join("two")
    bench.hold_confirms = True
    bench.run(BLOCKED_MS)
    assert bench.lane.state.inbounds[0].paused, "they are here until RabbitMQ has confirmed them there"
    bench.hold_confirms = False
    bench.run()
    assert (bench.lane.state.inbounds[0].paused, bench.lane.state.bytes_held) == (False, 1_100)
    bench.arrive("b1", "a7")
    bench.run()
    assert bench.holder("b1") == "two"
    bench.settle_each("one", range(1, 8))
    assert numbers(bench) == list(range(1, 8))


def test_messages_that_fill_the_bytes_go_to_a_queue_that_was_empty_when_it_was_read() -> None:
    """They waited until the queue was read to its end, and it was not read while they filled the bytes."""
    clause("P-2", "a message without a group alone")
    bench = ParkingBench(
        "concurrent", look_ahead_bytes=15_000, park_after_ms=1_000, max_in_flight_per_group=1
    )
    bench.join("one")
    bench.opens_parking = False
    bench.arrive("a1", "a2")
    bench.run(1_000)
    bench.settle_each("one", (1, 2))
    bench.open_parking()
    assert bench.lane.state.parking[FIRST].end_seen, "nothing was in it"
    bench.arrive("a3", "a4", "a5")
    bench.run(900)
    bench.arrive(*(f"a{n}" for n in range(6, 20)))
    bench.run(100)
    assert bench.in_parking() == ["a4", "a5"]
    bench.run(900)
    bench.settle_each("one", range(3, 20))
    assert sorted(numbers(bench)) == list(range(1, 20))


@pytest.mark.parametrize("why", ["alarm", "pause"])
def test_what_is_blocked_while_nothing_may_be_dispatched_is_not_looked_at(why: str) -> None:
    bench = ParkingBench(look_ahead=4)
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two")
    bench.arrive("a2", "a3", "a4")

    def hold(*, on: bool) -> None:
        if why == "alarm":
            bench.step(PublishersBlocked(on))
        else:
            said(bench, "groups.pause" if on else "groups.resume", all=True)

    hold(on=True)
    bench.rounds = 0
    bench.run(10_000)
    assert not bench.moved
    assert bench.rounds < 100
    hold(on=False)
    bench.run(BLOCKED_MS)
    assert bench.in_parking() == ["a2", "a3", "a4"]


@pytest.mark.parametrize("policy", ["exclusive", "concurrent"])
def test_an_empty_queue_is_not_read_again_before_something_came_into_it(policy: str) -> None:
    """A confirm may take as long as an alarm lasts."""
    bench = ParkingBench(policy, park_after_ms=1_000)
    bench.join("one", prefetch=1)
    bench.arrive("a1", "a2", "a3")
    bench.hold_confirms = bench.hold_reads = True
    bench.run(1_000)
    assert bench.moved == ["a2", "a3"]
    bench.ready[FIRST].clear()  # RabbitMQ has not read them yet
    bench.join("two")
    bench.hold_reads = False
    bench.rounds = 0
    bench.run(10_000)
    assert bench.rounds < 100


def test_an_alarm_holds_back_moves() -> None:
    """RabbitMQ reads nothing more of a connection that publishes now: no ack, no settle."""
    bench = blocked(4, confirmed=False)
    bench.step(PublishersBlocked(True))
    bench.arrive("a5")
    bench.run(1_000)
    assert bench.moved == ["a2", "a3", "a4"]
    bench.hold_confirms = False
    bench.step(PublishersBlocked(False))
    bench.run()
    assert bench.in_parking() == ["a2", "a3", "a4", "a5"]
    bench.settle_each("one", range(1, 6))
    assert numbers(bench) == [1, 2, 3, 4, 5]


def test_what_a_quorum_queue_has_delivered_often_is_parked_with_its_group() -> None:
    clause("P-8", "with the other waiting messages of its group")
    bench = ParkingBench()
    bench.join("one", prefetch=1)
    bench.arrive("b1", "b2", "a1")
    bench.arrive("a2", "-1", deliveries=DELIVERIES_MAX, redelivered=True)
    bench.arrive("a3")
    bench.run()
    assert bench.in_parking() == ["-1", "a1", "a2", "a3"], "b2 has not been delivered often"
    for name in ("b1", "b2", "-1", "a1", "a2", "a3"):
        bench.settle("one", name)
        bench.run()
    assert numbers(bench) == [1, 2, 3]


def test_what_a_quorum_queue_has_delivered_often_is_parked_when_its_consumer_is_over() -> None:
    clause("P-8", "Messages that consumers process are not parked")
    bench = ParkingBench()
    bench.join("one")
    bench.arrive("a1", deliveries=DELIVERIES_MAX, redelivered=True)
    bench.run()
    assert not bench.moved
    bench.die("one")
    bench.run()
    assert bench.in_parking() == ["a1"]
