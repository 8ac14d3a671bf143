"""docs/semantics.md, N-1 to N-8: producers' numbers of the messages of a group (`sequence_check`)."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.optional.sequence_numbers import TELL_EVERY_MS
from dispatcher.core.options import LaneOptions, policy
from dispatcher.core.views.views import Views
from tests.spec.flag_bench import says
from tests.spec.lane_bench import LaneBench, clause, names
from tests.spec.number_bench import NumberBench


def with_consumer(name: str = "exclusive", **options: Any) -> NumberBench:
    bench = NumberBench(name, **options)
    bench.join("one", prefetch=100)
    return bench


# -- N-1 --


def test_n1_whose_number_is_no_successor_is_handed_over_and_reported() -> None:
    clause(
        "N-1",
        "is handed over like any other. A metric counts it, and `groups why` shows the "
        "latest one of its group. The log names it",
    )
    bench = with_consumer()
    assert bench.publish("a", 5, 6, 9, 9) == ["a1", "a2", "a3", "a4"]
    assert (bench.gaps, bench.repeats) == (1, 1)
    assert bench.tells("sequence_gap") == [{"group": "a", "number": 9, "due": 7, "count": 1}]
    assert bench.tells("sequence_repeated") == [{"group": "a", "number": 9, "due": 10, "count": 1}]


def test_n1_the_log_is_not_flooded() -> None:
    clause("N-1", "one line for each kind in ten seconds at most, with their number")
    bench = with_consumer()
    bench.publish("a", 1, 3, 5, 7)
    bench.publish("b", 1, 3)
    assert [told["count"] for told in bench.tells("sequence_gap")] == [1]
    deadline = bench.lane.next_deadline_ms()
    assert deadline is not None
    assert deadline <= bench.now_ms + TELL_EVERY_MS
    bench.step(after_ms=TELL_EVERY_MS)
    assert bench.tells("sequence_gap")[1:] == [{"group": "b", "number": 3, "due": 2, "count": 3}]
    bench.step(after_ms=TELL_EVERY_MS)
    assert len(bench.tells("sequence_gap")) == 2


def test_n1_operators_see_the_latest_one_of_a_group() -> None:
    clause("N-1", "`groups why` shows the\nlatest one of its group")
    bench = with_consumer()
    bench.publish("a", 1, 3, 7)
    bench.step(after_ms=2_500)
    (detail,) = bench.why()
    assert says(detail, "sequence of a", "2 s", "number 7", "4 was due")
    bench.publish("a", 6)
    (detail,) = bench.why()
    assert says(detail, "sequence of a", "0 s", "number 6", "8 was due")
    shown = Views(bench.lane.state).group({"group": "a"})
    assert shown["last_number"] == 7
    assert [message["number"] for message in shown["messages"]] == [1, 3, 7, 6]
    bench.publish("b", 1)
    assert bench.why("b") == []


def test_n1_a_lane_that_is_off_looks_at_nothing() -> None:
    bench = LaneBench()
    bench.join("one")
    assert names(bench.arrive("a1", number=1)) == ["a1"]
    assert names(bench.arrive("a9", number=9)) == ["a9"]
    assert bench.lane.state.counters["sequence_gaps"] == 0
    assert Views(bench.lane.state).group({"group": "a"})["last_number"] is None


def test_n1_the_order_is_that_in_which_the_group_goes_on() -> None:
    clause("N-1", "in the order in which the messages of the group go on")
    bench = NumberBench()
    bench.publish("a", 2, 3)
    assert bench.sequences == {}, "nothing is committed of them"
    bench.join("one", prefetch=1)
    assert bench.sequences == {b"a": 2}
    bench.settle("one", "a1")
    assert bench.sequences == {b"a": 3}


# -- N-2 --


def test_n2_a_gap_is_reported_once_and_what_was_missing_is_late() -> None:
    clause("N-2", "A number beyond the successor is a gap, and the group's last one from then on")
    bench = with_consumer()
    bench.publish("a", 1, 2, 5, 6, 3, 7)
    assert (bench.gaps, bench.repeats) == (1, 1)


def test_n2_one_that_repeats_moves_nothing() -> None:
    clause("N-2", "is repeated, or late, and the last one stays what it\nwas")
    bench = with_consumer()
    bench.publish("a", 1, 2, 3, 2, 4, 1, 5)
    assert (bench.gaps, bench.repeats) == (0, 2)
    assert bench.sequences == {b"a": 5}


def test_n2_two_in_a_row_begin_anew() -> None:
    clause("N-2", "mean that the producer has begun anew: the group goes on from there")
    bench = with_consumer()
    bench.publish("a", 7, 8, 9, 1, 2, 3, 4)
    assert (bench.gaps, bench.repeats) == (0, 1)
    assert bench.sequences == {b"a": 4}


def test_n2_what_a_producer_sends_twice_in_a_row_is_one_report() -> None:
    bench = with_consumer()
    bench.publish("a", 1, 2, 3, 1, 2, 3, 4)
    assert (bench.gaps, bench.repeats) == (0, 1)


# -- N-3 --


def test_n3_the_first_may_have_any_number() -> None:
    clause("N-3", "Any number may come first in a group that the dispatcher does not know yet")
    bench = with_consumer()
    bench.publish("a", 1_000)
    bench.publish("b", 0, 1)
    assert (bench.gaps, bench.repeats) == (0, 0)


@pytest.mark.parametrize("last", [-3, -1])
def test_n3_behind_a_close_any_may_come(last: int) -> None:
    clause("N-3", "behind a message that closed its group")
    bench = with_consumer()
    bench.publish("a", 1, 2, last)
    assert bench.sequences == {}
    bench.settle("one", "a1", "a2", "a3")
    bench.publish("a", 50, 51)
    assert (bench.gaps, bench.repeats) == (0, 0)


def test_n3_a_negative_number_is_a_place_too() -> None:
    clause("N-3", "A negative number stands for the same place as without its sign")
    bench = with_consumer()
    bench.publish("a", 1, 2, -5)
    assert (bench.gaps, bench.repeats) == (1, 0)
    bench.publish("b", 1, 2, -2)
    assert (bench.gaps, bench.repeats) == (1, 1)


# -- N-4 --


def test_n4_what_has_no_number_changes_nothing() -> None:
    clause("N-4", "changes nothing. Neither does a message without a group")
    bench = with_consumer()
    assert bench.publish("a", 1, None, 2, None, 3) == ["a1", "a2", "a3", "a4", "a5"]
    bench.publish("-", 7, 3, 9)
    assert (bench.gaps, bench.repeats) == (0, 0)
    assert bench.sequences == {b"a": 3}


# -- N-5 --


@pytest.mark.parametrize(
    ("name", "options"),
    [("exclusive", {"buckets": 1}), ("sequenced", {}), ("concurrent", {}), ("exclusive", {"grouped": False})],
)
def test_n5_each_id_counts_for_itself(name: str, options: dict[str, Any]) -> None:
    clause("N-5", "Each group id counts for itself, also in a bucket and where nothing is grouped")
    bench = with_consumer(name, **options)
    for number in (1, 2, 3):
        bench.publish("a", number)
        bench.publish("b", 10 * number)
        bench.settle("one", *(f"{group}{n}" for n, group in ((2 * number - 1, "a"), (2 * number, "b"))))
    assert (bench.gaps, bench.repeats) == (2, 0)
    assert bench.sequences == {b"a": 3, b"b": 30}


def test_n5_a_bucket_shows_what_is_wrong_with_its_ids() -> None:
    bench = with_consumer(buckets=1)
    bench.publish("a", 1, 3)
    bench.publish("b", 1, 2)
    (detail,) = bench.why("b")
    assert says(detail, "sequence of a", "number 3", "2 was due")


def test_n5_all_inbound_queues_count_together() -> None:
    clause("N-5", "over all inbound queues of the lane together")
    bench = with_consumer(weights=(1, 1))
    bench.publish("a", 1)
    bench.publish("a", 2, inbound=1)
    bench.publish("a", 3)
    assert (bench.gaps, bench.repeats) == (0, 0)


# -- N-6 --


@pytest.mark.parametrize("end", ["purged", "moved", "expired", "failed", "refused"])
def test_n6_what_leaves_otherwise_leaves_no_gap(end: str) -> None:
    clause("N-6", "counts in its place and leaves no gap")
    bench = NumberBench()
    if end == "failed":
        bench.join("one", prefetch=100)
    fields = {"expired": {"deadline_at_ms": bench.now_ms + 50}, "refused": {"refusal": "no"}}
    bench.publish("a", 1)
    bench.publish("a", 2, 3, **fields.get(end, {}))
    match end:
        case "purged" | "moved":
            bench.command("groups.purge", group="a") if end == "purged" else bench.order("move")
            bench.mark()
            bench.takes_all()
        case "expired":
            bench.step(after_ms=100)
        case "failed":
            bench.fail("one", "a2", "broken")
            bench.fail("one", "a3", "broken")
    bench.join("two", prefetch=100)
    bench.publish("a", 4)
    assert (bench.gaps, bench.repeats) == (0, 0)
    assert bench.sequences == {b"a": 4}


def test_n6_a_repeated_one_that_ends_is_reported_before_its_leader_can_die() -> None:
    clause("N-6", "counts in its place")
    bench = NumberBench()
    bench.join("one", prefetch=1)
    bench.publish("a", 1, 2)
    bench.settle("one", "a1")
    bench.publish("a", 2, 3)
    bench.command("groups.purge", group="a", first=1)
    bench.mark()
    assert bench.repeats == 1, "although others of its group wait for their turn"
    bench.settle("one", "a2")
    assert (bench.gaps, bench.repeats, bench.sequences) == (0, 1, {b"a": 3})


def test_n6_one_that_ends_before_its_turn_leaves_no_gap() -> None:
    clause("N-6", "also if it ends before its turn")
    bench = NumberBench()
    bench.publish("a", 1, 2)
    bench.publish("a", 3, deadline_at_ms=bench.now_ms + 50)
    bench.publish("a", 4)
    bench.publish("a", 5, deadline_at_ms=bench.now_ms + 50)
    bench.step(after_ms=100)
    assert bench.sequences == {}, "its place is behind 1 and 2"
    bench.join("one", prefetch=100)
    assert bench.sequences == {b"a": 5}
    bench.publish("a", 6)
    assert (bench.gaps, bench.repeats) == (0, 0)


def test_n6_what_was_missing_before_one_that_ended_is_a_gap() -> None:
    bench = NumberBench()
    bench.publish("a", 1)
    bench.publish("a", 5, deadline_at_ms=bench.now_ms + 50)
    bench.step(after_ms=100)
    bench.join("one", prefetch=100)
    assert bench.gaps == 1
    assert bench.sequences == {b"a": 5}


def test_n6_what_is_parked_counts_once() -> None:
    bench = NumberBench(parking=2, look_ahead=4)
    bench.join("stuck", prefetch=1)
    bench.publish("a", 1)
    bench.join("free", prefetch=10)
    bench.publish("a", 2, 3, 4)
    bench.run(10_000)
    bench.publish("a", 5)
    bench.run()
    assert bench.in_parking() == ["a2", "a3", "a4", "a5"]
    assert bench.sequences == {b"a": 5}
    for number in range(1, 6):
        bench.settle("stuck", f"a{number}")
        bench.run()
    assert bench.handed() == ["a1", "a2", "a3", "a4", "a5"]
    assert (bench.gaps, bench.repeats) == (0, 0)


# -- N-7 --


def test_n7_the_next_leader_goes_on_from_what_is_committed() -> None:
    clause("N-7", "every later leader goes on from there")
    bench = with_consumer()
    bench.publish("a", 1, 2)
    bench.settle("one", "a1")
    bench.fail_over()
    bench.run()
    bench.publish("a", 3)
    assert (bench.gaps, bench.repeats) == (0, 0)
    bench.publish("a", 5)
    assert bench.gaps == 1


def test_n7_what_was_not_begun_is_looked_at_when_it_comes_back() -> None:
    bench = NumberBench()
    bench.join("one", prefetch=1)
    bench.publish("a", 1, 2, 3)
    assert bench.sequences == {b"a": 1}
    bench.fail_over()
    bench.run()
    bench.settle("one", "a1")
    bench.settle("one", "a2")
    assert bench.sequences == {b"a": 3}
    assert (bench.gaps, bench.repeats) == (0, 0)


def test_n7_a_redis_that_forgot_something_makes_all_unknown() -> None:
    clause(
        "N-7",
        "If Redis may have lost something, or while a lane checks nothing, all last numbers are forgotten",
    )
    bench = with_consumer()
    bench.publish("a", 1, 2)
    bench.publish("b", 1)
    bench.settle("one", "a1", "a2", "b3")
    bench.fail_over(older=[])
    bench.run(60_000)
    assert bench.sequences == {}
    bench.publish("a", 7)
    assert bench.gaps == 0


def test_n7_a_leader_writes_back_what_a_redis_lost() -> None:
    bench = with_consumer()
    bench.publish("a", 1, 2)
    assert bench.lane.checkpoint(everything=True).sequences == {b"a": 2}


def test_n7_a_lane_that_checks_no_more_forgets_all() -> None:
    bench = with_consumer()
    bench.publish("a", 1)
    bench.settle("one", "a1")
    bench.lane.state.options = LaneOptions(policy=policy("exclusive"), inbounds=(("in0", 1),))
    bench.fail_over()
    bench.run()
    assert bench.sequences == {}
    assert bench.lane.next_deadline_ms() is None or bench.lane.next_deadline_ms() > bench.now_ms + 1


# -- N-8 --


def test_n8_so_many_are_kept() -> None:
    clause(
        "N-8", "Beyond that the dispatcher forgets the groups that were idle longest; a metric counts them"
    )
    bench = with_consumer(sequences_max=2)
    for group in "abac":
        bench.publish(group, 7)
    assert bench.sequences == {b"a": 7, b"c": 7}
    assert bench.lane.state.counters["sequences_forgotten"] == 1
    assert bench.repeats == 1
