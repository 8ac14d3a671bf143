"""docs/semantics.md, U-2 and U-3 when the leader dies: repeated messages meet recovery."""

from __future__ import annotations

from tests.spec.dedup_bench import DedupBench, id_of
from tests.spec.lane_bench import clause, names


def with_consumer() -> DedupBench:
    bench = DedupBench()
    bench.join("one", prefetch=10)
    return bench


def test_u2_a_leader_that_dies_before_the_commit_loses_nothing() -> None:
    clause("U-2a", "a message whose dispatcher dies before that commit counts as new when it comes back")
    bench = DedupBench()
    bench.publish("a1")  # nobody is there to take it
    bench.publish("a1")
    assert bench.window == {}
    bench.fail_over()
    assert names(bench.join("one")) == ["a1"]
    assert bench.acked == [b"a1"]
    bench.settle("one", "a1")
    assert bench.inbound_unacked == {}


def test_u2_a_leader_that_dies_after_the_commit_meets_its_own_messages() -> None:
    clause("U-2a", "is met by recovery (R-1), which comes before the window")
    bench = with_consumer()
    bench.publish("a1")
    bench.publish("a2")
    bench.fail_over()
    bench.run()
    assert sorted(names(bench.again)) == ["a1", "a2"], "sent again with their numbers, not dropped"
    assert bench.dropped == 0
    bench.settle("one", "a1", "a2")
    assert bench.inbound_unacked == {}


def test_u2_settled_and_not_acked_it_is_acked_again() -> None:
    bench = with_consumer()
    bench.publish("a1")
    bench.settle("one", "a1")
    bench.inbound_unacked[0, 1] = ("a1", {"message_id": id_of("a1")})  # the ack did not get through
    bench.fail_over()
    assert bench.run() == []
    assert bench.inbound_unacked == {}


def test_u2_the_leader_dies_and_the_broker_has_both() -> None:
    """The first in flight; the repeated one dropped, and its ack did not get through."""
    bench = with_consumer()
    bench.publish("a1")
    bench.publish("a1")
    bench.inbound_unacked[0, 2] = ("a1", {"message_id": id_of("a1")})
    bench.fail_over()
    assert bench.run() == []
    assert len(bench.inbound_unacked) == 1, "the one that is in flight"
    bench.settle("one", "a1")
    assert bench.inbound_unacked == {}


def test_u3_what_waits_for_the_one_that_it_repeats_says_nothing_of_those_behind_it() -> None:
    """It is the first of its group to come back, and what was handed over meanwhile comes behind it."""
    clause("U-3", "its repetitions wait too, and block no other message")
    bench = DedupBench()
    bench.join("one", prefetch=1)
    bench.publish("a1")
    bench.publish("a2")  # a1's consumer has no room
    bench.join("two")
    bench.publish("b1", "a2")
    assert names(bench.publish("b2")) == ["b2"]
    bench.fail_over()
    assert names(bench.run()) == []
    bench.settle("one", "a1")
    bench.settle("two", "b2")
    bench.settle("one", "a2")
    assert bench.handed() == ["a1", "b2", "a2"]
    assert bench.inbound_unacked == {}
    assert bench.lane.state.counters["vanished"] == 0
