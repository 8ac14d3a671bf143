"""docs/semantics.md, O-32: operations on a group that is parked."""

from __future__ import annotations

import pytest

from dispatcher.core.operations.operations import BARRIER_TIMEOUT_MS
from dispatcher.core.parking.events import ParkingQueueRead
from dispatcher.core.parking.orders import ReadParkingQueue
from dispatcher.core.parking.policy import BLOCKED_MS
from tests.spec.flag_bench import refused
from tests.spec.lane_bench import clause
from tests.spec.move_bench import MoveBench
from tests.spec.parking_bench import FIRST, Parked, numbers

KINDS = pytest.mark.parametrize("kind", ["purge", "move"])


class QuorumBench(MoveBench):
    """Its parking queues get back what a leader had in another order. Who reads it sorts it."""

    def _requeue(self, queue: int, parked: list[Parked]) -> None:
        super()._requeue(queue, parked[::-1])

    def _read(self, order: ReadParkingQueue) -> ParkingQueueRead:
        event = super()._read(order)
        event.messages.sort(key=lambda message: message.first_arrival)
        return event


def parked(
    *more: str, look_ahead: int = 10, kind: type[MoveBench] = MoveBench, **options: object
) -> MoveBench:
    """Consumer one is stuck with a1, two idles. What follows of group a is parked, and what else comes."""
    bench = kind(parking=4, look_ahead=look_ahead, **options)  # type: ignore[arg-type]
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two")
    bench.arrive(*(f"a{number}" for number in range(2, look_ahead + 1)))
    bench.run(BLOCKED_MS)
    bench.arrive(*more)
    bench.run()
    assert bench.lane.state.groups[b"a"].route
    return bench


def order(bench: MoveBench, kind: str, **arguments: object) -> None:
    """A command whose marker comes back."""
    if kind == "purge":
        bench.command("groups.purge", group="a", **arguments)
        assert bench.replies[-1].error is None, bench.replies[-1].error
    else:
        bench.order(**arguments)
    bench.mark()


def finish(bench: MoveBench) -> dict[str, object]:
    """Everything answers until the operation is done; its result."""
    for _ in range(200):
        bench.run(20)
        bench.find()
        while bench.barriers:
            bench.mark()
        bench.takes_all()
        if not bench.result()["open"]:
            bench.run(20)
            return bench.result()
    raise AssertionError(bench.result())


def settle_everything(bench: MoveBench) -> None:
    """Consumers settle what they get until nothing more comes."""
    state = bench.lane.state
    bench.run(100)
    for _ in range(200):
        held = [(c.id, seq) for c in state.by_uuid.values() for seq in c.in_flight]
        for consumer, seq in held:
            bench.settle_seqs(consumer, seq)
        bench.run(100)
        if not held:
            return
    raise AssertionError("it never ends")


@KINDS
def test_o32_all_that_waits_is_taken_wherever_it_is(kind: str) -> None:
    clause("O-32", "reads its parking queues to their end")
    bench = parked("a11", "a12", "b1")
    order(bench, kind)
    assert finish(bench)["messages"] == 11
    assert bench.target == ([] if kind == "purge" else [f"a{number}" for number in range(2, 13)])
    assert bench.flags == {}
    bench.arrive("a13")
    settle_everything(bench)
    assert numbers(bench) == [1, 13], "what was in flight finishes, and the group goes on"
    bench.run(10_000)
    assert bench.deleted == [FIRST]
    assert not bench.lane.state.groups[b"a"].route


@KINDS
@pytest.mark.parametrize("first", [1, 4, 30])
def test_o32_the_first_few_are_those_in_front(kind: str, first: int) -> None:
    bench = parked("a11", "a12")
    order(bench, kind, first=first)
    taken = min(first, 11)
    assert finish(bench)["messages"] == taken
    settle_everything(bench)
    assert numbers(bench) == [1, *range(2 + taken, 13)]
    if kind == "move":
        assert bench.target == [f"a{number}" for number in range(2, 2 + taken)]


@KINDS
def test_o32_others_in_the_same_parking_queue_keep_their_order(kind: str) -> None:
    clause("O-32a", "Other groups in its parking queues keep their order")
    bench = MoveBench(parking=4, look_ahead=10)
    bench.join("one", prefetch=2)
    bench.arrive("b1", "a1")
    bench.join("two")
    bench.arrive("b2", "a2", "b3", "a3", "b4", "a4", "b5", "a5")
    bench.run(BLOCKED_MS)
    bench.arrive(*(f"b{number}" for number in range(6, 40)), "a6", "b40", "a7")
    bench.run()
    order(bench, kind)
    assert finish(bench)["messages"] == 6
    settle_everything(bench)
    assert numbers(bench) == [1]
    assert numbers(bench, "b") == list(range(1, 41))


@KINDS
def test_o32_what_is_still_on_its_way_to_a_parking_queue_is_part_of_it(kind: str) -> None:
    bench = parked()
    bench.hold_confirms = True
    bench.arrive("a11", "a12")
    bench.run()
    order(bench, kind)
    bench.run(100)
    bench.takes_all()
    assert bench.result()["open"]
    bench.hold_confirms = False
    assert finish(bench)["messages"] == 11
    settle_everything(bench)
    assert numbers(bench) == [1]


@KINDS
def test_o32_what_comes_after_the_marker_stays(kind: str) -> None:
    bench = parked()
    bench.hold_reads = True
    order(bench, kind)
    bench.arrive("a11", "a12")
    bench.hold_reads = False
    assert finish(bench)["messages"] == 9
    settle_everything(bench)
    assert numbers(bench) == [1, 11, 12]


@KINDS
def test_o32_what_was_in_flight_is_not_part_of_it_even_if_its_consumer_dies(kind: str) -> None:
    clause("O-32a", "if their consumer dies, they go before the remaining ones")
    bench = parked("a11")
    bench.hold_reads = True
    order(bench, kind)
    bench.die("one")
    bench.hold_reads = False
    assert finish(bench)["messages"] == 10
    settle_everything(bench)
    assert numbers(bench) == [1, 1]


@KINDS
def test_o32_a_dry_run_counts(kind: str) -> None:
    clause("O-32c", "A dry run counts those messages")
    bench = parked("a11", "a12")
    order(bench, kind, dry_run=True)
    result = finish(bench)
    assert (result["messages"], result["applied"]) == (11, False)
    order(bench, kind, dry_run=True, first=3)
    assert finish(bench)["messages"] == 3
    settle_everything(bench)
    assert numbers(bench) == list(range(1, 13))


@KINDS
def test_o32_a_group_that_was_parked_twice_is_taken_from_both_queues(kind: str) -> None:
    bench = MoveBench(parking=4, look_ahead=10)
    bench.join("one", prefetch=2)
    bench.arrive("a1", "b1")
    bench.join("two", prefetch=1)
    bench.arrive(*(f"a{number}" for number in range(2, 9)), "b2")
    bench.run(BLOCKED_MS)
    bench.arrive(*(f"a{number}" for number in range(9, 30)), "b3")
    bench.run()
    bench.die("one")  # its groups go on, at two and three: two is stuck with the first, three is not
    bench.join("three", prefetch=5)
    bench.run(1_000)
    handed = len(set(numbers(bench)))
    in_hand = {m.group_id for c in bench.lane.state.by_uuid.values() for m in c.in_flight.values()}
    assert in_hand
    order(bench, kind)
    assert finish(bench)["messages"] == 29 - handed
    settle_everything(bench)
    assert sorted(set(numbers(bench))) == list(range(1, handed + 1))
    assert sorted(set(numbers(bench, "b"))) == [1, 2, 3]


@KINDS
def test_o32_a_parking_queue_that_can_not_be_read_ends_it(kind: str) -> None:
    clause("O-32d", "If nothing could be read for 60 s, the operation fails")
    bench = parked("a11", "a12")
    bench.hold_reads = True
    order(bench, kind)
    bench.run(BARRIER_TIMEOUT_MS + 100)
    text = f"{kind} uuid-0: nothing could be read from park.1 for 60 s: nothing was changed"
    assert bench.error() == text
    assert bench.flags == {}
    bench.hold_reads = False
    settle_everything(bench)
    assert numbers(bench) == list(range(1, 13))


def test_o32_a_target_that_refuses_leaves_the_rest_in_order() -> None:
    bench = parked("a11", "a12")
    order(bench, "move")
    bench.run(20)
    bench.takes(3)
    bench.run(20)
    bench.takes(2)
    bench.run(20)
    while bench.under_way:
        bench.refuses()
        bench.run(20)
    assert "its messages went, the rest stays in order" in bench.error()
    settle_everything(bench)
    left = int(bench.target[-1][1:]) + 1
    assert bench.target == [f"a{number}" for number in range(2, left)]
    assert numbers(bench) == [1, *range(left, 13)]


def test_o32_the_next_leader_sends_again_in_order_what_was_fetched_in_another() -> None:
    clause("O-31", "at most 256, in their order")
    bench = parked("a11", kind=QuorumBench)
    bench.hold_reads = True
    order(bench, "move")
    bench.hold_reads = False
    bench.step(*bench._answers())
    bench.fail_over()
    while len(bench.under_way) < 2:
        bench.takes()
        bench.find()
        for _ in list(bench.barriers):
            bench.mark()
        bench.run(20)
    bench.fail_over()
    bench.target.clear()
    assert finish(bench)["messages"] == 10
    assert bench.target[-9:] == [f"a{number}" for number in range(3, 12)]


def test_o32_a_group_that_has_stopped_is_purged_with_what_it_stopped_at() -> None:
    bench = parked("a11", stops_failed=True, attempts=1)
    bench.fail("one", "a1", "bad")
    bench.run(100)
    assert bench.lane.state.groups[b"a"].flags.stop is not None  # type: ignore[union-attr]
    order(bench, "purge")
    assert finish(bench)["messages"] == 11
    bench.arrive("a12")
    settle_everything(bench)
    assert numbers(bench) == [1, 12]


def test_o26_what_redis_has_forgotten_is_not_counted() -> None:
    clause("O-26", "while Redis has forgotten the contents of the group's parking queues")
    bench = parked()
    bench.hold_reads = True
    bench.fail_over(forget=True)
    bench.run(60_000)
    bench.join("one", prefetch=1, uuid="one-2")
    bench.arrive("a20")
    bench.run()
    text = "Redis has forgotten what park.1 may hold of the group: try again when that has been read back"
    assert refused(bench, "groups.purge", group="a") == text


@KINDS
@pytest.mark.parametrize("first", [None, 6])
@pytest.mark.parametrize("turns", range(14))
def test_o32_a_leader_may_die_at_any_time(kind: str, first: int | None, turns: int) -> None:
    """The broker answers a little at a time, and the leader dies between two answers."""
    clause("O-32b", "removed exactly the counted messages, and a later leader goes on with it")
    bench = parked("a11", "a12", "b1")
    bench.hold_confirms = True
    bench.arrive("a13")
    order(bench, kind, first=first)
    for turn in range(turns):
        if turn == 3:
            bench.hold_confirms = False
        events = bench._answers()
        bench.step(*events[:1])
        bench.pending.extendleft(reversed(events[1:]))
        if turn % 2:
            bench.find()
            bench.takes(2)
    bench.hold_confirms = False
    bench.fail_over()
    messages = finish(bench)["messages"]
    settle_everything(bench)
    taken = sorted(int(name[1:]) for name in set(bench.target)) if kind == "move" else []
    handed = numbers(bench)
    assert handed == sorted(handed)
    if kind == "move":
        assert taken + handed[1:] == list(range(2, 14))
        assert messages == len(taken)
    else:
        assert handed == [1, *range(2 + int(str(messages)), 14)]
    assert messages == (first or 12)
