"""docs/semantics.md, O-21: paused groups and lanes."""

from __future__ import annotations

from dispatcher.core.holds import HoldKind
from dispatcher.core.views.views import Views
from tests.spec.flag_bench import BOTH, owner, refused, row, said, why
from tests.spec.lane_bench import START_MS, LaneBench, clause, names


@BOTH
def test_o21_a_paused_group_waits_and_others_go_on(name: str) -> None:
    clause(
        "O-21", "no more messages of the group are handed over. Its messages in flight are settled as always"
    )
    bench = LaneBench(name)
    bench.join("one")
    bench.arrive("a1")
    assert said(bench, "groups.pause", group="a") == {
        "group": "a", "paused": True, "changed": True, "in_flight": 1,
    }  # fmt: skip
    assert names(bench.arrive("a2", "b1", "a3")) == ["b1"]
    assert bench.settle("one", "a1") == []
    assert bench.acked == [b"a1"]
    assert why(bench, "a") is HoldKind.PAUSED
    assert (row(bench, "a")["paused"], row(bench, "b")["paused"]) == (True, False)
    assert said(bench, "groups.resume", group="a")["changed"]
    assert names(bench.sent[-2:]) == ["a2", "a3"]


@BOTH
def test_o21_it_says_so_before_anything_of_it_waits(name: str) -> None:
    clause("O-21", "no more messages of the group are handed over")
    bench = LaneBench(name)
    bench.join("one")
    bench.arrive("a1", "b1")
    said(bench, "groups.pause", group="a")
    assert (why(bench, "a"), why(bench, "b")) == (HoldKind.PAUSED, None)
    bench.settle("one", "a1")
    assert (why(bench, "a"), row(bench, "a")["reason"]) == (HoldKind.PAUSED, "paused")
    said(bench, "groups.resume", group="a")
    bench.arrive("a2")
    assert why(bench, "a") is None


def test_o21_the_time_of_a_pause_is_that_of_the_command_under_the_next_leader_too() -> None:
    clause("O-21", "no more messages of the group are handed over")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "b1")
    said(bench, "groups.pause", group="a")
    later = LaneBench(flags=bench.flags)
    later.now_ms += 10_000
    later.join("one")
    later.arrive("a2")
    hold = later.lane.state.explanation.why(later.lane.state.groups[b"a"])
    assert hold is not None
    assert (hold.kind, hold.facts["paused_at_ms"]) == (HoldKind.PAUSED, bench.now_ms)
    said(later, "groups.resume", group="a")
    said(later, "groups.pause", all=True)
    assert later.flags == {b"lane": {"paused": True, "paused_at_ms": later.now_ms}}
    assert later.now_ms > bench.now_ms


@BOTH
def test_o21_before_its_first_message(name: str) -> None:
    clause("O-21", "With `--new` a group can be paused before its first message")
    bench = LaneBench(name)
    bench.join("one")
    assert said(bench, "groups.pause", group="%25", new=True)["changed"]
    assert names(bench.arrive("%1", "b1")) == ["b1"]
    assert why(bench, "%25") is HoldKind.PAUSED
    later = LaneBench(name, flags=bench.flags)
    later.join("one")
    assert names(later.arrive("%1", "b1")) == ["b1"], "under the next leader too"
    said(later, "groups.resume", group="%25")
    assert names(later.sent[-1:]) == ["%1"]
    said(later, "groups.pause", group="z", new=True)
    said(later, "groups.resume", group="z")
    assert b"z" not in later.lane.state.groups, "of which nothing is left"


def test_o21_it_keeps_its_owner() -> None:
    clause(
        "O-21",
        "The group keeps its owner and its order. Messages that expire while they wait "
        "go to the dead queue as always",
    )
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1")
    bench.settle("one", "a1")
    said(bench, "groups.pause", group="a")
    bench.join("two")
    bench.arrive("a2", deadline_at_ms=bench.now_ms + 1_000)
    bench.arrive("a3")
    bench.step(after_ms=2_000)
    assert bench.dead == [(b"a2", "expired")]
    assert owner(bench, "a") == "one"
    said(bench, "groups.resume", group="a")
    assert bench.holder("a3") == "one"


@BOTH
def test_o21_what_is_taken_back_of_it_waits_too(name: str) -> None:
    clause("O-21", "messages that come back from a dead consumer wait too")
    bench = LaneBench(name)
    bench.join("one")
    bench.arrive("a1", "b1")
    bench.join("two")
    said(bench, "groups.pause", group="a")
    assert names(bench.die("one")) == ["b1"]
    bench.arrive("a2")
    said(bench, "groups.resume", group="a")
    assert names(bench.sent[-2:]) == ["a1", "a2"]
    assert bench.latest("a1").attempt == 2


def test_o21_a_suspect_of_a_paused_group_keeps_nobody_from_the_others() -> None:
    bench = LaneBench(attempts=2)
    bench.join("one")
    bench.arrive("a1")
    said(bench, "groups.pause", group="a")
    bench.die("one")
    bench.join("two")
    assert names(bench.arrive("b1")) == ["b1"], "nobody is kept free for a1"
    said(bench, "groups.resume", group="a")
    assert names(bench.arrive("b2")) == [], "now two is"
    assert names(bench.settle("two", "b1")) == ["a1"]


@BOTH
def test_o21_the_whole_lane(name: str) -> None:
    clause(
        "O-21",
        "With `--all` both commands apply to the whole lane; groups that were paused by name stay paused",
    )
    bench = LaneBench(name)
    bench.join("one")
    bench.arrive("a1", "b1")
    said(bench, "groups.pause", group="b")
    assert said(bench, "groups.pause", all=True)["in_flight"] == 2
    assert bench.arrive("a2", "b2", "c1", "-1") == []
    assert bench.settle("one", "a1", "b1") == []
    assert why(bench, "c") is HoldKind.LANE_PAUSED
    assert Views(bench.lane.state).status()["paused"]
    assert (bench.lane.next_deadline_ms() or START_MS * 2) > bench.now_ms
    said(bench, "groups.resume", all=True)
    assert sorted(names(bench.sent[-3:])) == ["-1", "a2", "c1"]
    said(bench, "groups.resume", group="b")
    assert names(bench.sent[-1:]) == ["b2"]


def test_o21_a_lane_without_groups_can_be_paused_as_a_whole() -> None:
    bench = LaneBench("concurrent")
    bench.join("one")
    assert refused(bench, "groups.pause", group="a") == "a concurrent lane has no groups"
    said(bench, "groups.pause", all=True)
    assert bench.arrive("a1") == []
    said(bench, "groups.resume", all=True)
    assert names(bench.sent) == ["a1"]
