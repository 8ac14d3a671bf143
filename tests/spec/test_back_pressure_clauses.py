"""docs/semantics.md, what becomes of consumers that can't be heard or take nothing more."""

from __future__ import annotations

from dispatcher.core.events import PingRouted, PublishersBlocked, QueueNacked, QueueReturned
from dispatcher.core.holds import HoldKind
from dispatcher.wire.protocol import InHand
from tests.spec.flag_bench import why
from tests.spec.lane_bench import LaneBench, clause, names


def test_c6_nothing_is_dispatched_while_publishers_are_blocked() -> None:
    clause("C-6", "nothing is dispatched")
    bench = LaneBench()
    bench.join("one")
    bench.step(PublishersBlocked(True))
    assert not bench.arrive("a1", "a2")
    assert why(bench, "a") is HoldKind.PUBLISHERS_BLOCKED
    assert names(bench.step(PublishersBlocked(False))) == ["a1", "a2"]


def test_c6_silence_counts_only_afterwards() -> None:
    clause(
        "C-6",
        "silent consumers do not count as lost: they are blocked as well. Afterwards "
        "their time begins again.",
    )
    bench = LaneBench(heartbeat_ms=1_000)
    bench.join("one")
    bench.arrive("a1")
    bench.step(PublishersBlocked(True))
    pings = bench.notices.count(("one-1.1", "dispatch.ping"))
    bench.step(after_ms=60_000)
    assert bench.lane.next_deadline_ms() is None
    bench.step(PublishersBlocked(False), after_ms=60_000)
    bench.step(after_ms=2_900)
    assert bench.lane.state.counters["consumers_frozen"] == 0
    assert bench.notices.count(("one-1.1", "dispatch.ping")) == pings + 1
    bench.step(after_ms=600)
    assert bench.lane.state.counters["consumers_frozen"] == 1


def test_c6_a_lost_consumer_has_its_whole_grace_afterwards() -> None:
    clause("C-6", "Afterwards their time begins again")
    bench = LaneBench(reconnect_grace_ms=5_000)
    bench.join("one")
    bench.arrive("a1")
    bench.step(PublishersBlocked(True))
    bench.step(QueueReturned("one-1.1"))
    bench.step(after_ms=60_000)
    bench.step(PublishersBlocked(False))
    bench.step(after_ms=4_000)
    assert not bench.markers
    bench.join(
        "one",
        n=2,
        in_hand=(InHand(seq=bench.latest("a1").seq, group=b"a", fingerprint=b"a1".ljust(16, b"\0")),),
    )
    bench.step(after_ms=60_000)
    assert not bench.markers
    assert names(bench.sent) == ["a1"]


def test_c6_consumers_are_waited_for_afterwards_when_redis_forgot() -> None:
    clause("C-6", "Afterwards their time begins again")
    bench = LaneBench(heartbeat_ms=1_000, complete=False)
    bench.step(PublishersBlocked(True))
    bench.arrive("a1")
    bench.step(after_ms=60_000)
    bench.step(PublishersBlocked(False))
    assert not bench.join("two")
    held = (InHand(seq=6 << 20, group=b"a", fingerprint=b"a1".ljust(16, b"\0")),)
    bench.join("one", in_hand=held)
    assert not bench.step(after_ms=3_000)
    assert bench.lane.is_complete()
    assert bench.lane.state.counters["adopted"] == 1


def test_c7_a_full_queue_is_no_death() -> None:
    clause("C-7", "keeps its groups and its messages")
    bench = LaneBench()
    bench.join("one")
    bench.join("two")
    bench.arrive("a1", "a2", "a3")
    bench.step(QueueNacked("one-1.1"))
    assert not bench.arrive("a4")
    assert not bench.step(after_ms=600_000)
    assert bench.holder("a3") == "one"
    assert not bench.markers
    assert why(bench, "a") is HoldKind.QUEUE_FULL


def test_c7_it_is_asked_to_join_again_at_growing_intervals() -> None:
    clause("C-7", "the dispatcher asks it to join at growing intervals")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1")
    bench.step(QueueNacked("one-1.1"))
    for _ in range(600):
        bench.step(QueueNacked("one-1.1"), after_ms=100)
    asked = bench.notices.count(("one-1.1", "dispatch.rejoin"))
    assert 5 <= asked <= 10


def test_c7_what_it_misses_is_sent_again_after_a_pause() -> None:
    clause("C-7", "Then the messages that it misses are sent again with the same seq")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "a2", "a3")
    seqs = [bench.latest(name).seq for name in ("a1", "a2", "a3")]
    bench.step(QueueNacked("one-1.1"))
    held = (InHand(seq=seqs[0], group=b"a", fingerprint=b"a1".ljust(16, b"\0")),)
    bench.join("one", n=2, in_hand=held)
    assert bench.again == []
    bench.step(after_ms=600)
    assert [(copy.queue, copy.seq) for copy in bench.again] == [("one-1.2", seqs[1]), ("one-1.2", seqs[2])]
    assert names(bench.arrive("a4")) == ["a4"]


def test_c7_a_queue_that_is_too_small_for_good_makes_no_hot_loop() -> None:
    clause("C-7", "It gets no more until it has joined again")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "a2")
    for n in range(2, 1_200):
        bench.step(QueueNacked(f"one-1.{n - 1}"))
        bench.join("one", n=n)
        bench.step(after_ms=100)
    assert len(bench.again) < 2 * 1_200 * 100 / 5_000


def test_c7_a_full_queue_that_goes_is_a_loss() -> None:
    clause("C-1", "A consumer is lost when its queue is gone")
    bench = LaneBench()
    bench.join("one")
    bench.join("two")
    bench.arrive("a1")
    bench.step(QueueNacked("one-1.1"))
    assert names(bench.die("one")) == ["a1"]
    assert bench.holder("a1") == "two"


def test_c7_it_may_leave_meanwhile() -> None:
    clause("C-7", "keeps its groups and its messages")
    bench = LaneBench()
    bench.join("one")
    bench.join("two")
    bench.arrive("a1", "a2")
    bench.step(QueueNacked("one-1.1"))
    bench.leave("one")
    bench.settle("one", "a1")
    bench.join("one", n=2)
    bench.step(after_ms=600)
    bench.settle("one", "a2")
    assert ("one-1.2", "dispatch.taken") in bench.notices
    assert names(bench.arrive("a3")) == ["a3"]
    assert bench.holder("a3") == "two"


def test_c1_one_ping_is_under_way_at_a_time() -> None:
    clause("C-1", "A consumer is lost when its queue is gone")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1")
    for _ in range(20):
        bench.step(after_ms=600)
    assert bench.notices.count(("one-1.1", "dispatch.ping")) == 1
    bench.step(PingRouted("one-1.1"), after_ms=600)
    assert bench.notices.count(("one-1.1", "dispatch.ping")) == 2
