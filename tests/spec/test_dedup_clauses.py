"""docs/semantics.md, U-1 to U-7: repeated messages (`dedup`)."""

from __future__ import annotations

import pytest

from dispatcher.core.events import (
    DeadLetterConfirmed,
    IdsLookedUp,
    MessagesArrived,
    QueueReturned,
    RedeliveriesEnded,
)
from dispatcher.core.model import Original
from dispatcher.core.parking.policy import BLOCKED_MS
from tests.spec.dedup_bench import WINDOW_MS, DedupBench, id_of
from tests.spec.lane_bench import LaneBench, clause, names
from tests.spec.parking_bench import FIRST


def with_consumer(**options: object) -> DedupBench:
    bench = DedupBench(**options)  # type: ignore[arg-type]
    bench.join("one", prefetch=10)
    return bench


# -- U-1 --


def test_u1_a_repeated_message_is_acked_and_nobody_gets_it() -> None:
    clause("U-1", "is acknowledged, and no consumer gets it")
    bench = with_consumer()
    assert names(bench.publish("a1")) == ["a1"]
    assert bench.publish("a1") == []
    assert bench.acked == [b"a1"], "the repeated one, while the first is in flight"
    assert bench.dropped == 1
    bench.settle("one", "a1")
    assert bench.publish("a1") == []
    assert bench.acked == [b"a1"] * 3
    assert bench.status()["inbound"][0]["held"] == 0
    assert bench.lane.state.inbounds[0].unacked == 0


def test_u1_its_bytes_its_group_and_its_queue_do_not_matter() -> None:
    clause("U-1", "The other contents of the two messages don't matter")
    bench = DedupBench(weights=(1, 1))
    bench.join("one")
    bench.publish("a1", "order 1")
    assert bench.publish("b7", "order 1", inbound=1) == []
    assert bench.acked == [b"b7"]
    assert names(bench.publish("b8", "order 2", inbound=1)) == ["b8"]


def test_u1_the_log_and_a_counter_tell_of_it() -> None:
    clause("U-1", "A metric counts it, and the log names it")
    bench = with_consumer()
    bench.publish("a1")
    bench.publish("a1")
    assert ("messages_deduplicated", {"group": "a", "messages": 1, "queue": "in0"}) in bench.told


def test_u1_without_a_message_id_nothing_repeats_anything() -> None:
    clause("U-1", "A message without a `message_id`, or with an empty one, is never a repetition")
    bench = with_consumer()
    bench.arrive("a1")
    assert names(bench.arrive("a1")) == ["a1"]


def test_u1_a_lane_without_dedup_asks_nothing() -> None:
    bench = LaneBench()
    bench.join("one")
    effects = bench.lane.step([], bench.now_ms)
    assert effects.window is None
    bench.arrive("a1", message_id=id_of("a1"))
    assert names(bench.arrive("a1", message_id=id_of("a1"))) == ["a1"]


# -- U-2 --


def test_u2_the_window_is_as_long_as_it_says_and_not_longer_for_repeated_ones() -> None:
    clause("U-2b", "A repeated message does not make the window longer")
    bench = with_consumer()
    bench.publish("a1")
    bench.settle("one", "a1")
    bench.step(after_ms=WINDOW_MS // 2)
    assert bench.publish("a1") == []
    bench.step(after_ms=WINDOW_MS // 2 - 10)
    assert bench.publish("a1") == []
    bench.step(after_ms=20)
    assert names(bench.publish("a1")) == ["a1"]
    bench.settle("one", "a1")
    assert bench.publish("a1") == [], "its window has begun anew"


@pytest.mark.parametrize("end", ["expires", "fails", "is purged", "is refused", "is moved"])
def test_u2_it_begins_with_whatever_is_committed_of_it_first(end: str) -> None:
    clause("U-2", "that message is handed over, dead-lettered, parked, purged or sent elsewhere")
    bench = DedupBench()
    if end == "fails":
        bench.join("one")
    fields = {"expires": {"deadline_at_ms": bench.now_ms + 50}, "is refused": {"refusal": "no"}}
    bench.publish("a1", "order 1", **fields.get(end, {}))
    match end:
        case "expires":
            bench.step(after_ms=100)
        case "fails":
            bench.fail("one", "a1", "broken")
        case "is purged" | "is moved":
            assert id_of("order 1") not in bench.window
            if end == "is moved":
                bench.order("move")
            else:
                bench.command("groups.purge", group="a")
            bench.mark()
            bench.takes_all()
    assert id_of("order 1") in bench.window
    bench.join("two")
    assert bench.publish("a2", "order 1") == []
    assert bench.dropped == 1


# -- U-3 --


def test_u3_what_repeats_one_that_waits_here_waits_and_ends_with_its_hand_over() -> None:
    clause("U-3", "They end in the same commit in which the id enters the window")
    bench = DedupBench()
    bench.publish("a1")
    bench.publish("a1")
    bench.publish("a1", inbound=0)
    assert bench.acked == []
    assert names(bench.join("one")) == ["a1"]
    assert bench.acked == [b"a1", b"a1"]
    assert bench.dropped == 2


def test_u3_several_at_once_while_redis_does_not_answer() -> None:
    bench = with_consumer()
    bench.hold_answers = True
    bench.publish("a1")
    bench.publish("a1")
    bench.arrive("a2")
    bench.publish("b1")
    assert bench.sent == []
    bench.hold_answers = False
    assert names(bench.answer()) == ["a1", "b1", "a2"], "its groups take turns"
    assert bench.acked == [b"a1"]


def test_u3_the_order_of_all_others_stays() -> None:
    clause("U-3", "The order of all others stays as it is")
    bench = with_consumer()
    bench.publish("a1")
    bench.hold_answers = True
    bench.publish("a2")
    bench.publish("a1")
    bench.arrive("a3")  # without an id, and nothing to ask
    bench.publish("a4")
    bench.hold_answers = False
    assert names(bench.answer()) == ["a2", "a3", "a4"]


def test_u3_an_answer_that_redis_lost_is_asked_for_again() -> None:
    bench = with_consumer()
    bench.publish("a1")
    bench.hold_answers = True
    bench.publish("a1")
    bench.publish("a2")
    lost, bench.questions = bench.questions, []
    for question in lost:
        question.known = None
    bench.step(*map(IdsLookedUp, lost))
    (asked_again,) = bench.questions
    assert [one for one, _ in asked_again.ids] == [id_of("a1"), id_of("a2")]
    bench.hold_answers = False
    assert names(bench.answer()) == ["a2"]
    assert bench.acked == [b"a1"]


def test_u3_a_marker_stays_behind_what_came_before_it() -> None:
    bench = DedupBench()
    bench.hold_answers = True
    bench.publish("a1")
    bench.hold_answers = False
    bench.answer()
    bench.command("groups.purge", group="a")
    bench.hold_answers = True
    bench.publish("a2")
    bench.mark()
    bench.hold_answers = False
    bench.answer()
    assert bench.result()["messages"] == 2


# -- U-4 --


def test_u4_a_death_hands_it_over_again() -> None:
    clause("U-4", "one that is handed over again after a failure or a death")
    bench = with_consumer()
    bench.publish("a1")
    bench.join("two")
    assert names(bench.die("one")) == ["a1"]
    assert bench.holder("a1") == "two"


def test_u4_what_was_parked_is_read_back() -> None:
    clause("U-4", "one that was parked and is read back")
    bench = DedupBench(parking=4, look_ahead=3)
    bench.join("one", prefetch=1)
    bench.publish("a1")
    bench.join("two")
    bench.publish("a2")
    bench.publish("a3")
    bench.run(BLOCKED_MS)
    assert bench.in_parking() == ["a2", "a3"]
    assert bench.publish("a2") == []
    assert bench.dropped == 1, "also what repeats a parked one"
    bench.fail_over()
    bench.run(BLOCKED_MS)
    for name in ("a1", "a2", "a3"):
        bench.settle("one", name)
        bench.run()
    assert bench.handed() == ["a1", "a2", "a3"]
    assert bench.in_parking(FIRST) == []


# -- U-5 --


def test_u5_it_is_the_next_leaders_too() -> None:
    clause("U-5", "survives every restart and fail-over")
    bench = with_consumer()
    bench.publish("a1")
    bench.settle("one", "a1")
    bench.fail_over()
    assert bench.publish("a1") == []
    assert bench.dropped == 1


def test_u5_its_leader_writes_back_what_it_has_entered() -> None:
    clause("U-5", "the leader writes back the ids that it has entered itself")
    bench = with_consumer()
    bench.publish("a1")
    bench.settle("one", "a1")
    before, bench.window = bench.window, {}
    change = bench.lane.checkpoint(everything=True).window
    assert change is not None
    bench.enter(change)
    assert bench.window == before
    bench.step(after_ms=WINDOW_MS + 1)
    bench.publish("b1")
    change = bench.lane.checkpoint(everything=True).window
    assert change is not None
    assert [ids for _, ids in change.entered] == [id_of("b1")], "what is over is not kept"


def test_u5_redis_forgot_everything_and_nobody_led() -> None:
    clause("U-5", "all ids if the lane has no leader then; their repetitions count as new")
    bench = with_consumer(heartbeat_ms=1_000)
    bench.publish("a1")
    bench.publish("a2")
    bench.settle("one", "a1")
    held = (bench.in_hand("a2"),)
    bench.window.clear()
    bench.fail_over(forget=True)
    bench.join("one", n=2, in_hand=held)
    bench.run(3 * bench.lane.state.options.heartbeat_ms)
    assert names(bench.publish("a1")) == ["a1"]
    assert bench.publish("a2") == [], "what comes back, and what consumers have, enters it again"


def test_u5_a_consumer_names_a_message_whose_id_is_being_asked_for() -> None:
    bench = with_consumer()
    bench.publish("a1")
    held = (bench.in_hand("a1"),)
    bench.window.clear()
    bench.hold_answers = True
    bench.fail_over(forget=True)  # redelivered, and new to whoever knows nothing
    bench.join("one", n=2, in_hand=held)
    bench.publish("a1")
    bench.hold_answers = False
    bench.answer()
    bench.run(3 * bench.lane.state.options.heartbeat_ms)
    assert bench.handed() == ["a1"]
    bench.settle_seqs("one", held[0].seq)
    assert bench.inbound_unacked == {}


# -- U-6 --


def test_u6_beyond_so_many_the_oldest_leave_early() -> None:
    clause("U-6", "a metric counts them, and the log says so once per leadership")
    bench = with_consumer(ids_max=3)
    for number in range(6):
        bench.publish(f"a{number}")
        bench.settle("one", f"a{number}")
    assert bench.last_window is not None
    assert bench.last_window.ids_max == 3
    change = bench.lane.checkpoint(everything=True).window
    assert change is not None
    assert [ids for _, ids in change.entered] == [id_of(f"a{n}") for n in (3, 4, 5)]
    assert bench.lane.state.counters["ids_forgotten"] == 3
    assert [what for what, _ in bench.told].count("dedup_window_full") == 1


# -- U-7 --


def redelivered(bench: DedupBench, name: str, *, flagged: bool) -> Original:
    bench._tags[0] += 1
    tag = bench._tags[0]
    arrival = (bench.lane.state.lane_epoch, tag)
    group, copy = name.rstrip("0123456789").encode(), name.encode().ljust(16, b"\0")
    message = Original(0, tag, arrival, copy, group, object(), 100, bench.now_ms, flagged)
    message.message_id = id_of(name)
    bench.inbound_unacked[0, tag] = (name, {})
    return message


@pytest.mark.parametrize("leader", ["the same", "the next"])
def test_u7_what_recovery_has_lost_sight_of_is_handed_over(leader: str) -> None:
    clause("U-7", "that original comes later, it is handed over, although its id is in the window")
    bench = with_consumer()
    bench.publish("a1")
    bench.inbound_unacked.clear()  # the queue does not give it back in time
    bench.fail_over()
    bench.step(QueueReturned("one-1.1"))
    bench.run(10_000)
    bench.step(bench.marker())
    assert id_of("a1") in bench.window
    if leader == "the next":
        bench.fail_over()
    bench.join("two")
    sent = bench.step(MessagesArrived([redelivered(bench, "a1", flagged=False)]), RedeliveriesEnded(0))
    assert names(sent) == ["a1"]
    assert bench.dropped == 0


def test_a_dead_letter_that_is_confirmed_is_not_asked_for() -> None:
    bench = DedupBench(ungrouped="reject")
    bench.publish("-1")
    (message,) = bench.lane.state.ending
    bench.step(DeadLetterConfirmed(message))
    assert bench.publish("-1") == []
    assert bench.dropped == 1
