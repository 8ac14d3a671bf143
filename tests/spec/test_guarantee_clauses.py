"""docs/semantics.md, G-3, G-4, G-6 and G-7, as far as the core alone can keep them."""

from __future__ import annotations

import pytest

from dispatcher.core.events import DeadLetterConfirmed
from tests.spec.lane_bench import clause, names
from tests.spec.parking_bench import FIRST, ParkingBench, blocked


def unacked(bench: ParkingBench) -> list[str]:
    """The originals that are still in the inbound queue."""
    return [name for name, _ in bench.inbound_unacked.values()]


def test_g3_a_settle_or_the_dead_queues_confirm_acks_an_original_and_nothing_else_does() -> None:
    clause("G-3", "acked only after its consumer's settle, or the broker's confirm of its next original")
    bench = ParkingBench()
    bench.join("one")
    bench.arrive("a1", "b1", "c1")
    assert unacked(bench) == ["a1", "b1", "c1"], "that RabbitMQ has the copies is not enough"
    bench.settle("one", "a1")
    bench.fail("one", "b1", "no stock")
    bench.die("one")
    assert unacked(bench) == ["b1", "c1"]
    bench.step(DeadLetterConfirmed(bench.latest("b1").message))
    assert unacked(bench) == ["c1"]


def test_g3_a_parked_original_is_acked_when_the_parking_queue_has_it() -> None:
    clause("G-3", "its next original (in a parking queue, in the dead queue), was committed")
    bench = blocked(4, confirmed=False)
    assert bench.in_parking(FIRST) == ["a2", "a3", "a4"]
    assert unacked(bench) == ["a1", "a2", "a3", "a4"], "RabbitMQ has not confirmed the copies"
    bench.hold_confirms = False
    bench.run()
    assert unacked(bench) == ["a1"]


def test_g3_a_new_leader_sends_to_the_dead_queue_again() -> None:
    clause("G-3", "the broker's confirm of its next original (in a parking queue, in the dead queue)")
    bench = ParkingBench()
    bench.join("one")
    bench.arrive("a1", "a2")
    bench.fail("one", "a1", "no stock")
    bench.fail_over()
    assert bench.dead == [(b"a1", "no stock")] * 2
    assert unacked(bench) == ["a1", "a2"]


@pytest.mark.parametrize("policy", ["exclusive", "sequenced", "concurrent"])
def test_g4_after_a_fail_over_a_consumer_gets_only_numbers_that_it_knows(policy: str) -> None:
    clause("G-4", "hands no message over twice to a consumer that drops an `x-dispatch-seq` it knows")
    bench = ParkingBench(policy)
    bench.join("one", prefetch=3)
    bench.arrive("a1", "b1", "a2")
    bench.settle("one", "b1")
    bench.inbound_unacked[0, 2] = ("b1", {})  # its ack did not get through
    known = {name: bench.latest(name).seq for name in ("a1", "a2")}
    bench.fail_over()
    bench.run()
    assert {name: copy.seq for name, copy in zip(names(bench.again), bench.again, strict=True)} == known
    assert {copy.incarnation for copy in bench.again} == {bench.latest("a1").incarnation}
    assert len(bench.sent) == 3, "nothing has a new number"
    assert unacked(bench) == ["a1", "a2"], "b1 was acked once more"


def test_g4_a_consumer_that_dies_with_an_unconfirmed_settle_raises_the_attempt() -> None:
    clause("G-4", "has confirmed its settle causes a redelivery with `x-dispatch-attempt` raised")
    bench = ParkingBench()
    bench.join("one")
    bench.arrive("a1", "a2")
    bench.settle("one", "a1")  # this one was confirmed to it, a2's was not
    bench.join("two")
    assert names(bench.die("one")) == ["a2"]
    assert (bench.holder("a2"), bench.latest("a2").attempt) == ("two", 2)


@pytest.mark.parametrize(("grace_ms", "back_within_ms"), [(0, 5_000), (1_000, 5_000), (20_000, 20_000)])
def test_g6_an_owner_that_is_back_in_time_keeps_its_groups(grace_ms: int, back_within_ms: int) -> None:
    clause("G-6", "is back within max(`reconnect_grace`, 5 s) of the dispatcher's recovery")
    bench = _whose_owner_is_away(grace_ms)
    bench.run(back_within_ms - 1_000)
    assert bench.markers == [], "it is not taken back"
    assert bench.handed() == ["a1"], "its groups wait for it"
    bench.join("one", n=2)
    bench.arrive("a3")
    assert [bench.holder(name) for name in ("a2", "a3")] == ["one", "one"]


def test_g6_an_owner_that_is_late_loses_its_groups() -> None:
    """Else the test above would prove nothing."""
    bench = _whose_owner_is_away(0)
    bench.run(5_000)
    bench.step(bench.marker())
    assert bench.holder("a2") == "two"


def _whose_owner_is_away(grace_ms: int) -> ParkingBench:
    """Consumer one owns group a. The dispatcher dies, and RabbitMQ has lost one's queue as well."""
    bench = ParkingBench(reconnect_grace_ms=grace_ms)
    bench.join("one")
    bench.arrive("a1")
    bench.settle("one", "a1")
    bench.fail_over()
    bench.pending.clear()  # the answer to the ping that looks for its queue
    bench.step(bench.returned("one"))
    bench.join("two")
    bench.arrive("a2")
    return bench


@pytest.mark.parametrize("asks_first", [False, True])
def test_c3_who_restarts_with_its_id_need_not_wait_for_the_time_after_a_take_over(asks_first: bool) -> None:
    clause("C-3", "the second waits no longer than `reconnect_grace`, also after a take-over")
    bench = ParkingBench(reconnect_grace_ms=0)
    bench.join("one")
    bench.arrive("a1")
    bench.settle("one", "a1")
    bench.fail_over()
    bench.pending.clear()
    if asks_first:
        bench.join("one", uuid="one-2")
    bench.step(bench.returned("one"))
    if not asks_first:
        assert bench.markers == []
        bench.join("one", uuid="one-2")
    bench.run(100)
    bench.step(bench.marker())
    assert [consumer.uuid for consumer in bench.lane.state.by_uuid.values()] == ["one-2"]


def test_c3_nor_longer_than_its_grace() -> None:
    clause("C-3", "the second waits no longer than `reconnect_grace`")
    bench = ParkingBench(reconnect_grace_ms=2_000)
    bench.join("one")
    bench.fail_over()
    bench.pending.clear()
    bench.step(bench.returned("one"))
    bench.join("one", uuid="one-2")
    bench.run(1_000)
    assert bench.markers == [], "its time is not over"
    bench.join("one", uuid="one-2")  # that it asks again gives the first one no more time
    bench.run(1_500)
    assert len(bench.markers) == 1


def test_o2_leaderships_begin_with_different_consumers() -> None:
    clause("O-2", "leaderships begin with different consumers")
    bench = ParkingBench(group_idle_timeout_ms=1)
    for name in ("one", "two", "three"):
        bench.join(name)
    firsts = []
    for number in range(12):
        bench.fail_over()
        bench.run()
        bench.arrive(f"{chr(ord('a') + number)}1")
        bench.run()
        name = bench.handed()[-1]
        firsts.append(bench.holder(name))
        bench.settle(firsts[-1], name)
        bench.run(1_000)  # it has no owner any more
    assert set(firsts) == {"one", "two", "three"}


def test_g6_slowness_moves_no_group() -> None:
    clause("G-6", "Slowness alone moves no group")
    bench = ParkingBench()
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two")
    bench.arrive("a2")
    bench.run(3_600_000)  # neither settles nor heartbeats, and its queue is there
    assert bench.handed() == ["a1"]
    assert bench.markers == [], "nobody is taken back"
    bench.settle("one", "a1")
    bench.run()
    assert bench.holder("a2") == "one"


def test_g7_an_undeliverable_message_is_dead_lettered_with_a_reason() -> None:
    clause(
        "G-7",
        "A message that can't be delivered is dead-lettered with a reason, or it waits and operators see it",
    )
    bench = ParkingBench()
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.arrive("a2", deadline_at_ms=bench.now_ms + 100)
    bench.arrive("-1", refusal="x-group-id is a table")
    bench.run(200)
    bench.fail("one", "a1", "no stock")
    assert bench.dead == [(b"-1", "x-group-id is a table"), (b"a2", "expired"), (b"a1", "no stock")]
    assert unacked(bench) == ["a1", "a2", "-1"], "until the dead queue has them"


def test_g7_operators_see_a_dead_letter_also_if_its_original_is_still_to_come() -> None:
    clause("G-7", "is dead-lettered with a reason")
    bench = blocked(4)
    bench.settle("one", "a1")
    bench.run()
    bench.hold_reads = True
    bench.fail_over()
    bench.fail("one", "a2", "no stock")
    assert bench.dead == [], "its parking queue has not been read yet"
    assert bench.lane.state.counters["dead_lettered"] == 1
    (told,) = [fields for event, fields in bench.told if event == "message_dead_lettered"]
    assert (told["group"], told["reason"]) == ("a", "no stock")
    bench.hold_reads = False
    bench.run()
    assert [reason for _, reason in bench.dead] == ["no stock"]
    assert bench.lane.state.counters["dead_lettered"] == 1


def test_g7_a_waiting_message_is_visible() -> None:
    clause("G-7", "or it waits and operators see it")
    bench = ParkingBench()
    bench.arrive("a1", "a2", "-1")
    assert (bench.status()["held"], bench.status()["parked"]) == (3, 0)
    bench.run(3_600_000)  # by then it is parked
    assert (bench.status()["held"], bench.status()["parked"]) == (0, 3)
    assert bench.dead == []
