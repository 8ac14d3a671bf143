"""docs/semantics.md, "Messages that fail": one test per clause."""

from __future__ import annotations

from dispatcher.core.events import DeadLetterConfirmed
from tests.spec.lane_bench import LaneBench, clause, names


def suspected(bench: LaneBench, *arrivals: str, prefetch: int = 10, **fields: object) -> None:
    """All of these were unsettled at the deaths of two consumers; nobody is there now."""
    bench.join("one", prefetch=prefetch)
    bench.arrive(*arrivals, **fields)
    bench.die("one")
    bench.join("one", prefetch=prefetch, uuid="one-2")
    bench.die("one", uuid="one-2")


def test_m1_a_suspect_goes_alone() -> None:
    clause("M-1c", "this consumer gets nothing else until the suspect is settled")
    bench = LaneBench()
    suspected(bench, "a1", "a2", "b1")
    bench.arrive("c1")
    assert names(bench.join("two")) == ["a1"]
    assert bench.arrive("d1") == []
    assert names(bench.settle("two", "a1")) == ["b1"]
    assert sorted(names(bench.settle("two", "b1"))) == ["a2", "c1", "d1"]
    assert bench.latest("a2").attempt == 3


def test_m1_with_attempts_1_a_single_death_makes_a_suspect() -> None:
    clause("M-1", "unsettled at the deaths of max(1, `retry.attempts` − 1) consumers")
    for attempts, alone in ((1, True), (2, True), (3, False)):
        bench = LaneBench(attempts=attempts)
        bench.join("one")
        bench.arrive("a1", "b1")
        bench.die("one")
        assert (len(bench.join("two")) == 1) is alone


def test_m1_a_suspect_goes_to_whoever_is_empty_first() -> None:
    clause("M-1c", "The suspect goes next, with its group, to the first consumer that is empty")
    bench = LaneBench("concurrent", attempts=1)
    bench.join("two")
    bench.join("three")
    bench.arrive("b1", "b2", "b3", "c1")
    bench.join("one")
    bench.arrive("a1")
    assert bench.holder("a1") == "one"
    bench.die("one")
    kept = next(c.id for c in bench.lane.state.by_uuid.values() if c.alone_with is not None)
    other = "two" if kept == "three" else "three"
    mine = [name for name in ("b1", "b2", "b3", "c1") if bench.holder(name) == other]
    assert names(bench.settle(other, *mine)) == ["a1"]
    assert bench.holder("a1") == other
    assert [names([copy]) for copy in bench.arrive("d1")] == [["d1"]], "the one kept free is not any more"
    assert bench.holder("d1") == kept


def test_m1_if_nobody_is_empty_one_consumer_gets_nothing_new() -> None:
    clause("M-1c", "If no consumer is empty, one gets nothing new until it is")
    bench = LaneBench("concurrent", attempts=1)
    bench.join("busy", prefetch=5)
    bench.arrive("b1", "b2")
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.die("one")
    assert bench.arrive("c1") == []
    assert bench.settle("busy", "b1") == []
    assert names(bench.settle("busy", "b2")) == ["a1"]
    assert names(bench.settle("busy", "a1")) == ["c1"]


def test_m2_who_kills_alone_is_poison_and_its_neighbours_are_not() -> None:
    clause("M-2", "goes to the dead queue as `poison`")
    clause("M-2", "those at the same consumer go on")
    bench = LaneBench()
    suspected(bench, "a1", "a2", "b1", "b2")
    bench.arrive("c1")
    bench.join("two")
    bench.join("three")
    bench.settle(bench.holder("c1"), "c1")
    bench.die(bench.holder("a1"))
    assert bench.dead == [(b"a1", "poison")]
    assert bench.lane.state.counters["poisoned"] == 1
    assert (
        "message_dead_lettered",
        {"group": "a", "reason": "poison", "attempt": 3, "calls": 0},
    ) in bench.told
    bench.join("four")
    for name in ("b1", "a2", "b2"):
        bench.settle(bench.holder(name), name)
    bench.step(DeadLetterConfirmed(bench.latest("a1").message))
    assert sorted(bench.acked) == [b"a1", b"a2", b"b1", b"b2", b"c1"]
    assert len(bench.dead) == 1


def test_m2_a_failure_of_all_consumers_makes_no_poison() -> None:
    clause("M-2", "and any consumer has settled anything in the lane since the suspect's first death")
    bench = LaneBench()
    suspected(bench, "a1", "b1")
    for life in range(3, 12):
        bench.join("one", uuid=f"one-{life}")
        bench.die("one", uuid=f"one-{life}")
    assert bench.dead == []
    assert {names([copy])[0] for copy in bench.sent[-2:]} == {"a1", "b1"}, "they take turns"


def test_m2_who_leaves_and_ends_has_not_died_of_it() -> None:
    clause("M-2", "A consumer that had said that it leaves doesn't count as dead here")
    bench = LaneBench()
    suspected(bench, "a1", "b1")
    bench.join("two")
    bench.settle("two", "a1")
    assert bench.holder("b1") == "two"
    bench.leave("two")
    bench.die("two")
    assert bench.dead == []
    bench.join("three")
    assert bench.holder("b1") == "three"


def test_m3_a_suspect_without_proof_lets_others_go_first() -> None:
    clause("M-3", "is tried again, after everything else that can go")
    bench = LaneBench()
    suspected(bench, "a1")
    bench.join("one", uuid="one-3")
    assert bench.latest("a1").attempt == 3
    bench.die("one", uuid="one-3")
    bench.arrive("b1")
    assert names(bench.join("one", uuid="one-4")) == ["b1"]
    assert names(bench.settle("one", "b1", uuid="one-4")) == ["a1"]
    bench.die("one", uuid="one-4")
    assert bench.dead == [(b"a1", "poison")], "b1 was settled since its first death"


def test_m3_a_suspect_without_proof_goes_when_nothing_else_can() -> None:
    clause("M-3", "consumers may be dying of something else")
    bench = LaneBench()
    suspected(bench, "a1", "a2")
    for life in (3, 4, 5):
        assert names(bench.join("one", uuid=f"one-{life}")) == ["a1"]
        bench.die("one", uuid=f"one-{life}")
    bench.join("one", uuid="one-6")
    assert names(bench.settle("one", "a1", uuid="one-6")) == ["a2"]


def test_m4_half_of_the_consumers_go_on_with_other_work() -> None:
    clause("M-4", "at no more than half of the live consumers (at least one) at a time")
    bench = LaneBench()
    bench.arrive("x1")
    suspected(bench, *(f"{group}1" for group in "abcdefgh"))
    before = len(bench.sent)
    for consumer in ("two", "three", "four", "five"):
        bench.join(consumer)
    bench.arrive("z1")
    alone = [c for c in bench.lane.state.by_uuid.values() if c.alone_with is not None]
    assert len(alone) == 2
    assert "z1" in names(bench.sent[before:])


def test_m4_the_longest_suspected_goes_first() -> None:
    clause("M-4", "the suspect that has been one for longest first, one per consumer")
    bench = LaneBench()
    suspected(bench, "a1", "b1", "c1")
    bench.join("two")
    for name, following in (("a1", "b1"), ("b1", "c1")):
        assert names(bench.settle("two", name)) == [following]


def test_d4_a_welcome_says_how_often_a_message_is_tried() -> None:
    clause("D-4", "is `retry` in the lane's configuration, unless the application says otherwise")
    bench = LaneBench(attempts=5, backoff_ms=70)
    bench.join("one")
    assert bench.notices[-1] == ("one-1.1", "dispatch.welcome")
    assert bench.bodies[-1]["retry"] == {"attempts": 5, "backoff": 70}
