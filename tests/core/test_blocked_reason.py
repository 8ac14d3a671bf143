"""Every cause for which something waits has a code and a sentence, and the sentence is English."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from dispatcher.core.holds import Hold, HoldKind
from dispatcher.core.state import LaneState
from dispatcher.core.views.blocked_reason import text
from tests.spec.hand_over_bench import HandOverBench
from tests.spec.lane_bench import LaneBench

_OWNER: Final = {
    "consumer": "one", "is_owner": True, "state": "lost", "prefetch": 2, "in_flight": 2, "queue": "q",
    "queued": None, "read_back": False, "in_flight_of": [],
}  # fmt: skip
_STOP: Final = {"failure": "no stock", "attempt": 1, "calls": 1, "consumer": "one", "decision": None}
_OUT: Final = {"in_flight": 1, "consumer": "one", "target": None}

CASES: Final[list[tuple[HoldKind, dict[str, Any], str]]] = [
    (HoldKind.PUBLISHERS_BLOCKED, {}, "RabbitMQ blocks publishers: it is short of memory or disk."),
    (
        HoldKind.READING_BACK,
        {},
        "Messages from the queue of a hand-over consumer that is gone go to others first.",
    ),
    (HoldKind.LANE_PAUSED, {}, "The lane is paused by an operator, until `dispatcher groups resume --all`."),
    (
        HoldKind.STOPPING,
        {},
        "This dispatcher stops leading the lane: the next leader goes on with it.",
    ),
    (
        HoldKind.CONSUMERS_ASKED,
        {"left_ms": 300},
        "Redis may have forgotten messages in flight: waiting 300 ms more for the consumers' word.",
    ),
    (
        HoldKind.QUIESCING,
        {"in_flight": 4, "consumers": {"one": 3, "two": 1}},
        "A rebalance holds the lane until 4 in flight are settled: one has 3, two has 1.",
    ),
    (
        HoldKind.QUIESCING,
        {"in_flight": 1, "consumers": {"one": 1}},
        "A rebalance holds the lane until 1 in flight is settled: one has 1.",
    ),
    (
        HoldKind.NOT_BEGUN,
        {"consumers": 1, "wanted": 3, "left_ms": 1_500},
        "The lane has not begun, 1 of 3 consumers are here: it begins in 1500 ms at the latest.",
    ),
    (
        HoldKind.NOT_BEGUN,
        {"consumers": 1, "wanted": 0, "left_ms": 1_500},
        "The lane has not begun: it begins in 1500 ms at the latest.",
    ),
    (
        HoldKind.NOT_BEGUN,
        {"consumers": 0, "wanted": 3},
        "The lane has not begun: no consumer has joined it.",
    ),
    (HoldKind.UNCONFIRMED, {}, "RabbitMQ has to confirm some copies to consumers first."),
    (
        HoldKind.ONE_AT_A_TIME,
        _OUT,
        "One message of a group is out at a time in this lane: waits until 1 message at one is settled.",
    ),
    (
        HoldKind.TRANSFERRING,
        {"operation": "u7", "pin": None, "is_there": False},
        "The operation u7 sends it away: what stays waits until that is done.",
    ),
    (
        HoldKind.STOPPED,
        _STOP,
        "Stopped at a message that failed: no stock (handed over once, 1 call of its handler, last by one), "
        "until `dispatcher dead release`, `skip` or `drop`.",
    ),
    (
        HoldKind.DECIDED,
        {**_STOP, "attempt": 2, "calls": 3, "decision": "skip"},
        "Stopped at a message that failed: no stock (handed over twice, 3 calls of its handler, last by "
        "one). To be skipped when it is read.",
    ),
    (HoldKind.PAUSED, {}, "Paused by an operator, until `dispatcher groups resume`."),
    (
        HoldKind.PAUSED,
        {"paused_at_ms": 1_790_000_000_000},
        "Paused by an operator since 2026-09-21 14:13:20 UTC, until `dispatcher groups resume`.",
    ),
    (HoldKind.PIN_ABSENT, {"pin": "one", "is_there": False}, "Pinned to one, which is not there."),
    (HoldKind.PIN_ABSENT, {"pin": "one", "is_there": True}, "Pinned to one, which is drained."),
    (
        HoldKind.RECOVERING,
        {"unresolved": 1},
        "Recovering: 1 of its messages has not come back from RabbitMQ yet.",
    ),
    (
        HoldKind.RECOVERING,
        {"unresolved": 2},
        "Recovering: 2 of its messages have not come back from RabbitMQ yet.",
    ),
    (
        HoldKind.DRAINING,
        _OUT,
        "Changing hands to the next consumer that takes it: waits until 1 in flight is settled.",
    ),
    (
        HoldKind.DRAINING,
        {**_OUT, "in_flight": 2, "target": "two"},
        "Changing hands to two: waits until 2 in flight are settled.",
    ),
    (HoldKind.BATCHED, _OUT, "Sequenced: waits until one has settled the 1 message of its batch."),
    (
        HoldKind.BATCHED,
        {**_OUT, "in_flight": 2},
        "Sequenced: waits until one has settled the 2 messages of its batch.",
    ),
    (
        HoldKind.SUSPECT,
        {"attempt": 1, "consumer": None, "failed": False},
        "1 consumer died while it had its first message: it goes alone, as soon as a consumer is free of "
        "everything else.",
    ),
    (
        HoldKind.SUSPECT,
        {"attempt": 2, "consumer": "one", "failed": False},
        "2 consumers died while they had its first message: it goes alone, as soon as consumer one is free "
        "of everything else.",
    ),
    (
        HoldKind.SUSPECT,
        {"attempt": 3, "consumer": None, "failed": True},
        "Its first message was handed over 3 times in vain: it goes alone, as soon as a consumer is free of "
        "everything else.",
    ),
    (
        HoldKind.NUMBER_MISSING,
        {"number": 2, "left_ms": 4_000},
        "Its number 2 has not come: waits for it 4000 ms more at most, or until `dispatcher groups resume`.",
    ),
    (
        HoldKind.QUEUE_UNREAD,
        _OWNER,
        "Its owner one does not read q: waits for it, or for another one to take over.",
    ),
    (
        HoldKind.QUEUE_UNREAD,
        {**_OWNER, "read_back": True},
        "q has no reader: its messages go to others first.",
    ),
    (
        HoldKind.EVICTED,
        _OWNER,
        "Its owner one is being evicted: waits until its last settles have been read.",
    ),
    (
        HoldKind.LOST,
        _OWNER,
        "Its owner one lost its connection; its messages go to others unless it returns.",
    ),
    (
        HoldKind.LOST,
        {**_OWNER, "is_owner": False},
        "Consumer one, to which it is pinned, lost its connection; its messages go to others unless it "
        "returns.",
    ),
    (HoldKind.UNHEARD, _OWNER, "Its owner one has not been heard of since this dispatcher took over."),
    (HoldKind.UNHEARD, {**_OWNER, "queued": 1}, "Whether one reads q is being looked at."),
    (
        HoldKind.QUEUE_FULL,
        _OWNER,
        "The queue of its owner one takes no more messages: waits until there is room.",
    ),
    (HoldKind.LEAVING, _OWNER, "Its owner one is leaving: waits until it has settled its messages."),
    (
        HoldKind.KEPT_FREE,
        _OWNER,
        "Its owner one gets nothing else while it tries a message that others died with.",
    ),
    (HoldKind.PREFETCH_FULL, _OWNER, "Its owner one has 2 unsettled messages, its whole prefetch."),
    (
        HoldKind.PREFETCH_FULL,
        {
            **_OWNER,
            "in_flight": 9,
            "in_flight_of": [{"group": "a", "messages": 5}, {"group": None, "messages": 2}],
        },
        "Its owner one has 9 unsettled messages, its whole prefetch: 5 of group a, 2 without a group, "
        "2 of others.",
    ),
    (
        HoldKind.PREFETCH_FULL,
        {**_OWNER, "in_flight": 1},
        "Its owner one has 1 unsettled message, its whole prefetch.",
    ),
    (
        HoldKind.PREFETCH_FULL,
        {**_OWNER, "in_flight": 0, "queued": 2},
        "Its owner one has 2 messages in its queue, its whole prefetch.",
    ),
    (
        HoldKind.PREFETCH_FULL,
        {**_OWNER, "in_flight": 1, "queued": 1},
        "Its owner one has 1 message in its queue and 1 on the way there, its whole prefetch.",
    ),
    (
        HoldKind.WINDOW_FULL,
        {"in_flight": 1, "consumer": "one", "window": 1},
        "Its window is full: waits until one of 1 message at one is settled.",
    ),
    (HoldKind.NO_CONSUMER, {"consumers": 0, "drained": 0}, "No consumer has joined this lane."),
    (HoldKind.NO_CAPACITY, {"consumers": 2, "drained": 0}, "No consumer has free capacity."),
    (
        HoldKind.NO_CAPACITY,
        {"consumers": 2, "drained": 1},
        "No consumer has free capacity (1 of 2 is drained).",
    ),
    (
        HoldKind.PARKED,
        {"queues": ["p0", "p1"]},
        "Nothing blocks it: its messages are read from p0, p1, in their turn.",
    ),
    (
        HoldKind.PARKING_UNAVAILABLE,
        {"queues": {"p0": "541 no leader"}},
        "RabbitMQ can't open its parking queue: p0 (541 no leader). Waits until it can.",
    ),
    (
        HoldKind.LIMIT_FULL,
        {},
        "Each id that waits has as many messages in flight as it may (`max_in_flight_per_group`).",
    ),
]


@pytest.fixture(scope="module")
def states() -> list[LaneState]:
    """Lanes with all capabilities: those that hand over have no others, nor have those without groups."""
    lane = LaneBench(
        parking_queues=("p0",), start_consumers=1, checks_sequence=True, sequence_timeout_ms=1_000
    ).lane
    return [
        lane.state,
        HandOverBench().lane.state,
        LaneBench("concurrent", max_in_flight_per_group=1).lane.state,
    ]


@pytest.mark.parametrize(("kind", "facts", "sentence"), CASES)
def test_a_hold_in_words(
    states: list[LaneState], kind: HoldKind, facts: dict[str, Any], sentence: str
) -> None:
    places = {HoldKind.READING_BACK: 1, HoldKind.QUEUE_UNREAD: 1, HoldKind.LIMIT_FULL: 2}
    assert text(states[places.get(kind, 0)], Hold(kind, lambda: facts)) == sentence


def test_the_manual_says_of_every_code_what_it_means_and_what_ends_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    table = page.partition("## Why a group waits")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z_]+)` \| [^|]+ \| [^|]+ \|$", table, re.MULTILINE) == list(HoldKind)


@pytest.mark.parametrize("kind", HoldKind)
def test_every_kind_has_a_sentence_and_a_code(kind: HoldKind) -> None:
    assert any(kind is case[0] for case in CASES), "say here how it reads"
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.value)
