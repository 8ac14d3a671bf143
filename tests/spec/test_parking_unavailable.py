"""A parking queue that RabbitMQ can't open costs the groups in it, and no others."""

from __future__ import annotations

from dispatcher.core.parking.events import ParkingQueueUnavailable
from dispatcher.core.parking.policy import BLOCKED_MS, LINGER_MS
from tests.spec.lane_bench import clause
from tests.spec.parking_bench import FIRST, ParkingBench, blocked, numbers

SECOND = FIRST + 1
PROBLEM = "541 INTERNAL_ERROR"
#: So rarely that consumers who say nothing live on.
HEARTBEAT_MS = 3_600_000


def unavailable(bench: ParkingBench, queue: int = FIRST) -> None:
    bench.step(ParkingQueueUnavailable(queue, PROBLEM))
    bench.run()


def taken_over(*, settle: bool = False) -> ParkingBench:
    """Group a is parked; a new leader can't open its parking queue. Consumer one has a1 in hand."""
    bench = blocked(heartbeat_ms=HEARTBEAT_MS)
    if settle:
        bench.settle("one", "a1")
        bench.run()
    bench.opens_parking = False
    bench.fail_over()
    unavailable(bench)
    return bench


def told(bench: ParkingBench, event: str) -> list[str]:
    return [fields["queue"] for name, fields in bench.told if name == event]


def reason(bench: ParkingBench, group: str = "a") -> str | None:
    hold = bench.lane.state.explanation.why(bench.lane.state.groups[group.encode()])
    return hold and hold.kind.value


def finish(bench: ParkingBench, last: int) -> None:
    """It can be opened again: consumer one gets the rest, and settles it."""
    bench.open_parking()
    assert reason(bench) != "parking_unavailable"
    done = set[str]()
    while (name := f"a{numbers(bench)[-1]}") not in done:
        done.add(name)
        bench.settle("one", name)
        bench.run()
    assert list(dict.fromkeys(numbers(bench))) == list(range(1, last + 1))
    bench.run(LINGER_MS)
    assert not bench.lane.state.parking


def test_a_new_one_is_given_up_and_another_takes_its_place() -> None:
    clause("P-11", "one in which nothing is yet is given up, and another takes its place")
    bench = ParkingBench(look_ahead=10, heartbeat_ms=HEARTBEAT_MS)
    bench.opens_parking = False
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two")
    bench.arrive(*(f"a{n}" for n in range(2, 11)))
    bench.run(BLOCKED_MS)
    assert list(bench.lane.state.parking) == [FIRST]
    unavailable(bench)
    assert bench.abandoned == [FIRST]
    bench.run(200)
    bench.open_parking()
    bench.run(200)
    assert bench.in_parking(SECOND) == [f"a{n}" for n in range(2, 11)]
    bench.settle_each("one", range(1, 11))
    assert numbers(bench) == list(range(1, 11))


def test_other_groups_go_on_and_its_own_wait_and_say_why() -> None:
    clause("P-11", "the groups with messages in it wait, with the reason `parking_unavailable`")
    bench = taken_over(settle=True)
    bench.arrive("b1", "a11")
    bench.run()
    assert "b1" in bench.handed()
    assert "a11" not in bench.handed()
    assert reason(bench) == "parking_unavailable"
    finish(bench, 11)


def test_what_a_consumer_has_in_hand_is_settled_meanwhile_and_not_handed_over_again() -> None:
    bench = taken_over()
    bench.settle("one", "a1")
    bench.run()
    sent = bench.handed().count("a1")
    bench.arrive("a11")
    finish(bench, 11)
    assert bench.handed().count("a1") == sent


def test_what_was_read_from_it_and_is_settled_meanwhile_is_not_handed_over_again() -> None:
    """Consumer one had a2 from the parking queue when the leader died."""
    bench = taken_over(settle=True)
    bench.settle("one", "a2")
    bench.run()
    sent = bench.handed().count("a2")
    finish(bench, 10)
    assert bench.handed().count("a2") == sent


def test_other_groups_of_its_consumer_are_parked_in_another_one() -> None:
    bench = taken_over(settle=True)
    bench.opens_parking = True
    bench.opening.clear()
    bench.arrive("b1")
    bench.command(group="b", to="one")
    bench.settle("two", "b1")
    bench.arrive(*(f"b{n}" for n in range(2, 22)))
    bench.run(BLOCKED_MS + 200)
    assert bench.lane.state.parking[SECOND].consumer == bench.lane.state.parking[FIRST].consumer
    assert bench.in_parking(SECOND) == [f"b{n}" for n in range(2, 22)]


def test_p11_the_beginning_and_the_end_are_told_once() -> None:
    clause("P-11", "The log has `parking_unavailable` when that begins, and `parking_available` when it ends")
    bench = taken_over()
    unavailable(bench)
    assert told(bench, "parking_unavailable") == ["park.1"]
    assert bench.status()["parking"][0]["problem"] == PROBLEM
    assert bench.status()["parking_unavailable"] == 1
    bench.open_parking()
    assert told(bench, "parking_available") == ["park.1"]
    assert bench.status()["parking"][0]["problem"] is None
    assert bench.status()["parking_unavailable"] == 0


def test_one_that_is_open_or_gone_by_now_is_not_unavailable() -> None:
    bench = blocked(heartbeat_ms=HEARTBEAT_MS)
    unavailable(bench)
    unavailable(bench, SECOND)
    assert not told(bench, "parking_unavailable")
