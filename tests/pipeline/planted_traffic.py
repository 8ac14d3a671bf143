"""A lane in order with two hours of uneven traffic."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline.ledgers import MS, START_US, HandOver, Leader, Numbers

SECOND = 1_000 * MS
LANE = "traffic"


def plant_traffic(folder: Path) -> None:
    """600 messages of 23 groups through two queues."""
    leader, numbers = Leader(folder, LANE, inbounds=[
        {"queue": "high", "weight": 3}, {"queue": "low", "weight": 1},
    ]), Numbers()  # fmt: skip
    for number in range(600):
        group = number % 30 if number % 3 else number % 7
        at = START_US + number * 6 * SECOND
        leader.hand(numbers.number(HandOver(
            f"g{group}", number, f"i{group % 4}", at, at + (5 + number % 11) * MS,
            inbound=("high", "low")[number % 2], size=100 + number % 700, cost=1 + number % 3,
            received=at - number % 13 * MS, kind=(None, "invoice", "%07")[number % 3],
        )))  # fmt: skip
        if number % 100 == 99:
            leader.close()
    leader.end()
