"""docs/semantics.md, C-10: copies that got lost on their way to a consumer that is there."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.events import PublishersBlocked
from dispatcher.wire.protocol import Heartbeat, InHand
from tests.spec.lane_bench import LaneBench, clause

BEAT_MS = 1_000


def with_three(name: str = "exclusive", **options: Any) -> tuple[LaneBench, list[int]]:
    """A consumer with one message of each of three groups, and their numbers."""
    bench = LaneBench(name, heartbeat_ms=BEAT_MS, **options)
    bench.join("one")
    bench.arrive("a1", "b1", "c1")
    return bench, [copy.seq for copy in bench.sent]


def beats(bench: LaneBench, count: int, in_hand: list[int] | None, *, held: int | None = None) -> int:
    """So many heartbeats; how often it was asked to join again."""
    asked = bench.notices.count(("one-1.1", "dispatch.rejoin"))
    ranges = None if in_hand is None else tuple((seq, seq) for seq in in_hand)
    for _ in range(count):
        beat = Heartbeat(
            consumer="one", incarnation="one-1", queue="one-1.1", last=0, in_hand=ranges,
            held=len(in_hand or ()) if held is None else held,
        )  # fmt: skip
        bench.step(beat, after_ms=BEAT_MS)
    return bench.notices.count(("one-1.1", "dispatch.rejoin")) - asked


@pytest.mark.parametrize("name", ["exclusive", "sequenced", "concurrent"])
def test_c10_what_heartbeats_do_not_name_is_sent_again(name: str) -> None:
    clause("C-10", "that the present one does not name as in hand, is lost")
    bench, (a, b, c) = with_three(name)
    assert beats(bench, 3, [a, c]) == 0
    assert beats(bench, 1, [a, c]) == 1
    assert ("copies_missed", {"consumer": "one", "copies": 1}) in bench.told
    held = tuple(
        InHand(seq=copy.seq, group=copy.message.group_id, fingerprint=copy.message.fingerprint)
        for copy in bench.sent
        if copy.seq != b
    )
    bench.join("one", n=2, in_hand=held)
    assert [copy.seq for copy in bench.again] == [b]


def test_c10_it_is_asked_once_in_three_heartbeats() -> None:
    clause("C-10", "at most once in three heartbeats")
    bench, (a, _, _) = with_three()
    assert beats(bench, 16, [a]) == 5


def test_c10_a_consumer_that_joins_in_vain_is_asked_less_and_less() -> None:
    """Its link is slow: what is sent again comes behind what is on its way, and makes that later."""
    clause("C-10", "each time it has joined again and lacks some as before, the pause is twice as long")
    bench, (a, _, _) = with_three()
    pauses, beats_since = [], 0
    for _ in range(150):
        beats_since += 1
        n = len(pauses) + 1
        before = len(bench.notices)
        beat = Heartbeat(
            consumer="one", incarnation="one-1", queue=f"one-1.{n}", last=0, in_hand=((a, a),), held=1
        )
        bench.step(beat, after_ms=BEAT_MS)
        if (f"one-1.{n}", "dispatch.rejoin") in bench.notices[before:]:
            pauses.append(beats_since)
            beats_since = 0
            bench.join("one", n=n + 1, in_hand=(bench.in_hand("a1"),))
    assert pauses[2:6] == [6, 12, 24, 48]


def test_c10_what_was_handed_over_lately_is_perhaps_on_its_way() -> None:
    clause("C-10", "handed over before the third last one")
    bench, in_hand = with_three()
    for n in range(7):
        bench.arrive(f"d{n}")
        assert beats(bench, 1, in_hand) == 0
        in_hand.append(bench.latest(f"d{n}").seq)


def test_c10_who_has_everything_is_asked_nothing() -> None:
    bench, in_hand = with_three()
    assert beats(bench, 20, in_hand) == 0
    bench.settle_seqs("one", *in_hand)
    assert beats(bench, 20, []) == 0


def test_c10_who_says_only_how_many() -> None:
    clause("C-10", "when they are fewer than were handed over before the third last heartbeat")
    bench, _ = with_three()
    assert beats(bench, 10, None, held=3) == 0
    assert beats(bench, 3, None, held=2) == 1


def test_c10_not_while_rabbitmq_takes_nothing() -> None:
    """Nothing that the consumer settles, and no copy, gets through then."""
    bench, _ = with_three()
    bench.step(PublishersBlocked(True))
    assert beats(bench, 20, []) == 0


def test_c10_a_heartbeat_that_rabbitmq_held_back_comes_before_the_settles() -> None:
    """It names nothing, for all was handled meanwhile. What was heard before the alarm is not counted."""
    clause("C-10", "heartbeats count only from then on")
    bench, (a, b, c) = with_three()
    assert beats(bench, 3, [a, b, c]) == 0
    bench.step(PublishersBlocked(True))
    bench.step(PublishersBlocked(False), after_ms=20 * BEAT_MS)
    assert beats(bench, 3, []) == 0
    assert beats(bench, 1, []) == 1


def test_c10_heartbeats_that_come_all_at_once_are_old() -> None:
    """RabbitMQ took nothing for a while: what they name is from then."""
    bench, _ = with_three()
    for _ in range(10):
        beat = Heartbeat(consumer="one", incarnation="one-1", queue="one-1.1", last=0, in_hand=(), held=0)
        bench.step(beat)
    assert bench.lane.state.counters["copies_missed"] == 0


def test_c10_a_new_connection_has_its_own_heartbeats() -> None:
    bench, (a, b, c) = with_three()
    assert beats(bench, 3, [a, c]) == 0
    bench.join("one", n=2, in_hand=tuple(bench.in_hand(name) for name in ("a1", "c1")))
    assert [copy.seq for copy in bench.again] == [b]
    assert beats(bench, 20, [a, c]) == 0, "over its former queue"
