"""docs/semantics.md, "Groups and owners": one test per clause."""

from __future__ import annotations

import pytest

from dispatcher.core.effects import Snapshot
from dispatcher.core.events import RedeliveriesEnded
from dispatcher.core.lane import Lane
from dispatcher.core.options import LaneOptions, policy
from dispatcher.core.tables import IncarnationRow, OwnerRow
from tests.spec.lane_bench import LaneBench, clause, names


@pytest.mark.seed("Q7")
def test_o2_a_new_group_goes_to_the_consumer_that_owns_the_fewest() -> None:
    clause("O-2", "one with free capacity, among those the one that owns the fewest groups")
    bench = LaneBench()
    bench.join("one", prefetch=1)
    bench.join("two")
    bench.arrive("a1", "b1", "c1", "d1")
    owners = [bench.holder(name) for name in ("a1", "b1", "c1", "d1")]
    assert owners.count("one") == 1, "with its prefetch used up it takes no further group"
    assert owners.count("two") == 3


@pytest.mark.seed("Q7")
def test_o2_of_those_with_free_capacity_it_is_who_owns_the_fewest() -> None:
    clause("O-2", "the one that owns the fewest groups, among those the one that was given something longest")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "b1")
    bench.join("two")
    bench.arrive("c1", "d1", "e1", "f1")
    assert [bench.holder(name) for name in ("c1", "d1", "e1", "f1")] == ["two", "two", "one", "two"]


def test_o3_the_owner_keeps_its_group_while_that_is_empty() -> None:
    clause("O-3", "Under `exclusive` the owner keeps its group while that is empty")
    bench = LaneBench()
    bench.join("one")
    bench.join("two")
    bench.arrive("a1")
    owner = bench.holder("a1")
    bench.settle(owner, "a1")
    bench.arrive("b1", "c1")
    bench.arrive("a2")
    assert bench.holder("a2") == owner


def test_o3_the_owner_loses_its_group_when_it_is_taken_back() -> None:
    clause(
        "O-3",
        "It loses the group when its incarnation is taken back or leaves, when the group "
        "is closed, moved or reset",
    )
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1")
    bench.settle("one", "a1")
    bench.join("two")
    bench.die("one")
    bench.arrive("a2")
    assert bench.holder("a2") == "two"


def test_o3_an_idle_group_loses_its_owner() -> None:
    clause(
        "O-3", "the group has had no waiting and no unsettled message for longer than `group_idle_timeout`"
    )
    bench = LaneBench(group_idle_timeout_ms=1_000)
    bench.join("one")
    bench.arrive("a1", "b1")
    bench.settle("one", "a1")
    bench.join("two")
    assert bench.lane.next_deadline_ms() is not None
    bench.step(after_ms=900)
    bench.arrive("a2")
    assert bench.holder("a2") == "one", "it keeps its owner as long as something comes in time"
    bench.settle("one", "a2")
    bench.step(after_ms=900)
    assert b"a" in bench.lane.state.groups
    bench.step(after_ms=100)
    assert set(bench.lane.state.groups) == {b"b"}, "what is unsettled keeps its owner"
    bench.arrive("a3")
    assert bench.holder("a3") == "two"


def test_o3_what_waits_is_not_idle() -> None:
    bench = LaneBench(group_idle_timeout_ms=1_000)
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.settle("one", "a1")
    bench.arrive("b1", "a2")
    bench.step(after_ms=5_000)
    bench.join("two")
    bench.settle("one", "b1")
    assert bench.holder("a2") == "one"


def test_o3_a_take_over_begins_the_idle_time_anew() -> None:
    clause("O-3", "A take-over begins that time anew, once all unacknowledged messages have come back")
    now_ms = 1_800_000_000_000
    snapshot = Snapshot(
        lane_epoch=7, complete=True, broker_restarted=False, owners={b"a": OwnerRow(1, 5)},
        incarnations={1: IncarnationRow("one", "one-1", "one-1.1", 1, 10, "live")},
    )  # fmt: skip
    options = LaneOptions(policy=policy("exclusive"), inbounds=(("in", 1),), group_idle_timeout_ms=1_000)
    lane = Lane(options, snapshot, now_ms)
    lane.start(now_ms)
    assert not lane.step([], now_ms + 5_000).owners, "a queue of many replicas may take its time"
    assert not lane.step([RedeliveriesEnded(0)], now_ms + 6_000).owners
    assert not lane.step([], now_ms + 6_999).owners
    assert lane.step([], now_ms + 7_000).owners == {b"a": None}


def test_o3_a_group_that_is_given_to_somebody_while_it_is_empty_can_become_idle() -> None:
    bench = LaneBench(group_idle_timeout_ms=1_000)
    bench.join("one")
    bench.arrive("a1")
    bench.settle("one", "a1")
    bench.join("two")
    bench.command(group="a", to="two")
    assert bench.lane.state.groups[b"a"].owner is bench.lane.state.by_id["two"]
    bench.step(after_ms=1_000)
    assert b"a" not in bench.lane.state.groups


def test_o4_a_batch_is_as_large_as_the_free_capacity_and_blocks_the_rest() -> None:
    clause(
        "O-4",
        "The other messages of the group are blocked for every consumer until the whole batch is settled",
    )
    bench = LaneBench("sequenced")
    bench.join("one", prefetch=3)
    assert names(bench.arrive(*(f"a{n}" for n in range(1, 11)))) == ["a1", "a2", "a3"]
    assert bench.join("two", prefetch=3) == []
    assert bench.settle("one", "a1", "a2") == []
    assert names(bench.settle("one", "a3")) == ["a4", "a5", "a6"]


def test_o4_the_next_batch_may_go_anywhere() -> None:
    clause("O-4", "The next batch may go to any consumer. A group with nothing in flight has no owner")
    bench = LaneBench("sequenced")
    bench.join("one", prefetch=1)
    bench.join("two", prefetch=1)
    bench.arrive("a1", "a2")
    first = bench.holder("a1")
    bench.settle(first, "a1")
    assert bench.holder("a2") != first, "the other one was given something longer ago"
    assert bench.lane.state.groups[b"a"].owner is not None
    bench.settle(bench.holder("a2"), "a2")
    assert b"a" not in bench.lane.state.groups


def test_o5_with_top_up_the_present_owner_keeps_receiving() -> None:
    clause("O-5", "the present owner may keep receiving while it holds something")
    bench = LaneBench("sequenced", top_up=True)
    bench.join("one", prefetch=2)
    bench.join("two", prefetch=2)
    bench.arrive("a1", "a2", "a3")
    owner = bench.holder("a1")
    assert names(bench.settle(owner, "a1")) == ["a3"]
    assert bench.holder("a3") == owner
    bench.settle(owner, "a2", "a3")
    assert b"a" not in bench.lane.state.groups, "it holds nothing any more"


def test_o6_concurrent_looks_at_load_only() -> None:
    clause("O-6", "a message goes to the consumer with the fewest unsettled messages")
    bench = LaneBench("concurrent")
    bench.join("one")
    bench.arrive("a1", "a2")
    bench.join("two")
    bench.arrive("a3", "a4")
    assert {bench.holder("a3"), bench.holder("a4")} == {"two"}


def test_o7_every_assignment_has_a_larger_epoch_and_counts_from_one() -> None:
    clause("O-7", "`x-dispatch-group-seq` is 1 for the first message of an epoch and contiguous")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "a2", "b1")
    assert [(c.group_seq, c.epoch) for c in (bench.latest("a1"), bench.latest("a2"))] == [
        (1, bench.latest("a1").epoch),
        (2, bench.latest("a1").epoch),
    ]
    assert bench.latest("b1").epoch > bench.latest("a1").epoch
    before = bench.latest("b1").epoch
    bench.join("two")
    bench.die("one")
    assert min(bench.latest("a1").epoch, bench.latest("b1").epoch) > before
    assert bench.latest("a1").group_seq == 1


def test_o8_a_closing_message_frees_the_group_once_it_is_settled() -> None:
    clause("O-8", "Later messages of the group wait for that, and then any consumer may get the group")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1")
    bench.arrive("a2", closing=True)
    bench.join("two")
    assert bench.arrive("a3") == []
    bench.settle("one", "a1")
    assert names(bench.settle("one", "a2")) == ["a3"]
    assert bench.holder("a3") == "two", "it owns no group yet"


def test_o8_closing_a_group_that_nobody_owns_leaves_it_unowned() -> None:
    clause("O-8", "Closing a group without an owner leaves it unowned")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", closing=True)
    bench.settle("one", "a1")
    assert b"a" not in bench.lane.state.groups


def test_o8_what_expired_while_it_waited_closes_nothing() -> None:
    clause("O-8", "A message that was never dispatched closes nothing")
    bench = LaneBench()
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.arrive("a2", closing=True, deadline_at_ms=bench.now_ms + 50)
    bench.step(after_ms=100)
    assert bench.dead == [(b"a2", "expired")]
    bench.settle("one", "a1")
    bench.join("two")
    bench.arrive("a3")
    assert bench.holder("a3") == "one"


def test_o8_an_operator_closes_a_group() -> None:
    clause("O-8", "The command `groups close` ends a group in the same way")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "b1", "c1")
    bench.settle("one", "b1")
    bench.join("two")
    assert bench.command("groups.close", group="a") == []
    assert bench.replies[-1].result == {"group": "a", "owner": "one", "waits_for": 1}
    assert names(bench.arrive("a2", "c2")) == ["c2"], "only the closed group waits"
    bench.command("groups.close", group="b")
    assert b"b" not in bench.lane.state.groups, "it was empty"
    assert names(bench.settle("one", "a1")) == ["a2"]
    assert bench.holder("a2") == "two"


@pytest.mark.parametrize("name", ["exclusive", "sequenced"])
def test_o8_closing_what_nobody_owns_changes_nothing(name: str) -> None:
    clause("O-8", "Closing a group without an owner leaves it unowned")
    bench = LaneBench(name)
    bench.arrive("a1")
    bench.command("groups.close", group="a")
    assert bench.replies[-1].result == {"group": "a", "owner": None, "waits_for": 0}
    assert names(bench.join("one")) == ["a1"]


@pytest.mark.parametrize(
    ("name", "group", "refusal"),
    [
        ("exclusive", "b", "no group 'b' is known here"),
        ("exclusive", None, "name a group"),
        ("exclusive", 7, "group: must be text"),
        ("exclusive", "a", "the group is in transition (draining)"),
        ("concurrent", "a", "a concurrent lane has no groups"),
    ],
)
def test_o8_a_close_that_can_not_be_done_is_refused(name: str, group: object, refusal: str) -> None:
    bench = LaneBench(name)
    bench.join("one")
    bench.join("two")
    bench.arrive("a1")
    if name == "exclusive":
        bench.command(group="a", to="two" if bench.holder("a1") == "one" else "one")
    bench.command("groups.close", group=group)
    assert refusal in (bench.replies[-1].error or "")


def test_o9_ungrouped_messages_are_balanced() -> None:
    clause("O-9", "goes to the consumers with free capacity in turn (`ungrouped: balance`)")
    bench = LaneBench()
    bench.join("one")
    bench.join("two")
    bench.arrive("-1", "-2", "-3", "-4")
    holders = [bench.holder(f"-{n}") for n in (1, 2, 3, 4)]
    assert holders[0] != holders[1]
    assert holders[:2] == holders[2:]


def test_o9_ungrouped_messages_can_be_refused() -> None:
    clause("O-9", "to the dead queue (`reject`)")
    bench = LaneBench(ungrouped="reject")
    bench.join("one")
    assert bench.arrive("-1") == []
    assert bench.dead == [(b"-1", "ungrouped")]


def test_o9_ungrouped_messages_can_share_a_group() -> None:
    clause("O-9", "belongs to the named group (`group:<name>`)")
    bench = LaneBench(ungrouped="group:rest")
    bench.join("one")
    bench.join("two")
    bench.arrive("-1", "-2", "-3")
    assert len({bench.holder(f"-{n}") for n in (1, 2, 3)}) == 1


def test_o10_a_group_in_two_inbound_queues_has_one_owner() -> None:
    clause("O-10", "has one owner, and order per inbound queue")
    bench = LaneBench(weights=(1, 1))
    bench.join("one")
    bench.join("two")
    bench.arrive("a1", "a2", inbound=0)
    bench.arrive("a8", "a9", inbound=1)
    assert len({bench.holder(name) for name in ("a1", "a2", "a8", "a9")}) == 1
    order = names(bench.sent)
    assert order.index("a1") < order.index("a2")
    assert order.index("a8") < order.index("a9")


def test_o11_only_the_first_message_after_an_assignment_is_first() -> None:
    clause("O-11", "the first message of a group for a consumer after each assignment")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "a2")
    assert [bench.latest(name).first for name in ("a1", "a2")] == [True, False]
    bench.join("two")
    bench.die("one")
    assert [bench.latest(name).first for name in ("a1", "a2")] == [True, False]


def test_o12_what_a_leaving_consumer_holds_is_settled_before_its_groups_move() -> None:
    clause(
        "O-12",
        "Each of its groups changes its owner when the consumer has settled the messages "
        "that it has of that group",
    )
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1")
    bench.join("two")
    bench.leave("one")
    assert bench.arrive("a2") == []
    assert names(bench.settle("one", "a1")) == ["a2"]
    assert bench.holder("a2") == "two"


def test_o13_only_moved_groups_pause_until_they_are_settled() -> None:
    clause("O-13", "each only until its messages in flight are settled")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "b1")
    bench.join("two")
    bench.command(group="a", to="two")
    assert names(bench.arrive("a2", "b2")) == ["b2"]
    assert names(bench.settle("one", "a1")) == ["a2"]
    assert bench.holder("a2") == "two"


def test_o13_reset_leaves_every_group_unowned() -> None:
    clause("O-13", "`reset` leaves every group unowned")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "b1")
    bench.settle("one", "a1", "b1")
    bench.join("two")
    bench.command(reset=True)
    bench.arrive("a2", "b2")
    assert {bench.holder("a2"), bench.holder("b2")} == {"one", "two"}
