"""docs/semantics.md, N-9 to N-11: what follows a gap waits for it (`sequence_check: hold`)."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.holds import HoldKind
from dispatcher.core.parking.policy import BLOCKED_MS
from tests.spec.flag_bench import facts, why
from tests.spec.lane_bench import clause
from tests.spec.number_bench import NumberBench

TIMEOUT_MS = 5_000


class HoldBench(NumberBench):
    """A lane that holds."""

    def __init__(self, name: str = "exclusive", **options: Any) -> None:
        self.numbers: dict[str, int | None] = {}
        super().__init__(name, sequence_timeout_ms=TIMEOUT_MS, **options)

    def publish(self, group: str, *numbers: int | None, inbound: int = 0, **fields: Any) -> list[str]:
        for offset, number in enumerate(numbers, self.published + 1):
            self.numbers[f"{group}{offset}"] = number
        return super().publish(group, *numbers, inbound=inbound, **fields)

    def went(self, group: str = "a") -> list[int | None]:
        """Numbers of all that was handed over of this group, in order."""
        return [self.numbers[name] for name in self.handed() if name.startswith(group)]

    def settle_all(self, consumer: str) -> None:
        """Everything that it has, as long as it gets something."""
        while True:
            held = [c for c in self.lane.state.by_uuid.values() if c.id == consumer]
            seqs = [seq for one in held for seq in one.in_flight]
            if not seqs:
                return
            self.settle_seqs(consumer, *seqs)
            self.run()


def with_consumer(name: str = "exclusive", *, prefetch: int = 100, **options: Any) -> HoldBench:
    bench = HoldBench(name, **options)
    bench.join("one", prefetch=prefetch)
    return bench


# -- N-9 --


@pytest.mark.parametrize("name", ["exclusive", "sequenced"])
def test_n9_what_follows_a_gap_waits_until_it_is_closed(name: str) -> None:
    clause("N-9", "waits until the messages between have come")
    bench = with_consumer(name)
    bench.publish("a", 1, 2, 4, 5)
    bench.publish("b", 1, 2)
    bench.settle_all("one")
    assert bench.went() == [1, 2]
    assert bench.went("b") == [1, 2], "others do not wait"
    bench.publish("a", 3)
    bench.settle_all("one")
    assert bench.went() == [1, 2, 3, 4, 5]
    assert (bench.gaps, bench.repeats) == (0, 0)
    assert bench.inbound_unacked == {}


def test_n9_no_longer_than_its_time() -> None:
    clause(
        "N-9",
        "at most for `sequence_timeout`. Then the gap is reported as N-1 says, and the "
        "message is handed over",
    )
    bench = with_consumer()
    bench.publish("a", 1, 3, 4, 6)
    bench.run(TIMEOUT_MS - 10)
    assert bench.went() == [1]
    bench.run(20)
    assert bench.went() == [1, 3, 4], "6 waits for 5 from now on"
    assert bench.gaps == 1
    assert bench.lane.state.counters["sequence_waits"] == 2
    bench.run(TIMEOUT_MS)
    assert bench.went() == [1, 3, 4, 6]
    assert bench.gaps == 2
    bench.publish("a", 2)
    assert bench.went() == [1, 3, 4, 6, 2], "too late"


def test_n9_a_batch_ends_before_a_gap() -> None:
    bench = HoldBench("sequenced")
    bench.publish("a", 1, 2, 4)
    bench.join("one", prefetch=100)
    assert bench.went() == [1, 2]
    bench.publish("a", 3)
    assert bench.went() == [1, 2], "the batch is out"
    bench.settle_all("one")
    assert bench.went() == [1, 2, 3, 4]


@pytest.mark.parametrize("end", ["expires", "is purged", "is refused"])
def test_n9_what_is_over_is_not_waited_for(end: str) -> None:
    clause("N-9", "have come or have ended")
    bench = HoldBench(weights=(1, 1))
    fields = {"expires": {"deadline_at_ms": bench.now_ms + 50}, "is refused": {"refusal": "no"}}
    bench.publish("a", 1)
    bench.publish("a", 2, inbound=1, **fields.get(end, {}))
    if end == "is purged":
        bench.command("groups.purge", group="a", first=2)
        bench.mark()
        bench.mark(1)
        bench.publish("a", 3)
        assert bench.result()["messages"] == 2
    else:
        bench.publish("a", 3)
        bench.step(after_ms=100)
    bench.join("one", prefetch=100)
    bench.run()
    assert bench.went()[-1] == 3
    assert bench.gaps == 0


def test_n9_ends_by_itself_when_what_is_missing_expires_meanwhile() -> None:
    bench = HoldBench(weights=(1, 1))
    bench.publish("a", 1)
    bench.join("one", prefetch=1)
    bench.publish("a", 2, inbound=1, deadline_at_ms=bench.now_ms + 500)
    bench.publish("a", 3)
    bench.run(600)
    bench.settle_all("one")
    assert bench.went() == [1, 3]
    assert bench.gaps == 0


def test_n9_in_a_bucket_the_others_wait_too() -> None:
    clause("N-9", "in a bucket those behind it do")
    bench = with_consumer(buckets=1)
    bench.publish("a", 1, 3)
    bench.publish("b", 1)
    assert bench.went("b") == []
    bench.publish("a", 2)
    assert bench.went() == [1, 2, 3]
    assert bench.went("b") == [1]


def test_n9_operators_see_it_and_end_it() -> None:
    clause("N-9", "`groups why` names the number; `groups resume` ends the wait at once")
    bench = with_consumer()
    bench.publish("a", 1, 3)
    bench.step(after_ms=1_000)
    assert why(bench, "a") is HoldKind.NUMBER_MISSING
    assert facts(bench, "a") == {"number": 2, "left_ms": TIMEOUT_MS - 1_000}
    resumed = bench.command("groups.resume", group="a")
    bench.run()
    assert bench.went() == [1, 3], resumed
    assert bench.gaps == 1


def test_n9_a_lane_that_reports_holds_nothing() -> None:
    bench = NumberBench()
    bench.join("one", prefetch=100)
    assert bench.publish("a", 1, 3) == ["a1", "a2"]


# -- N-10 --


def test_n10_what_comes_late_goes_before_larger_numbers() -> None:
    clause("N-10", "goes before the waiting messages of its id that have larger numbers")
    bench = with_consumer()
    bench.publish("a", 1, 6, None, 4, 3, 5, 2)
    assert bench.went() == [1, 2, 3, 4, 5, 6, None]
    assert (bench.gaps, bench.repeats) == (0, 0)


def test_n10_numbers_of_all_inbound_queues_count() -> None:
    clause("N-10", "A number that waits in another inbound queue counts like one that has not come")
    bench = HoldBench(weights=(1, 1))
    bench.join("one", prefetch=1)
    bench.publish("a", 1)
    bench.publish("a", 3, 4, inbound=1)
    bench.publish("a", 2)
    bench.settle_all("one")
    assert bench.went() == [1, 2, 3, 4]


def test_n10_what_a_consumer_had_is_handed_over_again_in_that_order() -> None:
    clause("N-10", "are handed over again in the order of the first time, also by the next leader")
    bench = with_consumer()
    bench.publish("a", 1, 3, 4, 2)
    bench.join("two", prefetch=100)
    bench.die("one")
    bench.run()
    assert bench.went() == [1, 2, 3, 4] * 2


@pytest.mark.parametrize("dies", ["before", "after"])
def test_n10_also_by_the_next_leader(dies: str) -> None:
    bench = with_consumer()
    bench.publish("a", 1, 3, 4, 2, 6)
    bench.join("two", prefetch=100)
    if dies == "before":
        bench.command("groups.pause", group="a")
        bench.die("one")
    bench.fail_over()
    bench.run()
    if dies == "after":
        bench.die("one")
    else:
        bench.command("groups.resume", group="a")
    bench.run()
    assert bench.went() == [1, 2, 3, 4] * 2
    bench.publish("a", 5)
    bench.run()
    assert bench.went() == [1, 2, 3, 4] * 2 + [5, 6]
    bench.settle_all("two")
    assert bench.inbound_unacked == {}
    assert bench.lane.state.counters["vanished"] == 0


def test_n10_what_is_out_again_stays_before_what_still_waits() -> None:
    """Its consumer dies under a leader that found it so."""
    clause("N-10", "are handed over again in the order of the first time, also by the next leader")
    bench = with_consumer()
    bench.publish("a", 1, 2, 3, 4)
    bench.join("two", prefetch=2)
    bench.die("one")
    bench.run()
    assert bench.went() == [1, 2, 3, 4, 1, 2]
    bench.fail_over()
    bench.run()
    bench.join("three", prefetch=100)
    bench.die("two")
    bench.run()
    for _ in range(3):  # those that were out at two deaths are tried alone
        bench.settle_all("three")
    assert bench.went()[6:] == [1, 2, 3, 4]


def test_n10_what_comes_back_in_another_inbound_queue_was_all_that_others_waited_for() -> None:
    """It may not go itself, so no hand-over says that they may."""
    bench = HoldBench(weights=(1, 1), attempts=2)
    bench.join("one", prefetch=100)
    bench.publish("a", 1, inbound=1)
    bench.command("groups.pause", group="a")
    bench.die("one")
    late = bench.inbound_unacked.pop((1, 1))
    bench.fail_over(ends=False)
    bench.command("groups.resume", group="a")
    for consumer in ("two", "three"):
        bench.join(consumer, prefetch=100)
    bench.publish("b", 1)
    bench.publish("c", 1)
    bench.publish("a", 2)
    assert {bench.holder("b2"), bench.holder("c3")} == {"two", "three"}
    assert bench.went() == [1]
    bench._redeliver(1, *late)
    bench.run()
    assert bench.went() == [1, 2], "1 is to be tried alone, when its consumer has nothing else"


# -- N-11 --


def test_n11_a_full_look_ahead_is_parked_in_its_order() -> None:
    clause("N-11", "A group that waits for a number is parked like one that is blocked")
    bench = HoldBench(parking=2, look_ahead=4)
    bench.join("one", prefetch=100)
    bench.publish("a", 1)
    bench.settle_all("one")
    bench.publish("a", 3, 4, 6, 5)
    begun_ms = bench.now_ms
    bench.run(BLOCKED_MS)
    bench.settle_all("one")
    assert bench.went() == [1, 3, 4, 5, 6], "long before its time is over"
    assert bench.now_ms < begun_ms + TIMEOUT_MS
    assert bench.gaps == 1
    assert bench.inbound_unacked == {}


def test_n11_the_next_leader_begins_to_wait_anew() -> None:
    clause("N-11a", "With a new leader the wait begins anew")
    bench = with_consumer()
    bench.publish("a", 1, 3)
    bench.settle("one", "a1")
    bench.run(TIMEOUT_MS - 100)
    bench.fail_over()
    bench.run(TIMEOUT_MS - 100)
    assert bench.went() == [1]
    bench.run(200)
    assert bench.went() == [1, 3]


def test_n11_what_a_consumer_had_never_waits() -> None:
    clause("N-11b", "A message that a consumer already had when the consumer died never waits")
    bench = with_consumer()
    bench.publish("a", 1, 3)
    bench.settle("one", "a1")
    bench.run(TIMEOUT_MS + 100)
    assert bench.went() == [1, 3]
    bench.join("two", prefetch=100)
    begun_ms = bench.now_ms
    bench.die("one")
    bench.run()
    assert bench.went() == [1, 3, 3]
    assert bench.now_ms < begun_ms + TIMEOUT_MS
