"""Parking in the core when leaders and consumers die, and RabbitMQ refuses or forgets."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.events import Event, RedeliveriesEnded
from dispatcher.core.parking.events import RelocationImpossible
from dispatcher.core.parking.policy import BLOCKED_MS, LINGER_MS
from dispatcher.core.parking.relocation import RELOCATIONS_UNCONFIRMED_MAX
from dispatcher.core.records import Dispatched
from dispatcher.wire.protocol import InHand
from tests.spec.lane_bench import clause
from tests.spec.parking_bench import FIRST, ParkingBench, blocked, numbers


def test_the_successor_of_a_dead_consumer_reads_on() -> None:
    clause("P-4", "when its owner has free capacity; a group without an owner, when any consumer has")
    bench = blocked()
    bench.die("one")
    bench.run()
    assert bench.holder("a1") == "two"
    bench.settle("two", *(f"a{n}" for n in range(1, 11)))
    bench.run()
    assert numbers(bench)[1:] == list(range(1, 11)), "a1 was handed over again, before everything newer"


@pytest.mark.parametrize("lost", [0, 1, 4])
def test_a_new_leader_does_interrupted_moves_again(lost: int) -> None:
    bench = blocked(confirmed=False)
    assert len(bench.moved) == 9
    bench.fail_over(lost=lost)
    bench.hold_confirms = False
    bench.arrive("a11", "b1")
    bench.run()
    assert bench.holder("b1") == "two"
    bench.settle_each("one", range(1, 12))
    assert numbers(bench) == list(range(1, 12))
    assert bench.lane.state.counters["repeated_copies"] == 9 - lost


def test_a_later_copy_that_survived_alone_does_not_overtake() -> None:
    """A killed broker kept a3 and lost a2, which was published before it."""
    bench = blocked(4, confirmed=False)
    order, parked = bench.unconfirmed.pop(0)
    bench.ready[order.queue].remove(parked)
    bench.fail_over()
    bench.hold_confirms = False
    bench.run()
    bench.settle_each("one", range(1, 5))
    assert numbers(bench) == [1, 2, 3, 4]


def test_a_refused_copy_is_published_again_with_all_behind_it() -> None:
    bench = blocked(4, confirmed=False)
    bench.refuse()
    bench.hold_confirms = False
    bench.run(2_000)
    assert bench.moved == ["a2", "a3", "a4", "a2", "a3", "a4"]
    bench.settle_each("one", range(1, 5))
    assert numbers(bench) == [1, 2, 3, 4]


def test_terms_outlive_leaders_and_checkpoints() -> None:
    bench = blocked(4, confirmed=False)
    order, parked = bench.unconfirmed.pop(0)
    bench.ready[order.queue].remove(parked)
    bench.fail_over()
    bench.hold_confirms = False
    bench.run()
    bench.fail_over()
    bench.run()
    bench.fail_over()
    bench.run()
    bench.settle_each("one", range(1, 5))
    assert numbers(bench) == [1, 2, 3, 4]


@pytest.mark.parametrize("settled", range(1, 11))
def test_a_leader_may_die_at_any_moment_of_reading(settled: int) -> None:
    bench = blocked()
    bench.settle_each("one", range(1, settled + 1))
    bench.fail_over()
    bench.run()
    bench.arrive("a11")
    bench.run()
    bench.settle_each("one", range(settled + 1, 12))
    assert numbers(bench) == list(range(1, 12))
    bench.run(LINGER_MS + BLOCKED_MS)
    assert bench.deleted == [FIRST]


@pytest.mark.parametrize("settled", [1, 5, 9, 10])
def test_the_order_is_kept_when_leader_and_consumer_die(settled: int) -> None:
    bench = blocked()
    bench.settle_each("one", range(1, settled + 1))
    bench.arrive("a11")
    bench.run()
    bench.fail_over()
    bench.run()
    bench.die("one")
    bench.run(10_000)
    bench.settle_each("two", range(settled + 1, 12))
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
    bench.settle_each("one", range(2, 12))
    assert numbers(bench) == list(range(1, 12))


def test_attempts_are_counted_on_behind_a_parking_queue() -> None:
    clause("P-7", "its attempts")
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


def test_a_suspect_without_a_group_is_a_suspect_still_when_it_is_read_back() -> None:
    bench = ParkingBench(park_after_ms=1_000, attempts=2)
    bench.join("one", prefetch=1)
    bench.arrive("-1")
    bench.die("one")
    bench.run(1_000)
    assert bench.in_parking() == ["-1"]
    bench.arrive("-2")
    bench.join("two", prefetch=10)
    bench.run()
    assert bench.latest("-1").attempt == 2
    assert bench.lane.state.by_id["two"].alone_with is bench.latest("-1").message
    assert "-2" not in bench.handed()
    bench.settle("two", "-1")
    bench.run()
    assert bench.holder("-2") == "two"


def test_settles_from_before_it_was_read_back_prove_nothing_against_a_suspect() -> None:
    bench = ParkingBench(park_after_ms=1_000, attempts=2)
    bench.join("one", prefetch=1)
    bench.arrive("-0")
    bench.settle("one", "-0")
    bench.arrive("-1")
    bench.die("one")
    bench.run(1_000)
    assert bench.in_parking() == ["-1"]
    bench.join("two")
    bench.run()
    bench.die("two")
    assert (bench.latest("-1").attempt, bench.dead) == (2, [])
    bench.join("three")
    bench.run()
    assert bench.holder("-1") == "three"


def test_moves_that_were_refused_go_again_although_the_end_was_read() -> None:
    bench = blocked()
    bench.settle_each("one", range(1, 9))
    bench.hold_confirms = True
    bench.arrive("a11", "a12")
    bench.run()
    assert bench.moved[-2:] == ["a11", "a12"]
    bench.refuse()
    bench.hold_confirms = False
    bench.settle_each("one", (9, 10))
    bench.run(2_000)
    bench.settle_each("one", (11, 12))
    assert numbers(bench) == list(range(1, 13))


def test_a_window_full_of_what_was_taken_back_is_parked() -> None:
    """One dies with the whole look-ahead in hand, and its heir is stuck with the first of it."""
    bench = ParkingBench(look_ahead=10)
    bench.join("one", prefetch=10)
    bench.arrive(*(f"a{n}" for n in range(1, 11)))
    bench.join("two", prefetch=1)
    bench.die("one")
    assert bench.holder("a1") == "two"
    bench.join("three")
    bench.run(BLOCKED_MS)
    assert bench.in_parking() == [f"a{n}" for n in range(2, 11)]
    bench.settle_each("two", range(1, 11))
    assert numbers(bench)[10:] == list(range(1, 11))
    assert bench.latest("a10").attempt == 2


def test_what_can_not_be_parked_goes_to_the_dead_queue_and_the_rest_goes_on() -> None:
    bench = blocked(4, confirmed=False)
    order, copy = bench.unconfirmed.pop(0)
    bench.ready[FIRST].remove(copy)
    bench.step(RelocationImpossible(order.message, "too large"))
    assert [reason for _, reason in bench.dead] == ["unpublishable: too large"]
    bench.hold_confirms = False
    bench.settle_each("one", (1, 3, 4))
    assert numbers(bench) == [1, 3, 4]
    assert bench.lane.state.parking.unconfirmed == 0


def test_what_is_older_than_a_route_never_goes_behind_it() -> None:
    """a2 was out before its group was parked. It comes back, moves on with what was read, and returns."""
    bench = ParkingBench(park_after_ms=1_000)
    bench.join("three", prefetch=1)
    bench.arrive("b0")
    bench.join("one", prefetch=2)
    bench.arrive("a1", "a2", "a3", "a4", "a5", "a6")
    bench.run(1_000)
    assert bench.in_parking() == ["a3", "a4", "a5", "a6"]
    bench.settle("one", "a1")
    bench.run()
    bench.hold_confirms = True
    bench.arrive(*(f"b{n}" for n in range(1, 2 * RELOCATIONS_UNCONFIRMED_MAX)))
    bench.run(1_000)
    bench.die("one")
    bench.run()
    assert bench.lane.state.groups[b"a"].route == (FIRST, FIRST + 2)
    bench.join("two", prefetch=10)
    bench.run()
    bench.hold_confirms = False
    bench.run()
    assert numbers(bench) == [1, 2, 3, 2, 3, 4, 5, 6]


def test_a_suspect_that_is_given_back_is_nobodys_promise_any_more() -> None:
    bench = ParkingBench(look_ahead=10, park_after_ms=1_000, attempts=2)
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.die("one")
    bench.run(1_000)
    assert bench.in_parking() == ["a1"]
    bench.join("two", prefetch=2)
    bench.hold_reads = True
    bench.arrive("b1")
    bench.hold_reads = False
    bench.run()
    assert bench.lane.state.by_id["two"].alone_with is not None
    bench.run(1_000)
    assert bench.lane.state.counters["given_back"] == 1
    bench.settle("two", "b1")
    bench.run()
    assert (bench.holder("a1"), bench.latest("a1").group_seq, bench.latest("a1").attempt) == ("two", 1, 2)


@pytest.mark.parametrize("again", [False, True])
def test_a_copy_whose_original_vanished_half_way_is_none(again: bool) -> None:
    """The leader dies while a2 to a4 move. RabbitMQ forgets a2, which it had not promised to keep, and
    keeps its copy."""
    bench = blocked(4, confirmed=False)
    assert bench.in_parking() == ["a2", "a3", "a4"]
    del bench.inbound_unacked[0, 2]
    bench.fail_over()
    bench.hold_confirms = False
    bench.run()
    if again:
        bench.fail_over()
    bench.join("one", prefetch=1, n=2, in_hand=())
    bench.run()
    bench.settle_each("one", (1, 3, 4))
    assert numbers(bench)[-2:] == [3, 4]
    assert 2 not in numbers(bench)


@pytest.mark.parametrize("fail_overs", [1, 2])
def test_a_later_leader_knows_that_any_group_may_be_in_a_parking_queue(fail_overs: int) -> None:
    """Redis forgot everything, and the first leader after that dies before it has read the queue."""
    bench = blocked()
    bench.settle_each("one", (1, 2))
    bench.hold_reads = True
    bench.fail_over(forget=True)
    for _ in range(fail_overs):
        bench.run(20_000)
        bench.fail_over()
    bench.arrive("a11")
    bench.join("three", prefetch=100)
    bench.run(20_000)
    assert "a11" not in bench.handed()
    bench.hold_reads = False
    bench.run()
    for number in range(3, 12):
        bench.settle(bench.holder(f"a{number}"), f"a{number}")
        bench.run()
    assert numbers(bench)[-9:] == list(range(3, 12))


def test_what_was_read_before_its_group_was_parked_again_is_not_counted() -> None:
    bench = blocked()
    bench.settle_each("one", range(1, 10))
    assert not bench.lane.state.groups[b"a"].route
    bench.hold_confirms = bench.hold_reads = True
    bench.arrive(*(f"a{number}" for number in range(11, 21)))
    bench.run(BLOCKED_MS)
    bench.settle("one", "a10")
    bench.fail_over()
    assert bench.lane.state.parking[FIRST].members == {b"a": 0}


def test_a_copy_counts_whose_move_was_done_and_redis_forgot_that() -> None:
    """Redis fell back to what it knew while a2 to a4 moved: their originals were acked since, and come
    no more, so the copies are the messages."""
    clause("R-4", "When Redis may have forgotten something, the consumers are asked")
    bench = blocked(4, confirmed=False)
    older = list(bench.journal)
    bench.hold_confirms = False
    bench.run()
    assert list(bench.inbound_unacked) == [(0, 1)]
    bench.fail_over(older=older)
    a1 = InHand(seq=bench.latest("a1").seq, group=b"a", fingerprint=bench.latest("a1").message.fingerprint)
    bench.join("one", prefetch=1, n=2, in_hand=(a1,))
    bench.run(11_000)
    bench.settle_each("one", range(1, 5))
    assert numbers(bench) == [1, 2, 3, 4]


class _Slow(ParkingBench):
    """Its broker has not given back everything that was unacked."""

    def step(self, *events: Event, after_ms: int = 1) -> list[Dispatched]:
        return super().step(*(e for e in events if not isinstance(e, RedeliveriesEnded)), after_ms=after_ms)


def test_a_group_is_not_parked_while_some_of_it_is_still_to_come_back() -> None:
    """Else what comes back late, and was handed over before, passes what was parked meanwhile."""
    bench = _Slow(park_after_ms=1_000)
    bench.join("one", prefetch=4)
    bench.arrive("a1", "a2", "a3", "a4")
    bench.die("one")
    late = bench.inbound_unacked.pop((0, 4))
    bench.fail_over()
    bench.run(2_000)
    assert not bench.moved
    bench._redeliver(0, *late)
    bench.run(2_000)
    assert bench.moved == ["a1", "a2", "a3", "a4"]


def test_a_group_is_not_parked_behind_what_its_parking_queue_got_back() -> None:
    """Who has read it knows it from the journal: it comes back before everything else that is parked."""
    clause("P-9b", "the order of the parking queues is the order of the group")
    bench = _Slow(look_ahead=6, park_after_ms=1_000, attempts=9)
    bench.join("one", prefetch=3)
    bench.arrive("a1", "b1", "b2")
    bench.join("two")
    bench.arrive("a2", "a3", "a4")
    bench.run(BLOCKED_MS)
    bench.settle("one", "b1", "b2")
    bench.run()
    assert (bench.holder("a2"), bench.holder("a3"), bench.moved) == ("one", "one", ["a2", "a3", "a4"])
    late = bench.inbound_unacked.pop((0, 1))
    bench.fail_over()
    bench.run(500)
    bench._redeliver(0, *late)
    bench.run()
    bench.die("two")
    bench.die("one")
    bench.run(900)
    assert bench.lane.state.counters["given_back"]
    assert bench.moved == ["a2", "a3", "a4"], "a1 waits where it is"
    bench.run(20_000)
    bench.join("three")
    bench.run()
    assert numbers(bench) == [1, 2, 3, 1, 2, 3, 4]


def _fails_over_and_gives_back(bench: ParkingBench) -> list[tuple[str, dict[str, Any]]]:
    """The leader dies, then the consumer; what was read goes back to its parking queue. Returns what the
    inbound queue has not delivered again yet."""
    bench.arrive(*(f"c{n}" for n in range(2, 130)))
    bench.run(1_100)
    late = list(bench.inbound_unacked.values())
    bench.inbound_unacked.clear()
    bench.fail_over()
    bench.run(500)
    bench.die("one")
    bench.run(2_000)
    assert bench.lane.state.counters["given_back"]
    return late


def test_what_is_given_back_does_not_pass_an_older_one_that_is_still_to_come() -> None:
    """The group waited for both. a2 was met once before it was given back, and counts once."""
    clause("R-2", "before its open entries have met their originals")
    bench = _Slow(park_after_ms=1_000, steal_after_ms=None, look_ahead=500)
    bench.join("one", prefetch=3)
    bench.arrive("a1", "b1", "c1")
    bench.arrive("a2", "a3")
    bench.run(1_100)
    bench.settle("one", "b1")
    bench.run()
    assert (bench.holder("a2"), bench.in_parking()) == ("one", ["a2", "a3"])
    late = _fails_over_and_gives_back(bench)
    bench.join("two", prefetch=3)
    bench.run()
    for message in late:
        bench._redeliver(0, *message)
    bench.run()
    assert numbers(bench) == [1, 2, 1, 2, 3]


def test_a_newer_one_that_is_still_to_come_does_not_pass_what_is_given_back() -> None:
    """a3 had gone directly to the consumer that had a2 from the parking queue."""
    clause("G-1", "handed over again after its consumer's death comes before every later one of its group")
    bench = _Slow(park_after_ms=1_000, steal_after_ms=None, look_ahead=500)
    bench.join("one", prefetch=3)
    bench.arrive("a1", "b1", "c1")
    bench.arrive("a2")
    bench.run(1_100)
    bench.settle("one", "a1", "b1")
    bench.run()
    bench.arrive("a3", "a4")
    assert (bench.holder("a2"), bench.holder("a3"), bench.in_parking()) == ("one", "one", ["a2"])
    late = _fails_over_and_gives_back(bench)
    bench.hold_reads = True
    bench.join("two", prefetch=100)
    for message in late:
        bench._redeliver(0, *message)
    bench.run()
    bench.hold_reads = False
    bench.run()
    assert numbers(bench) == [1, 2, 3, 2, 3, 4]


def test_in_a_bucket_what_is_parked_does_not_pass_another_id_that_is_still_to_come() -> None:
    clause("O-15", "rules of this page about the order, the owner, closing and moving of a group")
    bench = _Slow(park_after_ms=1_000, steal_after_ms=None, buckets=1)
    bench.join("one", prefetch=2)
    bench.arrive("a1", "-1")
    bench.arrive("b2")
    bench.run(1_100)
    bench.settle("one", "-1")
    bench.run()
    assert (bench.holder("b2"), bench.in_parking()) == ("one", ["b2"])
    bench.die("one")
    late = bench.inbound_unacked.pop((0, 1))
    bench.fail_over()
    bench.join("two")
    bench.run()
    bench._redeliver(0, *late)
    bench.run()
    assert bench.handed() == ["a1", "-1", "b2", "a1", "b2"]


@pytest.mark.parametrize("fails_over", [False, True])
def test_what_is_gone_from_a_parking_queue_is_counted_as_lost(fails_over: bool) -> None:
    clause("P-10", "the log has an error (`parking_lost`) that counts them instead of `parking_ends`")
    bench = blocked()
    del bench.ready[FIRST][3], bench.ready[FIRST][5]
    if fails_over:
        bench.fail_over()
    bench.settle_each("one", (1, 2, 3, 4, 6, 7, 9, 10))
    assert numbers(bench) == [1, 2, 3, 4, 6, 7, 9, 10]
    assert bench.lane.state.counters["parked_lost"] == 2
    assert [fields["lost"] for event, fields in bench.told if event == "parking_lost"] == [2]
    assert not [event for event, _ in bench.told if event == "parking_ends"]


def test_what_is_settled_before_it_comes_back_is_not_counted_as_lost() -> None:
    clause("P-10", "neither here nor ended")
    bench = blocked()
    bench.settle_each("one", (1, 2))
    bench.hold_reads = True
    bench.fail_over()
    bench.settle("one", "a3")
    bench.run()
    bench.hold_reads = False
    bench.run()
    bench.settle_each("one", range(4, 11))
    assert numbers(bench) == list(range(1, 11))
    assert "parking_ends" in [event for event, _ in bench.told]
    assert bench.lane.state.counters["parked_lost"] == 0
