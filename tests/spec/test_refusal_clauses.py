"""Copies over which RabbitMQ closes the channel (D-8): what becomes of them, and of their neighbours."""

from __future__ import annotations

import pytest

from dispatcher.core.events import CopyRefused, DeadLetterConfirmed, DeadLetterRefused
from dispatcher.core.model import GroupState
from dispatcher.core.records import DeadLetterPending, Dispatched, OpenEntry
from dispatcher.core.views.views import Views
from dispatcher.errors import CommandRefused
from tests.spec.flag_bench import says
from tests.spec.lane_bench import LaneBench, clause, name_of, names

PROBLEM = "406 PRECONDITION_FAILED - message size 9 is larger than configured max size 8"


def refuse(bench: LaneBench, name: str) -> list[Dispatched]:
    """RabbitMQ closed the channel over the latest copy of this message; returns what was sent again."""
    before = len(bench.again)
    bench.step(CopyRefused(bench.latest(name), PROBLEM))
    return bench.again[before:]


def numbers(copies: list[Dispatched]) -> list[tuple[str, int]]:
    return [(name_of(copy), copy.group_seq) for copy in copies]


def test_d8_it_is_dead_lettered_and_its_followers_go_on_under_a_new_epoch() -> None:
    clause("D-8", "It goes to the dead queue as `unpublishable` with RabbitMQ's words")
    clause("D-8", "Those before it in its group keep their numbers")
    clause("D-8", "those after it go on in order under a new epoch")
    bench = LaneBench()
    bench.join("one")
    sent = bench.arrive("a1", "a2", "a3", "b1", "a4")
    again = refuse(bench, "a2")
    assert bench.dead == [(b"a2", f"unpublishable: {PROBLEM}")]
    assert numbers(again) == [("a3", 1), ("a4", 2)]
    assert {copy.epoch > sent[0].epoch for copy in again} == {True}
    assert [copy.seq for copy in again] == [bench.latest("a3").seq, bench.latest("a4").seq]
    (follower,) = bench.arrive("a5")
    assert (follower.group_seq, follower.epoch) == (3, again[0].epoch)
    bench.settle("one", "a1", "a3", "a4", "a5", "b1")
    assert set(bench.acked) == {b"a1", b"a3", b"a4", b"a5", b"b1"}


def test_d8_with_nothing_behind_it_the_next_message_begins_the_new_epoch() -> None:
    clause("D-8", "those after it go on in order under a new epoch")
    bench = LaneBench()
    bench.join("one")
    first, _ = bench.arrive("a1", "a2")
    assert not refuse(bench, "a2")
    (follower,) = bench.arrive("a3")
    assert follower.group_seq == 1
    assert follower.epoch > first.epoch


def test_d8_followers_of_several_epochs_stay_in_order() -> None:
    clause("D-8", "those after it go on in order under a new epoch")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "a2", "a3", "a4", "a5", "a6")
    assert numbers(refuse(bench, "a4")) == [("a5", 1), ("a6", 2)]
    assert numbers(refuse(bench, "a2")) == [("a3", 1), ("a5", 2), ("a6", 3)]


def test_d8_what_is_committed_says_so() -> None:
    clause("D-8", "It goes to the dead queue")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "a2", "a3")
    effects = bench.lane.step([CopyRefused(bench.latest("a2"), PROBLEM)], bench.now_ms)
    ended, moved = effects.records
    assert isinstance(ended, DeadLetterPending)
    assert isinstance(moved, OpenEntry)
    assert (ended.fingerprint[:2], moved.fingerprint[:2], moved.group_seq) == (b"a2", b"a3", 1)


def test_d8_its_consumer_has_room_for_another() -> None:
    clause("D-8", "It goes to the dead queue")
    bench = LaneBench()
    bench.join("one", prefetch=2)
    bench.arrive("a1", "b1", "c1")
    assert names(bench.sent) == ["a1", "b1"]
    bench.step(CopyRefused(bench.latest("b1"), PROBLEM))
    assert names(bench.sent) == ["a1", "b1", "c1"]


@pytest.mark.parametrize("policy", ["exclusive", "sequenced"])
def test_d8_the_only_message_in_flight_frees_its_group_as_a_failed_one_does(policy: str) -> None:
    clause("D-8", "It goes to the dead queue")
    bench = LaneBench(policy)
    bench.join("one", prefetch=1)
    bench.arrive("a1", "a2")
    bench.step(CopyRefused(bench.latest("a1"), PROBLEM))
    assert names(bench.sent) == ["a1", "a2"]
    assert bench.latest("a2").group_seq == 1
    assert bench.latest("a2").epoch > bench.latest("a1").epoch


def test_d8_in_a_batch_the_rest_goes_on_and_the_batch_still_ends() -> None:
    clause("D-8", "those after it go on in order under a new epoch")
    bench = LaneBench("sequenced")
    bench.join("one", prefetch=3)
    bench.join("two", prefetch=3)
    bench.arrive("a1", "a2", "a3", "a4")
    assert numbers(refuse(bench, "a1")) == [("a2", 1), ("a3", 2)]
    bench.settle("one", "a2")
    assert names(bench.sent) == ["a1", "a2", "a3"]
    bench.settle("one", "a3")
    assert names(bench.sent) == ["a1", "a2", "a3", "a4"]


def test_d8_the_first_header_goes_to_the_next_one() -> None:
    clause("O-11", "the first message of a group for a consumer after each assignment carries that header")
    bench = LaneBench()
    bench.join("one")
    assert [copy.first for copy in bench.arrive("a1", "a2")] == [True, False]
    assert [copy.first for copy in refuse(bench, "a1")] == [True]
    bench.arrive("b1")
    refuse(bench, "b1")
    assert [copy.first for copy in bench.arrive("b2")] == [True]


def test_d8_a_message_without_a_group_ends_alone() -> None:
    clause("D-8", "It goes to the dead queue")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("-1", "-2")
    assert not refuse(bench, "-1")
    assert bench.dead == [(b"-1", f"unpublishable: {PROBLEM}")]
    bench.settle("one", "-2")
    assert bench.acked == [b"-2"]


def test_d8_a_copy_that_is_over_is_not_ended_again() -> None:
    clause("D-8", "The dispatcher finds a message whose copy makes RabbitMQ close the channel")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "a2")
    old = bench.latest("a2")
    bench.settle("one", "a1")
    bench.die("one")
    bench.join("two")
    assert bench.holder("a2") == "two"
    bench.step(CopyRefused(old, PROBLEM), CopyRefused(bench.latest("a1"), PROBLEM))
    assert not bench.dead
    assert bench.holder("a2") == "two"


def test_d8_to_a_consumer_that_is_away_the_followers_are_sent_when_it_returns() -> None:
    clause("D-8", "those after it go on in order under a new epoch")
    bench = LaneBench(reconnect_grace_ms=5_000)
    bench.join("one")
    first, _, _ = bench.arrive("a1", "a2", "a3")
    bench.step(bench.returned("one"))
    assert not refuse(bench, "a2")
    bench.join("one", n=2, in_hand=(bench.in_hand("a1"),))
    (again,) = bench.again
    assert (name_of(again), again.group_seq) == ("a3", 1)
    assert again.epoch > first.epoch


def test_d8_what_even_the_dead_queue_refuses_is_shown_until_it_is_taken() -> None:
    clause("D-8", "If RabbitMQ refuses it for the dead queue too, it stays in its inbound queue")
    clause("D-8", "`status` and `groups why` show it")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "a2")
    bench.settle("one", "a1")
    message = bench.latest("a2").message
    refuse(bench, "a2")
    bench.step(DeadLetterRefused(message, PROBLEM), DeadLetterRefused(message, PROBLEM))
    views = Views(bench.lane.state)
    assert views.status()["undeliverable"] == 1
    why = views.why({"group": "a"})
    (detail,) = why["details"]
    assert says(detail, "undeliverable", "message 7.2", "100 bytes", f"unpublishable: {PROBLEM}", "in0")
    assert bench.acked == [b"a1"]
    bench.step(DeadLetterConfirmed(message))
    assert views.status()["undeliverable"] == 0
    assert not views.why({"group": "a"})["details"]
    assert bench.acked == [b"a1", b"a2"]


def test_d8_a_group_of_which_nothing_else_is_left_is_still_explained() -> None:
    clause("D-8", "`status` and `groups why` show it")
    bench = LaneBench("sequenced")
    bench.join("one")
    bench.arrive("a1")
    message = bench.latest("a1").message
    refuse(bench, "a1")
    views = Views(bench.lane.state)
    with pytest.raises(CommandRefused):
        views.why({"group": "a"})
    bench.step(DeadLetterRefused(message, PROBLEM))
    assert "a" not in {group.id.decode() for group in bench.lane.state.groups.values()}
    why = views.why({"group": "a"})
    assert (why["reason"], why["verdict"] is None) == (None, False)
    (detail,) = why["details"]
    assert says(detail, "undeliverable", PROBLEM, "in0")
    assert views.group({"group": "a"})["state"] == GroupState.FREE.value
