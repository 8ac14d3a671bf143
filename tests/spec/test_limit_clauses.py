"""docs/semantics.md, F-7: `max_in_flight_per_group`, and ids that take turns."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dispatcher.core.optional.group_limit import GroupLimits
from tests.spec.lane_bench import LaneBench, clause, names


def limited(most: int, **options: Any) -> LaneBench:
    return LaneBench("concurrent", max_in_flight_per_group=most, heartbeat_ms=3_600_000, **options)


def out_of(bench: LaneBench) -> Counter[bytes | None]:
    consumers = bench.lane.state.by_uuid.values()
    return Counter(m.group_id for consumer in consumers for m in consumer.in_flight.values())


def test_f7_so_much_of_one_id_over_all_consumers_and_queues() -> None:
    clause("F-7", "limits the messages of one group id that are in flight at a time, over all consumers")
    bench = limited(3, weights=(1, 1))
    for name in ("one", "two", "three"):
        bench.join(name)
    bench.arrive(*(f"a{n}" for n in range(5)))
    bench.arrive(*(f"a{n}" for n in range(5, 10)), "b1", inbound=1)
    assert out_of(bench) == {b"a": 3, b"b": 1}
    while out := [m for c in bench.lane.state.by_uuid.values() for m in c.in_flight.values()]:
        assert out[0].consumer is not None
        bench.settle_seqs(out[0].consumer.id, out[0].seq)
        assert out_of(bench)[b"a"] <= 3
    assert bench.status()["held"] == 0


def test_f7_ids_are_served_in_turn() -> None:
    clause("F-7", "an id with a huge backlog delays another one by one message, not by its backlog")
    bench = limited(100)
    bench.arrive(*(f"a{n}" for n in range(1_000)))
    bench.arrive("b1", "b2", "-1", "-2", "c1")
    sent = names(bench.join("one", prefetch=8))
    assert sent == ["a0", "b1", "-1", "c1", "a1", "b2", "-2", "a2"]


def test_f7_without_it_they_go_as_they_came() -> None:
    bench = LaneBench("concurrent")
    bench.arrive("a1", "a2", "b1")
    assert names(bench.join("one")) == ["a1", "a2", "b1"]


def test_f7_what_belongs_to_no_group_has_no_limit() -> None:
    clause("F-7", "Messages without a group count as one more id, without a limit")
    bench = limited(1)
    bench.join("one")
    assert names(bench.arrive("-1", "-2", "a1", "a2")) == ["-1", "a1", "-2"]


def test_f7_a_death_or_a_failure_makes_room_again() -> None:
    bench = limited(2)
    bench.join("one", prefetch=2)
    bench.arrive("a1", "a2", "a3", "a4")
    bench.join("two")
    assert out_of(bench) == {b"a": 2}
    bench.die("one")
    assert names(bench.sent[2:]) == ["a1", "a2"]
    assert names(bench.fail("two", "a1", "no stock")) == ["a3"]
    assert out_of(bench) == {b"a": 2}


def test_f7_what_expires_at_the_limit_is_over() -> None:
    bench = limited(1)
    bench.join("one")
    bench.arrive("a1")
    bench.arrive("a2", deadline_at_ms=bench.now_ms + 50)
    bench.arrive("a3")
    bench.step(after_ms=100)
    assert bench.dead == [(b"a2", "expired")]
    assert names(bench.settle("one", "a1")) == ["a3"]


def test_f7_a_queue_at_its_limits_leaves_its_turns_to_the_others() -> None:
    bench = limited(1, weights=(1, 1))
    bench.join("one", prefetch=20)
    bench.arrive("a1", "a2", "a3")
    assert names(bench.arrive("b1", "c1", "d1", inbound=1)) == ["b1", "c1", "d1"]


def test_f7_the_counts_of_ids_that_are_over_are_forgotten() -> None:
    bench = limited(2)
    bench.join("one", prefetch=100)
    bench.arrive(*(f"g{chr(97 + n)}1" for n in range(20)))
    bench.settle_seqs("one", *bench.lane.state.by_id["one"].in_flight)
    limits = bench.lane.state.features[GroupLimits].limit  # type: ignore[attr-defined]
    assert not limits._out
    assert not any(lines._turn or lines._full for lines in limits.lines)
