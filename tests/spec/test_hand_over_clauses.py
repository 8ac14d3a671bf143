"""X: hand-over lanes, whose consumers only read a queue and ack."""

from __future__ import annotations

import pytest

from dispatcher.core.consumer_life import ConsumerState
from dispatcher.core.events import CopyRefused, QueueNacked
from dispatcher.core.forwarding.events import (
    MessageRejected,
    QueueInspected,
    QueueInUse,
    QueueReclaimed,
    ReadersChanged,
    ReclaimedForwarded,
    ReclaimedRefused,
)
from dispatcher.core.forwarding.forwarding import LOOK_AGAIN_MS
from dispatcher.core.forwarding.orders import (
    AckReclaimed,
    DeadLetterReclaimed,
    ForwardReclaimed,
    InspectQueue,
    ReclaimQueue,
    ReleaseQueue,
)
from dispatcher.core.holds import HoldKind
from dispatcher.core.views.views import Views
from tests.spec.flag_bench import facts, why
from tests.spec.hand_over_bench import HandOverBench, handed_names, queue_of
from tests.spec.lane_bench import clause, name_of, names


def _two(**options: object) -> HandOverBench:
    bench = HandOverBench(**options)  # type: ignore[arg-type]
    bench.seen("one")
    bench.seen("two")
    return bench


def test_x1_the_confirm_settles() -> None:
    clause("X-1", "when RabbitMQ has confirmed it, it stands for the message")
    bench = _two()
    assert names(bench.arrive("a1", "a2")) == ["a1", "a2"]
    assert bench.acked == []
    bench.store("a1")
    assert bench.acked == [b"a1"]
    bench.store("a2")
    assert bench.acked == [b"a1", b"a2"]
    assert bench.notices == []  # it would be a message to an application that knows nothing of them


def test_x1_nobody_joins() -> None:
    clause("X-1", "no other consumer can join such a lane")
    bench = _two()
    bench.join("three")
    assert bench.notices == [("three-1.1", "dispatch.refused")]
    assert sorted(bench.lane.state.by_id) == ["one", "two"]


def test_x2_a_copy_that_rabbitmq_refuses_does_not_count_as_waiting() -> None:
    clause("X-2", "At most `prefetch` messages wait in the queue")
    bench = HandOverBench({"one": 1})
    bench.seen("one")
    assert names(bench.arrive("a1", "a2")) == ["a1"]
    assert names(bench.step(CopyRefused(bench.latest("a1"), "too large"))) == ["a2"]
    assert bench.dead == [(b"a1", "unpublishable: too large")]


def test_x2_it_is_there_while_its_queue_is_read() -> None:
    clause("X-2", "A consumer is present while its queue has a reader")
    bench = HandOverBench({"one": 10})
    assert [order.queue for order in bench.ordered(InspectQueue)] == [queue_of("one")]
    bench.seen("one", readers=0)
    assert bench.arrive("a1") == []
    assert bench.seen("one") == ["a1"]


def test_x2_queues_are_looked_at_every_liveness_interval() -> None:
    clause("X-2", "The dispatcher looks every `liveness_interval`")
    bench = HandOverBench({"one": 10}, liveness_interval_ms=300)
    bench.seen("one")
    due_ms = bench.now_ms + 300
    bench.ordered(InspectQueue)
    bench.step(after_ms=250)
    assert bench.ordered(InspectQueue) == []
    assert (bench.lane.next_deadline_ms() or 0) <= due_ms
    bench.step(after_ms=50)
    assert len(bench.ordered(InspectQueue)) == 1


def test_x2_no_more_than_its_prefetch_waits_in_its_queue() -> None:
    clause("X-2", "At most `prefetch` messages wait in the queue")
    bench = HandOverBench({"one": 3})
    bench.seen("one", ready=1)
    assert names(bench.arrive("a1", "a2", "a3")) == ["a1", "a2"]
    assert bench.store("a1", "a2") == []
    bench.ordered(InspectQueue)
    bench.step(after_ms=5)  # it is looked at soon again
    assert len(bench.ordered(InspectQueue)) == 1
    assert bench.seen("one", ready=3) == []
    bench.step(after_ms=100)
    assert bench.seen("one", ready=2) == ["a3"]


def test_x2_it_is_looked_at_before_it_may_get_nothing_more() -> None:
    bench = HandOverBench({"one": 4}, liveness_interval_ms=60_000)
    bench.seen("one")
    bench.arrive("a1", "a2")
    bench.ordered(InspectQueue)
    bench.store("a1")
    bench.step(after_ms=50)
    assert len(bench.ordered(InspectQueue)) == 1  # half of its prefetch is left
    bench.store("a2")
    bench.seen("one", ready=0)
    bench.step(after_ms=50)
    assert bench.ordered(InspectQueue) == []  # it has room


def test_x2_what_came_while_it_was_looked_at_is_counted() -> None:
    bench = HandOverBench({"one": 3})
    bench.seen("one")
    bench.step(after_ms=500)
    assert bench.ordered(InspectQueue)
    bench.arrive("a1", "a2")
    bench.store("a1", "a2")
    bench.seen("one", ready=0)  # asked before the two came
    assert names(bench.arrive("a3", "a4")) == ["a3"]


def test_x2_the_shortest_queue_comes_first_where_nothing_is_grouped() -> None:
    bench = _two(name="concurrent")
    bench.seen("one", ready=5)
    bench.arrive("-1", "-2")
    assert [bench.holder(name) for name in ("-1", "-2")] == ["two", "two"]


@pytest.mark.parametrize(
    "command",
    ["rebalance", "rebalance.plan", "groups.close", "groups.pin", "consumers.drain", "consumers.evict"],
)
def test_x3_what_would_move_a_group_is_refused(command: str) -> None:
    clause("X-3", "are refused")
    bench = _two()
    bench.arrive("a1")
    bench.command(command, group="a", consumer="one")
    assert "this lane hands over" in (bench.replies[-1].error or "")
    assert bench.holder("a1") == "one"


def test_x3_an_owner_keeps_its_group_while_its_queue_is_read() -> None:
    clause("X-3", "stays with its consumer until the consumer's queue has no reader")
    bench = _two()
    bench.arrive("a1")
    bench.store("a1")
    bench.arrive("a2", after_ms=3_600_000)
    assert [bench.holder(name) for name in ("a1", "a2")] == ["one", "one"]


def test_x4_what_was_in_its_queue_goes_to_another_first_and_in_order() -> None:
    clause("X-4a", "go to others, before any other message of the lane, in the order of `x-dispatch-seq`")
    bench = _two()
    bench.arrive("a1", "a2", "a3", "b1")
    bench.store("a1", "a2", "a3", "b1")
    bench.arrive("a4", "b2")  # copies that are not confirmed
    bench.store("b2")
    bench.lose("one", "a3", "a1", "a2")
    bench.arrive("a5", "b3", "c1")
    going = bench.ordered(ForwardReclaimed)
    assert handed_names(going) == ["a1", "a2", "a3"]
    assert {order.queue for order in going} == {queue_of("two")}
    assert [order.seq for order in going] == sorted(order.seq for order in going)
    assert [order.group_seq for order in going] == [1, 2, 3]
    assert {order.attempt for order in going} == {2}
    assert names(bench.step(*(ReclaimedForwarded(order.handed) for order in going[:2]))) == []
    assert bench.acked == [b"a1", b"a2", b"a3", b"b1", b"b2"]
    sent = names(bench.step(ReclaimedForwarded(going[2].handed)))
    assert [name for name in sent if name.startswith("a")] == ["a4", "a5"]
    assert sorted(sent) == ["a4", "a5", "b3", "c1"]
    assert bench.holder("a5") == "two"
    assert bench.latest("a5").group_seq == 5
    assert handed_names(bench.ordered(AckReclaimed)) == ["a1", "a2", "a3"]
    assert [order.queue for order in bench.ordered(ReleaseQueue)] == [queue_of("one")]


def test_x4_what_is_in_its_queue_and_not_confirmed_is_settled() -> None:
    bench = _two()
    bench.arrive("a1", "a2")
    bench.store("a1")
    bench.lose("one", "a1", "a2")
    assert bench.acked == [b"a1", b"a2"]
    assert handed_names(bench.confirm_all()) == ["a1", "a2"]
    assert names(bench.sent) == ["a1", "a2"]


def test_x4_a_repeated_number_goes_once() -> None:
    clause("X-4a", "a number that is there twice goes once")
    bench = _two()
    bench.arrive("a1", "a2")
    bench.store("a1", "a2")
    bench.lose("one", "a1", "a2", "a1", "a2")
    assert handed_names(bench.confirm_all()) == ["a1", "a2"]
    assert len(bench.ordered(AckReclaimed)) == 4


def test_x4_the_prefetch_of_others_does_not_count() -> None:
    clause("X-4a", "The `prefetch` of the others does not count then")
    bench = HandOverBench({"one": 10, "two": 1})
    bench.seen("one")
    bench.seen("two", ready=1)
    bench.arrive("a1", "a2")
    bench.store("a1", "a2")
    bench.lose("one", "a1", "a2")
    assert handed_names(bench.confirm_all()) == ["a1", "a2"]
    assert bench.arrive("a3") == []


def test_x4_it_stays_while_nobody_else_is_there() -> None:
    clause("X-4c", "While no other consumer is present the queue stays as it is")
    bench = HandOverBench({"one": 10, "two": 10})
    bench.seen("one")
    bench.arrive("a1")
    bench.store("a1")
    bench.seen("one", readers=0, ready=1)
    bench.step(after_ms=60_000)
    assert bench.markers == []
    assert bench.arrive("a2") == []
    assert bench.seen("one", ready=0) == ["a2"]
    assert bench.holder("a2") == "one"


def test_x4_it_has_its_grace() -> None:
    clause("X-4", "for `reconnect_grace`")
    bench = _two(reconnect_grace_ms=5_000)
    bench.arrive("a1")
    bench.store("a1")
    bench.seen("one", readers=0)
    bench.step(after_ms=4_000)
    assert bench.markers == []
    bench.seen("one")
    assert bench.lane.state.by_id["one"].state is ConsumerState.LIVE
    bench.seen("one", readers=0)
    bench.step(after_ms=5_000)
    assert len(bench.markers) == 1


def test_x4_a_reader_that_came_first_keeps_it() -> None:
    bench = _two()
    bench.arrive("a1")
    bench.store("a1")
    bench.seen("one", readers=0)
    bench.step(bench.marker())
    assert [order.queue for order in bench.ordered(ReclaimQueue)] == [queue_of("one")]
    bench.arrive("a2")
    assert names(bench.step(QueueInUse(queue_of("one")))) == ["a2"]
    assert bench.holder("a2") == "one"


def test_x4_a_marker_of_an_earlier_absence_takes_nothing() -> None:
    bench = _two()
    bench.seen("one", readers=0)
    late = bench.marker()
    bench.seen("one")
    bench.step(late)
    assert bench.ordered(ReclaimQueue) == []


def test_x4_if_nobody_is_left_meanwhile_it_stays() -> None:
    bench = _two()
    bench.arrive("a1")
    bench.store("a1")
    bench.seen("one", readers=0)
    bench.step(bench.marker())
    bench.seen("two", readers=0)
    bench.step(QueueReclaimed(queue_of("one"), [bench.handed("a1", "one")]))
    assert bench.ordered(ForwardReclaimed) == []
    assert len(bench.ordered(ReleaseQueue)) == 1
    assert bench.lane.state.by_id["one"].state is ConsumerState.LOST


def test_x4_its_row_says_that_it_is_being_read_back() -> None:
    bench = _two()
    bench.arrive("a1")
    bench.store("a1")
    number = bench.lane.state.by_id["one"].number
    bench.lose("one", "a1")
    row = bench.rows[number]
    assert row is not None
    assert row.state == "taking"
    clause("X-4b", "and has processed the acks in the old queue, no other message of the lane is handed over")
    bench.hold_releases = True
    bench.confirm_all()
    row = bench.rows[number]
    assert row is not None
    assert row.state == "taking"
    assert bench.arrive("b1") == []
    bench.hold_releases = False
    assert names(bench.step()) == ["b1"]
    row = bench.rows[number]
    assert row is not None
    assert row.state == "taken"


def test_x4_what_has_expired_is_dead_lettered() -> None:
    bench = _two()
    bench.arrive("a1")
    bench.store("a1")
    bench.seen("one", readers=0)
    bench.step(bench.marker())
    handed = bench.handed("a1", "one")
    handed.deadline_at_ms = bench.now_ms
    bench.step(QueueReclaimed(queue_of("one"), [handed]))
    (bury,) = bench.ordered(DeadLetterReclaimed)
    assert bury.reason == "expired"


def test_x5_what_is_rejected_is_dead_lettered_and_the_next_ones_go_on() -> None:
    clause("X-5", "goes to the dead queue")
    bench = _two()
    bench.arrive("a1", "a2")
    bench.store("a1", "a2")
    handed = bench.handed("a1", "rejected")
    bench.step(MessageRejected(handed, "rejected"))
    (bury,) = bench.ordered(DeadLetterReclaimed)
    assert (bury.handed, bury.reason) == (handed, "rejected")
    assert bench.ordered(AckReclaimed) == []
    assert names(bench.arrive("a3")) == ["a3"]
    bench.step(ReclaimedForwarded(handed))
    assert [order.handed for order in bench.ordered(AckReclaimed)] == [handed]


def test_x5_what_can_not_be_handed_on_is_dead_lettered() -> None:
    bench = _two()
    bench.arrive("a1")
    bench.store("a1")
    bench.lose("one", "a1")
    (order,) = bench.ordered(ForwardReclaimed)
    bench.step(ReclaimedRefused(order.handed, "too large"))
    (bury,) = bench.ordered(DeadLetterReclaimed)
    assert bury.reason == "unpublishable: too large"
    bench.step(ReclaimedForwarded(order.handed))
    assert len(bench.ordered(ReleaseQueue)) == 1


def test_x7_several_readers_are_told_of_once() -> None:
    clause("X-7", "two read one queue")
    bench = _two()
    bench.seen("one", readers=2)
    bench.seen("one", readers=2)
    shared = [fields for event, fields in bench.told if event == "consumer_queue_shared"]
    assert shared == [{"consumer": "one", "readers": 2}]
    row = next(row for row in Views(bench.lane.state).consumers()["consumers"] if row["consumer"] == "one")
    assert (row["readers"], row["waiting_there"]) == (2, 0)


def test_a_full_queue_gets_its_copies_again() -> None:
    bench = HandOverBench({"one": 10})
    bench.seen("one")
    bench.arrive("a1")
    bench.step(QueueNacked(queue_of("one")))
    assert bench.lane.state.by_id["one"].state is ConsumerState.REFUSING
    bench.step(QueueInspected(queue_of("one"), 1, 0), after_ms=1_000)
    assert names(bench.again) == ["a1"]


def test_x2_what_the_event_exchange_tells_is_looked_at_now() -> None:
    bench = HandOverBench({"one": 10}, liveness_interval_ms=60_000)
    bench.seen("one")
    bench.ordered(InspectQueue)
    bench.step(ReadersChanged(queue_of("one")))
    assert [order.queue for order in bench.ordered(InspectQueue)] == [queue_of("one")]


def test_x2_a_reader_that_is_gone_may_be_counted_for_a_moment_longer() -> None:
    """As RabbitMQ 4 does: the queue is looked at again soon, and then as always."""
    bench = HandOverBench({"one": 10}, liveness_interval_ms=60_000)
    bench.seen("one")
    bench.step(ReadersChanged(queue_of("one")))
    for pause_ms in LOOK_AGAIN_MS:
        bench.ordered(InspectQueue)
        bench.seen("one")
        bench.step(after_ms=pause_ms - 2)
        assert bench.ordered(InspectQueue) == []
        bench.step(after_ms=2)
        assert [order.queue for order in bench.ordered(InspectQueue)] == [queue_of("one")]
    bench.seen("one")
    bench.step(after_ms=2 * LOOK_AGAIN_MS[-1])
    assert bench.ordered(InspectQueue) == []


def test_operators_see_what_a_group_waits_for() -> None:
    bench = HandOverBench({"one": 10, "two": 10})
    assert Views(bench.lane.state).consumers()["unread"] == ["one", "two"]
    bench.seen("one")
    bench.arrive("a1")
    bench.store("a1")
    bench.seen("one", readers=0, ready=1)
    bench.arrive("a2")
    assert why(bench, "a") is HoldKind.QUEUE_UNREAD
    assert (facts(bench, "a")["queue"], facts(bench, "a")["read_back"]) == (queue_of("one"), False)
    bench.seen("two")
    bench.step(bench.marker())
    assert why(bench, "a") is HoldKind.QUEUE_UNREAD
    assert facts(bench, "a")["read_back"]
    bench.step(QueueReclaimed(queue_of("one"), [bench.handed("a1", "one")]))
    assert why(bench, "a") is HoldKind.READING_BACK


def test_what_waits_in_a_queue_counts_as_its_consumers_prefetch() -> None:
    bench = HandOverBench({"one": 2})
    bench.seen("one")
    bench.arrive("a1", "a2", "a3")
    bench.store("a1")
    assert (facts(bench, "a")["queued"], facts(bench, "a")["in_flight"]) == (1, 1)
    bench.store("a2")
    assert why(bench, "a") is HoldKind.PREFETCH_FULL
    told = facts(bench, "a")
    assert (told["consumer"], told["queued"], told["in_flight"]) == ("one", 2, 0)


def test_nobody_is_asked_what_redis_has_forgotten() -> None:
    clause("X-7", "When Redis forgets everything, groups get new owners")
    bench = HandOverBench({"one": 10}, complete=False)
    bench.seen("one")
    assert names(bench.arrive("a1")) == ["a1"]
    assert bench.notices == []


def test_x6_no_number_of_a_queue_is_given_to_another_message() -> None:
    """Its reader knows nothing of incarnations, and drops a number that it knows."""
    clause("X-6", "In one queue a number belongs to one message for ever, also after the queue was read back")
    bench = _two()
    bench.arrive("a1", "a2", "b1")
    bench.store("a1", "a2", "b1")
    bench.lose("one", "a1", "a2")
    bench.confirm_all()
    bench.seen("one")
    bench.arrive(*(f"{group}1" for group in "cdefg"))
    again = [copy for copy in bench.sent if bench.holder(name_of(copy)) == "one"]
    assert again
    former = {bench.latest(name).seq for name in ("a1", "a2")}
    assert min(copy.seq for copy in again) > max(former)
