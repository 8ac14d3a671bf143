"""A lane whose groups are unevenly spread over consumers of unequal speed, whose work is known exactly."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from dispatcher.ledger.rows import Row, row
from dispatcher.ledger.schema import Event
from tests.pipeline.ledgers import MS, START_US, HandOver, Leader, Numbers

LANE = "skew"
PREFETCH = 5
#: Messages of each group of each consumer; what one takes it, in ms; how many it settles at a time.
SLOW, FAST, GONE, IDLE = "slow", "fast", "gone", "idle"
GROUPS = {
    SLOW: {"g0": 60, "g1": 50, "g2": 40, "g3": 30, "g4": 20},
    FAST: {"h0": 120, "h1": 80},
    GONE: {"z0": 10},
}
SERVICE_MS = {SLOW: 10, FAST: 5, GONE: 8}
TOGETHER = {SLOW: 1, FAST: 2, GONE: 1}
#: All messages are of one kind: what one takes on average, and so how fast each is. Of who has settled fewer
#: than 20 nothing is known.
MEAN_MS = (200 * 10 + 200 * 5 + 10 * 8) / 410
SPEEDS = {SLOW: MEAN_MS / 10, FAST: MEAN_MS / 5, GONE: 1.0, IDLE: 1.0}


def cost_us(group: str) -> float:
    """Of a consumer of speed 1."""
    ((owner, messages),) = ((c, has[group]) for c, has in GROUPS.items() if group in has)
    return messages * SERVICE_MS[owner] * SPEEDS[owner] * MS


def plant_skew(folder: Path, lane: str = LANE, **options: object) -> None:
    """Every consumer has five messages in hand and works on the first of them without a break; so a message
    is in its hands five times as long as it works on it."""
    leader, numbers = Leader(folder, lane, **options), Numbers()
    for consumer in (*GROUPS, IDLE):
        leader.tell(_came(Event.CONSUMER_JOINED, consumer, START_US))
    hands = [hand for consumer, groups in GROUPS.items() for hand in _work(consumer, groups)]
    for arrival, hand in enumerate(sorted(hands, key=lambda hand: (hand.dispatched, hand.incarnation))):
        hand.arrival = arrival
        numbers.number(hand)
    rows = [(hand.ended or 0, hand.over()) for hand in hands]
    end_us = max(at for at, _ in rows)
    leader.tell(*(told for _, told in sorted(rows, key=lambda each: each[0])))
    leader.tell(_came(Event.CONSUMER_TAKEN_BACK, GONE, end_us))
    leader.end()


def _work(consumer: str, groups: dict[str, int]) -> Iterable[HandOver]:
    names = [group for group, messages in groups.items() for _ in range(messages)]
    step_us, together = SERVICE_MS[consumer] * MS, TOGETHER[consumer]
    ends = [START_US + (n // together + 1) * together * step_us for n in range(len(names))]
    for n, group in enumerate(names):
        begun = ends[n - PREFETCH] if n >= PREFETCH else START_US
        yield HandOver(group, 0, consumer, begun, ends[n])


def _came(event: Event, consumer: str, at_us: int) -> Row:
    detail = json.dumps({"prefetch": PREFETCH})
    return row(at_us, event, consumer=f"c-{consumer}", incarnation=consumer, detail=detail)
