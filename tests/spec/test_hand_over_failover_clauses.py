"""X: what a new leader makes of what a former one has left in the queues of hand-over consumers."""

from __future__ import annotations

import pytest

from dispatcher.core.events import RedeliveriesEnded
from dispatcher.core.forwarding.events import CopiesStored, QueueReclaimed, ReclaimedForwarded
from dispatcher.core.forwarding.orders import ForwardReclaimed, ReclaimedCopy, ReclaimQueue
from dispatcher.core.records import OpenEntry
from dispatcher.core.tables import IncarnationRow, OwnerRow
from tests.spec.hand_over_bench import HandOverBench, queue_of
from tests.spec.lane_bench import clause, names


def _row(consumer: str, state: str, queue: str = "") -> IncarnationRow:
    return IncarnationRow(consumer, f"{consumer}#1", queue or queue_of(consumer), 1, 10, state)


def test_x6_a_queue_that_was_being_read_back_comes_first() -> None:
    clause("X-6", "the next leader reads that queue back first")
    rows = {1: _row("one", "taking"), 2: _row("two", "live")}
    bench = HandOverBench(snapshot={"incarnations": rows, "owners": {b"a": OwnerRow(2, 3)}})
    bench.seen("two")
    assert bench.arrive("a4", "b1") == []
    bench.step(bench.marker())
    assert [order.queue for order in bench.ordered(ReclaimQueue)] == [queue_of("one")]
    left = ReclaimedCopy(queue_of("one"), 1, 5, b"a", 1, b"a3".ljust(16, b"\0"), object(), 100)
    assert bench.step(QueueReclaimed(queue_of("one"), [left])) == []
    (order,) = bench.ordered(ForwardReclaimed)
    assert (order.queue, order.attempt) == (queue_of("two"), 2)
    assert names(bench.step(ReclaimedForwarded(left))) == ["a4", "b1"]


def test_x6_if_its_reader_is_back_it_goes_on() -> None:
    clause("X-7", "the reader of that queue returns before the next leader")
    rows = {1: _row("one", "taking"), 2: _row("two", "live")}
    bench = HandOverBench(snapshot={"incarnations": rows, "owners": {b"a": OwnerRow(2, 3)}})
    bench.arrive("a4")
    bench.seen("one")
    bench.seen("two")
    assert bench.holder("a4") == "two"
    row = bench.rows[1]
    assert row is not None
    assert row.state == "live"


def test_x6_what_was_on_its_way_is_sent_again_with_its_number() -> None:
    clause("X-6", "are handed over again, with the same `x-dispatch-seq`")
    entry = OpenEntry(0, (6, 1), b"a1".ljust(16, b"\0"), 1, 77, b"a", 1, 5, 1)
    snapshot = {
        "incarnations": {1: _row("one", "live")}, "records": [entry], "owners": {b"a": OwnerRow(1, 5)}
    }  # fmt: skip
    bench = HandOverBench(snapshot=snapshot, redelivering=True)
    bench.seen("one")
    bench.arrive("a1", redelivered=True)
    assert [(copy.seq, copy.queue) for copy in bench.again] == [(77, queue_of("one"))]
    bench.step(CopiesStored(1, [77]))
    assert bench.acked == [b"a1"]


def test_x6_an_owner_that_is_not_back_keeps_its_groups_for_its_grace() -> None:
    rows = {1: _row("one", "live"), 2: _row("two", "live")}
    bench = HandOverBench(snapshot={"incarnations": rows, "owners": {b"a": OwnerRow(1, 3)}})
    bench.seen("two")
    bench.seen("one", readers=0)
    assert bench.arrive("a4", after_ms=4_000) == []
    assert bench.markers == []
    bench.step(after_ms=1_000)
    assert len(bench.markers) == 1


def test_x8_who_is_named_no_more_gets_nothing_and_is_read_back() -> None:
    clause("X-8", "gets nothing. Its groups wait until its queue has no reader")
    rows = {1: _row("old", "live"), 2: _row("one", "live")}
    bench = HandOverBench({"one": 10}, snapshot={"incarnations": rows, "owners": {b"a": OwnerRow(1, 3)}})
    bench.seen("one")
    bench.seen("old")
    assert names(bench.arrive("a1", "b1")) == ["b1"]
    bench.lose("old")
    assert bench.holder("a1") == "one"


def test_x6_what_is_sent_again_to_who_is_named_no_more_has_its_number_and_is_read_back_once() -> None:
    clause(
        "X-6",
        "copies that RabbitMQ had confirmed and that were not committed are handed over again, with the same",
    )
    entry = OpenEntry(0, (6, 1), b"a1".ljust(16, b"\0"), 1, 77, b"a", 1, 5, 1)
    rows = {1: _row("old", "live"), 2: _row("one", "live")}
    owners = {b"a": OwnerRow(1, 5)}
    bench = HandOverBench(
        {"one": 10}, snapshot={"incarnations": rows, "records": [entry], "owners": owners}, redelivering=True
    )
    bench.seen("one")
    bench.seen("old")
    assert bench.arrive("a1", redelivered=True) == []
    assert [(copy.seq, copy.queue) for copy in bench.again] == [(77, queue_of("old"))]
    bench.step(RedeliveriesEnded(0), CopiesStored(1, [77]))
    assert bench.arrive("a2") == [], "its group waits"
    bench.seen("old", readers=0, ready=2)
    bench.step(bench.marker())
    twice = [
        ReclaimedCopy(queue_of("old"), tag, 77, b"a", 1, b"a1".ljust(16, b"\0"), object(), 100)
        for tag in (1, 2)
    ]
    bench.step(QueueReclaimed(queue_of("old"), twice))
    assert [(order.queue, order.handed.seq) for order in bench.ordered(ForwardReclaimed)] == [
        (queue_of("one"), 77)
    ]
    assert names(bench.step(ReclaimedForwarded(twice[0]))) == ["a2"]


@pytest.mark.parametrize("hands_over", [True, False])
def test_x8_another_kind_of_lane_ends_all_incarnations(hands_over: bool) -> None:
    clause("X-8", "ends all earlier incarnations")
    queue = "amq.gen-1" if hands_over else queue_of("old")
    snapshot = {"incarnations": {1: _row("old", "live", queue)}, "owners": {b"a": OwnerRow(1, 3)}}
    bench = HandOverBench({"one": 10} if hands_over else {}, snapshot=snapshot)
    bench.step(bench.marker())
    assert bench.lane.state.by_id == {}
    if hands_over:
        bench.seen("one")
    else:
        bench.join("one")
    assert names(bench.arrive("a1")) == ["a1"]
    told = [queue for queue, kind in bench.notices if kind == "dispatch.taken"]
    assert told == ([queue] if hands_over else [])


def test_what_was_left_in_a_queue_of_which_nothing_is_known_is_read_back() -> None:
    bench = HandOverBench()
    bench.seen("two")
    bench.seen("one", readers=0, ready=1)
    bench.step(after_ms=5_000)
    bench.step(bench.marker())
    assert [order.queue for order in bench.ordered(ReclaimQueue)] == [queue_of("one")]
