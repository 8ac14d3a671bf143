"""docs/semantics.md, W-1 to W-4: how many messages of a group may be out at once."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.events import CopiesConfirmed
from dispatcher.core.holds import HoldKind
from dispatcher.core.options import GroupWindow
from dispatcher.core.parking.policy import BLOCKED_MS
from dispatcher.core.records import Dispatched
from dispatcher.wire.protocol import Settle
from tests.spec.flag_bench import facts, why
from tests.spec.lane_bench import LaneBench, clause, names
from tests.spec.parking_bench import ParkingBench

ROUND_MS = 10  # in which a consumer settles all that it has


def windowed(
    name: str = "exclusive", *, initial: int = 2, most: int | None = None, prefetch: int = 500, **options: Any
) -> LaneBench:
    """A lane with windows, and one consumer."""
    bench = LaneBench(name, group_window=GroupWindow(initial, most), heartbeat_ms=3_600_000, **options)
    bench.join("one", prefetch=prefetch)
    return bench


def backlog(bench: LaneBench, count: int, group: str = "a") -> None:
    bench.arrive(*(f"{group}{n}" for n in range(1, count + 1)))


def out_of(bench: LaneBench, group: bytes = b"a") -> list[int]:
    """Numbers of the group's messages at consumer one, in order."""
    (consumer,) = bench.lane.state.by_uuid.values()
    return [seq for seq, message in consumer.in_flight.items() if message.group_id == group]


def rounds(bench: LaneBench, count: int, *, after_ms: int = ROUND_MS) -> list[int]:
    """In each round the consumer settles all that it has of group a; how much is out after each."""
    sizes = []
    for _ in range(count):
        bench.settle_seqs("one", *out_of(bench), after_ms=after_ms)
        sizes.append(len(out_of(bench)))
    return sizes


def _settled(bench: LaneBench) -> Settle:
    """Of all that is out."""
    return Settle(consumer="one", incarnation="one-1", acked=tuple((seq, seq) for seq in out_of(bench)))


# -- W-1 --


def test_w1_a_group_begins_with_a_small_window_and_leaves_the_rest_to_others() -> None:
    clause("W-1", "no more of its messages are out at a time. It begins with `group_window.initial`")
    bench = windowed(initial=3, prefetch=5)
    backlog(bench, 10)
    assert names(bench.sent) == ["a1", "a2", "a3"]
    assert names(bench.arrive("b1")) == ["b1"]


def test_w1_quick_settles_double_it_up_to_the_prefetch() -> None:
    clause("W-1", "each message that is settled quickly raises it by one")
    clause("W-1", "So it doubles in every round at first")
    bench = windowed(prefetch=50)
    backlog(bench, 1_000)
    assert rounds(bench, 7) == [4, 8, 16, 32, 50, 50, 50]


def test_w1_it_grows_no_further_than_its_max() -> None:
    clause("W-1", "up to `group_window.max` and never beyond the consumer's prefetch")
    bench = windowed(most=6)
    backlog(bench, 100)
    assert rounds(bench, 4) == [4, 6, 6, 6]


def test_w1_a_window_that_is_not_full_does_not_grow() -> None:
    clause("W-1", "A window that is not full does not grow")
    bench = windowed()
    for n in range(1, 20):
        bench.arrive(f"a{n}")
        bench.settle("one", f"a{n}")
    backlog(bench, 100)
    assert len(out_of(bench)) == 2


def test_w1_why_says_that_it_is_full() -> None:
    bench = windowed(prefetch=5)
    backlog(bench, 10)
    assert why(bench, "a") is HoldKind.WINDOW_FULL
    assert facts(bench, "a")["in_flight"] == facts(bench, "a")["window"] == 2


# -- W-2 --


def one_by_one(bench: LaneBench, count: int, each_ms: int) -> list[int]:
    """The consumer works on one message after the other, and settles each; how much is out after each."""
    sizes = []
    for _ in range(count):
        bench.settle_seqs("one", out_of(bench)[0], after_ms=each_ms)
        sizes.append(len(out_of(bench)))
    return sizes


@pytest.mark.parametrize("each_ms", [250, 1_000, 20_000])
def test_w2_a_slow_group_has_two_messages_out(each_ms: int) -> None:
    clause("W-2", "not below half of it, and not below 2")
    bench = windowed(prefetch=50)
    backlog(bench, 1_000)
    assert rounds(bench, 4) == [4, 8, 16, 32]
    assert one_by_one(bench, 200, each_ms)[-20:] == [2] * 20


def test_w2_a_long_way_makes_no_group_slow() -> None:
    """A consumer far away settles late, but each message takes 5 ms only."""
    clause("W-2", "than one and a half times as long as a message of the group that is out alone")
    bench = windowed(prefetch=100)
    backlog(bench, 5_000)
    sizes = rounds(bench, 20, after_ms=300)
    assert sizes[:2] == [2, 2], "it has to be known first"
    assert sizes[-1] > 12


def test_w2_who_settles_in_batches_gets_no_more_than_twice_that() -> None:
    """Nobody can tell then how long a single message takes."""
    bench = windowed(prefetch=50)
    backlog(bench, 1_000)
    sizes = []
    for _ in range(50):
        out = out_of(bench)
        bench.settle_seqs("one", *out, after_ms=1_000 * len(out))
        sizes.append(len(out_of(bench)))
    assert max(sizes) <= 4


def test_w2_it_shrinks_to_what_would_have_been_quick() -> None:
    clause("W-2", "sets the window to the part of it that would have been quick")
    bench = windowed(prefetch=50)
    backlog(bench, 1_000)
    assert rounds(bench, 4) == [4, 8, 16, 32]
    assert rounds(bench, 1, after_ms=150) == [24]  # 115 of 150 ms: alone one takes 10


def test_w2_then_it_grows_by_one_a_round() -> None:
    clause("W-2", "From then on a full window grows by one in a round")
    bench = windowed(prefetch=50)
    backlog(bench, 1_000)
    rounds(bench, 4)
    (slow,) = rounds(bench, 1, after_ms=150)
    assert rounds(bench, 4) == [slow + 1, slow + 2, slow + 3, slow + 4]


def test_w2_it_shrinks_once_in_a_round() -> None:
    clause("W-2", "and shrinks once in a round")
    bench = windowed(prefetch=50)
    backlog(bench, 1_000)
    rounds(bench, 4)
    first, *others = out_of(bench)
    bench.settle_seqs("one", first, after_ms=1_000)
    for seq in others:  # one by one: all were handed over before it shrank
        bench.settle_seqs("one", seq)
    assert len(out_of(bench)) == 16


def test_w2_the_way_of_a_copy_counts_for_no_one() -> None:
    """A Redis or RabbitMQ that is slow makes no group slow."""
    clause("W-2", "plus twice the time in which RabbitMQ and Redis take a copy")
    bench = windowed(prefetch=50)
    backlog(bench, 1_000)
    for _ in range(20):
        bench.now_ms += ROUND_MS
        sent = bench.lane.step((_settled(bench),), bench.now_ms).actions  # not confirmed yet
        copies = [action.message for action in sent if isinstance(action, Dispatched)]
        bench.step(CopiesConfirmed(len(copies), sum(copy.size for copy in copies)), after_ms=300)
    assert len(out_of(bench)) == 50


# -- W-3 --


def test_w3_a_group_that_stands_still_has_a_window_of_one() -> None:
    clause("W-3", "its window is 1")
    bench = windowed(prefetch=50)
    backlog(bench, 1_000)
    rounds(bench, 3)
    for _ in range(10):
        bench.step(after_ms=200)
    *others, last = out_of(bench)
    bench.settle_seqs("one", *others)
    assert out_of(bench) == [last]


def test_w3_also_when_all_that_waits_of_it_is_parked() -> None:
    """A new leader reads none of it while the window is full, so none of it waits here."""
    bench = ParkingBench(group_window=GroupWindow(2, None), look_ahead=10, heartbeat_ms=3_600_000)
    bench.join("one", prefetch=100)
    bench.arrive(*(f"a{n}" for n in range(1, 11)))
    bench.run(10_000)
    assert bench.in_parking() == [f"a{n}" for n in range(3, 11)]
    bench.fail_over()
    bench.run()
    group = bench.lane.state.groups[b"a"]
    assert (group.window, group.in_flight) == (2, 2)
    bench.run(10_000)
    assert group.window == 1


def test_w3_also_when_redis_has_forgotten_whose_messages_are_parked() -> None:
    """All that is known of the group is out, and what else is parked of it nobody knows."""
    clause("W-3", "its window is 1")
    bench = ParkingBench(group_window=GroupWindow(2, None), park_after_ms=1_000)
    bench.arrive("a1", "a2", "b1", "b2")
    bench.run(1_000)
    bench.fail_over(forget=True)
    bench.join("one", prefetch=3)
    bench.run(30_000)
    group = bench.lane.state.groups[b"a"]
    assert bench.lane.state.parking.default_route, "b2 waits for room"
    assert group.in_flight == 2
    assert group.window == 1


def _stands_still(*, look_ahead: int = 60, **options: Any) -> ParkingBench:
    """One message of `a` is out for longer than usual, and three wait behind it."""
    bench = ParkingBench(
        group_window=GroupWindow(1, None), look_ahead=look_ahead, heartbeat_ms=3_600_000, **options
    )
    bench.join("one", prefetch=100)
    bench.join("two", prefetch=100)
    bench.arrive("a1", "a2", "a3", "a4", "a5")
    return bench


def test_p1a_groups_that_stand_still_are_parked_before_they_fill_the_look_ahead() -> None:
    clause("P-1a", "more than a twentieth of `look_ahead` messages of an inbound queue wait for such groups")
    bench = _stands_still()
    bench.run(1_000)
    assert bench.in_parking() == ["a2", "a3", "a4", "a5"]
    bench.arrive("a6", "b1")
    bench.run()
    assert bench.in_parking()[-1] == "a6"
    assert bench.holder("b1") == "two"
    bench.settle(bench.holder("a1"), "a1")
    for name in ("a2", "a3", "a4", "a5", "a6"):
        bench.run()
        bench.settle(bench.holder(name), name)
    assert [name for name in bench.handed() if name[0] == "a"] == [f"a{n}" for n in range(1, 7)]


def test_p1a_a_twentieth_is_left() -> None:
    bench = _stands_still(look_ahead=80)
    bench.run(1_000)
    assert not bench.moved
    bench.arrive("a6")
    bench.run(1_000)
    assert bench.in_parking() == ["a2", "a3", "a4", "a5", "a6"]


def test_p1a_parking_goes_on_until_little_waits_for_such_groups() -> None:
    clause("P-1a", "consumer by consumer, until no more than a two-hundredth waits for such groups")
    bench = _stands_still(look_ahead=60)
    bench.arrive("b1", "b2")
    assert (bench.holder("a1"), bench.holder("b1")) == ("one", "two")
    bench.run(1_000)
    assert bench.moved == ["a2", "a3", "a4", "a5", "b2"]
    bench.arrive("c1", "c2", "c3", "c4")
    bench.run(1_000)
    assert len(bench.moved) == 5, "three wait for c, as many as may"


def test_p1a_a_group_that_is_slow_but_steady_does_not_count() -> None:
    clause("P-1a", "none was settled for four times as long as usual (W-3)")
    bench = _stands_still(look_ahead=20)
    bench.opens_parking = False  # a new parking queue takes three seconds: until then it goes on
    for number in range(1, 5):
        bench.run(90)
        bench.settle(bench.holder(f"a{number}"), f"a{number}")
    bench.open_parking()
    assert not bench.moved


def test_p1a_without_adaptive_windows_no_group_counts() -> None:
    clause("P-1a", "Without adaptive windows (`group_window`) no group counts as one")
    bench = ParkingBench(group_window=GroupWindow(1, 1), look_ahead=20, heartbeat_ms=3_600_000)
    bench.join("one", prefetch=100)
    bench.join("two", prefetch=100)
    bench.arrive("a1", "a2", "a3", "a4", "a5")
    bench.run(60_000)
    assert not bench.moved


def test_p1a_not_while_nobody_has_free_capacity() -> None:
    bench = ParkingBench(group_window=GroupWindow(1, None), look_ahead=20, heartbeat_ms=3_600_000)
    bench.join("one", prefetch=1)
    bench.arrive("a1", "a2", "a3", "a4", "a5")
    bench.run(1_000)
    assert not bench.moved
    bench.join("two")
    bench.run(1_000)
    assert bench.in_parking() == ["a2", "a3", "a4", "a5"]


def test_w3_one_slow_copy_says_little_of_the_way() -> None:
    clause("W-2", "twice the time in which RabbitMQ and Redis take a copy (smoothed in the same way)")
    bench = windowed(prefetch=50)
    backlog(bench, 1_000)
    sent = bench.lane.step((_settled(bench),), bench.now_ms).actions
    copies = [action.message for action in sent if isinstance(action, Dispatched)]
    bench.step(CopiesConfirmed(len(copies), sum(copy.size for copy in copies)), after_ms=3_000)
    rounds(bench, 3)
    for _ in range(30):
        bench.step(after_ms=100)
    assert bench.lane.state.groups[b"a"].window == 1


def test_w3_then_it_grows_up_to_half_of_what_it_was() -> None:
    clause("W-3", "With the next settle it grows again as in W-1, up to half of what it was")
    bench = windowed(prefetch=50)
    backlog(bench, 1_000)
    rounds(bench, 4)
    for _ in range(10):
        bench.step(after_ms=200)
    assert rounds(bench, 8) == [1, 2, 4, 8, 16, 17, 18, 19]


def test_w3_one_that_is_always_slow_does_not_stand_still() -> None:
    """Each message takes a second, as usual: two are out, as W-2 says."""
    bench = windowed(prefetch=50)
    backlog(bench, 1_000)
    sizes = []
    for _ in range(30):
        for _ in range(10):
            bench.step(after_ms=99)
        bench.settle_seqs("one", out_of(bench)[0], after_ms=10)
        sizes.append(len(out_of(bench)))
    assert sizes[10:] == [2] * 20


# -- W-4 --


def test_w4_a_group_that_rests_begins_anew() -> None:
    clause("W-4", "When nothing of a group is out and nothing of it waits, it begins anew")
    bench = windowed(prefetch=50)
    backlog(bench, 100)
    rounds(bench, 10)
    assert out_of(bench) == []
    bench.step(after_ms=200)
    bench.step(after_ms=200)
    backlog(bench, 100)
    assert len(out_of(bench)) == 2


@pytest.mark.parametrize("name", ["exclusive", "sequenced"])
def test_w4_a_fixed_window_never_changes(name: str) -> None:
    clause("W-4", "`max_in_flight_per_group` is a window that never changes")
    bench = windowed(name, initial=3, most=3, prefetch=50)
    backlog(bench, 100)
    assert rounds(bench, 5) == [3] * 5
    assert rounds(bench, 5, after_ms=2_000) == [3] * 5


def test_w4_a_batch_is_not_larger_than_the_window() -> None:
    clause("W-4", "Under `sequenced` a batch is not larger than the window")
    bench = windowed("sequenced", prefetch=50)
    backlog(bench, 1_000)
    assert rounds(bench, 5) == [4, 8, 16, 32, 50]
    assert max(one_by_one(bench, 300, 1_000)[-20:]) == 2


def test_w4_without_windows_a_group_takes_the_whole_prefetch() -> None:
    bench = LaneBench(heartbeat_ms=3_600_000)
    bench.join("one", prefetch=50)
    backlog(bench, 100)
    assert len(out_of(bench)) == 50


def test_w1_what_is_parked_is_not_read_while_the_window_is_full() -> None:
    bench = ParkingBench(group_window=GroupWindow(1, 1), look_ahead=10, heartbeat_ms=3_600_000)
    bench.join("one", prefetch=100)
    bench.arrive(*(f"a{n}" for n in range(1, 11)))
    bench.run(2 * BLOCKED_MS)
    parked = [f"a{n}" for n in range(2, 11)]
    assert bench.in_parking() == parked
    bench.run(10_000)
    assert bench.in_parking() == parked
    assert not any(queue.here for queue in bench.lane.state.parking.values())
    assert why(bench, "a") is HoldKind.WINDOW_FULL
    for n in range(1, 10):
        bench.settle_seqs("one", bench.latest(f"a{n}").seq)
        bench.run()
        assert bench.handed()[-1] == f"a{n + 1}"
