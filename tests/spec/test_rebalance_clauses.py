"""docs/semantics.md, O-19 and O-20: what waits while groups move, and when they move by themselves."""

from __future__ import annotations

from collections import Counter

import pytest

from dispatcher.core.holds import HoldKind
from tests.spec.flag_bench import facts, why
from tests.spec.lane_bench import LaneBench, clause, names


def owned_by_one(groups: str = "abcd", **options: object) -> LaneBench:
    """Each group has a message in flight at one, which has owned them since before two came."""
    bench = LaneBench(**options)  # type: ignore[arg-type]
    bench.join("one")
    bench.arrive(*(f"{group}1" for group in groups))
    bench.join("two")
    return bench


def owners(bench: LaneBench) -> Counter[str]:
    return Counter(group.owner.id for group in bench.lane.state.groups.values() if group.owner is not None)


def test_o19_the_lane_waits_until_all_is_settled() -> None:
    """A16"""
    clause("O-19", "no consumer gets anything until everything in flight is settled")
    bench = owned_by_one()
    bench.arrive("-1")
    loose = bench.holder("-1")
    bench.command(pause="lane")
    assert bench.arrive("a2", "b2", "c2", "d2", "z1", "-2") == [], "also what doesn't move, new and ungrouped"
    assert why(bench, "z") is HoldKind.QUIESCING
    assert facts(bench, "z")["in_flight"] == 5
    assert "one" in facts(bench, "z")["consumers"]
    assert bench.settle(loose, "-1") == []
    assert bench.settle("one", "a1", "b1", "c1") == []
    assert sorted(names(bench.settle("one", "d1"))) == ["-2", "a2", "b2", "c2", "d2", "z1"]
    assert Counter(bench.holder(f"{group}2") for group in "abcd") == {"one": 2, "two": 2}


def test_o19_a_death_settles_too() -> None:
    bench = owned_by_one()
    bench.command(pause="lane")
    assert sorted(names(bench.die("one"))) == ["a1", "b1", "c1", "d1"]
    assert owners(bench) == {"two": 4}


def test_o19_a_lane_that_moves_nothing_does_not_wait() -> None:
    bench = owned_by_one("a")
    bench.command(pause="lane")
    assert bench.replies[-1].result["moves"] == []
    assert names(bench.arrive("a2")) == ["a2"]


def test_o19_without_a_pause_two_consumers_may_work_on_one_group() -> None:
    """A14"""
    clause(
        "O-19",
        "The messages in flight of a group then stay with their consumer, so two "
        "consumers may work on one group",
    )
    bench = owned_by_one()
    bench.command(group="a", to="two", pause="none")
    assert names(bench.arrive("a2", "b2")) == ["a2", "b2"]
    assert (bench.holder("a1"), bench.holder("a2"), bench.holder("b2")) == ("one", "two", "one")
    assert (bench.latest("a2").first, bench.latest("a2").group_seq) == (True, 1)
    assert bench.latest("a2").epoch > bench.latest("a1").epoch
    bench.settle("one", "a1")
    bench.settle("two", "a2")
    bench.arrive("a3")
    assert bench.holder("a3") == "two"


def test_o19_a_reset_without_a_pause_frees_the_groups_at_once() -> None:
    """A13"""
    bench = owned_by_one()
    bench.command(reset=True, pause="none")
    assert owners(bench) == {}
    bench.arrive("a2", "b2", "c2", "d2")
    assert owners(bench) == {"one": 2, "two": 2}
    bench.settle("one", "a1", "b1", "c1", "d1")
    assert owners(bench) == {"one": 2, "two": 2}, "what comes late from the old owner changes nothing"


@pytest.mark.parametrize("end", ["settle", "die"])
def test_o19_a_group_freed_without_a_pause_is_forgotten_when_nothing_is_left(end: str) -> None:
    bench = owned_by_one("a")
    bench.command(reset=True, pause="none")
    assert set(bench.lane.state.groups) == {b"a"}
    if end == "settle":
        bench.settle("one", "a1")
        assert not bench.lane.state.groups
    else:
        assert names(bench.die("one")) == ["a1"]
        assert owners(bench) == {"two": 1}


def test_o19_what_a_dead_owner_had_goes_to_the_new_one() -> None:
    bench = owned_by_one("a")
    bench.command(group="a", to="two", pause="none")
    assert names(bench.die("one")) == ["a1"]
    assert bench.holder("a1") == "two"


def test_o19_the_lane_says_what_a_command_leaves_open() -> None:
    clause("O-19", "`rebalance.pause`, or `--pause` of the command")
    bench = owned_by_one(rebalance_pause="none")
    bench.command()
    assert owners(bench) == {"one": 2, "two": 2}
    bench.command(reset=True, pause="group")
    assert bench.arrive("a2") == []


def test_o20_groups_move_when_a_consumer_has_joined() -> None:
    """A15"""
    clause("O-20", "groups move by themselves when a consumer has joined: as few as make the numbers even")
    bench = owned_by_one("abcdef", rebalance_on_join=True)
    bench.settle("one", *(f"{group}1" for group in "abcdef"))
    bench.step(after_ms=1_000)
    assert owners(bench) == {"one": 3, "two": 3}
    assert bench.lane.state.counters["rebalances_on_join"] == 1


def test_o20_several_that_come_and_go_are_answered_once() -> None:
    clause("O-20", "Consumers that come or go within 1 s of each other are answered by one rebalance")
    bench = owned_by_one("abcdef", rebalance_on_join=True)
    bench.settle("one", *(f"{group}1" for group in "abcdef"))
    bench.step(after_ms=900)
    bench.join("three")
    bench.step(after_ms=900)
    bench.join("four")
    bench.step(after_ms=900)
    bench.leave("four")
    assert bench.lane.next_deadline_ms() is not None
    bench.step(after_ms=999)
    assert owners(bench) == {"one": 6}
    bench.step(after_ms=1)
    assert owners(bench) == {"one": 2, "two": 2, "three": 2}
    assert bench.lane.state.counters["rebalances_on_join"] == 1
    bench.leave("three")
    bench.step(after_ms=60_000)
    assert owners(bench) == {"one": 2, "two": 2}, "who only leaves moves nothing of the others"


def test_o20_whoever_comes_again_and_again_does_not_put_it_off_for_ever() -> None:
    clause("O-20", "at the latest 10 s after the first came")
    bench = owned_by_one("abcdef", rebalance_on_join=True)
    bench.settle("one", *(f"{group}1" for group in "abcdef"))
    for number in range(13):
        bench.join(f"c{number}")
        bench.step(after_ms=900)
    assert bench.lane.state.counters["rebalances_on_join"] == 1
    assert owners(bench)["one"] == 1, "13 consumers for 6 groups"


def test_o20_it_pauses_what_the_lane_says() -> None:
    bench = owned_by_one(rebalance_on_join=True, rebalance_pause="lane")
    bench.step(after_ms=1_000)
    assert bench.arrive("z1") == []
    assert names(bench.settle("one", "a1", "b1", "c1", "d1")) == ["z1"]
