"""docs/semantics.md, M-1: only what its consumer may have begun can have killed it."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.optional.poison import Told, may_have_begun
from dispatcher.wire.protocol import Begun, Heartbeat, Settle
from tests.spec.lane_bench import LaneBench, clause
from tests.spec.parking_bench import ParkingBench

SIX = ("a1", "a2", "b1", "c1", "d1", "e1")


def tells(bench: LaneBench, *begun: str, concurrency: int | None, uuid: str, settles: bool = False) -> None:
    """Consumer one says what it has begun."""
    ranges = tuple((bench.latest(name).seq, bench.latest(name).seq) for name in begun)
    told = Begun(ranges, concurrency)
    beat = Heartbeat(consumer="one", incarnation=uuid, queue=f"{uuid}.1", held=6, last=9, begun=told)
    bench.step(Settle(consumer="one", incarnation=uuid, begun=told) if settles else beat)


def suspects(bench: LaneBench) -> set[str]:
    return {message.fingerprint.rstrip(b"\0").decode() for message in bench.lane.state.suspects}


def suspects_after(
    *begun: str, concurrency: int | None, settles: bool = False, says_it: bool = True
) -> set[str]:
    """The suspects when a consumer has died twice with six messages, and said what it has begun of them."""
    bench = LaneBench()
    for uuid in ("one-1", "one-2"):
        bench.join("one", uuid=uuid)
        if uuid == "one-1":
            bench.arrive(*SIX)
        if says_it:
            tells(bench, *begun, concurrency=concurrency, uuid=uuid, settles=settles)
        bench.die("one", uuid=uuid)
    return suspects(bench)


def test_m1_of_each_group_only_the_first_message_may_have_begun() -> None:
    clause("M-1a", "the first unsettled message of each group")
    bench = LaneBench(max_in_flight_per_group=10)
    for uuid in ("one-1", "one-2"):
        bench.join("one", uuid=uuid)
        if uuid == "one-1":
            bench.arrive(*SIX)
        assert len(bench.lane.state.by_uuid[uuid].in_flight) == 6
        bench.die("one", uuid=uuid)
    assert suspects(bench) == {"a1", "b1", "c1", "d1", "e1"}
    bench.join("two")
    bench.settle("two", "a1")
    assert "a2" not in suspects(bench), "nobody died of it"


@pytest.mark.parametrize("settles", [False, True])
def test_m1_a_consumer_says_what_it_has_begun_and_how_many_it_processes(settles: bool) -> None:
    clause("M-1a", "those that it has begun, and as many others")
    assert suspects_after("c1", concurrency=1, settles=settles) == {"a1", "c1"}
    assert suspects_after("c1", concurrency=2, settles=settles) == {"a1", "b1", "c1"}
    assert suspects_after(concurrency=1, settles=settles) == {"a1"}


def test_m1_an_older_word_that_is_read_last_takes_nothing_back() -> None:
    """Settles and heartbeats take different ways. A heartbeat of a former connection counts for nothing."""
    bench = LaneBench()
    bench.join("one", uuid="one-1")
    bench.arrive(*SIX)
    consumer = bench.lane.state.by_uuid["one-1"]
    first = consumer.queue
    tells(bench, "c1", "e1", concurrency=1, uuid="one-1", settles=True)
    tells(bench, "c1", concurrency=1, uuid="one-1")
    assert names_begun(bench) == {"a1", "c1", "e1"}
    bench.join("one", uuid="one-1", n=2)
    assert consumer.queue != first
    begun = Begun(((1, 1 << 40),), 1)
    bench.step(Heartbeat(consumer="one", incarnation="one-1", queue=first, held=6, last=9, begun=begun))
    bench.step(Settle(consumer="other", incarnation="one-1", begun=begun))
    assert names_begun(bench) == {"a1", "c1", "e1"}
    bench.step(after_ms=60_000)
    assert not [event for event, _ in bench.told if event == "settles_ignored"], "it settled nothing"


def names_begun(bench: LaneBench) -> set[str]:
    begun = may_have_begun(bench.lane.state.by_uuid["one-1"])
    return {message.fingerprint.rstrip(b"\0").decode() for message in begun}


def test_m1_many_ranges_cost_no_more_than_to_sort_them() -> None:
    """A consumer with 2,000 handlers says so in as many ranges."""
    looked_at = 0

    class Pair(tuple[int, int]):
        def __getitem__(self, key: Any) -> Any:
            nonlocal looked_at
            looked_at += 1
            return super().__getitem__(key)

    bench = LaneBench()
    bench.join("one", uuid="one-1", prefetch=2_000)
    bench.arrive(*(f"{chr(1_000 + n)}1" for n in range(2_000)))
    consumer = bench.lane.state.by_uuid["one-1"]
    assert len(consumer.in_flight) == 2_000
    ranges = tuple(Pair((seq, seq)) for seq in reversed(list(consumer.in_flight)))
    consumer.note(Told)[Settle] = Begun(ranges, 1)
    assert len(may_have_begun(consumer)) == 2_000
    assert looked_at <= 5 * 2_000


def test_m1_one_that_does_not_say_how_many_may_have_begun_every_first_message() -> None:
    clause("M-1a", "says nothing of it, or not how many")
    assert suspects_after("c1", concurrency=None) == {"a1", "b1", "c1", "d1", "e1"}
    assert suspects_after(concurrency=None, says_it=False) == {"a1", "b1", "c1", "d1", "e1"}


def test_m1_what_was_parked_meanwhile_counts_every_hand_over() -> None:
    clause("M-1b", "every hand-over counts")
    bench = ParkingBench(park_after_ms=1_000)
    bench.join("one", uuid="one-1")
    bench.arrive(*SIX)
    tells(bench, concurrency=1, uuid="one-1")
    bench.die("one", uuid="one-1")
    bench.run(2_000)
    assert "e1" in bench.in_parking()
    bench.join("one", uuid="one-2")
    bench.run()
    bench.die("one", uuid="one-2")
    bench.run()
    read = [m for q in bench.lane.state.parking.values() for m in q.here.values()]
    (last,) = [message for message in read if message.content == "e1"]
    assert (last.attempt, last.deaths) == (2, 2)
