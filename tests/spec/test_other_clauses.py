"""docs/semantics.md, guarantees, shares, delivery, consumers: what the core alone decides."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from string import ascii_lowercase

import pytest

from dispatcher.core.bounds import WAITS_FOR_ID_MS
from dispatcher.core.events import DeadLetterConfirmed, PingRouted, QueueReturned
from dispatcher.core.model import GroupState
from dispatcher.core.views.views import SettledUnacked, Views
from dispatcher.wire.protocol import Heartbeat, InHand, Settle
from tests.spec import diagrams
from tests.spec.lane_bench import LaneBench, clause, names


def test_g1_what_is_handed_over_again_comes_before_every_later_one() -> None:
    clause("G-1", "comes before every later one of its group")
    bench = LaneBench()
    bench.join("one", prefetch=3)
    bench.arrive("a1", "a2", "a3", "a4", "a5")
    bench.settle("one", "a1")
    bench.join("two", prefetch=10)
    assert names(bench.die("one")) == ["a2", "a3", "a4", "a5"]
    assert [bench.latest(name).attempt for name in ("a2", "a5")] == [2, 1]


def test_g2_a_group_waits_for_the_settles_of_its_holder() -> None:
    clause("G-2", "never have unsettled messages of one group")
    bench = LaneBench("sequenced")
    bench.join("one", prefetch=1)
    bench.join("two", prefetch=1)
    bench.arrive("a1", "a2")
    assert names(bench.sent) == ["a1"]


def test_g5_a_blocked_group_holds_back_no_other() -> None:
    clause("G-5", "A blocked group never holds back another")
    bench = LaneBench()
    bench.join("one", prefetch=1)
    bench.join("two", prefetch=1)
    bench.arrive("a1", "a2", "a3", "a4", "a5")
    assert names(bench.arrive("b1")) == ["b1"]


def test_g5_why_names_what_a_full_look_ahead_is_full_of() -> None:
    clause("G-5", "`groups why` and `status` name the groups that fill them")
    bench = LaneBench(look_ahead=3)
    bench.arrive("a1", "a2", "b1")
    views = Views(bench.lane.state)
    listing = views.listing({})
    assert listing.look_at(2)
    views.listed(listing)
    details = views.why({"group": "b"})["details"]
    assert details == ["look-ahead of in0 is full: 2 messages of group a, 0 messages in flight"]


def test_g5_status_counts_what_leaves_a_full_look_ahead() -> None:
    """It is as full of these as of others, and none of them waits or is in flight."""
    clause("G-5", "`groups why` and `status` name the groups that fill them")
    bench = LaneBench(look_ahead=3)
    bench.arrive("a1", "a2", "a3", refusal="bad header")
    (row,) = Views(bench.lane.state).status()["inbound"]
    assert row["full_of"] == "0 messages in flight, 3 messages on the way to another queue"


def test_g5_status_says_when_bytes_fill_the_look_ahead() -> None:
    clause("G-5", "`groups why` and `status` name the groups that fill them")
    bench = LaneBench(look_ahead_bytes=2_000)
    bench.arrive("a1", "a2", "a3")
    state = bench.lane.state
    (row,) = Views(state).status()["inbound"]
    assert row["full_of"].endswith(f"all queues together have {state.bytes_held} bytes here")


def _ungrouped_reason(bench: LaneBench) -> str | None:
    (row,) = Views(bench.lane.state).status()["inbound"]
    hold = row["ungrouped_hold"]
    return None if hold is None else hold["reason"]


def test_g5_status_says_why_messages_without_a_group_wait() -> None:
    clause("G-5", "`status` says why messages without a group wait")
    bench = LaneBench("concurrent")
    assert _ungrouped_reason(bench) is None
    bench.arrive("-1", "-2", "-3")
    assert _ungrouped_reason(bench) == "no_consumer"
    bench.join("one", prefetch=2)
    assert _ungrouped_reason(bench) == "no_capacity"
    bench.settle("one", "-1", "-2")
    assert _ungrouped_reason(bench) is None


def test_g5_status_says_that_ids_are_at_their_limit() -> None:
    clause("G-5", "`status` says why messages without a group wait")
    bench = LaneBench("concurrent", max_in_flight_per_group=1)
    bench.join("one", prefetch=10)
    bench.arrive("a1", "a2", "b1")
    assert _ungrouped_reason(bench) == "group_limit_full"
    bench.settle("one", "a1")
    assert _ungrouped_reason(bench) is None


def test_why_names_acks_that_are_kept_back_for_long() -> None:
    bench = LaneBench()
    bench.arrive("a1")
    for for_ms, told in ((999, 0), (1_000, 1)):
        unacked = SettledUnacked(12, for_ms)
        views = Views(bench.lane.state, unacked=lambda _, unacked=unacked: unacked)  # type: ignore[misc]
        details = [text for text in views.why({"group": "a"})["details"] if "not acked" in text]
        assert len(details) == told
        (row,) = views.status()["inbound"]
        assert (row["settled_unacked"], row["settled_unacked_ms"]) == (12, for_ms)


def test_f1_weights_are_ratios_of_messages() -> None:
    clause("F-1", "Weights 10 and 1 give ten messages and one")
    bench = LaneBench("concurrent", weights=(10, 1))
    bench.arrive(*(f"a{n}" for n in range(1, 101)), inbound=0)
    bench.arrive(*(f"b{n}" for n in range(1, 101)), inbound=1)
    bench.join("one", prefetch=66)
    assert Counter(name[0] for name in names(bench.sent)) == {"a": 60, "b": 6}


def test_f1_the_ratio_holds_for_a_consumer_that_takes_one_at_a_time() -> None:
    clause("F-1", "lasts while the deficit covers the cost of its next message")
    bench = LaneBench("concurrent", weights=(3, 1))
    bench.arrive(*(f"a{n}" for n in range(1, 41)), inbound=0)
    bench.arrive(*(f"b{n}" for n in range(1, 41)), inbound=1)
    bench.join("one", prefetch=1)
    for _ in range(39):
        bench.settle("one", names(bench.sent)[-1])
    assert Counter(name[0] for name in names(bench.sent)) == {"a": 30, "b": 10}


@pytest.mark.seed("D6")
def test_f2_an_idle_queue_saves_nothing_up() -> None:
    clause("F-2", "A queue that ran empty loses its saved credit")
    bench = LaneBench("concurrent", weights=(5, 5))
    bench.join("one", prefetch=1000)
    bench.arrive("a1", inbound=0)
    bench.arrive(*(f"b{n}" for n in range(1, 51)), inbound=1)
    assert bench.lane.state.inbounds[0].deficit <= 0


@pytest.mark.seed("D13")
def test_f3_a_blocked_queue_earns_no_credit() -> None:
    clause("F-3", "A queue whose messages are all blocked earns no credit")
    bench = LaneBench("sequenced", weights=(1, 1))
    bench.join("one", prefetch=2)
    bench.join("two", prefetch=1000)
    bench.arrive("a1", inbound=0)
    bench.arrive("a2", "a3", inbound=0)
    for turn in range(20):
        bench.arrive(*(f"{chr(98 + turn)}{n}" for n in range(1, 5)), inbound=1)
    assert bench.lane.state.inbounds[0].deficit <= bench.lane.state.inbounds[0].weight + 1


@pytest.mark.seed("D13")
def test_f3_a_queue_that_was_blocked_comes_back_with_little() -> None:
    clause("F-3", "It loses the credit that it has beyond the cost of its next message")
    bench = LaneBench("sequenced", weights=(10, 10))
    bench.join("one", prefetch=1)
    bench.arrive("a1", "a2", "a3", inbound=0)
    bench.join("two", prefetch=1)
    bench.arrive("b1", inbound=1)
    assert bench.lane.state.inbounds[0].deficit == 9, "a1 took one of its turn, a2 is blocked"
    bench.settle("one", "a1")
    assert bench.holder("a2") == "one"
    assert bench.lane.state.inbounds[0].deficit == 1 + 10 - 1, "a3 is blocked now"


def test_f4_consumers_are_served_in_turn() -> None:
    clause("F-4", "Inside one inbound queue consumers, and for one consumer its groups, are served in turn")
    bench = LaneBench()
    bench.join("one")
    bench.join("two")
    sent = bench.arrive(*(f"{group}{number}" for group in "ab" for number in range(1, 6)))
    holders = [copy.incarnation for copy in sent]
    assert len(holders) == 10
    assert all(first != second for first, second in pairwise(holders[1:])), holders


def test_f4_groups_of_one_consumer_are_served_in_turn() -> None:
    clause("F-4", "for one consumer its groups, are served in turn")
    bench = LaneBench()
    bench.join("one", prefetch=2)
    bench.arrive("a1", "b1")
    bench.arrive("a2", "a3", "b2", "b3")
    bench.settle("one", "a1", "b1")
    assert sorted(names(bench.sent[2:])) == ["a2", "b2"]


@pytest.mark.parametrize("waits", ["b1", "-1"])
@pytest.mark.parametrize("stops", [True, False])
def test_f4_what_has_no_owner_is_not_passed_over_for_ever(waits: str, stops: bool) -> None:
    """A place came free with each settle, and the owner's groups could be listed first each time."""
    clause("F-4", "none of these is passed over more than 16 times in a row")
    bench = LaneBench(stops_failed=stops)
    bench.join("one", prefetch=1)
    bench.arrive(*(f"a{number}" for number in range(1, 41)))
    bench.arrive(waits)
    for _ in range(17):
        bench.settle("one", names(bench.sent)[-1])
    assert waits in names(bench.sent)


def test_f4_what_comes_while_there_is_no_room_takes_no_turn() -> None:
    """Each arrival is looked at, and finds its consumer full: it was not passed over."""
    clause("F-4", "none of these is passed over more than 16 times in a row")
    bench = LaneBench()
    bench.join("one", prefetch=1)
    bench.arrive("-1", "u1")
    for number in range(2, 340):
        bench.arrive(f"-{number}")
        if number % 20 == 0:
            bench.settle("one", names(bench.sent)[-1])
    assert "u1" in names(bench.sent)


@pytest.mark.parametrize("others", ["groups", "-"])
def test_f4_an_owners_group_is_not_passed_over_for_ever(others: str) -> None:
    """Of groups without an owner, and of messages without a group, new ones come all the time."""
    clause("F-4", "none of these is passed over more than 16 times in a row")
    bench = LaneBench()
    bench.join("one", prefetch=1)
    bench.arrive("a1", "a2")
    for letter in ascii_lowercase[1:]:
        bench.arrive(f"-{letter}" if others == "-" else f"{letter}1")
    for _ in range(18):
        bench.settle("one", names(bench.sent)[-1])
    assert "a2" in names(bench.sent)


def test_d1_nobody_gets_more_than_its_prefetch() -> None:
    clause("D-1", "never has more unsettled messages than its prefetch")
    bench = LaneBench("concurrent")
    bench.join("one", prefetch=4)
    assert len(bench.arrive(*(f"a{n}" for n in range(1, 11)))) == 4
    assert len(bench.settle("one", "a2")) == 1


def test_d1_who_joins_again_with_less_gets_nothing_until_it_has_less() -> None:
    clause("D-1", "gets nothing new until it has fewer than that")
    bench = LaneBench("concurrent")
    bench.join("one", prefetch=4)
    bench.arrive(*(f"a{n}" for n in range(1, 11)))
    bench.join("one", prefetch=2, n=2)
    assert not bench.settle("one", "a1", "a2")
    assert names(bench.settle("one", "a3")) == ["a5"]
    bench.join("one", prefetch=4, n=3)
    assert names(bench.sent)[-2:] == ["a6", "a7"]


def test_d3_what_expires_while_it_waits_is_dead_lettered() -> None:
    clause("D-3", "goes to the dead queue as `expired`. In flight only its consumer may fail it")
    bench = LaneBench()
    bench.join("one", prefetch=1)
    deadline_ms = bench.now_ms + 100
    bench.arrive("a1", "a2", deadline_at_ms=deadline_ms)
    bench.step(after_ms=200)
    assert bench.dead == [(b"a2", "expired")]


def test_d4_a_failed_message_is_dead_lettered_and_its_followers_go_on() -> None:
    clause("D-4", "goes to the dead queue with the consumer's reason; the followers go on")
    bench = LaneBench("sequenced")
    bench.join("one", prefetch=1)
    bench.arrive("a1", "a2")
    assert names(bench.fail("one", "a1", "no such customer")) == ["a2"]
    assert bench.dead == [(b"a1", "no such customer")]
    assert bench.acked == [], "the original waits for the dead queue's confirm"
    bench.step(DeadLetterConfirmed(bench.latest("a1").message))
    assert bench.acked == [b"a1"]


def test_d6_settles_of_what_is_not_theirs_are_counted_and_ignored() -> None:
    clause("D-6", "are counted and ignored; the known part of a range applies")
    bench = LaneBench()
    bench.join("one")
    bench.join("two")
    bench.arrive("a1")
    seq = bench.latest("a1").seq
    other = "two" if bench.holder("a1") == "one" else "one"
    bench.step(Settle(consumer=other, incarnation=f"{other}-1", acked=((seq, seq),)))
    assert bench.acked == []
    assert bench.lane.state.counters["settles_ignored"] == 1
    bench.step(after_ms=600)
    assert ("settles_ignored", {"consumer": other, "count": 1}) in bench.told
    holder = bench.holder("a1")
    bench.step(Settle(consumer=other, incarnation=f"{holder}-1", acked=((seq, seq),)))
    assert bench.acked == [], "the incarnation is another's"
    bench.step(Settle(consumer=holder, incarnation=f"{holder}-1", acked=((1, seq + 100),)))
    assert bench.acked == [b"a1"]


def test_c1_nothing_is_taken_back_before_the_marker_is_read() -> None:
    clause("C-1", "when every settle that was confirmed to it has been read, it is taken back")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "a2")
    bench.join("two")
    assert bench.step(QueueReturned("one-1.1")) == []
    bench.settle("one", "a1")
    assert bench.acked == [b"a1"]
    assert names(bench.step(bench.marker())) == ["a2"]


@pytest.mark.parametrize("sent_after_ms", [1, 124, 126, 250, 374, 499])
def test_c1_a_queue_is_asked_after_in_time_whenever_the_last_message_went_to_it(sent_after_ms: int) -> None:
    clause("C-1", "at the latest `liveness_interval` after the last")
    bench = LaneBench(liveness_interval_ms=500)
    bench.join("one")
    bench.arrive("a1")
    _run_timers_until_pinged(bench, "one-1.1")
    bench.step(PingRouted("one-1.1"))
    bench.arrive("a2", after_ms=sent_after_ms)
    bench.step(PingRouted("one-1.1"), after_ms=0)  # that of a round which was due then
    sent_at_ms = bench.now_ms
    _run_timers_until_pinged(bench, "one-1.1")
    assert bench.now_ms - sent_at_ms <= 500


def test_c1_the_queue_of_who_owns_a_group_is_asked_after_too() -> None:
    clause("C-1", "at the latest `liveness_interval` after the last")
    bench = LaneBench(liveness_interval_ms=500)
    bench.join("one")
    bench.arrive("a1")
    bench.settle("one", "a1")
    since_ms = bench.now_ms
    _run_timers_until_pinged(bench, "one-1.1")
    assert bench.now_ms - since_ms <= 500, "its heartbeats would tell much later"


def test_c1_the_grace_passes_before_a_consumer_is_taken_back() -> None:
    clause("C-1", "After `reconnect_grace`, and when every settle")
    bench = LaneBench(reconnect_grace_ms=5_000)
    bench.join("one")
    bench.step(QueueReturned("one-1.1"))
    bench.step(after_ms=4_998)
    assert not bench.markers
    bench.step(after_ms=2)
    assert [marker.incarnation for marker in bench.markers] == ["one-1"]


def _run_timers_until_pinged(bench: LaneBench, queue: str) -> None:
    bench.notices.clear()
    while (queue, "dispatch.ping") not in bench.notices:
        due_at_ms = bench.lane.next_deadline_ms()
        assert due_at_ms is not None
        bench.step(after_ms=due_at_ms - bench.now_ms)


def test_c2_a_join_with_a_larger_n_brings_it_back_with_what_it_has() -> None:
    clause(
        "C-2",
        "it keeps the messages that it has, and gets the messages that it misses again with the same seq",
    )
    bench = LaneBench(reconnect_grace_ms=5_000)
    bench.join("one")
    bench.arrive("a1", "a2")
    bench.step(QueueReturned("one-1.1"))
    held = InHand(seq=bench.latest("a1").seq, group=b"a", fingerprint=b"a1".ljust(16, b"\0"))
    bench.join("one", n=2, in_hand=(held,))
    assert {m.state.value for m in bench.lane.state.by_id["one"].in_flight.values()} == {"in flight"}
    assert bench.lane.state.counters["sent_again"] == 1


def test_c2_a_marker_of_an_earlier_connection_says_nothing() -> None:
    clause("C-2", "A join of the same incarnation with a larger `n` before that brings it back")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1")
    bench.join("two")
    bench.step(QueueReturned("one-1.1"))
    early = bench.marker()
    bench.join("one", n=2)
    bench.step(QueueReturned("one-1.2"))
    assert bench.step(early) == []
    assert names(bench.step(bench.marker())) == ["a1"]


def test_c3_a_second_incarnation_waits_until_the_first_is_gone() -> None:
    clause("C-3", "the second is told to wait until the first is gone")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1")
    bench.join("one", uuid="one-2")
    assert ("one-2.1", "dispatch.wait") in bench.notices
    assert [event for event, _ in bench.told if event == "consumer_id_in_use"] == [], "it may be a restart"
    assert Views(bench.lane.state).status()["consumers_waiting"] == 1
    for _ in range(2):
        bench.join("one", uuid="one-2")
    (told,) = [fields for event, fields in bench.told if event == "consumer_id_in_use"]
    assert told == {"consumer": "one", "incarnation": "one-2", "owner": "one-1"}
    assert Views(bench.lane.state).consumers()["consumers"][0]["id_wanted_by"] == "one-2"
    assert names(bench.die("one")) == ["a1"]
    assert Views(bench.lane.state).status()["consumers_waiting"] == 0
    assert ("one-2.1", "dispatch.welcome") in bench.notices


def test_c3_who_does_not_ask_any_more_is_not_told_of() -> None:
    clause("C-3", "the second is told to wait until the first is gone")
    bench = LaneBench()
    bench.join("one")
    bench.join("one", uuid="one-2")
    bench.step(after_ms=WAITS_FOR_ID_MS)
    assert Views(bench.lane.state).status()["consumers_waiting"] == 0


def test_c4_a_frozen_consumer_gets_no_new_groups() -> None:
    clause("C-4", "misses three heartbeats gets no new groups until it is heard of again")
    bench = LaneBench()
    bench.join("one")
    bench.step(after_ms=15_001)
    assert bench.arrive("a1") == []
    beat = Heartbeat(consumer="one", incarnation="one-1", queue="one-1.1", held=0, last=0)
    assert names(bench.step(beat)) == ["a1"]


def test_c4_a_silent_consumer_without_anything_is_looked_after_too() -> None:
    clause("C-4", "misses three heartbeats")
    bench = LaneBench("sequenced")
    bench.join("one")
    bench.step(after_ms=15_001)
    bench.notices.clear()
    bench.step(PingRouted("one-1.1"), after_ms=600)
    assert bench.notices == [("one-1.1", "dispatch.ping")], "or its death would never be seen"
    bench.die("one")
    assert "one" not in bench.lane.state.by_id


def test_c5_a_word_of_a_former_incarnation_is_answered_with_taken() -> None:
    clause("C-5", "is answered with `dispatch.taken`")
    bench = LaneBench()
    bench.join("one")
    bench.die("one")
    bench.join("one", n=2)
    assert ("one-1.2", "dispatch.taken") in bench.notices


def test_every_word_about_a_consumer_is_told() -> None:
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "a2")
    bench.fail("one", "a2", "no")
    bench.die("one")
    bench.join("two")
    bench.leave("two")
    assert [event for event, _ in bench.told] == [
        "consumer_joined",
        "message_failed",
        "message_dead_lettered",
        "consumer_lost",
        "consumer_taken_back",
        "consumer_joined",
        "consumer_leaving",
    ]


def test_a_command_that_was_done_is_known_by_its_uuid() -> None:
    bench = LaneBench()
    bench.join("one")
    bench.command(reset=True)
    uuid = bench.command_uuids[-1]
    assert bench.lane.commands.is_known(uuid)
    assert not bench.lane.commands.is_known("another")


def test_the_state_diagrams_are_those_of_the_tables() -> None:
    page = diagrams.PAGE.read_text()
    assert diagrams.with_diagrams(page) == page, "run `python -m tests.spec.diagrams`"
    assert {state.value for state in GroupState} <= set(page.split())
