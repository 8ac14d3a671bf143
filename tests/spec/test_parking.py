"""Parking in the core, by the smallest thing that shows each of its rules."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dispatcher.core.parking import BLOCKED_MS, LINGER_MS
from dispatcher.protocol import InHand
from tests.spec.parking_bench import FIRST, ParkingBench


def blocked(look_ahead: int = 10, **options: object) -> ParkingBench:
    """Consumer one is stuck with a1; two idles; the look-ahead is full of group a, and parked."""
    bench = ParkingBench(look_ahead=look_ahead, **options)  # type: ignore[arg-type]
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two")
    bench.arrive(*(f"a{n}" for n in range(2, look_ahead + 1)))
    bench.run(BLOCKED_MS)
    return bench


def settle_in_turn(bench: ParkingBench, ordinals: Iterable[int], consumer: str = "one") -> None:
    """It acks these messages of group a, each once everything before it has had its effects."""
    for number in ordinals:
        bench.settle(consumer, f"a{number}")
        bench.run()


def moving() -> ParkingBench:
    """a2 to a4 are on their way to the parking queue, and the broker has confirmed none of them."""
    bench = ParkingBench(look_ahead=4)
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two")
    bench.hold_confirms = True
    bench.arrive("a2", "a3", "a4")
    bench.run(BLOCKED_MS)
    return bench


def numbers(bench: ParkingBench, group: str = "a") -> list[int]:
    return [int(name[len(group) :]) for name in bench.handed() if name.startswith(group)]


def test_a_look_ahead_full_of_a_stuck_consumers_group_is_parked() -> None:
    bench = blocked()
    assert bench.in_parking() == [f"a{n}" for n in range(2, 11)]
    assert bench.lane.state.inbounds[0].unacked == 1
    bench.arrive("b1", "a11", "b2")
    bench.run()
    assert bench.handed() == ["a1", "b1", "b2"]
    assert bench.holder("b1") == "two"
    assert bench.in_parking()[-1] == "a11"


def test_nothing_is_parked_while_nobody_has_free_capacity() -> None:
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
    bench = blocked()
    settle_in_turn(bench, range(1, 11))
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
    settle_in_turn(bench, range(1, 10))
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
    bench = blocked(parking=1)
    bench.join("three", prefetch=1)
    bench.arrive("c1")
    bench.command(group="c", to="three")
    bench.settle(bench.holder("c1"), "c1")
    bench.arrive("c2", *(f"c{n}" for n in range(3, 13)))
    bench.run(BLOCKED_MS)
    assert ("parking_bound_reached", {"queues": 1}) in bench.told
    assert not any(name.startswith("c") for name in bench.moved)


def test_the_successor_of_a_dead_consumer_reads_on() -> None:
    bench = blocked()
    bench.die("one")
    bench.run()
    assert bench.holder("a1") == "two"
    bench.settle("two", *(f"a{n}" for n in range(1, 11)))
    bench.run()
    assert numbers(bench)[1:] == list(range(1, 11)), "a1 was handed over again, before everything newer"


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
    settle_in_turn(bench, range(2, 11))
    assert numbers(bench) == list(range(1, 11))


@pytest.mark.parametrize("lost", [0, 1, 4])
def test_a_new_leader_does_interrupted_moves_again(lost: int) -> None:
    bench = ParkingBench(look_ahead=10)
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two")
    bench.hold_confirms = True
    bench.arrive(*(f"a{n}" for n in range(2, 11)))
    bench.run(BLOCKED_MS)
    assert len(bench.moved) == 9
    bench.fail_over(lost=lost)
    bench.hold_confirms = False
    bench.arrive("a11", "b1")
    bench.run()
    assert bench.holder("b1") == "two"
    settle_in_turn(bench, range(1, 12))
    assert numbers(bench) == list(range(1, 12))
    assert bench.lane.state.counters["repeated_copies"] == 9 - lost


def test_a_later_copy_that_survived_alone_does_not_overtake() -> None:
    """A killed broker kept a3 and lost a2, which was published before it."""
    bench = moving()
    order, parked = bench.unconfirmed.pop(0)
    bench.ready[order.queue].remove(parked)
    bench.fail_over()
    bench.hold_confirms = False
    bench.run()
    settle_in_turn(bench, range(1, 5))
    assert numbers(bench) == [1, 2, 3, 4]


def test_a_refused_copy_is_published_again_with_all_behind_it() -> None:
    bench = moving()
    bench.refuse()
    bench.hold_confirms = False
    bench.run(2_000)
    assert bench.moved == ["a2", "a3", "a4", "a2", "a3", "a4"]
    settle_in_turn(bench, range(1, 5))
    assert numbers(bench) == [1, 2, 3, 4]


def test_terms_outlive_leaders_and_checkpoints() -> None:
    bench = moving()
    order, parked = bench.unconfirmed.pop(0)
    bench.ready[order.queue].remove(parked)
    bench.fail_over()
    bench.hold_confirms = False
    bench.run()
    bench.fail_over()
    bench.run()
    bench.fail_over()
    bench.run()
    settle_in_turn(bench, range(1, 5))
    assert numbers(bench) == [1, 2, 3, 4]


@pytest.mark.parametrize("settled", range(1, 11))
def test_a_leader_may_die_at_any_moment_of_reading(settled: int) -> None:
    bench = blocked()
    settle_in_turn(bench, range(1, settled + 1))
    bench.fail_over()
    bench.run()
    bench.arrive("a11")
    bench.run()
    settle_in_turn(bench, range(settled + 1, 12))
    assert numbers(bench) == list(range(1, 12))
    bench.run(LINGER_MS + BLOCKED_MS)
    assert bench.deleted == [FIRST]


@pytest.mark.parametrize("settled", [1, 5, 9, 10])
def test_the_order_is_kept_when_leader_and_consumer_die(settled: int) -> None:
    bench = blocked()
    settle_in_turn(bench, range(1, settled + 1))
    bench.arrive("a11")
    bench.run()
    bench.fail_over()
    bench.run()
    bench.die("one")
    bench.run(10_000)
    settle_in_turn(bench, range(settled + 1, 12), "two")
    handed = numbers(bench)
    assert [n for i, n in enumerate(handed) if n not in handed[:i]] == list(range(1, 12))
    again = handed.index(settled + 1)
    assert handed[again:] == [settled + 1, *range(settled + 1, 12)] or handed == list(range(1, 12))


def test_redis_forgot_everything_and_every_group_goes_through_what_exists() -> None:
    bench = blocked()
    bench.settle("one", "a1")
    bench.run()
    bench.fail_over(forget=True)
    bench.arrive("a11", "b1")
    held = bench.latest("a2")
    item = InHand(seq=held.seq, group=b"a", fingerprint=held.message.fingerprint)
    bench.join("one", prefetch=1, n=2, in_hand=(item,))
    bench.join("two", n=2)
    bench.run(11_000)
    assert "b1" in bench.handed()
    settle_in_turn(bench, range(2, 12))
    assert numbers(bench) == list(range(1, 12))


def test_an_expired_message_ends_when_it_is_read() -> None:
    bench = ParkingBench(look_ahead=4)
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two")
    bench.arrive("a2")
    bench.arrive("a3", deadline_at_ms=bench.now_ms + 5_000)
    bench.arrive("a4")
    bench.run(6_000)
    assert "a3" in bench.in_parking()
    settle_in_turn(bench, (1, 2, 4))
    assert numbers(bench) == [1, 2, 4]
    assert [reason for _, reason in bench.dead] == ["expired"]


def test_attempts_are_counted_on_behind_a_parking_queue() -> None:
    bench = ParkingBench(look_ahead=6)
    bench.join("one", prefetch=2)
    bench.arrive("a1", "a2")
    bench.die("one")
    bench.join("two", prefetch=1)
    bench.join("three")
    bench.arrive(*(f"a{n}" for n in range(3, 7)))
    bench.run(BLOCKED_MS)
    holder = bench.holder("a1")
    while "a6" not in bench.handed():
        bench.settle(holder, bench.handed()[-1])
        bench.run()
    assert bench.latest("a2").attempt == 2


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
