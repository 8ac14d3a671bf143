"""docs/semantics.md, O-23: drained consumers."""

from __future__ import annotations

from dispatcher.core.holds import HoldKind
from dispatcher.core.views.views import Views
from dispatcher.wire.protocol import Join
from tests.spec.flag_bench import BOTH, facts, owner, said, why
from tests.spec.lane_bench import LaneBench, clause, names


@BOTH
def test_o23_a_drained_consumer_gets_nothing_more(name: str) -> None:
    clause(
        "O-23",
        "the consumer gets no more messages, in this incarnation and later ones, and "
        "settles those that it has",
    )
    bench = LaneBench(name)
    bench.join("one")
    bench.arrive("a1", "b1")
    bench.join("two")
    assert said(bench, "consumers.drain", consumer="one") == {
        "consumer": "one", "drained": True, "changed": True, "in_flight": 2, "pinned": 0,
    }  # fmt: skip
    assert names(bench.arrive("a2", "c1", "-1")) == ["c1", "-1"]
    assert names(bench.settle("one", "a1")) == ["a2"]
    assert (bench.holder("a2"), bench.holder("c1"), bench.holder("-1")) == ("two", "two", "two")
    bench.settle("one", "b1")
    bench.die("one")
    bench.join("one", uuid="one-2")
    bench.arrive(*(f"d{number}" for number in range(9)))
    assert {bench.holder(name_of) for name_of in names(bench.sent[-6:])} == {"two"}
    (shown, _) = Views(bench.lane.state).consumers()["consumers"]
    assert (shown["consumer"], shown["drained"], shown["state"]) == ("one", True, "live")


def test_o23_its_groups_go_to_others() -> None:
    clause(
        "O-23",
        "Each of its groups goes to another consumer when the messages of the group in flight are settled",
    )
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "b1")
    bench.settle("one", "a1")
    bench.join("two")
    said(bench, "consumers.drain", consumer="one")
    assert names(bench.arrive("a2", "b2")) == ["a2"]
    assert names(bench.settle("one", "b1")) == ["b2"]
    assert (owner(bench, "a"), owner(bench, "b")) == ("two", "two")


def test_o23_undone_it_is_like_one_that_has_just_joined() -> None:
    clause("O-23", "After `--undo` it gets new groups like one that has just joined")
    bench = LaneBench()
    bench.join("one")
    bench.join("two")
    said(bench, "consumers.drain", consumer="one")
    bench.arrive("a1", "b1")
    said(bench, "consumers.drain", consumer="one", undo=True)
    bench.arrive("c1", "a2")
    assert (bench.holder("c1"), bench.holder("a2")) == ("one", "two")


def test_o23_with_all_drained_everything_waits_and_says_so() -> None:
    bench = LaneBench()
    bench.join("one")
    said(bench, "consumers.drain", consumer="one")
    assert bench.arrive("a1", "-1") == []
    assert why(bench, "a") is HoldKind.NO_CAPACITY
    assert facts(bench, "a") == {"consumers": 1, "drained": 1}
    said(bench, "consumers.drain", consumer="one", undo=True)
    assert sorted(names(bench.sent)) == ["-1", "a1"]


def test_o23_it_does_not_count_at_the_start() -> None:
    clause("O-23", "It does not count for `start.consumers`")
    bench = LaneBench(start_consumers=2, start_wait_ms=60_000, flags={b"consumer:one": {"drained": True}})
    bench.join("one")
    bench.join("two")
    assert bench.arrive("a1") == []
    assert names(bench.join("three")) == ["a1"]


def test_an_incarnation_that_joins_again_is_still_drained() -> None:
    """A lost connection changes nothing of it."""
    bench = LaneBench(reconnect_grace_ms=10_000)
    bench.join("one")
    bench.join("two")
    said(bench, "consumers.drain", consumer="one")
    bench.step(bench.returned("one"))
    join = Join(consumer="one", incarnation="one-1", n=2, queue="one-1.2", prefetch=10, in_hand=())
    bench.step(join)
    bench.arrive("a1", "b1")
    assert {bench.holder("a1"), bench.holder("b1")} == {"two"}
