"""docs/semantics.md, C-8 and C-9: consumers that do not settle in time, and those that are evicted."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from dispatcher.core.effects import Snapshot
from dispatcher.core.events import CommandReceived, PublishersBlocked, QueueReturned
from dispatcher.core.holds import HoldKind
from dispatcher.core.lane import Lane
from dispatcher.core.membership.ack_timeout import ARRIVALS_MAX, AckTimeout
from dispatcher.core.options import policy
from dispatcher.core.orders import LogEvent, PublishMarker, Reply
from dispatcher.core.state import LaneOptions
from dispatcher.core.tables import IncarnationRow
from dispatcher.core.views.views import Views
from dispatcher.wire.protocol import Marker
from tests.spec.flag_bench import why
from tests.spec.hand_over_bench import HandOverBench, queue_of
from tests.spec.lane_bench import START_MS, LaneBench, clause, names


def told(bench: LaneBench, event: str) -> list[dict[str, Any]]:
    return [fields for name, fields in bench.told if name == event]


def evict(bench: LaneBench, consumer: str, **more: Any) -> Reply:
    bench.command("consumers.evict", consumer=consumer, **more)
    return bench.replies[-1]


def test_c8_an_overdue_message_is_told_once() -> None:
    clause("C-8", "the log names it once, a metric counts it, and `groups why` says so")
    bench = LaneBench(ack_timeout_ms=10_000)
    bench.join("one")
    bench.arrive("a1")
    bench.step(after_ms=9_000)
    bench.arrive("b1")
    assert not told(bench, "message_overdue")
    bench.step(after_ms=2_000)
    bench.step(after_ms=1_000)
    (fields,) = told(bench, "message_overdue")
    assert (fields["group"], fields["consumer"], fields["attempt"]) == ("a", "one", 1)
    assert bench.lane.state.counters["overdue"] == 1
    assert "overdue" in Views(bench.lane.state).why({"group": "a"})["details"][0]
    assert Views(bench.lane.state).consumers()["consumers"][0]["overdue"] == 1
    bench.settle("one", "a1")
    assert bench.acked == [b"a1"], "it is only reported"


@pytest.mark.parametrize(("timeout_ms", "interval_ms"), [(1_000, 400), (1_000, 3_000)])
def test_c8_it_is_looked_for_in_time(timeout_ms: int, interval_ms: int) -> None:
    clause("C-8b", "every `liveness_interval`, or every `ack_timeout` if that is shorter")
    bench = LaneBench(ack_timeout_ms=timeout_ms, liveness_interval_ms=interval_ms)
    bench.join("one")
    bench.step(after_ms=300)
    bench.arrive("a1")
    for _ in range(timeout_ms // 100 - 1):
        bench.step(after_ms=100)
    assert not told(bench, "message_overdue")
    for _ in range(min(timeout_ms, interval_ms) // 100 + 1):
        bench.step(after_ms=100)
    assert told(bench, "message_overdue")


def test_c8_nothing_is_overdue_without_the_option() -> None:
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1")
    bench.step(after_ms=10_000_000)
    assert not told(bench, "message_overdue")


def test_c8_blocked_publishers_get_their_time_again() -> None:
    clause("C-8c", "when RabbitMQ takes publishes again after it had blocked them")
    bench = LaneBench(ack_timeout_ms=10_000)
    bench.join("one")
    bench.arrive("a1")
    bench.step(PublishersBlocked(True))
    bench.step(after_ms=60_000)
    bench.step(PublishersBlocked(False))
    bench.step(after_ms=9_000)
    assert not told(bench, "message_overdue")
    bench.step(after_ms=2_000)
    assert told(bench, "message_overdue")


def test_c8_a_settle_in_time_counts_whenever_it_is_heard_of() -> None:
    clause("C-8a", "A settle that RabbitMQ confirmed in time counts, whenever the dispatcher hears of it")
    bench = LaneBench(ack_timeout_ms=10_000, evicts_overdue=True)
    bench.join("one")
    bench.arrive("a1", "a2")
    bench.hears_at_once = False
    bench.step(after_ms=60_000)
    bench.settle("one", "a1", "a2")
    bench.hear()
    assert bench.acked == [b"a1", b"a2"]
    assert not told(bench, "message_overdue")
    assert not told(bench, "consumer_evicted")


def test_c8_the_time_begins_when_rabbitmq_has_the_copy() -> None:
    clause("C-8a", "The time of a message begins when its consumer's queue surely has the copy")
    bench = LaneBench(ack_timeout_ms=10_000, evicts_overdue=True)
    bench.join("one")
    bench.hears_at_once = False
    bench.arrive("a1")
    bench.step(after_ms=15_000)
    bench.hears_at_once = True
    bench.hear()
    bench.step(after_ms=9_000)
    assert not told(bench, "consumer_evicted")
    bench.step(after_ms=2_000)
    assert told(bench, "consumer_evicted")


def test_c8_what_follows_the_question_in_its_millisecond_is_not_asked_for() -> None:
    clause("C-8a", "The time of a message begins when its consumer's queue surely has the copy")
    bench = LaneBench(ack_timeout_ms=10_000, liveness_interval_ms=10_000)
    bench.join("one")
    bench.hears_at_once = False
    bench.arrive("a1")
    bench.arrive("b1", after_ms=0)
    asked_at_ms = bench.now_ms
    bench.hear()
    bench.step(after_ms=10_000)
    bench.hear()
    assert bench.now_ms == asked_at_ms + 10_000
    assert not told(bench, "message_overdue")
    bench.step(after_ms=10_000)
    bench.hear()
    assert told(bench, "message_overdue")


def test_c8_a_long_time_takes_few_looks_to_remember() -> None:
    clause("C-8b", "two looks, the round trips of two markers and a 64th of `ack_timeout` late")
    timeout_ms, look_ms = 640_000, 500
    bench = LaneBench(ack_timeout_ms=timeout_ms, liveness_interval_ms=look_ms, heartbeat_ms=timeout_ms)
    bench.join("one")
    begun_ms = bench.now_ms
    while bench.now_ms < begun_ms + timeout_ms // 2:
        bench.step(after_ms=look_ms)
        if len(bench.sent) == 0 and bench.now_ms >= begun_ms + timeout_ms // 4:
            bench.arrive("a1")
            handed_over_ms = bench.now_ms
    assert len(bench.lane.state.features[AckTimeout]._arrived) <= ARRIVALS_MAX
    while not told(bench, "message_overdue"):
        bench.step(after_ms=look_ms)
    took_ms = bench.now_ms - handed_over_ms
    assert timeout_ms <= took_ms <= timeout_ms + timeout_ms // ARRIVALS_MAX + 2 * look_ms


def test_c8_who_is_late_is_evicted_and_others_get_what_it_has() -> None:
    clause("C-8d", "With `on_ack_timeout: evict` the consumer of an overdue message is evicted")
    bench = LaneBench(ack_timeout_ms=10_000, evicts_overdue=True)
    bench.join("one")
    bench.arrive("a1")
    bench.join("two")
    bench.arrive("b1", "a2")
    bench.step(after_ms=9_000)
    bench.settle("two", "b1")
    bench.step(after_ms=2_000)
    (fields,) = told(bench, "consumer_evicted")
    assert fields == {"consumer": "one", "incarnation": "one-1", "by": "ack_timeout", "in_flight": 2}
    assert names(bench.step(bench.marker())) == ["a1", "a2"]
    assert bench.latest("a1").attempt == 2


def test_c9_what_is_confirmed_before_the_eviction_counts_and_nothing_later() -> None:
    clause("C-9", "Later settles don't count")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "a2", "b1")
    reply = evict(bench, "one")
    assert (reply.error, reply.result["queue"], reply.result["in_flight"]) == (None, "one-1.1", 3)
    bench.settle("one", "a1")
    assert bench.acked == [b"a1"], "it was in the control queue before the marker"
    bench.step(bench.marker())
    bench.settle("one", "a2")
    assert bench.acked == [b"a1"]
    assert bench.notices[-1] == ("one-1.1", "dispatch.taken")
    bench.join("two")
    assert sorted(bench.holder(name) for name in ("a2", "b1")) == ["two", "two"]


def test_c9_no_join_brings_it_back() -> None:
    clause("C-9", "It gets `dispatch.taken`, no join brings it back")
    bench = LaneBench(reconnect_grace_ms=60_000)
    bench.join("one")
    bench.arrive("a1")
    evict(bench, "one")
    bench.step(QueueReturned("one-1.1"))
    bench.join("one", n=2)
    assert bench.lane.state.by_id["one"].state.value == "marked"
    bench.step(bench.marker())
    assert bench.notices[-1] == ("one-1.2", "dispatch.taken")
    assert names(bench.join("one", uuid="one-2")) == ["a1"], "its next life may go on"


def test_c9_it_gets_nothing_more() -> None:
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1")
    evict(bench, "one")
    assert bench.arrive("a2", "b1", "-1") == []
    assert why(bench, "a") is HoldKind.EVICTED


def test_c9_a_new_leader_goes_on_with_it() -> None:
    clause("C-9", "a fail-over doesn't save it")
    bench = LaneBench()
    bench.join("one")
    event = CommandReceived(None, "uuid", "consumers.evict", {"consumer": "one"})
    ((number, row),) = bench.lane.step([event], bench.now_ms).incarnations.items()
    assert row is not None
    assert row.state == "evicted"
    options = LaneOptions(policy=policy("exclusive"), inbounds=(("in0", 1),))
    snapshot = Snapshot(lane_epoch=8, complete=True, broker_restarted=False, incarnations={number: row})
    lane = Lane(options, snapshot, START_MS)
    actions = lane.start(START_MS).actions
    (marker,) = [action for action in actions if isinstance(action, PublishMarker)]
    told_again = [action.fields for action in actions if isinstance(action, LogEvent)]
    by = {"by": "a former dispatcher", "in_flight": 0}
    assert told_again == [{"consumer": "one", "incarnation": "one-1", **by}], "the former may have died first"
    taken = lane.step([Marker(incarnation="one-1", lane_epoch=8, n=marker.n)], START_MS)
    assert taken.incarnations[number] is not None
    assert taken.incarnations[number].state == "taken"  # type: ignore[union-attr]


def test_c9_an_operator_blames_nobody_and_a_timeout_does() -> None:
    clause("C-9", "counts as a death for M-1 and M-2; one by an operator counts as none")
    for by_operator in (True, False):
        bench = LaneBench(attempts=1, ack_timeout_ms=10_000, evicts_overdue=not by_operator)
        bench.join("one")
        bench.arrive("a1", "b1")
        bench.settle("one", "b1")
        bench.die("one")
        bench.join("other")
        bench.join("one", uuid="one-2")
        bench.arrive("c1")
        holder = bench.holder("a1")
        bench.settle(bench.holder("c1"), "c1", uuid="" if bench.holder("c1") == "other" else "one-2")
        if by_operator:
            evict(bench, holder)
        else:
            bench.step(after_ms=1_000)
            bench.step(after_ms=11_000)
        bench.step(bench.marker())
        assert bench.dead == ([] if by_operator else [(b"a1", "poison")])


def test_c9_an_eviction_makes_no_suspect() -> None:
    clause("C-9", "one by an operator counts as none")
    for by_operator in (True, False):
        bench = LaneBench(attempts=2)
        bench.join("one")
        bench.arrive("a1", "b1")
        if by_operator:
            evict(bench, "one")
            bench.step(bench.marker())
        else:
            bench.die("one")
        assert len(bench.lane.state.suspects) == (0 if by_operator else 2)
        assert names(bench.join("two")) == (["a1", "b1"] if by_operator else ["a1"])


def test_an_eviction_is_refused_for_whom_it_makes_no_sense() -> None:
    bench = LaneBench()
    bench.join("one")
    assert "no consumer 'two'" in str(evict(bench, "two").error)
    bench.command("consumers.evict")
    assert "no consumer None" in str(bench.replies[-1].error)
    assert "another incarnation" in str(evict(bench, "one", incarnation="one-0").error)
    assert evict(bench, "one", incarnation="one-1").error is None
    assert "being evicted already" in str(evict(bench, "one").error)


@pytest.mark.parametrize("hands_over", [True, False])
def test_consumers_of_the_other_kind_end_when_a_lane_changes(hands_over: bool) -> None:
    """`handover` was set, or taken away, while no dispatcher ran."""
    queue = "amq.gen-1" if hands_over else queue_of("old")
    before = {"incarnations": {3: IncarnationRow("old", "old-1", queue, 1, 10, "live")}}
    prefix = queue_of("")
    bench = HandOverBench if hands_over else partial(LaneBench, handover_prefix=prefix)
    lane = bench(snapshot=before)
    (fields,) = told(lane, "consumer_evicted")
    assert fields == {"consumer": "old", "incarnation": "old-1", "by": "handover", "in_flight": 0}
    assert "old" in lane.lane.state.by_id
    lane.step(lane.marker())
    assert "old" not in lane.lane.state.by_id
