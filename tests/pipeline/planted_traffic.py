"""A lane in order with two hours of uneven traffic."""

from __future__ import annotations

from pathlib import Path

from dispatcher.ledger.rows import row
from tests.pipeline.ledgers import MS, START_US, HandOver, Leader, Numbers

SECOND = 1_000 * MS
LANE = "traffic"


def plant_traffic(folder: Path) -> None:
    """600 messages of 23 groups through two queues, and samples of these."""
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
    plant_samples(leader)
    leader.end()


def plant_samples(leader: Leader) -> None:
    """Six seconds with a backlog on both sides: 3 to 1, but for two in a row in which low gets nothing."""
    got = {"high": [0, 30, 60, 100, 140, 170, 200], "low": [0, 10, 20, 20, 20, 30, 40]}
    for second in range(7):
        at = START_US + 4_000 * SECOND + second * SECOND
        for queue in ("high", "low"):
            sample = {
                "waiting": 5,
                "in_flight": 1,
                "messages": got[queue][second],
                "cost": got[queue][second],
            }
            leader.tell(row(at, "sampled", inbound=queue, detail='{"full":false}', **sample))
    # Without a backlog of low it does not count.
    at = START_US + 4_007 * SECOND
    leader.tell(row(at, "sampled", inbound="high", waiting=5, cost=900, messages=900))
    leader.tell(row(at, "sampled", inbound="low", waiting=0, cost=40, messages=40))
